package frameworks

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/krow/ratelimit"
)

// Gin limits a group of routes.
func Gin(limiter *ratelimit.Limiter) http.Handler {
	router := gin.New()
	router.GET("/healthz", func(*gin.Context) {})
	limited := router.Group("/", GinMiddleware(limiter))
	limited.POST("/clients/:name", func(c *gin.Context) {
		d, _ := ratelimit.FromContext(c.Request.Context())
		c.String(http.StatusOK, "%s: %s", c.Param("name"), d.Outcome)
	})
	return router
}

// GinMiddleware makes a middleware of gin. The policies' functions see the *http.Request: what an authentication
// further out has found, it has to put in the request's context, and not only in gin's.
func GinMiddleware(limiter *ratelimit.Limiter) gin.HandlerFunc {
	return func(c *gin.Context) {
		passed := false
		next := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			passed = true
			c.Request = r
			c.Next()
		})
		limiter.Handler(next).ServeHTTP(c.Writer, c.Request)
		if !passed {
			c.Abort()
		}
	}
}
