package krow_test

import (
	"bytes"
	"crypto/rand"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/krow/ratelimit"
	after "github.com/krow/ratelimit/examples/krow/after/httpserver"
	before "github.com/krow/ratelimit/examples/krow/before/httpserver"
	during "github.com/krow/ratelimit/examples/krow/during/httpserver"
	"github.com/krow/ratelimit/internal/testdb"
)

func TestMain(m *testing.M) {
	testdb.Main(m, func() error { return goleak.Find() })
}

const (
	replicas = 3
	token    = "mF_9.B5f-4.1JqM"
)

// A newServer makes the handler of one replica.
type newServer func(*testing.T, *pgxpool.Pool, ratelimit.Config) http.Handler

func newBefore(t *testing.T, pool *pgxpool.Pool, _ ratelimit.Config) http.Handler {
	limits := before.NewRateLimits()
	t.Cleanup(limits.Close)
	return before.New(pool, limits, []string{token})
}

func newDuring(t *testing.T, pool *pgxpool.Pool, config ratelimit.Config) http.Handler {
	limits, err := during.NewRateLimits(t.Context(), pool, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(limits.Close)
	return during.New(pool, limits, []string{token})
}

func newAfter(t *testing.T, pool *pgxpool.Pool, config ratelimit.Config) http.Handler {
	limits, err := after.NewRateLimits(t.Context(), pool, config)
	if err != nil {
		t.Fatal(err)
	}
	return after.New(pool, limits, []string{token})
}

// Behind three replicas, three times the limit passes with a map in each, also while Postgres is tried out, and
// exactly the limit once it decides.
func TestThreeReplicas(t *testing.T) {
	t.Parallel()
	servers := []struct {
		name  string
		new   newServer
		times int // how many times the limit is admitted
	}{
		{"before", newBefore, replicas},
		{"during", newDuring, replicas},
		{"after", newAfter, 1},
	}
	routes := []struct {
		path, policy  string
		limit, status int
	}{
		{"/oauth/register", "oauth.register", 5, http.StatusCreated},
		{"/mcp", "mcp.call", 60, http.StatusOK},
	}
	for _, server := range servers {
		for _, route := range routes {
			t.Run(server.name+"/"+route.policy, func(t *testing.T) {
				t.Parallel()
				got := flood(t, server.new, route.path, route.limit+2)
				if want := server.times * route.limit; got.statuses[route.status] != want {
					t.Errorf("%d replicas admitted %d requests, want %d", replicas, got.statuses[route.status], want)
				}
				if want := replicas*(route.limit+2) - server.times*route.limit; got.statuses[http.StatusTooManyRequests] != want {
					t.Errorf("%d requests were refused, want %d", got.statuses[http.StatusTooManyRequests], want)
				}
				t.Logf("limit %d, statuses %v", route.limit, got.statuses)
				switch server.name {
				case "during":
					differ := "policy=" + route.policy + " map=allowed shared=refused bucket=" + route.policy + "/1m:"
					if n, want := strings.Count(got.log, differ), (replicas-1)*route.limit; n != want {
						t.Errorf("%d lines of the log have %q, want %d:\n%s", n, differ, want, got.log)
					}
					if n, want := strings.Count(got.log, "rate limits differ"), (replicas-1)*route.limit; n != want {
						t.Errorf("%d lines of the log tell of a difference, want %d:\n%s", n, want, got.log)
					}
				case "after":
					if len(got.waits) == 0 {
						t.Error("no refusal has Retry-After")
					}
					for _, wait := range got.waits {
						if s, err := strconv.Atoi(wait); err != nil || s < 1 || s > 60 {
							t.Errorf("Retry-After is %q, want 1 to 60", wait)
						}
					}
				}
				for _, secret := range []string{token, "127.0.0.1"} {
					if strings.Contains(got.log, secret) {
						t.Errorf("the log has %q in it:\n%s", secret, got.log)
					}
				}
			})
		}
	}
}

// observed is what came of a flood.
type observed struct {
	statuses map[int]int
	waits    []string // Retry-After of the refused
	log      string
}

// flood sends so many requests to each of three replicas at once, which have pools of their own on one new database.
// One that has fallen into two windows, and so rightly had the limit twice, is sent again on another database.
func flood(t *testing.T, server newServer, path string, each int) observed {
	t.Helper()
	for range 3 {
		url := testdb.Empty(t)
		got := floodOn(t, url, server, path, each)
		if windows(t, url) <= 1 {
			return got
		}
	}
	t.Fatal("three floods in a row fell into two windows of a minute each")
	return observed{}
}

func floodOn(t *testing.T, url string, server newServer, path string, each int) observed {
	t.Helper()
	var log logbook
	config := ratelimit.Config{
		Secret:   []byte(rand.Text() + rand.Text()),
		Deadline: time.Minute, // what is tested is not how fast this machine is
		Logger:   slog.New(slog.NewTextHandler(&log, nil)),
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	got := observed{statuses: make(map[int]int)}
	for range replicas {
		replica := httptest.NewServer(server(t, testdb.Pool(t, url), config))
		t.Cleanup(replica.Close)
		all.Go(func() {
			for range each {
				resp, err := post(t, replica, path)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				got.statuses[resp.StatusCode]++
				if resp.StatusCode == http.StatusTooManyRequests {
					got.waits = append(got.waits, resp.Header.Get("Retry-After"))
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	got.log = log.String()
	return got
}

func post(t *testing.T, server *httptest.Server, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := server.Client().Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp, err
}

// windows returns how many windows were counted in: none where there is no table.
func windows(t *testing.T, url string) int {
	t.Helper()
	pool := testdb.Pool(t, url)
	var made bool
	if err := pool.QueryRow(t.Context(), "SELECT to_regclass('public.rate_limits') IS NOT NULL").Scan(&made); err != nil {
		t.Fatal(err)
	}
	if !made {
		return 0
	}
	var n int
	if err := pool.QueryRow(t.Context(), "SELECT count(DISTINCT window_start) FROM public.rate_limits").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// What a replica has counted that only tries Postgres out is counted for the one that decides by it.
func TestSwitchKeepsCounts(t *testing.T) {
	t.Parallel()
	const limit = 5
	for range 3 {
		url := testdb.Empty(t)
		config := ratelimit.Config{Secret: []byte(rand.Text() + rand.Text()), Deadline: time.Minute}
		old, switched := newDuring(t, testdb.Pool(t, url), config), newAfter(t, testdb.Pool(t, url), config)
		var got []int
		for range limit {
			got = append(got, serve(old, "POST", "/oauth/register", ""))
		}
		got = append(got, serve(switched, "POST", "/oauth/register", ""))
		if windows(t, url) == 1 {
			if diff := cmp.Diff([]int{201, 201, 201, 201, 201, 429}, got); diff != "" {
				t.Errorf("statuses (-want +got):\n%s", diff)
			}
			return
		}
	}
	t.Fatal("three tries in a row did not fall into one window of a minute each")
}

// The three are one server otherwise: callers without a token that is known are sent away, and it tells of its health.
func TestServer(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]newServer{"before": newBefore, "during": newDuring, "after": newAfter} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := ratelimit.Config{Secret: []byte(rand.Text() + rand.Text()), Deadline: time.Minute}
			handler := server(t, testdb.Pool(t, testdb.Empty(t)), config)
			for _, tt := range []struct {
				method, path, authorization string
				want                        int
			}{
				{"GET", "/healthz", "", http.StatusOK},
				{"POST", "/mcp", "", http.StatusUnauthorized},
				{"POST", "/mcp", "Bearer wrong", http.StatusUnauthorized},
				{"POST", "/mcp", token, http.StatusUnauthorized},
				{"POST", "/mcp", "Bearer " + token, http.StatusOK},
			} {
				if got := serve(handler, tt.method, tt.path, tt.authorization); got != tt.want {
					t.Errorf("%s %s with %q: %d, want %d", tt.method, tt.path, tt.authorization, got, tt.want)
				}
			}
		})
	}
}

func serve(handler http.Handler, method, path, authorization string) int {
	r := httptest.NewRequest(method, path, nil)
	r.Header.Set("Authorization", authorization)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w.Code
}

// A logbook keeps a log. It is safe for concurrent use.
type logbook struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
