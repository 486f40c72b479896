package store_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

// long is a window that does not end while a test runs, unless that happens to be in one of the
// few seconds a year in which it does.
const long = ratelimit.MaxWindow

// patience is how long a test waits for what will come at once unless something is broken.
const patience = 30 * time.Second

func hit(bucket string) ratelimit.Hit { return ratelimit.Hit{Bucket: bucket, Window: long, N: 1} }

func hits(buckets ...string) []ratelimit.Hit {
	hs := make([]ratelimit.Hit, len(buckets))
	for i, bucket := range buckets {
		hs[i] = hit(bucket)
	}
	return hs
}

// many returns hits on n buckets that begin alike.
func many(prefix string, n int) []ratelimit.Hit {
	hs := make([]ratelimit.Hit, n)
	for i := range hs {
		hs[i] = hit(fmt.Sprint(prefix, " ", i))
	}
	return hs
}

// newStore returns a store. Unless the test says otherwise its statements get much more time than by
// default, for the machines that run tests are busy, and it does not sweep.
func newStore(t *testing.T, db store.DB, config store.PostgresConfig) *store.Postgres {
	t.Helper()
	config.Timeout = cmp.Or(config.Timeout, time.Minute)
	if config.SweepInterval == 0 {
		config.ManualSweep = true
	}
	s, err := store.NewPostgres(db, config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// add counts hits and returns the totals.
func add(t *testing.T, s ratelimit.Store, hits ...ratelimit.Hit) []int64 {
	t.Helper()
	counts, err := s.Add(t.Context(), hits)
	if err != nil {
		t.Fatalf("Add: %v", err)
	}
	return totals(counts)
}

// addOne counts one hit and returns the total, or zero after reporting why not. Any goroutine may call it.
func addOne(t *testing.T, s ratelimit.Store, h ratelimit.Hit) int64 {
	t.Helper()
	counts, err := s.Add(t.Context(), []ratelimit.Hit{h})
	if err != nil {
		t.Errorf("Add: %v", err)
		return 0
	}
	return counts[0].Total
}

func totals(counts []ratelimit.Count) []int64 {
	var ns []int64
	for _, c := range counts {
		ns = append(ns, c.Total)
	}
	return ns
}

// together calls f(0) to f(n-1) at the same moment, each in a goroutine, and waits for all.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}

// eventually waits until f is true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		if time.Now().After(deadline) {
			t.Fatalf("still not, after %v: %s", patience, what)
		}
		<-tick.C
	}
}

// receive waits for a value.
func receive[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("still not, after %v: %s", patience, what)
		panic("not reached")
	}
}

// exec runs a statement, or several.
func exec(t *testing.T, db store.DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// value asks the database for one value.
func value[T any](t *testing.T, db store.DB, sql string, args ...any) T {
	t.Helper()
	rows, err := db.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// count returns the stored count of all windows of a bucket together.
func count(t *testing.T, db store.DB, bucket string) int64 {
	t.Helper()
	return value[int64](t, db, "SELECT coalesce(sum(count), 0)::bigint FROM rate_limits WHERE bucket = $1", bucket)
}

// connect returns a connection of its own, outside of any pool.
func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// lock makes a row for the bucket, with a count of zero, and locks it until release is called.
func lock(t *testing.T, url, bucket string) (release func()) {
	t.Helper()
	conn := connect(t, url)
	exec(t, conn, `INSERT INTO rate_limits SELECT $1, start, 0, start + interval '366 days'
		FROM date_bin($2::bigint * interval '1 microsecond', statement_timestamp(), 'epoch') AS start
		ON CONFLICT DO NOTHING`, bucket, long.Microseconds())
	exec(t, conn, "BEGIN")
	exec(t, conn, "SELECT FROM rate_limits WHERE bucket = $1 FOR UPDATE", bucket)
	return sync.OnceFunc(func() { exec(t, conn, "COMMIT") })
}

// awaitBlocked waits until n sessions of the database wait for a lock.
func awaitBlocked(t *testing.T, db store.DB, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d sessions wait for a lock", n), func() bool {
		return n == value[int](t, db, `SELECT count(*)::int FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	})
}

// statistics closes the pools and asks for a statistic of the database when all their sessions are
// over, for a session reports what it did at its end at the latest.
func statistics[T any](t *testing.T, url, sql string, pools ...*pgxpool.Pool) T {
	t.Helper()
	for _, pool := range pools {
		pool.Close()
	}
	conn := connect(t, url)
	eventually(t, "the sessions have ended", func() bool {
		return value[bool](t, conn, `SELECT NOT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend')`)
	})
	defer func() { _ = conn.Close(t.Context()) }()
	if value[int](t, conn, "SELECT current_setting('server_version_num')::int") < 150000 {
		exec(t, conn, "SELECT pg_sleep(1)") // Postgres 14 answers with what is up to half a second old
	}
	return value[T](t, conn, sql)
}

// set configures a pool's sessions.
func set(name, value string) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams[name] = value }
}

func maxConns(n int32) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) { c.MaxConns = n }
}

// A recorder sees the statements of the pools that it is given to.
type recorder struct {
	mu       sync.Mutex
	texts    []string
	inFlight map[string]int // by verb, such as INSERT, and by bucket that is counted
	most     map[string]int
}

func newRecorder() *recorder {
	return &recorder{inFlight: make(map[string]int), most: make(map[string]int)}
}

// peak returns how many statements of a key were in flight at once.
func (r *recorder) peak(key string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.most[key]
}

func (r *recorder) trace(c *pgxpool.Config) { c.ConnConfig.Tracer = r }

func (r *recorder) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	verb, _, _ := strings.Cut(strings.TrimSpace(data.SQL), " ")
	keys := []string{"all", verb}
	if verb == "INSERT" {
		switch buckets := data.Args[0].(type) {
		case string:
			keys = append(keys, "bucket "+buckets)
		case []string:
			for _, bucket := range buckets {
				keys = append(keys, "bucket "+bucket)
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.texts = append(r.texts, data.SQL)
	for _, k := range keys {
		r.inFlight[k]++
		r.most[k] = max(r.most[k], r.inFlight[k])
	}
	return context.WithValue(ctx, r, keys)
}

func (r *recorder) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range ctx.Value(r).([]string) {
		r.inFlight[k]--
	}
}

// sent returns how many statements began with a verb.
func (r *recorder) sent(verb string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, text := range r.texts {
		if strings.HasPrefix(strings.TrimSpace(text), verb) {
			n++
		}
	}
	return n
}

// A gate is a pool that lets a statement through only when the test says so. It tells the number of
// buckets of each counting statement that comes to it, and zero for others.
type gate struct {
	store.DB
	arrived chan int
	open    chan struct{}
}

func newGate(db store.DB) *gate {
	return &gate{DB: db, arrived: make(chan int), open: make(chan struct{})}
}

func (g *gate) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	n := 1
	if buckets, ok := args[0].([]string); ok {
		n = len(buckets)
	}
	g.arrived <- n
	<-g.open
	return g.DB.Query(ctx, sql, args...)
}

// next waits for the next statement and returns how many buckets it counts.
func (g *gate) next(t *testing.T) int {
	t.Helper()
	return receive(t, "a statement comes", g.arrived)
}

// execHook is a pool that calls a function after each Exec.
type execHook struct {
	store.DB
	after func()
}

func (h execHook) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	tag, err := h.DB.Exec(ctx, sql, args...)
	h.after()
	return tag, err
}

// logged returns a logger and what it has written.
func logged() (*slog.Logger, func() string) {
	var w struct {
		sync.Mutex
		bytes.Buffer
	}
	write := writerFunc(func(p []byte) (int, error) {
		w.Lock()
		defer w.Unlock()
		return w.Write(p)
	})
	return slog.New(slog.NewTextHandler(write, nil)), func() string {
		w.Lock()
		defer w.Unlock()
		return w.String()
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// pools returns pools on one database, such as several processes have.
func pools(t *testing.T, url string, n int, configure ...func(*pgxpool.Config)) []*pgxpool.Pool {
	t.Helper()
	var ps []*pgxpool.Pool
	for range n {
		ps = append(ps, testdb.Pool(t, url, configure...))
	}
	return ps
}
