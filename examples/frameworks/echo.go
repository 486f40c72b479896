package frameworks

import (
	"net/http"

	"github.com/labstack/echo/v5"

	"github.com/krow/ratelimit"
)

// Echo limits a group of routes.
func Echo(limiter *ratelimit.Limiter) http.Handler {
	e := echo.New()
	e.GET("/healthz", func(c *echo.Context) error { return c.NoContent(http.StatusOK) })
	limited := e.Group("", echo.WrapMiddleware(limiter.Handler))
	limited.POST("/clients/:name", func(c *echo.Context) error {
		d, _ := ratelimit.FromContext(c.Request().Context())
		return c.String(http.StatusOK, c.Param("name")+": "+string(d.Outcome))
	})
	return e
}
