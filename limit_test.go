package ratelimit_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
)

func TestLimitString(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, test := range []struct {
		limit ratelimit.Limit
		want  string
	}{
		{ratelimit.PerSecond(10), "10/1s"},
		{ratelimit.PerMinute(5), "5/1m"},
		{ratelimit.PerHour(1000), "1000/1h"},
		{ratelimit.PerDay(50), "50/24h"},
		{ratelimit.PerMinute(0), "0/1m"},
		{ratelimit.Limit{Requests: 100, Window: 90 * time.Minute}, "100/1h30m"},
		{ratelimit.Limit{Requests: 1, Window: 90 * time.Second}, "1/1m30s"},
		{ratelimit.Limit{Requests: 1, Window: 10 * time.Second}, "1/10s"},
		{ratelimit.Limit{Requests: 1, Window: 10 * time.Minute}, "1/10m"},
		{ratelimit.Limit{Requests: 1, Window: 10 * time.Hour}, "1/10h"},
		{ratelimit.Limit{Requests: 1, Window: time.Hour + 10*time.Second}, "1/1h0m10s"},
		{ratelimit.Limit{Requests: 1, Window: time.Hour + 10*time.Minute}, "1/1h10m"},
		{ratelimit.Limit{Requests: 1, Window: 2500 * time.Millisecond}, "1/2.5s"},
		{ratelimit.Limit{Requests: 1, Window: time.Minute + time.Millisecond}, "1/1m0.001s"},
		{ratelimit.Limit{Requests: ratelimit.MaxRequests, Window: 366 * day}, "1000000000/8784h"},
		{ratelimit.Limit{}, "0/0s"},
		{ratelimit.PerMinute(-1), "-1/1m"},
	} {
		if diff := cmp.Diff(test.want, test.limit.String()); diff != "" {
			t.Errorf("%#v (-want +got):\n%s", test.limit, diff)
		}
	}
}

// The text of the window is part of a bucket, so no two windows may share one.
func TestLimitStringTellsWindowsApart(t *testing.T) {
	t.Parallel()
	seen := make(map[string]time.Duration)
	add := func(window time.Duration) {
		text := ratelimit.Limit{Window: window}.String()
		if other, ok := seen[text]; ok && other != window {
			t.Errorf("%d and %d are both %q", other, window, text)
		}
		seen[text] = window
	}
	for n := range 4000 {
		add(time.Duration(n) * time.Second)
		add(time.Duration(n) * time.Minute)
		add(time.Duration(n) * time.Hour)
		add(time.Duration(n) * 997 * time.Millisecond)
	}
}

// HD-11, HD-25, HD-26 and fault 38: what a limit may be, at its bounds.
func TestLimitBounds(t *testing.T) {
	t.Parallel()
	limit := func(n int, window time.Duration) ratelimit.Limit {
		return ratelimit.Limit{Requests: n, Window: window}
	}
	const requests, window = "Limit.Requests is ", "Limit.Window is "
	for _, test := range []struct {
		name  string
		limit ratelimit.Limit
		want  string // how the error begins, or "" for none
	}{
		{"one", limit(1, time.Minute), ""},
		{"HD-11 no requests", limit(0, time.Minute), ""},
		{"most requests", limit(ratelimit.MaxRequests, time.Minute), ""},
		{"too many requests", limit(ratelimit.MaxRequests+1, time.Minute), requests + "1000000001, want 0 to 1000000000"},
		{"HD-26 more than the fields can say", limit(min(math.MaxInt, 1_000_000_000_000_000), time.Minute), requests},
		{"fault 38 negative", limit(-1, time.Minute), requests + "-1, want 0 to 1000000000"},
		{"most negative", limit(math.MinInt, time.Minute), requests},
		{"shortest window", limit(1, ratelimit.MinWindow), ""},
		{"longest window", limit(1, ratelimit.MaxWindow), ""},
		{"window with milliseconds", limit(1, 1001*time.Millisecond), ""},
		{"HD-25 no window", limit(1, 0), window + "0s, want 1s to 366 days"},
		{"HD-25 negative window", limit(1, -time.Second), window + "-1s, want 1s to 366 days"},
		{"fault 38 nanosecond", limit(1, 1), window + "1ns, want 1s to 366 days"},
		{"fault 38 millisecond", limit(1, time.Millisecond), window + "1ms, want 1s to 366 days"},
		{"fault 13 half a second", limit(1, 500*time.Millisecond), window + "500ms, want 1s to 366 days"},
		{"just too short", limit(1, ratelimit.MinWindow-1), window},
		{"just too long", limit(1, ratelimit.MaxWindow+time.Millisecond), window},
		{"longest duration", limit(1, math.MaxInt64), window},
		{"finer than a millisecond", limit(1, time.Second+time.Microsecond), window + "1.000001s, want whole milliseconds"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			limiter, err := ratelimit.New(memoryStore(t), ratelimit.Config{
				Policies: []ratelimit.Policy{{Name: "default", Limit: test.limit}},
			})
			if test.want == "" {
				if err != nil || limiter == nil {
					t.Errorf("New returned %v, %v, want a limiter", limiter, err)
				}
				return
			}
			if want := "ratelimit: Config.Policies[0]." + test.want; err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("error is %v, want %s", err, want)
			}
			if limiter != nil {
				t.Errorf("limiter is %v beside an error", limiter)
			}
		})
	}
}
