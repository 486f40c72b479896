package ratelimit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/store"
)

// This file has what the tests of Limiter share. Where time matters they run in a bubble of
// testing/synctest, in which it stands still unless the test moves it; elsewhere their windows are so
// long that they do not end.

// long returns a limit whose window does not end while a test runs: one in 366 days.
func long(n int) ratelimit.Limit { return ratelimit.Limit{Requests: n, Window: ratelimit.MaxWindow} }

// memoryStore returns an empty store of this process.
func memoryStore(t testing.TB) *store.Memory {
	t.Helper()
	m, err := store.NewMemory(store.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// postgresStore returns a store in a database. It leaves a statement much more time than by default, since
// the machines that run tests are busy.
func postgresStore(t testing.TB, pool *pgxpool.Pool, configure ...func(*store.PostgresConfig)) *store.Postgres {
	t.Helper()
	config := store.PostgresConfig{Timeout: time.Minute, ManualSweep: true}
	for _, f := range configure {
		f(&config)
	}
	s, err := store.NewPostgres(pool, config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newLimiter returns a limiter that, unless it is told otherwise, waits for the store as long as it takes
// and fails the test if it logs anything.
func newLimiter(t testing.TB, s ratelimit.Store, config ratelimit.Config) *ratelimit.Limiter {
	t.Helper()
	if config.Deadline == 0 {
		config.Deadline = time.Minute
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.NewTextHandler(testWriter{t}, nil))
	}
	l, err := ratelimit.New(s, config)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

type testWriter struct{ testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.Errorf("the limiter logs: %s", p)
	return len(p), nil
}

// A logbook keeps what is logged.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logbook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logbook) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func (b *logbook) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// records returns what was logged, one map for each record.
func (b *logbook) records(t testing.TB) []map[string]any {
	t.Helper()
	var records []map[string]any
	for line := range strings.Lines(b.String()) {
		record := make(map[string]any)
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatal(err)
		}
		records = append(records, record)
	}
	return records
}

// A decisions is a Config.OnDecision that keeps what it is told.
type decisions struct {
	mu  sync.Mutex
	all []ratelimit.Decision
}

func (d *decisions) observe(_ *http.Request, decision ratelimit.Decision) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, decision)
}

// take returns what has come in since it was last called.
func (d *decisions) take() []ratelimit.Decision {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.all
	d.all = nil
	return all
}

// one returns the only decision that has come in.
func (d *decisions) one(t testing.TB) ratelimit.Decision {
	t.Helper()
	all := d.take()
	if len(all) != 1 {
		t.Fatalf("%d decisions were observed, want 1", len(all))
	}
	return all[0]
}

// outcomes counts what has come in since it was last asked, by outcome.
func (d *decisions) outcomes() map[ratelimit.Outcome]int {
	counts := make(map[ratelimit.Outcome]int)
	for _, decision := range d.take() {
		counts[decision.Outcome]++
	}
	return counts
}

// A spy is a next handler that sees whether and how it is called.
type spy struct {
	mu       sync.Mutex
	calls    int
	writer   http.ResponseWriter // of the last call
	request  *http.Request
	decision ratelimit.Decision
	decided  bool
}

func (s *spy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	s.writer, s.request = w, r
	s.decision, s.decided = ratelimit.FromContext(r.Context())
}

// takeCalls returns how often the spy was called since it was last asked.
func (s *spy) takeCalls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = 0
	return calls
}

// request returns a GET from a peer, with header fields given as names and values in turn.
func request(remoteAddr string, fields ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = remoteAddr
	for i := 0; i < len(fields); i += 2 {
		r.Header.Add(fields[i], fields[i+1])
	}
	return r
}

// A reply is all of a response that a client sees.
type reply struct {
	Status int
	Header http.Header
	Body   string
}

func serve(h http.Handler, r *http.Request) reply {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return reply{w.Code, w.Result().Header, w.Body.String()}
}

// statuses serves n requests like r and returns how often each status was answered.
func statuses(h http.Handler, r *http.Request, n int) map[int]int {
	counts := make(map[int]int)
	for range n {
		counts[serve(h, r.Clone(r.Context())).Status]++
	}
	return counts
}

// header returns a header of names and values in turn.
func header(fields ...string) http.Header {
	h := make(http.Header)
	for i := 0; i < len(fields); i += 2 {
		h.Add(fields[i], fields[i+1])
	}
	return h
}

// served is the reply to a request that has passed, with these fields and no other.
func served(fields ...string) reply { return reply{http.StatusOK, header(fields...), ""} }

// tooMany is the reply to a request that is over the limits of the policies named, with the fields that
// each such reply has, these, and no other.
func tooMany(retryAfter string, policies string, fields ...string) reply {
	unit := " seconds."
	if retryAfter == "1" {
		unit = " second."
	}
	body := `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded",` +
		`"status":429,"detail":"Try again in ` + retryAfter + unit + `","violated-policies":[` + policies + "]}\n"
	return problem(http.StatusTooManyRequests, retryAfter, body, fields...)
}

// unavailable is the reply to a request that could not be decided on and must not pass.
func unavailable(fields ...string) reply {
	const body = `{"type":"about:blank","title":"Service Unavailable","status":503}` + "\n"
	return problem(http.StatusServiceUnavailable, "1", body, fields...)
}

func problem(status int, retryAfter, body string, fields ...string) reply {
	h := header(
		"Retry-After", retryAfter,
		"Cache-Control", "no-store",
		"Content-Type", "application/problem+json",
		"Content-Length", strconv.Itoa(len(body)),
		"X-Content-Type-Options", "nosniff",
	)
	maps.Copy(h, header(fields...))
	return reply{status, h, body}
}

// check compares what a client sees.
func check(t testing.TB, what string, want, got reply) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// equalDecisions are the options for comparing what users see of decisions. How long they took is left
// out, as are buckets, and an error is compared with the one it must wrap.
var equalDecisions = cmp.Options{
	cmpopts.IgnoreUnexported(ratelimit.Result{}),
	cmpopts.IgnoreFields(ratelimit.Decision{}, "Elapsed"),
	cmpopts.IgnoreFields(ratelimit.Result{}, "Bucket"),
	cmpopts.EquateErrors(),
}

// sleepUntil moves the time of a bubble to a time of 2026-12-01, such as "12:00:59.5".
func sleepUntil(t testing.TB, clock string) {
	t.Helper()
	when, err := time.Parse(time.RFC3339Nano, "2026-12-01T"+clock+"Z")
	if err != nil {
		t.Fatal(err)
	}
	if time.Until(when) < 0 {
		t.Fatalf("it is past %s already: %v", clock, time.Now())
	}
	time.Sleep(time.Until(when))
}

// A storeFunc is a store that adds with a function and leaves the rest to another store. It makes a store
// do what a database does in bad moments.
type storeFunc struct {
	ratelimit.Store
	add func(ctx context.Context, hits []ratelimit.Hit) ([]ratelimit.Count, error)
}

func (s storeFunc) Add(ctx context.Context, hits []ratelimit.Hit) ([]ratelimit.Count, error) {
	return s.add(ctx, hits)
}

// failing returns a store that always fails with err.
func failing(err error) ratelimit.Store {
	return storeFunc{add: func(context.Context, []ratelimit.Hit) ([]ratelimit.Count, error) { return nil, err }}
}

func TestHandlerPanicsWithoutNext(t *testing.T) {
	t.Parallel()
	limiter := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: long(1)}}})
	defer func() {
		if got := recover(); got != "ratelimit: Handler: next is nil" {
			t.Errorf("recovered %v, want the panic of Handler", got)
		}
	}()
	limiter.Handler(nil)
}

// Check decides and counts, and that is all: deciding is apart from enforcing.
func TestCheckWritesNothing(t *testing.T) {
	t.Parallel()
	limiter := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: long(2)}}})
	r := httptest.NewRequest(http.MethodPost, "/path?query", strings.NewReader("body"))
	r.Header.Set("Authorization", "Bearer abc")
	before := r.Clone(r.Context())
	var outcomes []ratelimit.Outcome
	for range 3 { // each call counts once more, of one request too
		outcomes = append(outcomes, limiter.Check(r).Outcome)
	}
	if want := []ratelimit.Outcome{ratelimit.Allowed, ratelimit.Allowed, ratelimit.Refused}; !slices.Equal(outcomes, want) {
		t.Errorf("outcomes are %q, want %q", outcomes, want)
	}
	if diff := cmp.Diff(before.Header, r.Header); diff != "" {
		t.Errorf("header (-before +after):\n%s", diff)
	}
	if r.RemoteAddr != before.RemoteAddr || r.URL.String() != before.URL.String() || r.Context() != before.Context() {
		t.Error("Check has changed the request")
	}
	if body, err := io.ReadAll(r.Body); string(body) != "body" || err != nil {
		t.Errorf("the body is %q, %v after Check, want it unread", body, err)
	}
}

// An admitted request through the whole middleware, counted in memory: what the limiter itself costs.
//
//	go test -run='^$' -bench=Admitted .
func BenchmarkAdmitted(b *testing.B) {
	for name, config := range map[string]ratelimit.Config{
		"plain":  {},
		"secret": {Secret: make([]byte, 32)},
	} {
		b.Run(name, func(b *testing.B) {
			config.Policies = []ratelimit.Policy{{Name: "default", Limit: long(ratelimit.MaxRequests)}}
			handler := newLimiter(b, memoryStore(b), config).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			r := request("203.0.113.7:51234")
			b.ReportAllocs()
			for b.Loop() {
				handler.ServeHTTP(httptest.NewRecorder(), r)
			}
		})
	}
}
