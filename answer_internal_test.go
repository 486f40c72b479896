package ratelimit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSetRefusalHeaders(t *testing.T) {
	t.Parallel()
	retryAfter := func(values ...string) http.Header { return http.Header{"Retry-After": values} }
	for _, test := range []struct {
		name  string
		outer http.Header // what is set already
		after time.Duration
		want  string // Retry-After
	}{
		{"HD-05 rounded up", nil, 59500 * time.Millisecond, "60"},
		{"HD-07 a millisecond left", nil, time.Millisecond, "1"},
		{"HD-08 a nanosecond left", nil, time.Nanosecond, "1"},
		{"nothing left", nil, 0, "1"},
		{"window that ended on the way", nil, -time.Second, "1"},
		{"fault 13: 8 ms", nil, 8 * time.Millisecond, "1"},
		{"fault 13: 499 ms", nil, 499 * time.Millisecond, "1"},
		{"fault 13: 1.2 s", nil, 1200 * time.Millisecond, "2"},
		{"fault 14: 3.7 s", nil, 3700 * time.Millisecond, "4"},
		{"a day", nil, 24 * time.Hour, "86400"},
		{"HD-16 outer limiter asks for more", retryAfter("90"), time.Minute, "90"},
		{"HD-16 outer limiter asks for less", retryAfter("30"), time.Minute, "60"},
		{"HD-16 outer limiter asks for 0", retryAfter("0"), 0, "1"},
		{"HD-16 several lines", retryAfter("30", "90", "soon"), time.Minute, "90"},
		{"leading zeros", retryAfter("0090"), time.Minute, "90"},
		{"date in the future", retryAfter("Fri, 31 Dec 2100 23:59:59 GMT"), time.Minute, "60"},
		{"sign", retryAfter("+90"), time.Minute, "60"},
		{"negative", retryAfter("-90"), time.Minute, "60"},
		{"broken number", retryAfter("90.5"), time.Minute, "60"},
		{"too large a number", retryAfter("9223372036854775808"), time.Minute, "60"},
		{"largest number", retryAfter("9223372036854775807"), time.Minute, "9223372036854775807"},
		{"empty", retryAfter(""), time.Minute, "60"},
		{"HD-17 cache control of an outer middleware", fields("Cache-Control", "public, max-age=60"), time.Minute, "60"},
		{"HD-17 in several lines", http.Header{"Cache-Control": {"public", "max-age=60"}}, time.Minute, "60"},
		{
			"fault 34: CORS headers survive", http.Header{
				"Access-Control-Allow-Origin":   {"https://example.com"},
				"Access-Control-Expose-Headers": {"RateLimit", "Retry-After"},
				"Vary":                          {"Origin", "Accept-Encoding"},
			}, time.Minute, "60",
		},
		{"fields of a rate limit survive", fields("RateLimit", `"default";r=0;t=60`), time.Minute, "60"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := test.outer.Clone()
			if got == nil {
				got = http.Header{}
			}
			setRefusalHeaders(got, Decision{Outcome: Refused, RetryAfter: test.after})
			want := http.Header{}
			maps.Copy(want, test.outer)
			want["Retry-After"] = []string{test.want}
			want["Cache-Control"] = []string{"no-store"}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
		})
	}
}

// The slices of an outer middleware may be shared between responses.
func TestSetRefusalHeadersWritesToNoSlice(t *testing.T) {
	t.Parallel()
	shared := http.Header{"Retry-After": {"5", "6"}, "Cache-Control": {"public"}}
	h := maps.Clone(shared)
	setRefusalHeaders(h, Decision{RetryAfter: time.Minute})
	if diff := cmp.Diff(http.Header{"Retry-After": {"5", "6"}, "Cache-Control": {"public"}}, shared); diff != "" {
		t.Errorf("shared values (-want +got):\n%s", diff)
	}
}

// HD-37: clients that read the field as an integer wait as long as they were told. This is what
// hashicorp/go-retryablehttp does with it.
func TestRetryAfterIsUnderstood(t *testing.T) {
	t.Parallel()
	h := http.Header{}
	setRefusalHeaders(h, Decision{Outcome: Refused, RetryAfter: time.Minute})
	seconds, err := strconv.ParseInt(h["Retry-After"][0], 10, 64)
	if wait := time.Duration(seconds) * time.Second; err != nil || wait != time.Minute {
		t.Errorf("wait is %v, %v, want 1m", wait, err)
	}
}

// HD-34: whatever is left and whatever was set before, Retry-After is one line of a positive whole
// number: the time left rounded up, or the largest whole number of an outer limiter if that is longer.
func FuzzRetryAfter(f *testing.F) {
	for _, d := range []int64{math.MinInt64, -1, 0, 1, 8e6, 999_999_999, 1e9, 1e9 + 1, 37e8, math.MaxInt64 - 1, math.MaxInt64} {
		f.Add(d, "", "")
		f.Add(d, "90", "0120")
	}
	f.Add(int64(1), "Fri, 31 Dec 2100 23:59:59 GMT", "00")
	f.Add(int64(1), "-1", "+1")
	f.Add(int64(1), "9223372036854775807", "9223372036854775808")
	f.Add(int64(1), "0x10", "1_000")
	positive, digits := regexp.MustCompile(`^[1-9][0-9]*$`), regexp.MustCompile(`^[0-9]+$`)
	f.Fuzz(func(t *testing.T, left int64, outer1, outer2 string) {
		h := http.Header{"Retry-After": {outer1, outer2}}
		setRefusalHeaders(h, Decision{Outcome: Refused, RetryAfter: time.Duration(left)})
		got := h["Retry-After"]
		if len(got) != 1 || !positive.MatchString(got[0]) {
			t.Fatalf("Retry-After is %q, want one line of a positive whole number", got)
		}
		want := max(1, ceil(left, int64(time.Second)))
		for _, text := range []string{outer1, outer2} {
			if n, ok := new(big.Int).SetString(text, 10); ok && digits.MatchString(text) && n.IsInt64() {
				want = max(want, n.Int64())
			}
		}
		if got[0] != strconv.FormatInt(want, 10) {
			t.Errorf("Retry-After is %s with %v left, after %q and %q, want %d", got[0], time.Duration(left), outer1, outer2, want)
		}
	})
}

// answer is what a refused or undecided request gets, with the headers that a Limiter sets before.
func answer(d Decision) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		HeadersStructured.write(w.Header(), d, noClock)
		if d.Outcome == Unavailable {
			unavailable(w, r, d)
			return
		}
		refuse(w, r, d)
	})
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	undecided := Decision{
		Outcome:    Unavailable,
		RetryAfter: time.Second,
		Results:    []Result{{Policy: "login", Limit: PerMinute(5), Outcome: Unavailable}},
		Err:        fmt.Errorf("counting: %w", errors.New("dial tcp 10.0.0.5:5432: password of user app")),
	}
	for _, test := range []struct {
		name       string
		decision   Decision
		wantStatus int
		wantBody   string
		wantFields http.Header // beside those that each of the answers has
	}{
		{
			name:       "HD-19 refused",
			decision:   refused(over("default", PerMinute(100), 59500*time.Millisecond)),
			wantStatus: http.StatusTooManyRequests,
			wantBody: `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded",` +
				`"status":429,"detail":"Try again in 60 seconds.","violated-policies":["default"]}` + "\n",
			wantFields: fields("Retry-After", "60", "RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=0;t=60`),
		}, {
			name:       "HD-07 refused, a millisecond left",
			decision:   refused(over("default", PerMinute(100), time.Millisecond)),
			wantStatus: http.StatusTooManyRequests,
			wantBody: `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded",` +
				`"status":429,"detail":"Try again in 1 second.","violated-policies":["default"]}` + "\n",
			wantFields: fields("Retry-After", "1", "RateLimit-Policy", `"default";q=100;w=60`, "RateLimit", `"default";r=0;t=1`),
		}, {
			name: "HD-13 hour exceeded, day not",
			decision: refused(
				over("hour", PerHour(1000), 120*time.Second),
				counted("day", PerDay(5000), 100, 36000*time.Second),
			),
			wantStatus: http.StatusTooManyRequests,
			wantBody: `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded",` +
				`"status":429,"detail":"Try again in 120 seconds.","violated-policies":["hour"]}` + "\n",
			wantFields: fields("Retry-After", "120",
				"RateLimit-Policy", `"hour";q=1000;w=3600, "day";q=5000;w=86400`, "RateLimit", `"hour";r=0;t=120`),
		}, {
			name: "HD-14 both exceeded",
			decision: refused(
				over("hour", PerHour(1000), 120*time.Second),
				over("day", PerDay(5000), 36000*time.Second),
			),
			wantStatus: http.StatusTooManyRequests,
			wantBody: `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded",` +
				`"status":429,"detail":"Try again in 36000 seconds.","violated-policies":["hour","day"]}` + "\n",
			wantFields: fields("Retry-After", "36000",
				"RateLimit-Policy", `"hour";q=1000;w=3600, "day";q=5000;w=86400`, "RateLimit", `"day";r=0;t=36000`),
		}, {
			name:       "refused, name with quotation mark and backslash",
			decision:   refused(over(`a"b\c <d>`, PerMinute(100), time.Minute)),
			wantStatus: http.StatusTooManyRequests,
			wantBody: `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded",` +
				`"status":429,"detail":"Try again in 60 seconds.","violated-policies":["a\"b\\c <d>"]}` + "\n",
			wantFields: fields("Retry-After", "60", "RateLimit-Policy", `"a\"b\\c <d>";q=100;w=60`, "RateLimit", `"a\"b\\c <d>";r=0;t=60`),
		}, {
			name:       "fail-closed: no internal text, no rate limit",
			decision:   undecided,
			wantStatus: http.StatusServiceUnavailable,
			wantBody:   `{"type":"about:blank","title":"Service Unavailable","status":503}` + "\n",
			wantFields: fields("Retry-After", "1"),
		},
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodHead} { // HEAD: HD-20
			t.Run(test.name+" "+method, func(t *testing.T) {
				t.Parallel()
				want := fields(
					"Cache-Control", "no-store",
					"Content-Type", "application/problem+json",
					"Content-Length", strconv.Itoa(len(test.wantBody)),
					"X-Content-Type-Options", "nosniff",
				)
				maps.Copy(want, test.wantFields)
				wantBody := test.wantBody
				if method == http.MethodHead {
					wantBody = ""
				}
				w := httptest.NewRecorder()
				answer(test.decision).ServeHTTP(w, httptest.NewRequest(method, "/", nil))
				if w.Code != test.wantStatus {
					t.Errorf("status is %d, want %d", w.Code, test.wantStatus)
				}
				if diff := cmp.Diff(want, w.Header()); diff != "" {
					t.Errorf("headers (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(wantBody, w.Body.String()); diff != "" {
					t.Errorf("body (-want +got):\n%s", diff)
				}
			})
		}
		if !json.Valid([]byte(test.wantBody)) {
			t.Errorf("%s: body is not JSON: %s", test.name, test.wantBody)
		}
	}
}

// The body speaks of the same wait as the field does.
func TestRefuseDetail(t *testing.T) {
	t.Parallel()
	d := refused(over("default", PerMinute(100), time.Minute))
	for _, test := range []struct {
		name   string
		header http.Header
		want   string
	}{
		{"no outer limiter", fields(), "60"},
		{"outer limiter asked for more", fields("Retry-After", "90"), "90"},
		{"not a number", fields("Retry-After", `"`), "60"},
		{"too large a number", fields("Retry-After", "9223372036854775808"), "60"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := httptest.NewRecorder()
			maps.Copy(w.Header(), test.header)
			refuse(w, httptest.NewRequest(http.MethodGet, "/", nil), d)
			var problem map[string]any
			if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil {
				t.Fatal(err)
			}
			if got, want := problem["detail"], "Try again in "+test.want+" seconds."; got != want {
				t.Errorf("detail is %q, want %q", got, want)
			}
			if got := w.Header()["Retry-After"]; len(got) != 1 || got[0] != test.want {
				t.Errorf("Retry-After is %q, want %q", got, test.want)
			}
		})
	}
}

// What a middleware further out has set survives, save for what describes another body.
func TestAnswerBesideOuterFields(t *testing.T) {
	t.Parallel()
	for _, status := range []Outcome{Refused, Unavailable} {
		w := httptest.NewRecorder()
		maps.Copy(w.Header(), http.Header{
			"Access-Control-Allow-Origin": {"https://example.com"}, // fault 34
			"Vary":                        {"Origin", "Accept-Encoding"},
			"Content-Type":                {"text/html"},
			"Content-Encoding":            {"gzip"}, // the body is compressed on its way
			"Content-Length":              {"12345"},
		})
		answer(Decision{Outcome: status}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		want := http.Header{
			"Access-Control-Allow-Origin": {"https://example.com"},
			"Vary":                        {"Origin", "Accept-Encoding"},
			"Content-Type":                {"application/problem+json"},
			"Content-Encoding":            {"gzip"},
			"Cache-Control":               {"no-store"},
			"Retry-After":                 {"1"},
			"X-Content-Type-Options":      {"nosniff"},
		}
		if diff := cmp.Diff(want, w.Header()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", status, diff)
		}
	}
}

var overLimit = refused(over("default", PerMinute(100), time.Minute))

// HD-20 as a client sees it: a refused HEAD is told what a GET is told.
func TestRefuseHeadOverHTTP(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(answer(overLimit))
	defer server.Close()
	var headers [2]http.Header
	for i, method := range []string{http.MethodGet, http.MethodHead} {
		request, err := http.NewRequestWithContext(t.Context(), method, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || method == http.MethodHead && len(body) > 0 {
			t.Errorf("%s: body is %q, %v", method, body, err)
		}
		if response.StatusCode != http.StatusTooManyRequests {
			t.Errorf("%s: status is %d, want 429", method, response.StatusCode)
		}
		headers[i] = response.Header
		headers[i].Del("Date")
	}
	if diff := cmp.Diff(headers[0], headers[1]); diff != "" {
		t.Errorf("headers of HEAD (-GET +HEAD):\n%s", diff)
	}
}

// GO-01: a client that waits for leave to send its body is refused at once.
func TestRefuseExpectContinue(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(answer(overLimit))
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: example.com\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n")
	response, err := http.ReadResponse(bufio.NewReader(conn), nil) // returns a 100 like any other
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusTooManyRequests || !response.Close {
		t.Errorf("status is %d, close %t, want 429 and true", response.StatusCode, response.Close)
	}
}

// GO-02 and GO-05: a refused client that sends a body keeps its connection.
func TestRefuseKeepsConnection(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		http2     bool
		bodyBytes int
	}{
		{"GO-02 100 KiB on HTTP/1.1", false, 100 << 10},
		{"GO-05 2 MiB on HTTP/2", true, 2 << 20},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewUnstartedServer(answer(overLimit))
			server.EnableHTTP2 = test.http2
			server.StartTLS()
			defer server.Close()
			for i := range 3 {
				reused := false
				trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
				request, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace),
					http.MethodPost, server.URL, strings.NewReader(strings.Repeat("x", test.bodyBytes)))
				if err != nil {
					t.Fatal(err)
				}
				response, err := server.Client().Do(request)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, response.Body)
				response.Body.Close()
				if response.StatusCode != http.StatusTooManyRequests || (response.ProtoMajor == 2) != test.http2 {
					t.Errorf("request %d: %s %s, want 429", i, response.Proto, response.Status)
				}
				if reused != (i > 0) {
					t.Errorf("request %d: connection reused is %t, want %t", i, reused, i > 0)
				}
			}
		})
	}
}

// GO-04: a body that is announced and never sent holds the answer no longer than ReadTimeout.
func TestRefuseBodyThatNeverComes(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(answer(overLimit))
	server.Config.ReadTimeout = time.Second
	server.Start()
	defer server.Close() // waits for the handler's goroutine
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: example.com\r\nContent-Length: 10\r\n\r\n")
	if _, err := io.ReadAll(conn); errors.Is(err, net.ErrClosed) || err != nil && err.(net.Error).Timeout() {
		t.Errorf("connection still open after 5 s: %v", err)
	}
}

func BenchmarkRefuse(b *testing.B) {
	b.ReportAllocs()
	w := &discardResponse{header: http.Header{}}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for b.Loop() {
		clear(w.header)
		refuse(w, r, overLimit)
	}
}

type discardResponse struct{ header http.Header }

func (w *discardResponse) Header() http.Header         { return w.header }
func (w *discardResponse) Write(b []byte) (int, error) { return len(b), nil }
func (w *discardResponse) WriteHeader(int)             {}
