package frameworks_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/examples/frameworks"
)

// One request is admitted and the next one refused, and the client is told of it in the same words by all.
func TestHTTP(t *testing.T) {
	t.Parallel()
	servers := map[string]func(*ratelimit.Limiter) http.Handler{
		"net/http": frameworks.NetHTTP,
		"chi":      frameworks.Chi,
		"gin":      frameworks.Gin,
		"echo":     frameworks.Echo,
	}
	for name, newServer := range servers {
		for in, newStore := range stores {
			t.Run(name+" in "+in, func(t *testing.T) {
				t.Parallel()
				server := newServer(newLimiter(t, newStore(t), ratelimit.Policy{Name: "clients", Limit: once}))

				admitted := do(server, http.MethodPost, "/clients/a")
				check(t, admitted, http.StatusOK, map[string]string{
					"RateLimit-Policy": `"clients";q=1;w=31622400`, "Retry-After": "", "Cache-Control": "",
				})
				// The handler has the route's parameter and the decision.
				if got, want := admitted.Body.String(), "a: allowed"; got != want {
					t.Errorf("body is %q, want %q", got, want)
				}

				refused := do(server, http.MethodPost, "/clients/b")
				after := refused.Header().Get("Retry-After")
				if s, err := strconv.Atoi(after); err != nil || s < 1 || s > 31622400 {
					t.Errorf("Retry-After is %q, want the seconds until the window ends", after)
				}
				check(t, refused, http.StatusTooManyRequests, map[string]string{
					"RateLimit-Policy": `"clients";q=1;w=31622400`, "RateLimit": `"clients";r=0;t=` + after,
					"Cache-Control": "no-store", "Content-Type": "application/problem+json",
				})
				want := fmt.Sprintf(`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded",`+
					`"status":429,"detail":"Try again in %s seconds.","violated-policies":["clients"]}`+"\n", after)
				if diff := cmp.Diff(want, refused.Body.String()); diff != "" {
					t.Errorf("body of the refusal (-want +got):\n%s", diff)
				}

				check(t, do(server, http.MethodGet, "/healthz"), http.StatusOK, map[string]string{"RateLimit": "", "RateLimit-Policy": ""})
			})
		}
	}
}

func check(t *testing.T, w *httptest.ResponseRecorder, status int, fields map[string]string) {
	t.Helper()
	if w.Code != status {
		t.Errorf("status is %d, want %d", w.Code, status)
	}
	got := make(map[string]string)
	for name := range fields {
		got[name] = w.Header().Get(name)
	}
	if diff := cmp.Diff(fields, got); diff != "" {
		t.Errorf("fields of the %d (-want +got):\n%s", status, diff)
	}
}

// do returns all that was written, also past Content-Length, where a server would hide what a handler adds to a refusal.
func do(server http.Handler, method, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	server.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w
}
