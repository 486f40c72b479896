package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"time"
)

// A workload is what every system that it fits is put through.
type workload struct {
	name    string
	level   level
	callers int
	keys    int
	refused bool // the callers ask for more than the quota allows
	rows    int  // rows of other buckets that the table has before
	// families and names choose the systems; nothing chooses all that have the level.
	families []family
	names    []string
}

// A level is how much of a system is measured.
type level string

const (
	storeLevel      level = "store"      // one decision
	middlewareLevel level = "middleware" // a request through the whole middleware, with httptest's recorder
)

func workloads(callers, keys int) []workload {
	return []workload{
		{name: "hot", level: storeLevel, callers: callers, keys: 1},
		{name: "spread", level: storeLevel, callers: callers, keys: keys},
		{name: "single", level: storeLevel, callers: 1, keys: 1, families: []family{inPostgres, inRedis}},
		{name: "refused", level: middlewareLevel, callers: callers, keys: 1, refused: true},
		{name: "admitted", level: middlewareLevel, callers: callers, keys: keys, families: []family{inMemory}},
		{name: "hot", level: middlewareLevel, callers: callers, keys: 1, families: []family{inPostgres, inRedis}},
		{name: "spread", level: middlewareLevel, callers: callers, keys: keys, families: []family{inPostgres, inRedis}},
	}
}

// takes reports whether a system is measured in the workload. The bare upsert is no limiter: it is only there
// for a lone caller.
func (w *workload) takes(s *system) bool {
	if s.name == bareUpsert && w.name != "single" {
		return false
	}
	return (len(w.families) == 0 || slices.Contains(w.families, s.family)) &&
		(len(w.names) == 0 || slices.Contains(w.names, s.name))
}

// A run is one system in one workload.
type run struct {
	workload *workload
	system   *system
	subject  *subject
	samples  []sample
	err      error // why it could not be opened
}

// has reports whether the system has the level of the workload.
func (r *run) has() bool {
	return r.workload.level == storeLevel || r.subject.middleware != nil
}

// operation returns what one caller does again and again. Requests are one for each key, which nobody changes.
func (r *run) operation(ctx context.Context, requests []*http.Request) func() error {
	pick := func() int { return 0 }
	if r.workload.keys > 1 {
		random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
		pick = func() int { return random.IntN(r.workload.keys) }
	}
	if r.workload.level == storeLevel {
		ctx := context.WithoutCancel(ctx) // waiting for what may end costs all of them more, and nothing ends here
		return func() error {
			admitted, err := r.subject.decide(ctx, pick())
			if err == nil && !admitted {
				err = fmt.Errorf("refused below the limit")
			}
			return err
		}
	}
	handler := r.subject.middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	want := http.StatusOK
	if r.workload.refused {
		want = http.StatusTooManyRequests
	}
	return func() error {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, requests[pick()])
		if recorder.Code != want {
			return fmt.Errorf("status %d, want %d", recorder.Code, want)
		}
		return nil
	}
}

// measure runs every system that the workload takes, in turn and in several rounds, so that whatever
// else the machine does falls on all alike. A system that cannot be opened is in the result with its error.
func (w *workload) measure(ctx context.Context, env environment, rounds int, slice time.Duration) (_ []*run, err error) {
	fresh, err := env.fresh(ctx, w.rows)
	if err != nil {
		return nil, err
	}
	defer func() {
		if dropErr := fresh.drop(context.WithoutCancel(ctx)); err == nil {
			err = dropErr
		}
	}()
	quota := quota{requests: 1_000_000_000, keys: addresses(w.keys)}
	if w.refused {
		quota.requests = 1
	}
	var requests []*http.Request
	if w.level == middlewareLevel {
		for _, key := range quota.keys {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.RemoteAddr = key + ":40000"
			requests = append(requests, r)
		}
	}
	var runs []*run
	for _, s := range systems() {
		if !w.takes(&s) {
			continue
		}
		r := &run{workload: w, system: &s}
		if r.subject, r.err = s.open(fresh, quota); r.err == nil {
			defer r.subject.close()
			if !r.has() {
				continue
			}
		}
		runs = append(runs, r)
	}
	for round := range rounds + 1 {
		for i := range runs {
			r := runs[(i+round)%len(runs)]
			if r.err != nil {
				continue
			}
			d := slice
			if round == 0 { // connections, plans, rows
				d = slice / 2
			}
			s := measure(ctx, w.callers, d, func() func() error { return r.operation(ctx, requests) })
			if round > 0 {
				r.samples = append(r.samples, s)
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
		}
	}
	return runs, nil
}
