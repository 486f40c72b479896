package ratelimit_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
)

// A handler gives back what succeeds, so that only what fails is limited.
func TestRefund(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, counters ratelimit.Store) {
		login := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Password") != "right" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			d, _ := ratelimit.FromContext(r.Context())
			var wg sync.WaitGroup
			for range 4 { // by its copies too, it is given back once
				wg.Go(d.Refund)
			}
			wg.Wait()
		})
		handler := newLimiter(t, counters, ratelimit.Config{Policies: []ratelimit.Policy{
			{Name: "login.ip", Limit: long(3)},
			{Name: "login.all", Limit: long(4), Key: ratelimit.Constant("all")},
		}}).Handler(login)
		var got []int
		for _, password := range []string{"right", "wrong", "right", "right", "wrong", "right", "wrong", "right", "wrong"} {
			got = append(got, serve(handler, request("203.0.113.7:1", "Password", password)).Status)
		}
		if diff := cmp.Diff([]int{200, 401, 200, 200, 401, 200, 401, 429, 429}, got); diff != "" {
			t.Errorf("statuses (-want +got):\n%s", diff)
		}
	})
}

// Fault 37: what is refunded late is taken off the window that was charged and no other, and makes no row again
// that was swept.
func TestRefundOfAnEarlierWindow(t *testing.T) {
	t.Parallel()
	t.Run("Memory", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			sleepUntil(t, "12:00:00")
			limiter := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "call", Limit: ratelimit.PerSecond(3)}}})
			var slow []ratelimit.Decision
			for range 3 {
				slow = append(slow, limiter.Check(request("203.0.113.7:1")))
			}
			time.Sleep(1200 * time.Millisecond)
			for _, d := range slow {
				d.Refund()
			}
			admitted := 0
			for range 5 {
				if limiter.Check(request("203.0.113.7:1")).Outcome == ratelimit.Allowed {
					admitted++
				}
			}
			if admitted != 3 {
				t.Errorf("%d of 5 were admitted in the next window, want 3", admitted)
			}
		})
	})
	t.Run("Postgres", func(t *testing.T) {
		t.Parallel()
		pool := testdb.Pool(t, testdb.New(t))
		counters := postgresStore(t, pool)
		limiter := newLimiter(t, counters, ratelimit.Config{Policies: []ratelimit.Policy{{Name: "call", Limit: long(3)}}})
		slow := limiter.Check(request("203.0.113.7:1"))
		_, err := pool.Exec(t.Context(), "UPDATE rate_limits SET window_start = 'epoch', expires_at = '1971-01-02'")
		if err != nil {
			t.Fatal(err)
		}
		if n, err := counters.Sweep(t.Context()); n != 1 || err != nil {
			t.Fatalf("Sweep returned %d and error %v, want 1 and none", n, err)
		}
		slow.Refund()
		limiter.Check(request("203.0.113.8:1"))
		if diff := cmp.Diff([]int64{1}, counts(t, pool)); diff != "" {
			t.Errorf("counts (-want +got):\n%s", diff)
		}
	})
}

// What was refused, or not decided, has spent nothing that could be given back.
func TestRefundOfNothing(t *testing.T) {
	t.Parallel()
	counters := memoryStore(t)
	limiter := newLimiter(t, counters, ratelimit.Config{Policies: []ratelimit.Policy{{Name: "call", Limit: long(1)}}})
	first := limiter.Check(request("203.0.113.7:1"))
	ratelimit.Decision{}.Refund()
	newLimiter(t, counters, ratelimit.Config{Policies: []ratelimit.Policy{{Name: "call", Limit: long(1)}}}).Check(request("203.0.113.7:1")).Refund()
	limiter.Check(request("203.0.113.7:1")).Refund()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	limiter.Check(request("203.0.113.8:1").WithContext(gone)).Refund()
	for peer, want := range map[string]ratelimit.Outcome{"203.0.113.7:1": ratelimit.Refused, "203.0.113.8:1": ratelimit.Refused} {
		if got := limiter.Check(request(peer)).Outcome; got != want {
			t.Errorf("the next request of %s is %s, want %s", peer, got, want)
		}
	}
	first.Refund()
	if got := limiter.Check(request("203.0.113.7:1")); got.Outcome != ratelimit.Refused {
		t.Errorf("the next request is %s, want refused: one that another limiter has refused is counted, too", got.Outcome)
	}
}

// What this process has counted while the store was away is refunded there.
func TestRefundOfALocalCount(t *testing.T) {
	t.Parallel()
	limiter := newLimiter(t, failing(ratelimit.ErrUnavailable), ratelimit.Config{
		Policies: []ratelimit.Policy{{Name: "call", Limit: long(1), OnFailure: ratelimit.FailLocal}},
		Logger:   new(logbook).logger(),
	})
	for i := range 3 {
		d := limiter.Check(request("203.0.113.7:1"))
		if d.Outcome != ratelimit.Allowed || !d.Results[0].Local {
			t.Errorf("request %d is %s, want allowed by this process's count", i, d.Outcome)
		}
		d.Refund()
	}
}
