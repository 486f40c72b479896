package main

import (
	"context"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/store"
)

const (
	warmUp = 10 * time.Second
	// mostSamples bounds the memory of a long run.
	mostSamples = 400
	// overdueAfter is when an expired row is overdue: the store leaves it alone for a second and its
	// timeout, and then the next sweep comes. A table in trouble gets the time that it takes to resume.
	overdueAfter = 2*sweepInterval + 2*time.Second + resumeWithin
	// failuresAllowed is the share of the decisions that may fail while there is no fault, on a machine that is
	// busy with other things.
	failuresAllowed = 0.01
)

// A tally counts decisions and sweeps.
type tally struct {
	admitted, refused, remembered, unavailable atomic.Int64
	uncounted, local                           atomic.Int64 // among the admitted
	failed, failedInPeace                      atomic.Int64
	sweeps, swept, sweepsFailed                atomic.Int64
	asked                                      histogram // how long decisions took for which the store was asked
}

func (t *tally) add(v *visit, fault bool) {
	d := v.decision
	switch d.Outcome {
	case ratelimit.Allowed:
		t.admitted.Add(1)
	case ratelimit.Refused:
		t.refused.Add(1)
	case ratelimit.Unavailable:
		t.unavailable.Add(1)
	}
	remembered := slices.ContainsFunc(d.Results, func(r ratelimit.Result) bool { return r.Remembered })
	if remembered {
		t.remembered.Add(1)
	} else {
		t.asked.add(d.Elapsed)
	}
	if d.Err == nil {
		return
	}
	t.failed.Add(1)
	if !fault {
		t.failedInPeace.Add(1)
	}
	if d.Outcome == ratelimit.Allowed {
		if slices.ContainsFunc(d.Results, func(r ratelimit.Result) bool { return r.Local }) {
			t.local.Add(1)
		} else {
			t.uncounted.Add(1)
		}
	}
}

func (t *tally) decisions() int64 {
	return t.admitted.Load() + t.refused.Load() + t.unavailable.Load()
}

func (t *tally) sweep(s store.SweepStats) {
	t.sweeps.Add(1)
	t.swept.Add(s.Deleted)
	if s.Err != nil {
		t.sweepsFailed.Add(1)
	}
}

// A histogram counts durations, a tenth apart from each other.
type histogram [200]atomic.Int64

func (h *histogram) add(d time.Duration) {
	i := int(math.Log(max(float64(d.Microseconds()), 1)) / math.Log(1.1))
	h[min(i, len(h)-1)].Add(1)
}

// percentile returns what p of a hundred durations do not exceed by more than a tenth.
func (h *histogram) percentile(p float64) time.Duration {
	var all, seen int64
	for i := range h {
		all += h[i].Load()
	}
	for i := range h {
		if seen += h[i].Load(); float64(seen) >= float64(all)*p/100 && seen > 0 {
			return time.Duration(math.Pow(1.1, float64(i+1))) * time.Microsecond
		}
	}
	return 0
}

// A sample is what is to stay level.
type sample struct {
	observed
	heap       uint64 // after a collection
	goroutines int
	pooled     int // connections, as the pools know them
}

// watch takes a sample now and then, and prints a line. None is taken during a fault.
func (s *soak) watch(ctx context.Context, duration time.Duration) {
	every := max(time.Second, duration/mostSamples)
	printed := time.Now()
	for wait(ctx, every) {
		s.ledger.settle(time.Now(), s.faults)
		if !s.faults.one.TryLock() {
			continue
		}
		now, err := s.sample(ctx)
		s.faults.one.Unlock()
		if err != nil {
			s.ledger.check(ctx.Err() != nil, "the database did not answer the observer at %s: %v", s.clock(), err)
			continue
		}
		if time.Since(s.began) >= warmUp {
			s.samples = append(s.samples, now)
		}
		s.ledger.check(now.Connections <= instances*mostConnections, "%d connections at %s, want at most %d", now.Connections, s.clock(), instances*mostConnections)
		s.ledger.check(now.Overdue <= overdueAfter, "a row has been expired for %v at %s, want at most %v", now.Overdue, s.clock(), overdueAfter)
		if time.Since(printed) >= max(5*time.Second, duration/60) {
			printed = time.Now()
			t := &s.tally
			s.out.Printf("%s  %d decisions: %d admitted, %d refused, %d unavailable; %d rows, %s; heap %s, %d goroutines, %d connections",
				s.clock(), t.decisions(), t.admitted.Load(), t.refused.Load(), t.unavailable.Load(),
				now.Rows, megabytes(now.Size), megabytes(int64(now.heap)), now.goroutines, now.Connections)
		}
	}
}

func (s *soak) sample(ctx context.Context) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	seen, err := s.db.observe(ctx)
	if err != nil {
		return sample{}, err
	}
	now := sample{observed: seen, goroutines: runtime.NumGoroutine()}
	for _, i := range s.instances {
		now.pooled += int(i.pool.Stat().TotalConns())
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	now.heap = m.HeapAlloc
	return now, nil
}

// levels are the quantities that stay level: at the end not more than factor times what they were after the
// warm-up, and what is added to that. Connections come and go below what watch holds them to.
var levels = []struct {
	name   string
	of     func(sample) float64
	text   func(float64) string
	factor float64
	plus   float64
}{
	{"heap", func(s sample) float64 { return float64(s.heap) }, asMegabytes, 1.5, 8 << 20},
	{"goroutines", func(s sample) float64 { return float64(s.goroutines) }, asNumber, 1, 10},
	{"connections, by the database", func(s sample) float64 { return float64(s.Connections) }, asNumber, 1, instances * mostConnections},
	{"connections, by the pools", func(s sample) float64 { return float64(s.pooled) }, asNumber, 1, instances * mostConnections},
	{"rows", func(s sample) float64 { return float64(s.Rows) }, asNumber, 1.5, 2000},
	{"table and indexes", func(s sample) float64 { return float64(s.Size) }, asMegabytes, 1.5, 4 << 20},
}

// quarters returns the medians of the first and the last quarter of the samples. They are few in a run that was
// ended early: it then reports false.
func quarters(samples []sample, of func(sample) float64) (first, last float64, ok bool) {
	n := len(samples) / 4
	if n < 2 {
		return 0, 0, false
	}
	middle := func(some []sample) float64 {
		var values []float64
		for _, s := range some {
			values = append(values, of(s))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	return middle(samples[:n]), middle(samples[len(samples)-n:]), true
}

// judge checks what can be told at the end only.
func (s *soak) judge(lasted time.Duration) {
	for _, level := range levels {
		first, last, ok := quarters(s.samples, level.of)
		s.ledger.check(!ok || last <= first*level.factor+level.plus, "%s: %s after the warm-up and %s at the end, want at most %s",
			level.name, level.text(first), level.text(last), level.text(first*level.factor+level.plus))
	}
	decisions, failed := s.tally.decisions(), s.tally.failedInPeace.Load()
	s.ledger.check(float64(failed) <= failuresAllowed*float64(decisions), "%d of %d decisions failed while there was no fault, want at most %g %%", failed, decisions, 100*failuresAllowed)
	if lasted > warmUp {
		s.ledger.check(s.tally.swept.Load() > 0, "no expired row was deleted")
		s.ledger.check(s.tally.admitted.Load() > 0 && s.tally.refused.Load() > 0 && s.ledger.strict > 0,
			"the load has not reached what is tested: %d admitted, %d refused, %d windows", s.tally.admitted.Load(), s.tally.refused.Load(), s.ledger.strict)
	}
}
