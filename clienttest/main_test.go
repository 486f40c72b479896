package clienttest_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

func TestMain(m *testing.M) { testdb.Main(m) }

const (
	short = 2 * time.Second      // a window whose end a client waits for
	long  = 366 * 24 * time.Hour // and one that does not end during a test

	patient = time.Minute // long enough on any machine
)

// newStore returns a store in a database of its own.
func newStore(t *testing.T) (ratelimit.Store, *pgxpool.Pool) {
	t.Helper()
	pool := testdb.Pool(t, testdb.New(t))
	counters, err := store.NewPostgres(pool, store.PostgresConfig{Timeout: patient})
	if err != nil {
		t.Fatal(err)
	}
	return counters, pool
}

// newLimiter returns a limiter of one request per window and client.
func newLimiter(counters ratelimit.Store, window time.Duration, skip func(*http.Request) bool) (*ratelimit.Limiter, error) {
	return ratelimit.New(counters, ratelimit.Config{
		Policies: []ratelimit.Policy{{Name: "clients", Limit: ratelimit.Limit{Requests: 1, Window: window}}},
		Deadline: patient,
		Skip:     skip,
	})
}

// fresh returns a length of windows, up to the longest and at least four fifths of it, of which one has just begun by
// the clock of the database. So a test has nearly all of it before it.
func fresh(ctx context.Context, pool *pgxpool.Pool, longest time.Duration) (time.Duration, error) {
	const lengths = `SELECT w FROM generate_series($1::bigint * 4 / 5, $1::bigint, $1::bigint / 2000) AS w
		ORDER BY (extract(epoch FROM clock_timestamp()) * 1000)::bigint % w LIMIT 1`
	var ms int64
	err := pool.QueryRow(ctx, lengths, longest.Milliseconds()).Scan(&ms)
	return time.Duration(ms) * time.Millisecond, err
}

// serve starts a server with a limit of one request per window, and returns its URL and journal. A window begins with
// the first request.
func serve(t *testing.T, window time.Duration) (string, *journal) {
	t.Helper()
	counters, pool := newStore(t)
	limited := sync.OnceValues(func() (http.Handler, error) {
		w, err := fresh(context.Background(), pool, window)
		if err != nil {
			return nil, err
		}
		limiter, err := newLimiter(counters, w, nil)
		if err != nil {
			return nil, err
		}
		return limiter.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})), nil
	})
	j := &journal{next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, err := limited()
		if err != nil {
			t.Error(err)
			http.Error(w, "no limiter", http.StatusInternalServerError)
			return
		}
		h.ServeHTTP(w, r)
	})}
	server := httptest.NewServer(j)
	t.Cleanup(server.Close)
	return server.URL, j
}

// A journal is a handler that writes down what it was asked and has answered.
type journal struct {
	next http.Handler
	mu   sync.Mutex
	all  []exchange
}

// An exchange is one request and its answer, by the clock of the server.
type exchange struct {
	method            string
	arrived, answered time.Time
	status            int
	header            http.Header // of the answer
}

func (j *journal) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e := exchange{method: r.Method, arrived: time.Now(), status: http.StatusOK}
	j.next.ServeHTTP(&statusWriter{w, &e.status}, r)
	e.header = w.Header().Clone()
	// The server sends so short an answer when the handler has returned. So nobody has it before this moment.
	e.answered = time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.all = append(j.all, e)
}

func (j *journal) exchanges() []exchange {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.all)
}

func (j *journal) statuses() []int {
	var all []int
	for _, e := range j.exchanges() {
		all = append(all, e.status)
	}
	return all
}

// statusWriter writes down the status.
type statusWriter struct {
	http.ResponseWriter
	status *int
}

func (w *statusWriter) WriteHeader(status int) {
	*w.status = status
	w.ResponseWriter.WriteHeader(status)
}
