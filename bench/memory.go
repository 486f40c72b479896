package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"

	"github.com/go-chi/httprate"
	"github.com/sethvargo/go-limiter/httplimit"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2/store/memstore"
	ulmemory "github.com/ulule/limiter/v3/drivers/store/memory"
)

// openHTTPRate has no call that decides without writing headers: its level of the store includes them.
func openHTTPRate(_ *environment, quota quota) (*subject, error) {
	l := httprate.NewRateLimiter(quota.requests, window, httprate.WithKeyFuncs(func(r *http.Request) (string, error) {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		return httprate.CanonicalizeIP(host), err
	}))
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	return &subject{
		decide: func(ctx context.Context, key int) (bool, error) {
			return !l.OnLimit(httptest.NewRecorder(), r, quota.keys[key]), nil
		},
		middleware: l.Handler,
		close:      func() {},
	}, nil
}

func openGoLimiter(_ *environment, quota quota) (*subject, error) {
	s, err := memorystore.New(&memorystore.Config{Tokens: uint64(quota.requests), Interval: window, InitialAlloc: 2 * len(quota.keys)})
	if err != nil {
		return nil, err
	}
	m, err := httplimit.NewMiddleware(s, httplimit.IPKeyFunc())
	if err != nil {
		return nil, err
	}
	return &subject{
		decide: func(ctx context.Context, key int) (bool, error) {
			_, _, _, ok, err := s.Take(ctx, quota.keys[key])
			return ok, err
		},
		middleware: m.Handle,
		close:      func() { _ = s.Close(context.Background()) },
	}, nil
}

func openUluleMemory(_ *environment, quota quota) (*subject, error) {
	return ulule(ulmemory.NewStore(), quota, func() {}), nil
}

func openThrottledMemory(_ *environment, quota quota) (*subject, error) {
	s, err := memstore.NewCtx(0) // with no bound it is a map, which is faster than its LRU
	if err != nil {
		return nil, err
	}
	return gcra(s, quota, func() {})
}
