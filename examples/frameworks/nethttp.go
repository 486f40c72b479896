package frameworks

import (
	"fmt"
	"net/http"

	"github.com/krow/ratelimit"
)

// NetHTTP limits one route of a mux. To limit all of them, wrap the mux.
func NetHTTP(limiter *ratelimit.Limiter) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.Handle("POST /clients/{name}", limiter.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d, _ := ratelimit.FromContext(r.Context())
		fmt.Fprintf(w, "%s: %s", r.PathValue("name"), d.Outcome)
	})))
	return mux
}
