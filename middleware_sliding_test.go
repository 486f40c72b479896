package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
)

// What was spent at the end of one window is missing at the beginning of the next, and comes back evenly.
// Retry-After is the time until it does, and a client that waits so long is admitted.
func TestSliding(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, "12:00:50")
		limiter := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "call", Limit: ratelimit.PerMinute(10), Sliding: true}}})
		handler := limiter.Handler(new(spy))
		var got []string
		ask := func(at string) {
			sleepUntil(t, at)
			r := serve(handler, request("203.0.113.7:1"))
			got = append(got, fmt.Sprint(at, " ", r.Status, " ", r.Header.Get("RateLimit"), " ", r.Header.Get("Retry-After")))
		}
		for range 11 {
			ask("12:00:50")
		}
		for _, at := range []string{"12:00:59.999", "12:01:00", "12:01:05.999", "12:01:06", "12:01:06", "12:01:30", "12:02:00", "12:02:01", "12:10:00"} {
			ask(at)
		}
		want := []string{
			`12:00:50 200 "call";r=9;t=10 `,
			`12:00:50 200 "call";r=8;t=10 `,
			`12:00:50 200 "call";r=7;t=10 `,
			`12:00:50 200 "call";r=6;t=10 `,
			`12:00:50 200 "call";r=5;t=10 `,
			`12:00:50 200 "call";r=4;t=10 `,
			`12:00:50 200 "call";r=3;t=10 `,
			`12:00:50 200 "call";r=2;t=10 `,
			`12:00:50 200 "call";r=1;t=10 `,
			`12:00:50 200 "call";r=0;t=16 `, // the first comes free when a tenth of the next window has passed
			`12:00:50 429 "call";r=0;t=16 16`,
			`12:00:59.999 429 "call";r=0;t=7 7`,
			`12:01:00 429 "call";r=0;t=6 6`,
			`12:01:05.999 429 "call";r=0;t=1 1`,
			`12:01:06 200 "call";r=0;t=6 `,
			`12:01:06 429 "call";r=0;t=6 6`,
			`12:01:30 200 "call";r=3;t=30 `, // 2 here, and half of 10
			`12:02:00 200 "call";r=7;t=60 `, // 1 here, and all of 2
			`12:02:01 200 "call";r=6;t=59 `,
			`12:10:00 200 "call";r=9;t=60 `,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("replies (-want +got):\n%s", diff)
		}
	})
}

// A traffic says how long after its last request a caller makes the next one.
type traffic func(rng *rand.Rand, now time.Time) time.Duration

// What may pass in any stretch of time, of all kinds of traffic: for a stretch d of a window w, never more than the
// limit by 1 + d/w. Where a fixed window lets twice the limit pass at once around its end, a sliding one lets the
// limit pass. Of traffic that has come evenly for two windows it never lets more than the limit pass in a window's
// length, wherever that begins.
func TestSlidingSimulation(t *testing.T) {
	t.Parallel()
	const limit, window = 100, time.Minute
	evenly := func(n int) traffic {
		return func(*rand.Rand, time.Time) time.Duration { return window / time.Duration(n) }
	}
	poisson := func(n float64) traffic {
		return func(rng *rand.Rand, _ time.Time) time.Duration {
			return time.Duration(rng.ExpFloat64() * float64(window) / n)
		}
	}
	// Whoever knows the windows spends all it can just before one ends, and all it can from then on.
	edge := func(_ *rand.Rand, now time.Time) time.Duration {
		toEnd := now.Truncate(window).Add(window).Sub(now)
		if now.Unix()/60%3 == 0 && toEnd > 200*time.Millisecond {
			return toEnd - 200*time.Millisecond
		}
		return time.Millisecond
	}
	bursts := func(rng *rand.Rand, _ time.Time) time.Duration {
		if rng.IntN(80) == 0 {
			return time.Duration(rng.Int64N(int64(window)))
		}
		return time.Millisecond
	}
	for name, test := range map[string]struct {
		traffic traffic
		most    int // that may pass in the length of a window, after the first two
	}{
		"half the limit":         {evenly(50), 50},
		"the limit":              {evenly(100), 100},
		"a little more":          {evenly(103), 100},
		"twice the limit":        {evenly(200), 100},
		"ten times the limit":    {evenly(1000), 100},
		"by chance, the limit":   {poisson(100), 115},
		"by chance, twice":       {poisson(200), 105},
		"by chance, three times": {poisson(300), 105},
		"in bursts":              {bursts, 2 * limit},
		"around the end":         {edge, 2 * limit},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sleepUntil(t, "12:00:17.1")
				fixed := simulate(t, test.traffic, limit, window, false)
				sliding := simulate(t, test.traffic, limit, window, true)
				for _, d := range []time.Duration{time.Second, 6 * time.Second, window / 2, window} {
					most := limit + int(limit*d/window)
					got := densest(sliding, d)
					t.Logf("at most %d in %v; with fixed windows %d", got, d, densest(fixed, d))
					if got > most {
						t.Errorf("%d were admitted in %v, want at most %d", got, d, most)
					}
				}
				steady := densest(sliding[after(sliding, 2*window):], window)
				t.Logf("at most %d in %v after the first two windows", steady, window)
				if steady > test.most {
					t.Errorf("%d were admitted in %v after the first two windows, want at most %d", steady, window, test.most)
				}
				if name == "around the end" {
					if got := densest(fixed, time.Second); got < 2*limit-1 {
						t.Errorf("with fixed windows %d were admitted in a second: this is not the traffic that shows the burst", got)
					}
				}
			})
		})
	}
}

// simulate returns when requests were admitted in ten minutes.
func simulate(t *testing.T, next traffic, limit int, window time.Duration, sliding bool) []time.Time {
	limiter := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{
		{Name: "call", Limit: ratelimit.Limit{Requests: limit, Window: window}, Sliding: sliding},
	}})
	rng := rand.New(rand.NewPCG(1, 2))
	var admitted []time.Time
	r := request("203.0.113.7:1")
	for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); time.Sleep(next(rng, time.Now())) {
		if limiter.Check(r).Outcome == ratelimit.Allowed {
			admitted = append(admitted, time.Now())
		}
	}
	return admitted
}

// after returns the place of the first time that is so long after the first of all.
func after(times []time.Time, d time.Duration) int {
	i, _ := slices.BinarySearchFunc(times, times[0].Add(d), time.Time.Compare)
	return i
}

// densest returns the largest number of times in any stretch of d.
func densest(times []time.Time, d time.Duration) int {
	most := 0
	for i, from := range times {
		n, _ := slices.BinarySearchFunc(times[i:], from.Add(d), time.Time.Compare)
		most = max(most, n)
	}
	return most
}
