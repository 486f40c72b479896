package main

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A sample is what a system did in one slice of time.
type sample struct {
	perSecond float64 // decisions that came without an error
	p50, p99  time.Duration
	errors    int64
	err       error // the first of them
}

// timed is of how many operations one is timed by itself: reading the clock costs as much as a decision of
// the fastest systems.
const timed = 8

// measure has callers operate for about d.
func measure(ctx context.Context, callers int, d time.Duration, operation func() func() error) sample {
	runtime.GC() // what others have left
	var (
		wg    sync.WaitGroup
		over  atomic.Bool
		mu    sync.Mutex
		s     sample
		total int64
		times []time.Duration
	)
	operations := make([]func() error, callers)
	for i := range operations {
		operations[i] = operation()
	}
	began := time.Now()
	timer := time.AfterFunc(d, func() { over.Store(true) })
	defer timer.Stop()
	for _, f := range operations {
		wg.Go(func() {
			var done, failed int64
			var first error
			own := make([]time.Duration, 0, 1024)
			for i := 0; !over.Load() && ctx.Err() == nil; i++ {
				var err error
				if i%timed == 0 {
					start := time.Now()
					err = f()
					own = append(own, time.Since(start))
				} else {
					err = f()
				}
				if err != nil {
					failed++
					first = cmp.Or(first, err)
					continue
				}
				done++
			}
			mu.Lock()
			defer mu.Unlock()
			total += done
			s.errors += failed
			s.err = cmp.Or(s.err, first)
			times = append(times, own...)
		})
	}
	wg.Wait()
	s.perSecond = float64(total) / time.Since(began).Seconds()
	slices.Sort(times)
	if n := len(times); n > 0 {
		s.p50, s.p99 = times[n/2], times[n*99/100]
	}
	return s
}

// median returns the middle value, or the lower one of the two.
func median[T cmp.Ordered](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)/2]
}
