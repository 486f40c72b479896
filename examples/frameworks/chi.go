package frameworks

import (
	"fmt"
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/krow/ratelimit"
)

// Chi limits a group of routes: Handler is a middleware as chi has them.
func Chi(limiter *ratelimit.Limiter) http.Handler {
	router := chi.NewRouter()
	router.Get("/healthz", func(http.ResponseWriter, *http.Request) {})
	router.Group(func(router chi.Router) {
		router.Use(limiter.Handler)
		router.Post("/clients/{name}", func(w http.ResponseWriter, r *http.Request) {
			d, _ := ratelimit.FromContext(r.Context())
			fmt.Fprintf(w, "%s: %s", chi.URLParam(r, "name"), d.Outcome)
		})
	})
	return router
}
