package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/store"
)

const (
	instances = 3
	callers   = 24 // of all instances together
	// mostConnections is what an instance needs: three for each of its two stores.
	mostConnections = 6
	coldKeys        = 200
	sweepInterval   = 2 * time.Second
)

// A route is what one limiter of each instance protects.
type route struct {
	name     string
	policies []ratelimit.Policy
	// strict routes count in the store that waits for the disk, and all their policies are FailClosed.
	strict bool
	// invented reports whether clients come with keys that nobody has seen before: where windows are
	// short, or their rows would not become level within a short run.
	invented bool
}

var routes = []route{
	{"single", []ratelimit.Policy{
		{Name: "single", Limit: ratelimit.PerSecond(20), Key: byKey, OnFailure: ratelimit.FailClosed},
	}, true, true},
	{"pair", []ratelimit.Policy{ // what one of them refuses is given back to both
		{Name: "pair.key", Limit: ratelimit.PerSecond(5), Key: byKey, OnFailure: ratelimit.FailClosed},
		{Name: "pair.all", Limit: ratelimit.Limit{Requests: 500, Window: 5 * time.Second}, Key: byAll, OnFailure: ratelimit.FailClosed},
	}, true, true},
	{"open", []ratelimit.Policy{
		{Name: "open.key", Limit: ratelimit.Limit{Requests: 30, Window: 5 * time.Second}, Key: byKey},
		{Name: "open.all", Limit: ratelimit.PerMinute(15_000), Key: byAll},
	}, false, true},
	{"local", []ratelimit.Policy{
		{Name: "local", Limit: ratelimit.PerMinute(60), Key: byKey, OnFailure: ratelimit.FailLocal},
	}, false, false},
}

var byKey, byAll = ratelimit.Header("X-Key"), ratelimit.Constant("all")

// An instance is what one process of the service would be.
type instance struct {
	pool     *pgxpool.Pool
	stores   []*watched
	handlers []http.Handler // by route
}

// A visit is a request on its way, as its context holds it.
type visit struct {
	key      string
	counts   []ratelimit.Count // nil if the store has not counted it in time
	decision ratelimit.Decision
	decided  time.Time
	admitted bool
}

type visitKey struct{}

// watched is a store that notes in each visit what was counted for it.
type watched struct {
	*store.Postgres
	last atomic.Int64 // when the last call that was counted began, in nanoseconds since 1970
}

func (w *watched) Add(ctx context.Context, hits []ratelimit.Hit) ([]ratelimit.Count, error) {
	began := time.Now().UnixNano()
	counts, err := w.Postgres.Add(ctx, hits)
	if err == nil {
		ctx.Value(visitKey{}).(*visit).counts = slices.Clone(counts)
		for last := w.last.Load(); last < began && !w.last.CompareAndSwap(last, began); last = w.last.Load() {
		}
	}
	return counts, err
}

// open makes the instances.
func (s *soak) open() error {
	quiet := slog.New(slog.DiscardHandler) // the faults are on purpose, and the tally has the errors
	for range instances {
		pool, err := s.db.pool(application, mostConnections)
		if err != nil {
			return err
		}
		i := &instance{pool: pool}
		s.instances = append(s.instances, i)
		for _, strict := range []bool{false, true} {
			p, err := store.NewPostgres(pool, store.PostgresConfig{
				Schema:            schema,
				SynchronousCommit: strict,
				SweepInterval:     sweepInterval,
				OnSweep:           s.tally.sweep,
				Logger:            quiet,
			})
			if err != nil {
				return err
			}
			i.stores = append(i.stores, &watched{Postgres: p})
		}
		for _, r := range routes {
			counter := i.stores[0]
			if r.strict {
				counter = i.stores[1]
			}
			limiter, err := ratelimit.New(counter, ratelimit.Config{
				Policies: r.policies,
				Logger:   quiet,
				OnDecision: func(r *http.Request, d ratelimit.Decision) {
					v := r.Context().Value(visitKey{}).(*visit)
					v.decision, v.decided = d, time.Now()
				},
			})
			if err != nil {
				return err
			}
			i.handlers = append(i.handlers, limiter.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				r.Context().Value(visitKey{}).(*visit).admitted = true
			})))
		}
	}
	return nil
}

// close closes the pools, which waits until all their connections have been given back. It reports false if
// that does not come.
func (s *soak) close() bool {
	var closed atomic.Int64
	for _, i := range s.instances {
		go func() {
			i.pool.Close()
			closed.Add(1)
		}()
	}
	return within(patience, func() bool { return int(closed.Load()) == len(s.instances) })
}

// load has callers send requests until ctx ends, each at its pace or slower.
func (s *soak) load(ctx context.Context, rate int) {
	var wg sync.WaitGroup
	for n := range callers {
		wg.Go(func() {
			tick := time.NewTicker(time.Second * callers / time.Duration(rate))
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					s.send(s.instances[n%instances])
				}
			}
		})
	}
	wg.Wait()
}

// send sends one request through the middleware of a route, and has what comes of it checked.
func (s *soak) send(i *instance) {
	n := rand.IntN(len(routes))
	key := "hot"
	switch p := rand.IntN(100); {
	case p >= 80 && routes[n].invented:
		key = fmt.Sprint("invented ", rand.Uint64())
	case p >= 30:
		key = fmt.Sprint("cold ", rand.IntN(coldKeys))
	}
	v := &visit{key: key}
	// The request does not end with the load: what was counted for it is to be known.
	r := httptest.NewRequestWithContext(context.WithValue(context.Background(), visitKey{}, v), http.MethodGet, "/", nil)
	r.Header.Set("X-Key", key)
	w := httptest.NewRecorder()
	began := time.Now()
	i.handlers[n].ServeHTTP(w, r)

	s.tally.add(v, s.faults.during(began))
	s.ledger.answer(&routes[n], v, w)
	s.ledger.record(&routes[n], v, s.faults)
}
