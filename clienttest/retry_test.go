package clienttest_test

import (
	"context"
	"errors"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-resty/resty/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-retryablehttp"
)

// A client makes two requests, one after the other, and returns what each has come to: a status or an error.
type client func(t *testing.T, url string) []string

// A journey is what a client makes of a limit that its first request uses up.
type journey struct {
	name   string
	window time.Duration
	client client
	seen   []int    // the statuses that the server has answered
	came   []string // what the client's two requests have come to
	early  bool     // it does not wait as long as it is told
}

var (
	waited   = []int{200, 429, 200} // and then succeeded
	gaveUp   = []int{200, 429}
	hammered = []int{200, 429, 429, 429} // until two retries were used up

	both    = []string{"200", "200"}
	refused = []string{"200", "429"}
)

// TestRetry runs clients in Go, and curl.
func TestRetry(t *testing.T) {
	t.Parallel()
	run(t, []journey{
		{"retryablehttp GET", short, retryable(http.MethodGet, nil), waited, both, false},
		{"retryablehttp POST", short, retryable(http.MethodPost, nil), waited, both, false},
		// RetryWaitMax is no bound for what the server says.
		{"retryablehttp RetryWaitMax", short, retryable(http.MethodGet, func(c *retryablehttp.Client, _ func()) {
			c.RetryWaitMax = time.Millisecond
		}), waited, both, false},
		// The context of the request is one.
		{"retryablehttp context", long, retryable(http.MethodGet, func(c *retryablehttp.Client, cancel func()) {
			c.ResponseLogHook = func(_ retryablehttp.Logger, r *http.Response) {
				if r.StatusCode == http.StatusTooManyRequests {
					cancel()
				}
			}
		}), gaveUp, []string{"200", "context canceled"}, false},
		{"retryablehttp RetryMax", long, retryable(http.MethodGet, func(c *retryablehttp.Client, _ func()) {
			c.RetryMax = 0
		}), gaveUp, []string{"200", "giving up after 1 attempt(s)"}, false},
		{"retryablehttp PassthroughErrorHandler", long, retryable(http.MethodGet, func(c *retryablehttp.Client, _ func()) {
			c.RetryMax = 0
			c.ErrorHandler = retryablehttp.PassthroughErrorHandler
		}), gaveUp, refused, false},

		{"resty", long, restier(http.MethodGet, resty.New()), gaveUp, refused, false},
		{"resty SetRetryCount", long, restier(http.MethodGet, resty.New().SetRetryCount(2)), gaveUp, refused, false},
		// With a condition it retries, but does not read Retry-After.
		{"resty AddRetryCondition", long, restier(http.MethodGet,
			resty.New().SetRetryCount(2).AddRetryCondition(tooMany)), hammered, refused, true},
		// What SetRetryAfter returns is cut to this.
		{"resty SetRetryMaxWaitTime", long, restier(http.MethodGet,
			newResty().SetRetryCount(2).SetRetryMaxWaitTime(100*time.Millisecond).SetRetryAfter(anHour)), hammered, refused, true},
		{"resty configured GET", short, restier(http.MethodGet, newResty()), waited, both, false},
		{"resty configured POST", short, restier(http.MethodPost, newResty()), waited, both, false},
		{"resty configured, long wait", long, restier(http.MethodGet, newResty()), gaveUp, []string{"200", "refused for too long"}, false},

		{"curl", long, curl(), gaveUp, append(refused, "exit status 22"), false},
		{"curl GET", short, curl("--retry", "3"), waited, both, false},
		{"curl POST", short, curl("--retry", "3", "--data", "x"), waited, both, false},
		// Retry-After counts for more than the delay that is set.
		{"curl --retry-delay", short, curl("--retry", "3", "--retry-delay", "1"), waited, both, false},
		{"curl --retry-max-time", long, curl("--retry", "3", "--retry-max-time", "60"), gaveUp, append(refused, "exit status 22"), false},
	})
}

// run takes all journeys side by side.
func run(t *testing.T, journeys []journey) {
	for _, tt := range journeys {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			url, journal := serve(t, tt.window)
			came := tt.client(t, url)
			if diff := cmp.Diff(tt.came, came); diff != "" {
				t.Errorf("what the requests have come to (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.seen, journal.statuses()); diff != "" {
				t.Errorf("answers of the server (-want +got):\n%s", diff)
			}
			checkWaits(t, journal.exchanges(), tt.early)
		})
	}
}

// checkWaits looks at the time between each refusal and the request after it.
func checkWaits(t *testing.T, all []exchange, early bool) {
	t.Helper()
	// The clock by which Node's timers run counts whole milliseconds, so that they may end one too soon.
	const tick = time.Millisecond
	for i, e := range all {
		if e.status != http.StatusTooManyRequests {
			continue
		}
		seconds, err := strconv.Atoi(e.header.Get("Retry-After"))
		if err != nil || seconds < 1 {
			t.Errorf("Retry-After is %q, want seconds", e.header.Get("Retry-After"))
			continue
		}
		if i+1 == len(all) {
			break
		}
		told, waited := time.Duration(seconds)*time.Second, all[i+1].arrived.Sub(e.answered)
		t.Logf("told to wait %s, waited %s", told, waited)
		if isEarly := waited < told-tick; isEarly != early {
			t.Errorf("waited %s of %s: early is %t, want %t", waited, told, isEarly, early)
		}
	}
}

// retryable returns a client with the defaults of retryablehttp, and configure's changes. That also gets what cancels
// the context of the requests.
func retryable(method string, configure func(c *retryablehttp.Client, cancel func())) client {
	return func(t *testing.T, url string) []string {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := retryablehttp.NewClient()
		c.Logger = nil // it prints every request otherwise
		if configure != nil {
			configure(c, cancel)
		}
		defer c.HTTPClient.CloseIdleConnections()
		return twice(func() string {
			request, err := retryablehttp.NewRequestWithContext(ctx, method, url, nil)
			if err != nil {
				return err.Error()
			}
			response, err := c.Do(request)
			if err != nil {
				return strings.TrimPrefix(err.Error(), method+" "+url+" ")
			}
			defer response.Body.Close()
			return strconv.Itoa(response.StatusCode)
		})
	}
}

// newResty returns a client that waits as long as it is told, up to a minute, and gives up if it is told to wait longer.
func newResty() *resty.Client {
	const longest = time.Minute
	return resty.New().
		SetRetryCount(3).
		SetRetryMaxWaitTime(longest). // what SetRetryAfter returns is cut to it
		AddRetryCondition(tooMany).
		SetRetryAfter(func(_ *resty.Client, r *resty.Response) (time.Duration, error) {
			seconds, _ := strconv.Atoi(r.Header().Get("Retry-After"))
			if wait := time.Duration(seconds) * time.Second; wait <= longest {
				return wait, nil
			}
			return 0, errors.New("refused for too long")
		})
}

func tooMany(r *resty.Response, _ error) bool {
	return r.StatusCode() == http.StatusTooManyRequests
}

func anHour(*resty.Client, *resty.Response) (time.Duration, error) { return time.Hour, nil }

func restier(method string, c *resty.Client) client {
	return func(t *testing.T, url string) []string {
		defer c.GetClient().CloseIdleConnections()
		return twice(func() string {
			response, err := c.R().SetContext(t.Context()).Execute(method, url)
			if err != nil {
				return err.Error()
			}
			return strconv.Itoa(response.StatusCode())
		})
	}
}

func twice(request func() string) []string { return []string{request(), request()} }

// curl makes two requests with one command.
func curl(args ...string) client {
	return func(t *testing.T, url string) []string {
		args := append([]string{"--silent", "--fail", "--write-out", `%{http_code}\n`, url, url}, args...)
		return lines(output(t, "curl", args...))
	}
}

func lines(s string) []string { return strings.Split(strings.TrimSpace(s), "\n") }

// output returns what a program prints, and how it has exited if that was not well.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).Output()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		t.Logf("%s: %v\n%s", name, err, exit.Stderr)
		return string(out) + exit.Error()
	case err != nil:
		t.Fatal(err)
	}
	return string(out)
}

// Without --fail, curl prints the body of a refusal before it tries again, and so two bodies for one URL.
func TestCurlPrintsRefusals(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		args []string
		want bool
	}{{"as it is", nil, true}, {"--fail", []string{"--fail"}, false}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			url, journal := serve(t, short)
			out := output(t, "curl", append([]string{"--silent", "--retry", "3", url, url}, tt.args...)...)
			if diff := cmp.Diff(waited, journal.statuses()); diff != "" {
				t.Errorf("answers of the server (-want +got):\n%s", diff)
			}
			if got := strings.Contains(out, "Quota Exceeded"); got != tt.want {
				t.Errorf("printed %q, with the refusal: %t, want %t", out, got, tt.want)
			}
		})
	}
}
