package store_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/goroutines"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

// Whatever the load, a store has two counting statements in flight at most, never on the same bucket, and
// one that sweeps: it takes three connections of a large pool (row 47).
func TestFewStatementsInFlight(t *testing.T) {
	t.Parallel()
	const callers, calls = 64, 40
	r := newRecorder()
	pool := testdb.Pool(t, testdb.New(t), maxConns(20), r.trace)
	swept := make(chan store.SweepStats, callers*calls)
	s := newStore(t, pool, store.PostgresConfig{
		SweepInterval: time.Hour,
		OnSweep:       func(s store.SweepStats) { swept <- s },
	})
	round := func(i int) {
		for call := range calls {
			s.DueSweep() // far more often than any interval makes it
			if call%2 == 0 {
				if _, err := s.Add(t.Context(), many(fmt.Sprint("cold ", i, call), store.MinShare)); err != nil {
					t.Error(err)
				}
				continue
			}
			counts, err := s.Add(t.Context(), hits("hot", fmt.Sprint("warm ", i%8)))
			if err != nil {
				t.Error(err)
				return
			}
			s.GiveBack([]ratelimit.Charge{{Bucket: "hot", Start: counts[0].Start, N: 1}})
		}
	}
	together(callers, round)
	for n := 0; n < 20 && r.peak("INSERT") < 2; n++ { // a busy machine may answer one before there is another
		together(callers, round)
	}
	if got := addOne(t, s, hit("hot")); got != 1 {
		t.Errorf("total is %d after all was given back, want 1", got)
	}
	receive(t, "a sweep has run", swept)

	r.mu.Lock()
	defer r.mu.Unlock()
	for key, most := range r.most {
		if want := map[string]int{"all": 3, "INSERT": 2, "UPDATE": 2}[key]; most > max(want, 1) {
			t.Errorf("%s: %d statements were in flight at once, want at most %d", key, most, max(want, 1))
		}
	}
	for _, key := range []string{"INSERT", "DELETE", "UPDATE", "bucket hot"} {
		if want := map[string]int{"INSERT": 2}[key]; r.most[key] < max(want, 1) {
			t.Errorf("%s: %d statements were in flight at once, so the test did not reach what it tests", key, r.most[key])
		}
	}
	if n := pool.Stat().NewConnsCount(); n > 3 {
		t.Errorf("%d connections were made, want at most 3", n)
	}
}

// A hit that finds the store idle goes at once and alone, with no timer and no further hit to set
// it off. Those that come until it is answered share the next statement, which goes beside it as soon as it is
// large enough, and the next two.
func TestFirstHitGoesAtOnce(t *testing.T) {
	t.Parallel()
	g := newGate(testdb.Pool(t, testdb.New(t)))
	s := newStore(t, g, store.PostgresConfig{})
	const keys = 64 // G5: over a slow link these take the time of two round trips, not of 64
	var wg sync.WaitGroup
	call := func(i int) {
		wg.Go(func() {
			if got := addOne(t, s, hit(fmt.Sprint("key ", i))); got != 1 {
				t.Errorf("total of key %d is %d, want 1", i, got)
			}
		})
	}
	call(0)
	got := []int{g.next(t)}
	for i := 1; i < keys; i++ {
		call(i)
	}
	got = append(got, g.next(t))
	eventually(t, "the others are queued", func() bool { return s.Queued() == keys-1-store.MinShare })
	for range 2 {
		g.open <- struct{}{} // for either of those in flight
		got = append(got, g.next(t))
	}
	for range 2 {
		g.open <- struct{}{}
	}
	wg.Wait()
	if diff := cmp.Diff([]int{1, store.MinShare, store.MinShare, keys - 1 - 2*store.MinShare}, got); diff != "" {
		t.Errorf("buckets of the statements (-want +got):\n%s", diff)
	}
}

// While a statement waits for a row, a hundred callers of that row gather behind it. One further
// statement counts them all, and each gets a place of its own.
func TestWaitingCallersShareAStatement(t *testing.T) {
	t.Parallel()
	const callers = 100
	url := testdb.New(t)
	r := newRecorder()
	pool := testdb.Pool(t, url, r.trace)
	var flushes []store.FlushStats // never two at once, since all are on one bucket
	s := newStore(t, pool, store.PostgresConfig{OnFlush: func(f store.FlushStats) { flushes = append(flushes, f) }})
	observer := testdb.Pool(t, url)
	release := lock(t, url, "a")

	got := make([]int64, 1+callers)
	var wg sync.WaitGroup
	wg.Go(func() { got[0] = addOne(t, s, hit("a")) })
	awaitBlocked(t, observer, 1)
	for i := range callers {
		wg.Go(func() { got[1+i] = addOne(t, s, hit("a")) })
	}
	eventually(t, "all callers are queued", func() bool { return s.Queued() == callers })
	release()
	wg.Wait()

	if got[0] != 1 {
		t.Errorf("the first total is %d, want 1", got[0])
	}
	slices.Sort(got)
	for i, total := range got {
		if total != int64(i+1) {
			t.Fatalf("totals are %v, want 1 to %d", got, 1+callers)
		}
	}
	if n := r.sent("INSERT"); n != 2 {
		t.Errorf("%d statements counted %d hits, want 2", n, len(got))
	}
	for i := range flushes {
		if flushes[i].Elapsed <= 0 {
			t.Errorf("statement %d took %v", i, flushes[i].Elapsed)
		}
		flushes[i].Elapsed = 0
	}
	if diff := cmp.Diff([]store.FlushStats{{Buckets: 1, Hits: 1}, {Buckets: 1, Hits: callers}}, flushes); diff != "" {
		t.Errorf("what OnFlush was told (-want +got):\n%s", diff)
	}
}

// A hot bucket costs one statement per round trip, however many callers it has.
func TestHotBucketCostsFewStatements(t *testing.T) {
	t.Parallel()
	const callers, calls = 64, 50
	r := newRecorder()
	s := newStore(t, testdb.Pool(t, testdb.New(t), r.trace), store.PostgresConfig{})
	together(callers, func(int) {
		for range calls {
			addOne(t, s, hit("a"))
		}
	})
	if got := addOne(t, s, hit("a")); got != callers*calls+1 {
		t.Errorf("total is %d, want %d", got, callers*calls+1)
	}
	// With all callers in each it would be 50. A machine that is busy with other things may wake some late.
	if n := r.sent("INSERT"); n > callers*calls/8 {
		t.Errorf("%d hits took %d statements, want at most an eighth", callers*calls, n)
	}
}

// Statements are bounded: 512 buckets at most, unless one call holds more.
func TestStatementsAreBounded(t *testing.T) {
	t.Parallel()
	g := newGate(testdb.Pool(t, testdb.New(t)))
	s := newStore(t, g, store.PostgresConfig{})
	left, leave := context.WithCancel(t.Context())
	leave()
	// Callers that have left already are a way to queue hits in a certain order.
	made := 0
	queue := func(n int) {
		t.Helper()
		var hs []ratelimit.Hit
		for range n {
			hs = append(hs, hit(fmt.Sprint("key ", made)))
			made++
		}
		if _, err := s.Add(left, hs); err == nil {
			t.Fatal("a call whose context has ended did not return")
		}
	}
	var got []int
	for _, n := range []int{1, store.MinShare} { // both that may be in flight
		queue(n)
		got = append(got, g.next(t))
	}
	for _, n := range []int{512, 513, 256, 256, 1} {
		queue(n)
	}
	for range 3 {
		g.open <- struct{}{}
		got = append(got, g.next(t))
	}
	for range 2 { // the last is too small to go beside another
		g.open <- struct{}{}
	}
	got = append(got, g.next(t))
	g.open <- struct{}{}
	if diff := cmp.Diff([]int{1, store.MinShare, 512, 513, 512, 1}, got); diff != "" {
		t.Errorf("buckets of the statements (-want +got):\n%s", diff)
	}
}

// The goroutine that sends statements is gone when there is nothing left to send (row 64).
func TestNoGoroutineWhenIdle(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	goroutines.Labelled(t, func() {
		for range 1000 {
			newStore(t, pool, store.PostgresConfig{})
		}
		if n := goroutines.Count(t); n > 1 { // this one
			t.Errorf("%d goroutines after making stores, want none", n-1)
		}
		swept := make(chan store.SweepStats, 1)
		s := newStore(t, pool, store.PostgresConfig{SweepInterval: time.Hour, OnSweep: func(s store.SweepStats) { swept <- s }})
		s.DueSweep()
		together(64, func(i int) {
			for range 5 {
				counts, err := s.Add(t.Context(), hits(fmt.Sprint(i)))
				if err != nil {
					t.Error(err)
					return
				}
				s.GiveBack([]ratelimit.Charge{{Bucket: fmt.Sprint(i), Start: counts[0].Start, N: 1}})
			}
		})
		receive(t, "a sweep has run", swept)
	})
	eventually(t, "no goroutine of the store is left", func() bool { return goroutines.Count(t) == 0 })
}
