package ratelimit

import "net/http"

// IsPreflight tells whether r is a preflight request of CORS (Fetch standard, section "HTTP
// requests"): OPTIONS with Origin and Access-Control-Request-Method. Browsers send them by
// themselves and without credentials. It fits [Config].Skip.
//
// Anybody can send such a request. Skip them only where answering OPTIONS is cheap, as it is for
// a CORS middleware.
func IsPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions &&
		r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}
