package ratelimit_test

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
)

// perMinute100 is what the HD rows of the cases count with.
var perMinute100 = []ratelimit.Policy{{Name: "default", Limit: ratelimit.PerMinute(100)}}

// The HD rows end to end, as a client sees them: no field more and none less.
func TestHeaders(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		config ratelimit.Config
		at     string // when the requests are made
		n      int    // which of them is looked at
		want   reply
	}{
		{
			"HD-01 first",
			ratelimit.Config{Policies: perMinute100},
			"12:00:00", 1,
			served("RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=99;t=60`),
		}, {
			"HD-02 40th",
			ratelimit.Config{Policies: perMinute100},
			"12:00:02", 40,
			served("RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=60;t=58`),
		}, {
			"HD-04 last within the limit",
			ratelimit.Config{Policies: perMinute100},
			"12:00:59.5", 100,
			served("RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=0;t=1`),
		}, {
			"HD-05 first over the limit",
			ratelimit.Config{Policies: perMinute100},
			"12:00:00.5", 101,
			tooMany("60", `"default"`, "RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=0;t=60`),
		}, {
			"HD-07 a millisecond left",
			ratelimit.Config{Policies: perMinute100},
			"12:00:59.999", 101,
			tooMany("1", `"default"`, "RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=0;t=1`),
		}, {
			"HD-08 a nanosecond left",
			ratelimit.Config{Policies: perMinute100},
			"12:00:59.999999999", 101,
			tooMany("1", `"default"`, "RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=0;t=1`),
		}, {
			"HD-10 far over the limit",
			ratelimit.Config{Policies: perMinute100},
			"12:00:30", 250,
			tooMany("30", `"default"`, "RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=0;t=30`),
		}, {
			"HD-11 limit 0",
			ratelimit.Config{Policies: []ratelimit.Policy{{Name: "shut", Limit: ratelimit.PerMinute(0)}}},
			"12:00:00", 1,
			tooMany("60", `"shut"`, "RateLimit-Policy", `"shut";q=0;w=60`, "RateLimit", `"shut";r=0;t=60`),
		}, {
			"fault 13: window of 2.5 s",
			ratelimit.Config{Policies: []ratelimit.Policy{{Name: "odd", Limit: ratelimit.Limit{Requests: 1, Window: 2500 * time.Millisecond}}}},
			"12:00:01.3", 2,
			tooMany("2", `"odd"`, "RateLimit-Policy", `"odd";q=1;w=3`, "RateLimit", `"odd";r=0;t=2`),
		}, {
			"fault 14: 3.7 s left",
			ratelimit.Config{Policies: perMinute100},
			"12:00:56.3", 101,
			tooMany("4", `"default"`, "RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=0;t=4`),
		}, {
			"HD-28 draft-06",
			ratelimit.Config{Policies: perMinute100, Headers: ratelimit.HeadersDraft06},
			"12:00:30", 101,
			tooMany("30", `"default"`, "RateLimit-Limit", "100", "RateLimit-Remaining", "0", "RateLimit-Reset", "30", "RateLimit-Policy", "100;w=60"),
		}, {
			"legacy",
			ratelimit.Config{Policies: perMinute100, Headers: ratelimit.HeadersLegacy},
			"12:00:30", 2,
			served("X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "98", "X-RateLimit-Reset", "1796126460"),
		}, {
			"structured and legacy",
			ratelimit.Config{Policies: perMinute100, Headers: ratelimit.HeadersStructured | ratelimit.HeadersLegacy},
			"12:00:30", 101,
			tooMany("30", `"default"`, "RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=0;t=30`,
				"X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1796126460"),
		}, {
			"none, admitted", ratelimit.Config{Policies: perMinute100, Headers: ratelimit.HeadersNone}, "12:00:30", 1, served(),
		}, {
			"none, refused", ratelimit.Config{Policies: perMinute100, Headers: ratelimit.HeadersNone}, "12:00:30", 101, tooMany("30", `"default"`),
		}, {
			"several policies, the tightest reported",
			ratelimit.Config{Policies: []ratelimit.Policy{
				{Name: "burst", Limit: ratelimit.PerSecond(10)}, {Name: "hour", Limit: ratelimit.PerHour(20)},
			}},
			"12:00:00.5", 1,
			served("RateLimit-Policy", `"burst";q=10;w=1, "hour";q=20;w=3600`, "RateLimit", `"burst";r=9;t=1`),
		}, {
			// The hour is over, the day is not: only what refuses is waited for.
			"HD-13 hour exceeded, day not",
			ratelimit.Config{Policies: []ratelimit.Policy{
				{Name: "hour", Limit: ratelimit.PerHour(5)}, {Name: "day", Limit: ratelimit.PerDay(105)},
			}},
			"13:58:00", 6,
			tooMany("120", `"hour"`, "RateLimit-Policy", `"hour";q=5;w=3600, "day";q=105;w=86400`, "RateLimit", `"hour";r=0;t=120`),
		}, {
			"HD-14 both exceeded",
			ratelimit.Config{Policies: []ratelimit.Policy{
				{Name: "hour", Limit: ratelimit.PerHour(5)}, {Name: "day", Limit: ratelimit.PerDay(5)},
			}},
			"13:58:00", 6,
			tooMany("36120", `"hour","day"`, "RateLimit-Policy", `"hour";q=5;w=3600, "day";q=5;w=86400`, "RateLimit", `"day";r=0;t=36120`),
		}, {
			"HD-14 in the other order",
			ratelimit.Config{Policies: []ratelimit.Policy{
				{Name: "day", Limit: ratelimit.PerDay(5)}, {Name: "hour", Limit: ratelimit.PerHour(5)},
			}},
			"13:58:00", 6,
			tooMany("36120", `"day","hour"`, "RateLimit-Policy", `"day";q=5;w=86400, "hour";q=5;w=3600`, "RateLimit", `"day";r=0;t=36120`),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				next := new(spy)
				handler := newLimiter(t, memoryStore(t), test.config).Handler(next)
				sleepUntil(t, test.at)
				for range test.n - 1 {
					serve(handler, request("203.0.113.7:51234"))
				}
				next.takeCalls()
				check(t, "reply", test.want, serve(handler, request("203.0.113.7:51234")))
				if got, want := next.takeCalls() == 1, test.want.Status == http.StatusOK; got != want {
					t.Errorf("next was called: %t, want %t", got, want)
				}
			})
		})
	}
}

// HD-31 and HD-32. The keys were computed apart, with Python's hmac: the first 8 bytes of
// HMAC-SHA-256 of "pk:" and the bucket, whose end is HMAC-SHA-256 of "203.0.113.7" and of "abc".
func TestPartitionKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		config := ratelimit.Config{
			Policies: []ratelimit.Policy{
				{Name: "ip", Limit: ratelimit.PerMinute(1)},
				{Name: "token", Limit: ratelimit.PerMinute(5), Key: ratelimit.BearerToken, Optional: true},
			},
			Secret:  ratelimit.Secret(strings.Repeat("s", 32)),
			Headers: ratelimit.HeadersStructured | ratelimit.HeadersLegacy,
		}
		sleepUntil(t, "12:00:00")
		off := newLimiter(t, memoryStore(t), config).Handler(new(spy))
		config.PartitionKey = true
		on := newLimiter(t, memoryStore(t), config).Handler(new(spy))
		legacy := []string{"X-RateLimit-Limit", "1", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1796126460"}
		r := request("203.0.113.7:51234", "Authorization", "Bearer abc")
		check(t, "HD-31 off", served(append(legacy,
			"RateLimit-Policy", `"ip";q=1;w=60, "token";q=5;w=60`, "RateLimit", `"ip";r=0;t=60`)...), serve(off, r))
		check(t, "HD-32 on", served(append(legacy,
			"RateLimit-Policy", `"ip";q=1;w=60;pk=:3J6RY+lLKg8=:, "token";q=5;w=60;pk=:u7EdON3FJQI=:`, "RateLimit", `"ip";r=0;t=60;pk=:3J6RY+lLKg8=:`)...), serve(on, r))
	})
}

// HD-16: a limiter further out, of whatever make, asks for a longer wait. Its answer is one line.
func TestRetryAfterOfOuterMiddleware(t *testing.T) {
	t.Parallel()
	for outer, want := range map[string]string{"90": "90", "30": "60"} {
		t.Run(outer, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limiter := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: ratelimit.PerMinute(0)}}})
				handler := setting(header("Retry-After", outer), limiter.Handler(new(spy)))
				sleepUntil(t, "12:00:00")
				check(t, "reply", tooMany(want, `"default"`, "RateLimit-Policy", `"default";q=0;w=60`, "RateLimit", `"default";r=0;t=60`),
					serve(handler, request("203.0.113.7:1")))
			})
		})
	}
}

// setting is a middleware that sets header fields before next.
func setting(h http.Header, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, values := range h {
			w.Header()[name] = values
		}
		next.ServeHTTP(w, r)
	})
}

// HD-17: what was planned for the response that is not given does not hold for the refusal.
func TestCacheControlOfOuterMiddleware(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: ratelimit.PerMinute(1)}}})
		handler := setting(header("Cache-Control", "public, max-age=60"), limiter.Handler(new(spy)))
		sleepUntil(t, "12:00:00")
		check(t, "admitted", served("Cache-Control", "public, max-age=60", "RateLimit-Policy", `"default";q=1;w=60`, "RateLimit", `"default";r=0;t=60`),
			serve(handler, request("203.0.113.7:1")))
		check(t, "refused", tooMany("60", `"default"`, "RateLimit-Policy", `"default";q=1;w=60`, "RateLimit", `"default";r=0;t=60`),
			serve(handler, request("203.0.113.7:1")))
	})
}

// Fault 34: browsers show a page no answer without the fields of CORS. Those set further out survive a
// refusal, so a CORS middleware goes outside the limiter; inside, it is not reached. A refusal handler
// of one's own can add what it likes.
func TestRefusalBesideCORS(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, "12:00:00")
		policies := []ratelimit.Policy{{Name: "default", Limit: ratelimit.PerMinute(0)}}
		fields := []string{"RateLimit-Policy", `"default";q=0;w=60`, "RateLimit", `"default";r=0;t=60`}
		cors := header("Access-Control-Allow-Origin", "https://example.com", "Access-Control-Expose-Headers", "RateLimit, Retry-After", "Vary", "Origin")
		withCORS := append(fields, "Access-Control-Allow-Origin", "https://example.com", "Access-Control-Expose-Headers", "RateLimit, Retry-After", "Vary", "Origin")
		r := request("203.0.113.7:1", "Origin", "https://example.com")

		limiter := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: policies})
		check(t, "CORS outside", tooMany("60", `"default"`, withCORS...), serve(setting(cors, limiter.Handler(new(spy))), r))
		check(t, "CORS inside", tooMany("60", `"default"`, fields...), serve(limiter.Handler(setting(cors, new(spy))), r))

		own := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: policies, Refused: setting(cors, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusTooManyRequests)
		}))})
		want := reply{Status: http.StatusTooManyRequests, Header: header(append(withCORS, "Retry-After", "60", "Cache-Control", "no-store")...)}
		check(t, "own refusal", want, serve(own.Handler(new(spy)), r))
	})
}

// HD-20: a refused HEAD has the headers of a refused GET and no body.
func TestRefusedHead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, "12:00:00")
		handler := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: ratelimit.PerMinute(1)}}}).Handler(new(spy))
		head := httptest.NewRequest(http.MethodHead, "/", nil)
		head.RemoteAddr = "203.0.113.7:1"
		get := serve(handler, request("203.0.113.7:1"))
		if get.Status != http.StatusOK {
			t.Fatalf("first request: %d, want 200", get.Status)
		}
		want := serve(handler, request("203.0.113.7:1"))
		want.Body = ""
		check(t, "HEAD, which counts like GET", want, serve(handler, head))
	})
}

// Headers of one response are nobody else's: what a handler does to them does not show in the next.
func TestHeadersAreNotShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, "12:00:00")
		limiter := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: perMinute100, Headers: ratelimit.HeadersStructured | ratelimit.HeadersLegacy})
		spoil := limiter.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for _, values := range w.Header() {
				for i := range values {
					values[i] = "spoilt"
				}
			}
		}))
		serve(spoil, request("203.0.113.7:1"))
		check(t, "next response", served("RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=98;t=60`,
			"X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "98", "X-RateLimit-Reset", "1796126460"),
			serve(limiter.Handler(new(spy)), request("203.0.113.7:1")))
	})
}

// HD-34, faults 2, 13 and 14, and G1: whatever the window and the moment, a refused client is told a positive
// whole number of seconds on one line, which is at most the window, and is admitted when it has waited that
// long, but not a whole second sooner.
func FuzzWaitAsTold(f *testing.F) {
	for _, window := range []time.Duration{
		time.Second, 1001 * time.Millisecond, 2500 * time.Millisecond, 7 * time.Second, 13 * time.Second, time.Minute,
		90 * time.Second, time.Hour, 24 * time.Hour, 7 * 24 * time.Hour, 365 * 24 * time.Hour, ratelimit.MaxWindow,
	} {
		for _, offset := range []int64{0, 1, 999_999_999, 1_300_000_000, 3_600_000_000_001} {
			f.Add(window.Milliseconds(), offset)
		}
	}
	positive := regexp.MustCompile(`^[1-9][0-9]*$`)
	f.Fuzz(func(t *testing.T, milli, offset int64) {
		window := time.Duration(milli) * time.Millisecond
		if milli <= 0 || window < ratelimit.MinWindow || window > ratelimit.MaxWindow || offset < 0 {
			return // no such window
		}
		synctest.Test(t, func(t *testing.T) {
			handler := newLimiter(t, memoryStore(t), ratelimit.Config{
				Policies: []ratelimit.Policy{{Name: "default", Limit: ratelimit.Limit{Requests: 1, Window: window}}},
			}).Handler(new(spy))
			time.Sleep(time.Duration(offset))
			if got := serve(handler, request("203.0.113.7:1")); got.Status != http.StatusOK {
				t.Fatalf("first request: %d, want 200", got.Status)
			}
			refused := serve(handler, request("203.0.113.7:1"))
			values := refused.Header["Retry-After"]
			if refused.Status != http.StatusTooManyRequests || len(values) != 1 || !positive.MatchString(values[0]) {
				t.Fatalf("second request: %d with Retry-After %q, want 429 with a positive whole number", refused.Status, values)
			}
			seconds, err := strconv.ParseInt(values[0], 10, 64)
			wait := time.Duration(seconds) * time.Second
			if err != nil || wait >= window+time.Second {
				t.Errorf("Retry-After is %q in a window of %v", values[0], window)
			}
			time.Sleep(wait - time.Second)
			if got := serve(handler, request("203.0.113.7:1")); wait > time.Second && got.Status != http.StatusTooManyRequests {
				t.Errorf("a second before %v are over: %d, want 429", wait, got.Status)
			}
			time.Sleep(time.Second)
			if got := serve(handler, request("203.0.113.7:1")); got.Status != http.StatusOK {
				t.Errorf("after the %v it was told to wait: %d, want 200", wait, got.Status)
			}
		})
	})
}

// Fault 1, as documented for fixed windows: around the end of one, up to twice the limit passes.
func TestWindowBoundary(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: ratelimit.PerMinute(10)}}}).Handler(new(spy))
		r := request("203.0.113.7:1")
		sleepUntil(t, "12:00:59.9")
		got := []map[int]int{statuses(handler, r, 10)}
		sleepUntil(t, "12:01:00.1")
		got = append(got, statuses(handler, r, 10))
		sleepUntil(t, "12:01:00.2")
		got = append(got, statuses(handler, r, 1))
		if diff := cmp.Diff([]map[int]int{{200: 10}, {200: 10}, {429: 1}}, got); diff != "" {
			t.Errorf("statuses (-want +got):\n%s", diff)
		}
	})
}

// Fault 2: waits are reckoned on the grid that counts, which starts at the Unix epoch. The other one
// that Go knows, of time.Truncate, starts in the year 1; waiting is tested in FuzzWaitAsTold.
func TestWindowGrid(t *testing.T) {
	t.Parallel()
	for window, want := range map[time.Duration]string{
		7 * time.Second:    "5",      // 1 800 000 001 is 2 s into a window
		13 * time.Second:   "6",      // 7 s
		7 * 24 * time.Hour: "489599", // 115,201 s
	} {
		t.Run(window.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				handler := newLimiter(t, memoryStore(t), ratelimit.Config{
					Policies: []ratelimit.Policy{{Name: "default", Limit: ratelimit.Limit{Requests: 1, Window: window}}},
				}).Handler(new(spy))
				time.Sleep(time.Until(time.Unix(1_800_000_001, 0)))
				serve(handler, request("203.0.113.7:1"))
				if got := serve(handler, request("203.0.113.7:1")).Header.Get("Retry-After"); got != want {
					t.Errorf("Retry-After is %q, want %s", got, want)
				}
			})
		})
	}
}

// G1: what is left of the window, not the whole of it. G3: as an integer, which every client reads.
func TestRetryAfterIsWhatIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: ratelimit.PerMinute(1)}}}).Handler(new(spy))
		sleepUntil(t, "12:00:50")
		serve(handler, request("203.0.113.7:1"))
		if got := serve(handler, request("203.0.113.7:1")).Header.Get("Retry-After"); got != "10" {
			t.Errorf("Retry-After is %q, want 10", got)
		}
	})
}

// G21: the same time of the next day is another window.
func TestWindowsDoNotComeBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, limit := range []ratelimit.Limit{ratelimit.PerSecond(1), ratelimit.PerMinute(1), ratelimit.PerHour(1), ratelimit.PerDay(1)} {
			handler := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: limit}}}).Handler(new(spy))
			for day := range 3 {
				if diff := cmp.Diff(map[int]int{200: 1, 429: 1}, statuses(handler, request("203.0.113.7:1"), 2)); diff != "" {
					t.Errorf("%v on day %d (-want +got):\n%s", limit, day, diff)
				}
				time.Sleep(24 * time.Hour)
			}
		}
	})
}
