// Package debugpage is a page that shows what a limiter does: its policies, what they admit and refuse, the busiest
// callers, and how the store is. A caller can be looked up on it, and reset. It is for those who run the service: mount
// it where pprof is, and protect it as well.
//
//	page := debugpage.New()
//	counters, err := store.NewPostgres(pool, store.PostgresConfig{
//		OnFlush: page.OnFlush, OnSweep: page.OnSweep, OnBreaker: page.OnBreaker,
//	})
//	...
//	limiter, err := ratelimit.New(counters, ratelimit.Config{OnDecision: page.OnDecision, ...})
//	...
//	private.Handle("/debug/ratelimit", page.Handler(limiter))
//
// It shows what this process has seen since it started. It keeps three minutes of it, in a memory that does not grow,
// and no address or token: callers are told apart by the hashes that stand in the store.
package debugpage

import (
	"net/http"
	"sync"
	"time"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/store"
)

// A Page keeps what it is told by the hooks of a limiter and its store, and shows it. [New] makes one. It is safe for
// concurrent use.
type Page struct {
	mu       sync.Mutex
	started  time.Time
	policies map[string]*activity
	busiest  busiest
	flushes  flushes
	sweep    sweep
	breaker  breaker
	failure  failure // the last decision without a count
}

// maxPolicies bounds how many policies are watched, of all names that there have ever been.
const maxPolicies = 200

// An activity is what has become of the requests of a policy.
type activity struct{ admitted, refused, uncounted ring }

// maxFlushes is how many statements the times are taken of.
const maxFlushes = 512

type flushes struct {
	perSecond ring
	hits      ring
	elapsed   [maxFlushes]time.Duration
	buckets   [maxFlushes]int
	n         int // of all
}

type sweep struct {
	at    time.Time
	stats store.SweepStats
}

type breaker struct {
	open  bool
	since time.Time
}

type failure struct {
	at   time.Time
	text string
}

// New returns a page that has seen nothing yet.
func New() *Page {
	return &Page{started: time.Now(), policies: make(map[string]*activity)}
}

// OnDecision is for [ratelimit.Config].OnDecision. A hook of one's own calls it in addition.
func (p *Page) OnDecision(_ *http.Request, d ratelimit.Decision) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if d.Err != nil && d.Outcome != ratelimit.Canceled {
		p.failure = failure{now, d.Err.Error()}
	}
	for i := range d.Results {
		r := &d.Results[i]
		a := p.policies[r.Policy]
		if a == nil {
			if len(p.policies) >= maxPolicies {
				continue
			}
			a = new(activity)
			p.policies[r.Policy] = a
		}
		switch {
		case r.Outcome == ratelimit.Refused:
			a.refused.add(now, 1)
		case r.Counted:
			a.admitted.add(now, 1)
		case d.Err != nil:
			a.uncounted.add(now, 1)
		}
		if r.Counted {
			p.busiest.add(now, r.Bucket, r.Policy, r.Outcome == ratelimit.Refused)
		}
	}
}

// OnFlush is for [store.PostgresConfig].OnFlush.
func (p *Page) OnFlush(s store.FlushStats) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	f := &p.flushes
	f.perSecond.add(now, 1)
	f.hits.add(now, uint32(min(s.Hits, 1<<31)))
	f.elapsed[f.n%maxFlushes], f.buckets[f.n%maxFlushes] = s.Elapsed, s.Buckets
	f.n++
	if s.Err != nil {
		p.failure = failure{now, s.Err.Error()}
	}
}

// OnSweep is for [store.PostgresConfig].OnSweep.
func (p *Page) OnSweep(s store.SweepStats) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweep = sweep{time.Now(), s}
}

// OnBreaker is for [store.PostgresConfig].OnBreaker.
func (p *Page) OnBreaker(open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.breaker = breaker{open, time.Now()}
}
