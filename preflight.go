package ratelimit

import "net/http"

// IsPreflight reports whether r is a CORS preflight (Fetch standard, "HTTP requests"), for [Config].Skip.
// Anybody can send one: skip them only where answering is cheap.
func IsPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions &&
		r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}
