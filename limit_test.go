package ratelimit_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/store"
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
		{ratelimit.Unlimited(), "unlimited"},
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

// What configurations may say, and what is wrong with what they may not.
func TestParseLimit(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	per := func(n int, window time.Duration) ratelimit.Limit { return ratelimit.Limit{Requests: n, Window: window} }
	for text, want := range map[string]ratelimit.Limit{
		"100/1m":               per(100, time.Minute),
		"5 per hour":           per(5, time.Hour),
		"1000 per 15 minutes":  per(1000, 15*time.Minute),
		"50/day":               per(50, day),
		"20/1h30m":             per(20, 90*time.Minute),
		"10/s":                 per(10, time.Second),
		"10/sec":               per(10, time.Second),
		"1/90s":                per(1, 90*time.Second),
		"1/2.5s":               per(1, 2500*time.Millisecond),
		"1/1500ms":             per(1, 1500*time.Millisecond),
		"1 / 2 weeks":          per(1, 14*day),
		"  7  per  3  days  ":  per(7, 3*day),
		"1 per min":            per(1, time.Minute),
		"1 per w":              per(1, 7*day),
		"0/1m":                 per(0, time.Minute),
		" unlimited ":          ratelimit.Unlimited(),
		"007/1m":               per(7, time.Minute),
		"1000000000/366d":      per(ratelimit.MaxRequests, ratelimit.MaxWindow),
		"1000000000 per 8784h": per(ratelimit.MaxRequests, ratelimit.MaxWindow),
	} {
		got, err := ratelimit.ParseLimit(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
	const shape = `want requests and a window, such as "100/1m" or "5 per hour"`
	noWindow := func(window string) string {
		return `"` + window + `" is no window, want one such as "1m", "hour" or "15 minutes"`
	}
	for text, want := range map[string]string{
		"":                        shape,
		"100":                     shape,
		"100/":                    shape,
		"/1m":                     shape,
		"-1/1m":                   shape,
		"+1/1m":                   shape,
		"1.5/1m":                  shape,
		"1e3/1m":                  shape,
		"1_000/1m":                shape,
		"1,000/1m":                shape,
		"many/1m":                 shape,
		"5perhour":                shape,
		"\u0661/1m":               shape, // a digit, but no ASCII one
		"5/1m/2":                  noWindow("1m/2"),
		"Unlimited":               shape,
		"5/fortnight":             noWindow("fortnight"),
		"5/1M":                    noWindow("1M"), // minutes or months?
		"5/month":                 noWindow("month"),
		"5 per 1 m s":             noWindow("1 m s"),
		"5/0s":                    "Window is 0s, want 1s to 366 days",
		"5/0 hours":               "Window is 0s, want 1s to 366 days",
		"5/-1m":                   "Window is -1m0s, want 1s to 366 days",
		"5/100ms":                 "Window is 100ms, want 1s to 366 days",
		"5/1000.5ms":              "Window is 1.0005s, want whole milliseconds",
		"5/367d":                  "Window is 8808h0m0s, want 1s to 366 days",
		"5/99999999999999999999s": "Window is 2562047h47m16.854775807s, want 1s to 366 days",
		"5/99999999999 weeks":     "Window is 2562047h47m16.854775807s, want 1s to 366 days",
		"1000000001/1m":           "Requests is 1000000001, want 0 to 1000000000",
		"99999999999999999999/s":  "Requests is 99999999999999999999, want 0 to 1000000000",
	} {
		limit := ratelimit.PerMinute(1)
		err := limit.UnmarshalText([]byte(text))
		if want = fmt.Sprintf("ratelimit: limit %q: %s", text, want); fmt.Sprint(err) != want {
			t.Errorf("%q:\nerror %v\nwant  %s", text, err, want)
		}
		if limit != ratelimit.PerMinute(1) {
			t.Errorf("%q made the limit %v", text, limit)
		}
	}
}

// Limits can stand in configurations and come out as they went in.
func TestLimitInJSON(t *testing.T) {
	t.Parallel()
	type config map[string]ratelimit.Limit
	var got config
	if err := json.Unmarshal([]byte(`{"register": "5/1m", "call": "1000 per day"}`), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(config{"register": ratelimit.PerMinute(5), "call": ratelimit.PerDay(1000)}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	text, err := json.Marshal(got)
	if want := `{"call":"1000/24h","register":"5/1m"}`; err != nil || string(text) != want {
		t.Errorf("%s and error %v, want %s", text, err, want)
	}
}

// Whatever the text, ParseLimit does not panic, and a limit that it returns is valid and is what its own text says.
func FuzzParseLimit(f *testing.F) {
	for _, text := range []string{"100/1m", "5 per hour", "1/1m0.001s", "7 per 3 days", "9/9223372036854775807w", "1/1µs", "-/-"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		limit, err := ratelimit.ParseLimit(text)
		if err != nil {
			if limit != (ratelimit.Limit{}) {
				t.Errorf("%q: limit %v with error %v", text, limit, err)
			}
			return
		}
		again, err := ratelimit.ParseLimit(limit.String())
		if err != nil || again != limit {
			t.Errorf("%q is %v, and that %v with error %v", text, limit, again, err)
		}
		counters, err := store.NewMemory(store.MemoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ratelimit.New(counters, ratelimit.Config{Policies: []ratelimit.Policy{{Name: "a", Limit: limit}}}); err != nil {
			t.Errorf("%q is %v, which is not valid: %v", text, limit, err)
		}
	})
}
