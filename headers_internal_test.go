package ratelimit

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// noon is the start of the window that most cases speak of.
var noon = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// at returns a clock that stands at the given time after noon.
func at(d time.Duration) func() time.Time {
	return func() time.Time { return noon.Add(d) }
}

func noClock() time.Time { panic("the clock was asked") }

// counted returns the result of a policy that admits the request.
func counted(policy string, limit Limit, remaining int, reset time.Duration) Result {
	return Result{Policy: policy, Limit: limit, Cost: 1, KeyKind: "ip", Outcome: Allowed, Counted: true, Remaining: remaining, Reset: reset}
}

// over returns the result of a policy that refuses the request.
func over(policy string, limit Limit, reset time.Duration) Result {
	r := counted(policy, limit, 0, reset)
	r.Outcome = Refused
	return r
}

func allowed(results ...Result) Decision { return Decision{Outcome: Allowed, Results: results} }

// refused returns the decision that a Limiter makes of the results.
func refused(results ...Result) Decision {
	d := Decision{Outcome: Refused, Results: results}
	for _, r := range results {
		if r.Outcome == Refused {
			d.RetryAfter = max(d.RetryAfter, r.Reset)
		}
	}
	return d
}

func withKey(r Result, key string) Result {
	r.partitionKey = []byte(key)
	return r
}

// fields returns a header with one value for each name, both given in turn.
func fields(namesAndValues ...string) http.Header {
	h := http.Header{}
	for pair := range slices.Chunk(namesAndValues, 2) {
		h.Set(pair[0], pair[1])
	}
	return h
}

func TestHeadersWrite(t *testing.T) {
	t.Parallel()
	hundred := PerMinute(100)
	for _, test := range []struct {
		name     string
		headers  Headers
		decision Decision
		now      func() time.Time
		want     http.Header // all of it: no other field may appear
	}{
		{
			name:     "HD-01 first request",
			decision: allowed(counted("default", hundred, 99, time.Minute)),
			want:     fields("RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=99;t=60`),
		}, {
			name:     "HD-02 fortieth request",
			headers:  HeadersStructured,
			decision: allowed(counted("default", hundred, 60, 58*time.Second)),
			want:     fields("RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=60;t=58`),
		}, {
			name:     "HD-04 last request of the limit, half a second left",
			decision: allowed(counted("default", hundred, 0, 500*time.Millisecond)),
			want:     fields("RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=0;t=1`),
		}, {
			name:     "HD-05 refused",
			decision: refused(over("default", hundred, 59500*time.Millisecond)),
			want:     fields("RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=0;t=60`),
		}, {
			name: "HD-10 far over the limit",
			decision: refused(Result{
				Policy: "default", Limit: hundred, Outcome: Refused, Counted: true, Remaining: -150, Reset: time.Minute,
			}),
			want: fields("RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=0;t=60`),
		}, {
			name:     "never more remaining than the limit",
			decision: allowed(counted("default", hundred, 101, time.Minute)),
			want:     fields("RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=100;t=60`),
		}, {
			name:     "HD-11 limit 0",
			decision: refused(over("closed", PerMinute(0), time.Minute)),
			want:     fields("RateLimit-Policy", `"closed";q=0;w=60`, "RateLimit", `"closed";r=0;t=60`),
		}, {
			name: "HD-13 hour exceeded, day not",
			decision: refused(
				over("hour", PerHour(1000), 120*time.Second),
				counted("day", PerDay(5000), 100, 36000*time.Second),
			),
			want: fields(
				"RateLimit-Policy", `"hour";q=1000;w=3600, "day";q=5000;w=86400`,
				"RateLimit", `"hour";r=0;t=120`,
			),
		}, {
			name: "HD-14 both exceeded",
			decision: refused(
				over("hour", PerHour(1000), 120*time.Second),
				over("day", PerDay(5000), 36000*time.Second),
			),
			want: fields(
				"RateLimit-Policy", `"hour";q=1000;w=3600, "day";q=5000;w=86400`,
				"RateLimit", `"day";r=0;t=36000`,
			),
		}, {
			name: "allowed: the fewest remaining, though its window ends first",
			decision: allowed(
				counted("day", PerDay(5000), 100, 36000*time.Second),
				counted("hour", PerHour(1000), 7, 120*time.Second),
			),
			want: fields(
				"RateLimit-Policy", `"day";q=5000;w=86400, "hour";q=1000;w=3600`,
				"RateLimit", `"hour";r=7;t=120`,
			),
		}, {
			name: "allowed: equal remaining, the longest reset",
			decision: allowed(
				counted("hour", PerHour(1000), 7, 120*time.Second),
				counted("day", PerDay(5000), 7, 36000*time.Second),
				counted("minute", PerMinute(8), 7, 30*time.Second),
			),
			want: fields(
				"RateLimit-Policy", `"hour";q=1000;w=3600, "day";q=5000;w=86400, "minute";q=8;w=60`,
				"RateLimit", `"day";r=7;t=36000`,
			),
		}, {
			name: "refused for its cost: the refusing policy though another has fewer remaining",
			decision: refused(
				counted("day", PerDay(5000), 0, 36000*time.Second),
				Result{Policy: "cost", Limit: PerMinute(10), Outcome: Refused, Counted: true, Remaining: 3, Reset: 20 * time.Second},
			),
			want: fields(
				"RateLimit-Policy", `"day";q=5000;w=86400, "cost";q=10;w=60`,
				"RateLimit", `"cost";r=3;t=20`,
			),
		}, {
			name: "both refused, one for its cost: the longest reset though more remain",
			decision: refused(
				over("hour", PerHour(1000), 10*time.Second),
				Result{Policy: "cost", Limit: PerMinute(10), Outcome: Refused, Counted: true, Remaining: 3, Reset: 20 * time.Second},
			),
			want: fields(
				"RateLimit-Policy", `"hour";q=1000;w=3600, "cost";q=10;w=60`,
				"RateLimit", `"cost";r=3;t=20`,
			),
		}, {
			name: "fault 17, nested limiters: the limit that refused",
			decision: refused( // the outer one's result comes first
				counted("site", hundred, 97, 40*time.Second),
				over("route", PerMinute(2), 40*time.Second),
			),
			want: fields(
				"RateLimit-Policy", `"site";q=100;w=60, "route";q=2;w=60`,
				"RateLimit", `"route";r=0;t=40`,
			),
		}, {
			name: "fault 17, nested limiters: the tighter one on success",
			decision: allowed(
				counted("site", hundred, 98, 40*time.Second),
				counted("route", PerMinute(2), 0, 40*time.Second),
			),
			want: fields(
				"RateLimit-Policy", `"site";q=100;w=60, "route";q=2;w=60`,
				"RateLimit", `"route";r=0;t=40`,
			),
		}, {
			name:     "window and reset of broken seconds",
			decision: allowed(counted("default", Limit{10, 2500 * time.Millisecond}, 9, 2001*time.Millisecond)),
			want:     fields("RateLimit-Policy", `"default";q=10;w=3`, "RateLimit", `"default";r=9;t=3`),
		}, {
			name:     "window that ended on the way",
			decision: allowed(counted("default", hundred, 9, -time.Millisecond)),
			want:     fields("RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=9;t=0`),
		}, {
			name:     "name with quotation mark and backslash",
			decision: allowed(counted(`a"b\c d`, hundred, 9, time.Minute)),
			want:     fields("RateLimit-Policy", `"a\"b\\c d";q=100;w=60`, "RateLimit", `"a\"b\\c d";r=9;t=60`),
		}, {
			name:     "HD-28 draft-06, refused",
			headers:  HeadersDraft06,
			decision: refused(over("default", hundred, 30*time.Second)),
			want: fields(
				"RateLimit-Limit", "100", "RateLimit-Remaining", "0", "RateLimit-Reset", "30",
				"RateLimit-Policy", "100;w=60",
			),
		}, {
			name:    "draft-06, several policies",
			headers: HeadersDraft06,
			decision: allowed(
				counted("day", PerDay(5000), 100, 36000*time.Second),
				withKey(counted("hour", PerHour(1000), 7, 119100*time.Millisecond), "not for draft-06"),
			),
			want: fields(
				"RateLimit-Limit", "1000", "RateLimit-Remaining", "7", "RateLimit-Reset", "120",
				"RateLimit-Policy", "5000;w=86400, 1000;w=3600",
			),
		}, {
			name:    "draft-06, equal quotas are listed once: the tightest or the first",
			headers: HeadersDraft06,
			decision: allowed(
				counted("ip per minute", PerMinute(50), 40, time.Second),
				counted("token per minute", PerMinute(100), 90, time.Second),
				counted("ip per hour", PerHour(50), 7, time.Second),
				counted("token per hour", PerHour(100), 90, time.Second),
			),
			want: fields(
				"RateLimit-Limit", "50", "RateLimit-Remaining", "7", "RateLimit-Reset", "1",
				"RateLimit-Policy", "100;w=60, 50;w=3600",
			),
		}, {
			name:     "legacy, on a whole second",
			headers:  HeadersLegacy,
			decision: allowed(counted("default", hundred, 60, 58*time.Second)),
			now:      at(2 * time.Second),
			want: fields("X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "60",
				"X-RateLimit-Reset", strconv.FormatInt(noon.Add(time.Minute).Unix(), 10)),
		}, {
			name:     "legacy, answer that was 400 ms on its way",
			headers:  HeadersLegacy,
			decision: refused(over("default", hundred, 58*time.Second)),
			now:      at(2400 * time.Millisecond),
			want: fields("X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "0",
				"X-RateLimit-Reset", strconv.FormatInt(noon.Add(time.Minute).Unix(), 10)),
		}, {
			name:     "legacy, clock 400 ms behind the store's",
			headers:  HeadersLegacy,
			decision: refused(over("default", hundred, 58*time.Second)),
			now:      at(1600 * time.Millisecond),
			want: fields("X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "0",
				"X-RateLimit-Reset", strconv.FormatInt(noon.Add(time.Minute).Unix(), 10)),
		}, {
			name:     "legacy, window of broken seconds, rounded up",
			headers:  HeadersLegacy,
			decision: refused(over("default", Limit{100, 2500 * time.Millisecond}, 100*time.Millisecond)),
			now:      at(2 * time.Second),
			want: fields("X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "0",
				"X-RateLimit-Reset", strconv.FormatInt(noon.Add(3*time.Second).Unix(), 10)),
		}, {
			name:     "legacy, window of broken seconds that ends on a whole one",
			headers:  HeadersLegacy,
			decision: refused(over("default", Limit{100, 2500 * time.Millisecond}, 2*time.Second)),
			now:      at(3 * time.Second),
			want: fields("X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "0",
				"X-RateLimit-Reset", strconv.FormatInt(noon.Add(5*time.Second).Unix(), 10)),
		}, {
			name:     "legacy, window that ended on the way",
			headers:  HeadersLegacy,
			decision: allowed(counted("default", hundred, 9, -time.Hour)),
			now:      at(0),
			want: fields("X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "9",
				"X-RateLimit-Reset", strconv.FormatInt(noon.Unix(), 10)),
		}, {
			name:     "structured and legacy",
			headers:  HeadersStructured | HeadersLegacy,
			decision: allowed(counted("default", hundred, 60, 58*time.Second)),
			now:      at(2 * time.Second),
			want: fields(
				"RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=60;t=58`,
				"X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "60",
				"X-RateLimit-Reset", strconv.FormatInt(noon.Add(time.Minute).Unix(), 10),
			),
		}, {
			name:     "none",
			headers:  HeadersNone,
			decision: refused(over("default", hundred, time.Minute)),
			want:     fields(),
		}, {
			name:     "HD-31 no partition key",
			decision: allowed(withKey(counted("default", hundred, 9, time.Minute), "")),
			want:     fields("RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=9;t=60`),
		}, {
			name:     "HD-32 partition key, padded base64 of the standard alphabet",
			decision: allowed(withKey(counted("default", hundred, 9, time.Minute), "\xfb\xff\xbe\x01")),
			want: fields("RateLimit-Policy", `"default";q=100;w=60;pk=:+/++AQ==:`,
				"RateLimit", `"default";r=9;t=60;pk=:+/++AQ==:`),
		}, {
			name: "HD-32 partition keys of several policies",
			decision: allowed(
				withKey(counted("ip", hundred, 9, time.Minute), "one"),
				withKey(counted("token", hundred, 8, time.Minute), "two"),
			),
			want: fields("RateLimit-Policy", `"ip";q=100;w=60;pk=:b25l:, "token";q=100;w=60;pk=:dHdv:`,
				"RateLimit", `"token";r=8;t=60;pk=:dHdv:`),
		}, {
			name:    "HD-35 fail-open",
			headers: HeadersStructured | HeadersLegacy,
			decision: Decision{
				Outcome: Allowed,
				Err:     errors.New("connection refused"),
				Results: []Result{{Policy: "default", Limit: hundred, Outcome: Allowed}},
			},
			want: fields(),
		}, {
			name: "counted by the process itself",
			decision: allowed(Result{
				Policy: "default", Limit: hundred, Outcome: Allowed, Counted: true, Local: true, Remaining: 9, Reset: time.Minute,
			}),
			want: fields("RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=9;t=60`),
		}, {
			name: "one policy counted, one not",
			decision: allowed(
				Result{Policy: "open", Limit: PerSecond(1), Outcome: Allowed},
				counted("local", hundred, 9, time.Minute),
				Result{Policy: "open too", Limit: PerSecond(1), Outcome: Allowed},
			),
			want: fields("RateLimit-Policy", `"local";q=100;w=60`, "RateLimit", `"local";r=9;t=60`),
		}, {
			name:     "draft-06, one policy counted, one of the same quota not",
			headers:  HeadersDraft06,
			decision: allowed(Result{Policy: "open", Limit: hundred}, counted("a", PerHour(5), 1, time.Minute), counted("b", hundred, 9, time.Minute)),
			want: fields("RateLimit-Limit", "5", "RateLimit-Remaining", "1", "RateLimit-Reset", "60",
				"RateLimit-Policy", "5;w=3600, 100;w=60"),
		}, {
			name:     "no policy applied",
			decision: allowed(),
			want:     fields(),
		}, {
			name: "fail-closed, though a limiter further out has counted",
			decision: Decision{
				Outcome: Unavailable,
				Results: []Result{counted("site", hundred, 9, time.Minute), {Policy: "route", Limit: hundred, Outcome: Unavailable}},
			},
			want: fields(),
		}, {
			name:     "canceled",
			decision: Decision{Outcome: Canceled, Results: []Result{counted("site", hundred, 9, time.Minute)}},
			want:     fields(),
		}, {
			name: "no decision",
			want: fields(),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.now == nil {
				test.now = noClock
			}
			got := http.Header{}
			test.headers.write(got, test.decision, test.now)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("fields (-want +got):\n%s", diff)
			}
		})
	}
}

// Fault 16: fields are set, not added, and what does not belong to a format is left alone.
func TestHeadersWriteReplaces(t *testing.T) {
	t.Parallel()
	others := http.Header{
		"Access-Control-Allow-Origin": {"https://example.com"},
		"Vary":                        {"Origin", "Accept-Encoding"},
		"Retry-After":                 {"90"},
		"Cache-Control":               {"private"},
	}
	got := others.Clone()
	got["Ratelimit"] = []string{`"outer";r=1;t=1`, `"upstream";r=1;t=1`}
	got["Ratelimit-Policy"] = []string{`"outer";q=1;w=1`}
	got["X-Ratelimit-Reset"] = []string{"1"}
	before := got["Ratelimit"]

	d := allowed(counted("default", PerMinute(100), 60, 58*time.Second))
	(HeadersStructured | HeadersLegacy).write(got, d, at(0))

	want := others.Clone()
	maps.Copy(want, fields(
		"RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=60;t=58`,
		"X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "60",
		"X-RateLimit-Reset", strconv.FormatInt(noon.Add(58*time.Second).Unix(), 10),
	))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{`"outer";r=1;t=1`, `"upstream";r=1;t=1`}, before); diff != "" {
		t.Errorf("the slice of the outer value was written to (-want +got):\n%s", diff)
	}
}

// Two responses, and two fields of one response, have nothing in common that could be written to.
func TestHeadersWriteSharesNothing(t *testing.T) {
	t.Parallel()
	const all = HeadersStructured | HeadersLegacy
	d := allowed(counted("default", PerMinute(100), 60, 58*time.Second))
	first, second := http.Header{}, http.Header{}
	all.write(first, d, at(0))
	all.write(second, d, at(0))
	want := second.Clone()
	for name := range first {
		first[name][0] = "overwritten"
		first[name] = append(first[name], "added")
		if diff := cmp.Diff([]string{"overwritten", "added"}, first[name]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if diff := cmp.Diff(want, second); diff != "" {
		t.Errorf("fields of the second response (-want +got):\n%s", diff)
	}
}

// HD-35: what a limiter further out has said stands when this one has nothing to say.
func TestHeadersWriteLeavesOuterFields(t *testing.T) {
	t.Parallel()
	outer := fields("RateLimit", `"outer";r=1;t=1`, "RateLimit-Policy", `"outer";q=1;w=1`, "X-RateLimit-Limit", "1")
	for _, d := range []Decision{
		{Outcome: Allowed, Results: []Result{{Policy: "default", Limit: PerMinute(100), Outcome: Allowed}}},
		{Outcome: Unavailable, Results: []Result{{Policy: "default", Limit: PerMinute(100), Outcome: Unavailable}}},
		{Outcome: Canceled},
		{},
	} {
		for _, h := range []Headers{0, HeadersStructured | HeadersLegacy, HeadersDraft06, HeadersNone} {
			got := outer.Clone()
			h.write(got, d, noClock)
			if diff := cmp.Diff(outer, got); diff != "" {
				t.Errorf("%v, outcome %q (-want +got):\n%s", h, d.Outcome, diff)
			}
		}
	}
}

// HD-38: the spelling on HTTP/1.1 is that of http.Header, and Get finds it under the usual name.
func TestHeadersSpelling(t *testing.T) {
	t.Parallel()
	h := http.Header{}
	(HeadersStructured | HeadersLegacy).write(h, allowed(counted("default", PerMinute(100), 60, 58*time.Second)), at(0))
	HeadersDraft06.write(h, allowed(counted("default", PerMinute(100), 60, 58*time.Second)), at(0))
	for _, name := range []string{
		"RateLimit", "RateLimit-Policy",
		"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset",
		"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset",
	} {
		if h.Get(name) == "" {
			t.Errorf("Get(%q) finds nothing in %q", name, h)
		}
	}
	for name := range h {
		if canonical := http.CanonicalHeaderKey(name); name != canonical {
			t.Errorf("key %q is not canonical, want %q", name, canonical)
		}
	}
	var text bytes.Buffer
	if err := h.Write(&text); err != nil {
		t.Fatal(err)
	}
	if want := "Ratelimit: \"default\";r=60;t=58\r\n"; !strings.Contains(text.String(), want) {
		t.Errorf("text is %q, want it to contain %q", &text, want)
	}
}

// Fault 16: behind the limiter is a proxy whose upstream limits too. Each layer's structured fields
// appear once, and the upstream's own 429 arrives with its Retry-After neither lost nor doubled.
func TestHeadersBesideUpstream(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("RateLimit", `"upstream";r=0;t=7`)
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer upstream.Close()
	target, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}

	w := httptest.NewRecorder()
	HeadersStructured.write(w.Header(), allowed(counted("default", PerMinute(100), 60, 58*time.Second)), noClock)
	proxy.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))

	if w.Code != http.StatusTooManyRequests {
		t.Errorf("status is %d, want the upstream's 429", w.Code)
	}
	if diff := cmp.Diff([]string{"7"}, w.Header().Values("Retry-After")); diff != "" {
		t.Errorf("Retry-After (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{`"default";r=60;t=58`, `"upstream";r=0;t=7`}, w.Header().Values("RateLimit")); diff != "" {
		t.Errorf("RateLimit (-want +got):\n%s", diff)
	}
}

// HD-29 and its neighbours.
func TestHeadersValidate(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		headers Headers
		want    string // "" for no mistake
	}{
		{0, ""},
		{HeadersStructured, ""},
		{HeadersDraft06, ""},
		{HeadersLegacy, ""},
		{HeadersNone, ""},
		{HeadersStructured | HeadersLegacy, ""},
		{HeadersDraft06 | HeadersLegacy, ""},
		{HeadersStructured | HeadersDraft06, "is HeadersStructured|HeadersDraft06, want HeadersStructured or HeadersDraft06: both write RateLimit-Policy, in different syntaxes"},
		{HeadersStructured | HeadersDraft06 | HeadersLegacy, "is HeadersStructured|HeadersDraft06|HeadersLegacy, want HeadersStructured or HeadersDraft06: both write RateLimit-Policy, in different syntaxes"},
		{HeadersNone | HeadersLegacy, "is HeadersLegacy|HeadersNone, want HeadersNone alone or not at all"},
		{HeadersNone | HeadersStructured, "is HeadersStructured|HeadersNone, want HeadersNone alone or not at all"},
		{headersEnd, "is Headers(0x10), want formats of this package"},
		{HeadersLegacy | 1<<20, "is HeadersLegacy|Headers(0x100000), want formats of this package"},
		{math.MaxUint, fmt.Sprintf("is HeadersStructured|HeadersDraft06|HeadersLegacy|HeadersNone|Headers(%#x), want formats of this package", uint(math.MaxUint)&^0xf)},
	} {
		got := ""
		if err := test.headers.validate(); err != nil {
			got = err.Error()
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("Headers(%#x).validate() (-want +got):\n%s", uint(test.headers), diff)
		}
	}
}

func TestCeilSeconds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		d    time.Duration
		want int64
	}{
		{math.MinInt64, 0},
		{-time.Second, 0},
		{-1, 0},
		{0, 0},
		{1, 1},
		{time.Second - 1, 1},
		{time.Second, 1},
		{time.Second + 1, 2},
		{3700 * time.Millisecond, 4},
		{time.Minute, 60},
		{MaxWindow, 366 * 24 * 3600},
		{math.MaxInt64, 9223372037},
	} {
		if got := ceilSeconds(test.d); got != test.want {
			t.Errorf("ceilSeconds(%d) = %d, want %d", test.d, got, test.want)
		}
	}
}

// Whatever the names and the counts, the structured fields are Lists of RFC 9651 that say what the
// results say: only counted policies, quotas and windows as configured, 0 <= r <= q, times that are
// rounded up and not negative, and no field beside the two.
func FuzzHeaders(f *testing.F) {
	const spanMillis = uint64((MaxWindow - MinWindow) / time.Millisecond)
	f.Add("default", "day", uint32(100), 99, uint64(59_000), int64(time.Minute), "", true, false, true)
	f.Add(`a"b\c d`, `\`, uint32(0), -5, uint64(1500), int64(-1), "\x00\xff", true, true, true)
	f.Add("", " ", uint32(MaxRequests), math.MaxInt, uint64(0), int64(math.MaxInt64), "k", false, true, true)
	f.Add(`";q=1`, `, "x`, uint32(1), math.MinInt, spanMillis, int64(math.MinInt64), "key", true, true, false)
	f.Fuzz(func(t *testing.T, name1, name2 string, quota uint32, left int, extraMillis uint64, reset int64, key string, refuses1, refuses2, counted2 bool) {
		outcome := func(refuses bool) Outcome {
			if refuses {
				return Refused
			}
			return Allowed
		}
		requests := int(quota % (MaxRequests + 1))
		limit := Limit{requests, MinWindow + time.Duration(extraMillis%(spanMillis+1))*time.Millisecond}
		if mistake := limit.mistake(); mistake != "" {
			t.Fatal(mistake)
		}
		results := []Result{
			{Policy: printable(name1), Limit: limit, Outcome: outcome(refuses1), Counted: true, Remaining: left, Reset: time.Duration(reset), partitionKey: []byte(key)},
			{Policy: printable(name2), Limit: PerDay(5000), Outcome: outcome(refuses2), Counted: counted2, Remaining: 50, Reset: time.Hour},
		}
		h := http.Header{}
		HeadersStructured.write(h, Decision{Outcome: outcome(refuses1 || refuses2), Results: results}, noClock)
		if len(h) != 2 || len(h.Values("RateLimit")) != 1 || len(h.Values("RateLimit-Policy")) != 1 {
			t.Fatalf("fields are %q, want RateLimit and RateLimit-Policy once each", h)
		}

		want := []sfItem{{results[0].Policy, map[string]any{"q": int64(requests), "w": ceil(int64(limit.Window), int64(time.Second))}}}
		if key != "" {
			want[0].params["pk"] = []byte(key)
		}
		if counted2 {
			want = append(want, sfItem{results[1].Policy, map[string]any{"q": int64(5000), "w": int64(86400)}})
		}
		policies, err := parseList(h.Get("RateLimit-Policy"))
		if err != nil {
			t.Fatalf("RateLimit-Policy %q: %v", h.Get("RateLimit-Policy"), err)
		}
		if diff := cmp.Diff(want, policies, cmp.AllowUnexported(sfItem{})); diff != "" {
			t.Errorf("RateLimit-Policy (-want +got):\n%s", diff)
		}

		limits, err := parseList(h.Get("RateLimit"))
		if err != nil || len(limits) != 1 {
			t.Fatalf("RateLimit %q: %v, want one item", h.Get("RateLimit"), err)
		}
		first := sfItem{results[0].Policy, map[string]any{
			"r": int64(max(0, min(left, requests))), "t": max(0, ceil(reset, int64(time.Second))),
		}}
		if key != "" {
			first.params["pk"] = []byte(key)
		}
		second := sfItem{results[1].Policy, map[string]any{"r": int64(50), "t": int64(3600)}}
		diff := cmp.Diff(first, limits[0], cmp.AllowUnexported(sfItem{}))
		if diff != "" && counted2 {
			diff = cmp.Diff(second, limits[0], cmp.AllowUnexported(sfItem{}))
		}
		if diff != "" {
			t.Errorf("RateLimit is of neither policy (-want +got):\n%s", diff)
		}
	})
}

// printable maps s to printable ASCII, which is all that the name of a policy may have.
func printable(s string) string {
	b := []byte(s)
	for i := range b {
		b[i] = ' ' + b[i]%('~'-' '+1)
	}
	return string(b)
}

// ceil is a/b rounded up, for a positive b, told in another way than the code under test does.
func ceil(a, b int64) int64 {
	q, rest := new(big.Int).DivMod(big.NewInt(a), big.NewInt(b), new(big.Int))
	if rest.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q.Int64()
}

// An sfItem is a member of a List: a String with parameters that are int64 or []byte.
type sfItem struct {
	value  string
	params map[string]any
}

// parseList parses a List by RFC 9651 (section 4.2.1) as far as RateLimit and RateLimit-Policy use
// it: Items that are Strings, with parameters that are Integers or Byte Sequences, none of them twice.
func parseList(text string) ([]sfItem, error) {
	p := &sfParser{rest: text}
	var list []sfItem
	for {
		item := sfItem{params: map[string]any{}}
		var err error
		if item.value, err = p.string(); err != nil {
			return nil, err
		}
		for p.skip(";") {
			name := p.while(func(c byte) bool { return 'a' <= c && c <= 'z' })
			if name == "" || !p.skip("=") {
				return nil, fmt.Errorf("want a parameter at %q", p.rest)
			}
			if _, twice := item.params[name]; twice {
				return nil, fmt.Errorf("parameter %q twice", name)
			}
			if item.params[name], err = p.bareItem(); err != nil {
				return nil, err
			}
		}
		list = append(list, item)
		if p.rest == "" {
			return list, nil
		}
		if !p.skip(", ") { // as section 4.1.1 writes it, though 4.2.1 would read other white space
			return nil, fmt.Errorf("want a comma and a space at %q", p.rest)
		}
	}
}

type sfParser struct{ rest string }

func (p *sfParser) skip(prefix string) bool {
	rest, ok := strings.CutPrefix(p.rest, prefix)
	p.rest = rest
	return ok
}

func (p *sfParser) while(in func(byte) bool) string {
	n := 0
	for n < len(p.rest) && in(p.rest[n]) {
		n++
	}
	text := p.rest[:n]
	p.rest = p.rest[n:]
	return text
}

// string parses a String (section 4.2.5).
func (p *sfParser) string() (string, error) {
	if !p.skip(`"`) {
		return "", fmt.Errorf("want a quotation mark at %q", p.rest)
	}
	var s []byte
	for p.rest != "" {
		c := p.rest[0]
		p.rest = p.rest[1:]
		switch {
		case c == '"':
			return string(s), nil
		case c == '\\':
			if p.rest == "" || p.rest[0] != '"' && p.rest[0] != '\\' {
				return "", fmt.Errorf("wrong escape before %q", p.rest)
			}
			s = append(s, p.rest[0])
			p.rest = p.rest[1:]
		case c < 0x20 || c > 0x7e:
			return "", fmt.Errorf("byte %#x in a String", c)
		default:
			s = append(s, c)
		}
	}
	return "", errors.New("a String that does not end")
}

// bareItem parses an Integer (section 4.2.4) or a Byte Sequence (section 4.2.7).
func (p *sfParser) bareItem() (any, error) {
	if p.skip(":") {
		text := p.while(func(c byte) bool { return c != ':' })
		if !p.skip(":") {
			return nil, errors.New("a Byte Sequence that does not end")
		}
		return base64.StdEncoding.Strict().DecodeString(text)
	}
	digits := p.while(func(c byte) bool { return '0' <= c && c <= '9' })
	if digits == "" || len(digits) > 15 {
		return nil, fmt.Errorf("want an Integer of 1 to 15 digits before %q", p.rest)
	}
	return strconv.ParseInt(digits, 10, 64)
}

func BenchmarkHeadersWrite(b *testing.B) {
	one := allowed(counted("default", PerMinute(100), 60, 58*time.Second))
	three := allowed(
		counted("second", PerSecond(10), 6, 500*time.Millisecond),
		counted("hour", PerHour(1000), 742, 1803*time.Second),
		withKey(counted("token", PerDay(5000), 4000, 36000*time.Second), "0123456789ab"),
	)
	for _, bench := range []struct {
		name     string
		headers  Headers
		decision Decision
	}{
		{"structured/1", HeadersStructured, one},
		{"structured/3", HeadersStructured, three},
		{"draft06/1", HeadersDraft06, one},
		{"legacy/1", HeadersLegacy, one},
		{"none", HeadersNone, one},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			h := http.Header{}
			for b.Loop() {
				bench.headers.write(h, bench.decision, time.Now)
			}
		})
	}
}
