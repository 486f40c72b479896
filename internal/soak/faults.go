package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// resumeWithin is how soon after a fault every store must count again. The breaker alone may take a
	// second, and each statement that is lost on the way a quarter of one.
	resumeWithin = 5 * time.Second
	// giveUp is when the wait for that ends.
	giveUp = 30 * time.Second
	// lastFault is how long before the end no further fault begins.
	lastFault = 8 * time.Second
)

// A fault brings trouble about and ends it. It holds the trouble until wait returns.
type fault struct {
	name string
	do   func(ctx context.Context, db *database, wait func()) error
}

var allFaults = []fault{
	{"pause", func(ctx context.Context, db *database, wait func()) error {
		if err := db.server.Pause(ctx); err != nil {
			return err
		}
		wait()
		return db.server.Resume()
	}},
	{"crash", func(ctx context.Context, db *database, wait func()) error {
		if err := db.server.Kill(ctx); err != nil {
			return err
		}
		wait()
		return db.server.Restart(ctx)
	}},
	{"cut off", func(ctx context.Context, db *database, _ func()) error {
		_, err := db.admin.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1", application)
		return err
	}},
	{"read-only", func(ctx context.Context, db *database, wait func()) error {
		if err := db.configure(ctx, "default_transaction_read_only", "on"); err != nil {
			return err
		}
		wait()
		return db.configure(ctx, "default_transaction_read_only", "")
	}},
	{"locked row", func(ctx context.Context, db *database, wait func()) error {
		return pgx.BeginFunc(ctx, db.admin, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT FROM "+schema+".rate_limits ORDER BY expires_at DESC, count DESC LIMIT 1 FOR UPDATE")
			wait()
			return err
		})
	}},
}

// faults brings them about, one after another, and knows when there was one.
type faults struct {
	soak   *soak
	random *rand.Rand
	// one is held while a fault and the time to resume last.
	one sync.Mutex

	mu      sync.Mutex
	spans   []span
	kinds   map[string]*kind
	longest time.Duration // to resume
}

// A span is the time of a fault, until all stores have counted again. Its end is zero while it lasts.
type span struct {
	began, ended time.Time
	crash        bool
}

type kind struct {
	times   int
	longest time.Duration // to resume
}

func newFaults(s *soak, seed uint64) *faults {
	return &faults{soak: s, random: rand.New(rand.NewPCG(seed, 0)), kinds: make(map[string]*kind)}
}

// run has every kind come once, in some order, and again in another, with some seconds between them.
func (f *faults) run(ctx context.Context, end time.Time) error {
	var order []int
	for {
		pause := time.Duration(2+4*f.random.Float64()) * time.Second
		hold := time.Duration((0.3 + 1.5*f.random.Float64()) * float64(time.Second))
		if len(order) == 0 {
			order = f.random.Perm(len(allFaults))
		}
		next := allFaults[order[0]]
		order = order[1:]
		if !wait(ctx, pause) || time.Until(end) < lastFault {
			return nil
		}
		if err := f.once(ctx, next, hold); err != nil {
			return fmt.Errorf("bringing about a fault (%s): %w", next.name, err)
		}
	}
}

// once brings a fault about and waits until all stores count again.
func (f *faults) once(ctx context.Context, next fault, hold time.Duration) error {
	f.one.Lock()
	defer f.one.Unlock()
	f.begin(next.name == "crash")
	// What was begun is ended, even if the run is over.
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	began := time.Now()
	if err := next.do(own, f.soak.db, func() { wait(ctx, hold) }); err != nil {
		return err
	}
	ended := time.Now()
	resumed := within(giveUp, func() bool { return ctx.Err() != nil || f.soak.counted(ended) })
	took := time.Since(ended)
	f.end(next.name, took)
	if ctx.Err() != nil {
		return nil // there is no load any more
	}
	f.soak.ledger.check(resumed && took <= resumeWithin, "after a fault (%s) at %s counting resumed in %v only, want %v", next.name, f.soak.clock(), took, resumeWithin)
	f.soak.out.Printf("%s  %s for %.1f s, every store counts again after %.2f s", f.soak.clock(), next.name, ended.Sub(began).Seconds(), took.Seconds())
	return nil
}

func (f *faults) begin(crash bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spans = append(f.spans, span{began: time.Now(), crash: crash})
}

func (f *faults) end(name string, took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spans[len(f.spans)-1].ended = time.Now()
	k := f.kinds[name]
	if k == nil {
		k = new(kind)
		f.kinds[name] = k
	}
	k.times++
	k.longest = max(k.longest, took)
	f.longest = max(f.longest, took)
}

// during reports whether a request that began then, and ends now, has met a fault.
func (f *faults) during(began time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.spans) == 0 {
		return false
	}
	last := f.spans[len(f.spans)-1]
	return last.ended.IsZero() || began.Before(last.ended)
}

// crashes returns how many crashes there were between two moments. One that begins just before the
// first may still have cost what was counted after it.
func (f *faults) crashes(from, to time.Time) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, s := range f.spans {
		if s.crash && s.began.Before(to) && (s.ended.IsZero() || s.ended.After(from)) {
			n++
		}
	}
	return n
}

// counted reports whether every store has counted something that began after a moment.
func (s *soak) counted(after time.Time) bool {
	for _, i := range s.instances {
		for _, w := range i.stores {
			if w.last.Load() <= after.UnixNano() {
				return false
			}
		}
	}
	return true
}

// wait waits, and reports false if ctx ends first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
