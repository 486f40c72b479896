package store_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/goroutines"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

// kinds are the errors that a store's error may be.
var kinds = []error{ratelimit.ErrUnavailable, ratelimit.ErrTimeout, ratelimit.ErrReadOnly, ratelimit.ErrNoTable, ratelimit.ErrInvalidHit}

// wantOnly fails the test unless err is want and none of the other kinds.
func wantOnly(t *testing.T, err, want error) {
	t.Helper()
	for _, kind := range kinds {
		if got := errors.Is(err, kind); got != (kind == want) {
			t.Errorf("error is %v: errors.Is(err, %q) is %t", err, kind, got)
		}
	}
}

func TestDatabaseErrors(t *testing.T) {
	t.Parallel()
	unchanged := testdb.New(t)
	for _, test := range []struct {
		name      string
		setUp     string // SQL
		configure func(*pgxpool.Config)
		config    store.PostgresConfig
		want      error
		words     []string // in the error's text
	}{
		{
			name: "missing table", setUp: "DROP TABLE rate_limits", want: ratelimit.ErrNoTable,
			words: []string{`"public"."rate_limits"`, "migrations.Up", "42P01"},
		},
		{
			name: "missing schema", config: store.PostgresConfig{Schema: "nowhere"}, want: ratelimit.ErrNoTable,
			words: []string{`"nowhere"."rate_limits"`, "migrations.Up"},
		},
		{name: "read-only", configure: set("default_transaction_read_only", "on"), want: ratelimit.ErrReadOnly, words: []string{"25006"}},
		{name: "permission denied", configure: set("role", "pg_read_all_data"), want: ratelimit.ErrUnavailable, words: []string{"42501"}},
		{
			name: "statement_timeout of the role", configure: set("statement_timeout", "200ms"), want: ratelimit.ErrTimeout, words: []string{"57014"},
			setUp: `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN NEW; END';
				CREATE TRIGGER slow BEFORE INSERT ON rate_limits FOR EACH ROW EXECUTE FUNCTION slow()`,
		},
		{name: "missing column", setUp: "ALTER TABLE rate_limits DROP COLUMN expires_at", want: ratelimit.ErrUnavailable, words: []string{"42703"}},
		{name: "session refused", configure: set("role", "no such role"), want: ratelimit.ErrUnavailable, words: []string{"no such role"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			url := unchanged
			if test.setUp != "" {
				url = testdb.New(t)
				exec(t, connect(t, url), test.setUp)
			}
			configure := func(*pgxpool.Config) {}
			if test.configure != nil {
				configure = test.configure
			}
			s := newStore(t, testdb.Pool(t, url, configure), test.config)
			for _, hs := range [][]ratelimit.Hit{hits("secret a"), hits("secret a", "secret b")} {
				counts, err := s.Add(t.Context(), hs)
				if counts != nil {
					t.Errorf("Add returned counts with an error: %v", counts)
				}
				wantOnly(t, err, test.want)
				for _, word := range test.words {
					if !strings.Contains(fmt.Sprint(err), word) {
						t.Errorf("error %q does not say %q", err, word)
					}
				}
				if strings.Contains(fmt.Sprint(err), "secret") {
					t.Errorf("error %q tells a bucket", err)
				}
			}
			if n, err := s.Sweep(t.Context()); err == nil && test.name != "statement_timeout of the role" {
				t.Errorf("Sweep returned %d and no error", n)
			}
		})
	}
}

// Nothing listens: that is known at once, and not after the timeout.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	url := "postgres://somebody:hunter2@/postgres?host=" + t.TempDir() // where no server has its socket
	s := newStore(t, testdb.Pool(t, url), store.PostgresConfig{Timeout: patience})
	_, err := s.Add(t.Context(), hits("a"))
	wantOnly(t, err, ratelimit.ErrUnavailable)
	if text := fmt.Sprint(err); strings.Contains(text, "hunter2") {
		t.Errorf("error %q tells the password", text)
	}
}

// A server that takes connections and never answers costs each caller the timeout, not one timeout
// after another, and few goroutines and connections, however many callers there are (row 44).
func TestBlackHole(t *testing.T) {
	t.Parallel()
	l := listen(t)
	var accepted []net.Conn
	var listening sync.WaitGroup
	listening.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted = append(accepted, conn)
		}
	})
	// No two of the calls fit into one statement.
	const rounds, callers, perCall = 3, 100, 300
	pool := testdb.Pool(t, urlOf(l), maxConns(4))
	s := newStore(t, pool, store.PostgresConfig{Timeout: 100 * time.Millisecond})
	began := time.Now()
	for range rounds {
		together(callers, func(i int) {
			goroutines.Labelled(t, func() {
				var hs []ratelimit.Hit
				for k := range perCall {
					hs = append(hs, hit(fmt.Sprint(i, k)))
				}
				_, err := s.Add(t.Context(), hs)
				wantOnly(t, err, ratelimit.ErrTimeout)
			})
		})
	}
	// In turn they would take 30 s.
	if took := time.Since(began); took > patience/3 {
		t.Errorf("%d times %d callers took %v, want about 300ms", rounds, callers, took)
	}
	// The pool goes on making the connections it was asked for.
	eventually(t, "few goroutines are left", func() bool { return goroutines.Count(t) <= 8*4 })
	pool.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	listening.Wait()
	for _, conn := range accepted {
		_ = conn.Close()
	}
	if len(accepted) == 0 || len(accepted) > 8 {
		t.Errorf("%d connections were made, want some and at most 8", len(accepted))
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func urlOf(l net.Listener) string {
	return fmt.Sprintf("postgres://somebody:hunter2@%s/postgres?sslmode=disable", l.Addr())
}

// A row that Postgres keeps from being written is an error for those who asked for it, and never
// a first request. Others in the same statement get their counts (P11).
func TestRowThatDoesNotComeBack(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"trigger": `CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
			CREATE TRIGGER skip BEFORE INSERT ON rate_limits FOR EACH ROW WHEN (NEW.bucket = 'bad') EXECUTE FUNCTION skip()`,
		"rule": `CREATE RULE skip AS ON INSERT TO rate_limits WHERE NEW.bucket = 'bad' DO INSTEAD NOTHING`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testdb.New(t)
			exec(t, connect(t, url), sql)
			g := newGate(testdb.Pool(t, url))
			s := newStore(t, g, store.PostgresConfig{})

			got := make([]int64, 5)
			errs := make([]error, 5)
			var wg sync.WaitGroup
			call := func(i int, buckets ...string) {
				wg.Go(func() {
					counts, err := s.Add(t.Context(), hits(buckets...))
					if errs[i] = err; err == nil {
						got[i] = counts[0].Total
					}
				})
			}
			call(0, "bad")
			buckets := []int{g.next(t)}
			call(1, "aaa")
			call(2, "bad")
			call(3, "ccc")
			call(4, "ddd", "bad")
			eventually(t, "all are queued", func() bool { return s.Queued() == 5 })
			g.open <- struct{}{}
			buckets = append(buckets, g.next(t))
			g.open <- struct{}{}
			wg.Wait()

			if diff := cmp.Diff([]int{1, 4}, buckets); diff != "" {
				t.Fatalf("buckets of the statements (-want +got):\n%s", diff)
			}
			if name == "rule" {
				// Postgres refuses ON CONFLICT on a table with such a rule: that fails everybody.
				for _, err := range errs {
					wantOnly(t, err, ratelimit.ErrUnavailable)
				}
				return
			}
			if diff := cmp.Diff([]int64{0, 1, 0, 1, 0}, got); diff != "" {
				t.Errorf("totals (-want +got):\n%s", diff)
			}
			for _, i := range []int{0, 2, 4} {
				wantOnly(t, errs[i], ratelimit.ErrUnavailable)
				if !strings.Contains(fmt.Sprint(errs[i]), "row-level security") {
					t.Errorf("error %q does not say where to look", errs[i])
				}
			}
			for _, i := range []int{1, 3} {
				if errs[i] != nil {
					t.Errorf("a neighbour in the statement failed: %v", errs[i])
				}
			}
		})
	}
}

// A caller that leaves gets its context's error, no other kind, and at once. Its hit counts, and so do those
// that share its statement (rows 49 and G9).
func TestCallerThatLeaves(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	observer := testdb.Pool(t, url)
	pool := testdb.Pool(t, url, maxConns(1))
	s := newStore(t, pool, store.PostgresConfig{})
	pid := value[int32](t, pool, "SELECT pg_backend_pid()")
	release := lock(t, url, "a")

	var wg sync.WaitGroup
	leave := func(ctx context.Context, wantErr error) {
		wg.Go(func() {
			_, err := s.Add(ctx, hits("a"))
			wantOnly(t, err, nil)
			if !errors.Is(err, wantErr) {
				t.Errorf("error is %v, want one that wraps %v", err, wantErr)
			}
		})
	}
	// One whose statement is in flight, one that waits, one that was gone before, and one that ran
	// out of time, which is not the store's timeout.
	during, hangUp := context.WithCancel(t.Context())
	leave(during, context.Canceled)
	awaitBlocked(t, observer, 1)
	stays := make(chan int64, 1)
	go func() { stays <- addOne(t, s, hit("a")) }()
	leave(during, context.Canceled)
	before, cancel := context.WithCancel(t.Context())
	cancel()
	leave(before, context.Canceled)
	expired, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	leave(expired, context.DeadlineExceeded)
	eventually(t, "all are queued", func() bool { return s.Queued() == 4 })
	hangUp()
	wg.Wait() // while the row is still locked
	release()

	receive(t, "the caller that stays is answered", stays)
	if got := addOne(t, s, hit("a")); got != 6 {
		t.Errorf("total is %d, want 6: those who left are counted", got)
	}
	if now := value[int32](t, pool, "SELECT pg_backend_pid()"); now != pid {
		t.Errorf("a statement was cut off: its connection was backend %d and is %d", pid, now)
	}
}

// When the application holds all connections, everybody is answered within the timeout. When they
// come back, counting is right and the limiter holds none (row 46).
func TestExhaustedPool(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t), maxConns(3))
	s := newStore(t, pool, store.PostgresConfig{Timeout: 300 * time.Millisecond})
	var held []*pgxpool.Conn
	for range 3 {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
	}
	together(50, func(i int) {
		_, err := s.Add(t.Context(), hits("a", fmt.Sprint(i)))
		wantOnly(t, err, ratelimit.ErrTimeout)
	})
	for _, conn := range held {
		conn.Release()
	}
	again := newStore(t, pool, store.PostgresConfig{})
	if diff := cmp.Diff([]int64{1, 1}, add(t, again, hits("a", "0")...)); diff != "" {
		t.Errorf("totals after hits that were not counted (-want +got):\n%s", diff)
	}
	eventually(t, "no connection is held", func() bool { return pool.Stat().AcquiredConns() == 0 })
	if n := pool.Stat().NewConnsCount(); n != 3 {
		t.Errorf("%d connections were made, want the 3 of the application", n)
	}
}

// While somebody holds a row, its callers get ErrTimeout and no count that could be taken for
// a refusal. When it is free, counting goes on (P7).
func TestLockedRow(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	s := newStore(t, testdb.Pool(t, url), store.PostgresConfig{Timeout: 500 * time.Millisecond})
	release := lock(t, url, "a")
	together(100, func(int) {
		counts, err := s.Add(t.Context(), hits("a"))
		wantOnly(t, err, ratelimit.ErrTimeout)
		if counts != nil {
			t.Errorf("Add returned %v with an error", counts)
		}
	})
	// A statement whose context ended first, on a busy machine, still waits for the row by itself.
	pool := testdb.Pool(t, url)
	eventually(t, "nobody waits for the row", func() bool {
		return value[int64](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 0
	})
	release()
	again := newStore(t, pool, store.PostgresConfig{})
	if got := addOne(t, again, hit("a")); got != 1 {
		t.Errorf("total is %d after hits that were not counted, want 1", got)
	}
}

// The statements that wait behind a stalled one are bounded. What comes then is told so at once.
func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	observer := testdb.Pool(t, url)
	logger, text := logged()
	s := newStore(t, testdb.Pool(t, url), store.PostgresConfig{Logger: logger})
	release := lock(t, url, "a")
	done := make(chan struct{})
	go func() {
		defer close(done)
		addOne(t, s, hit("a"))
	}()
	awaitBlocked(t, observer, 1)

	left, leave := context.WithCancel(t.Context())
	leave()
	for i := range store.MaxWaiting {
		// One bucket with two windows, which is against the rules, needs a statement for each.
		h := ratelimit.Hit{Bucket: "b", Window: long - time.Duration(i%2)*time.Hour, N: 1}
		_, err := s.Add(left, []ratelimit.Hit{h})
		wantOnly(t, err, nil)
	}
	last := long - time.Hour*time.Duration((store.MaxWaiting-1)%2)
	_, err := s.Add(left, []ratelimit.Hit{{Bucket: "b", Window: long - 2*time.Hour, N: 1}})
	wantOnly(t, err, ratelimit.ErrUnavailable)
	_, err = s.Add(left, []ratelimit.Hit{{Bucket: "b", Window: last, N: 1}}) // there is room in the last
	wantOnly(t, err, nil)

	release()
	receive(t, "the first caller is answered", done)
	eventually(t, "the store is idle", func() bool { return !s.Flushing() })
	if got := count(t, observer, "b"); got != store.MaxWaiting+1 {
		t.Errorf("count is %d, want %d", got, store.MaxWaiting+1)
	}
	if text() != "" {
		t.Errorf("logged:\n%s", text())
	}
}

// An invalid hit is refused without a word of what its bucket holds, which may be a token by mistake.
func TestErrorsDoNotTellBuckets(t *testing.T) {
	t.Parallel()
	s := newStore(t, testdb.Pool(t, testdb.New(t)), store.PostgresConfig{})
	for _, h := range []ratelimit.Hit{
		{Bucket: "secret\x00", Window: long, N: 1},
		{Bucket: "secret\xff", Window: long, N: 1},
		{Bucket: strings.Repeat("secret", 100), Window: long, N: 1},
		{Bucket: "secret", Window: 1, N: 1},
		{Bucket: "secret", Window: long, N: 0},
	} {
		_, err := s.Add(t.Context(), []ratelimit.Hit{h, hit("b")})
		wantOnly(t, err, ratelimit.ErrInvalidHit)
		if strings.Contains(fmt.Sprint(err), "secret") {
			t.Errorf("error %q tells the bucket", err)
		}
	}
	if got := addOne(t, s, hit("b")); got != 1 {
		t.Errorf("total is %d, want 1: nothing of a call with an invalid hit is counted", got)
	}
}

// A count must not depend on the fate of somebody's transaction, nor on a connection that only one
// goroutine may use.
func TestNewPostgresRefuses(t *testing.T) {
	t.Parallel()
	pool := new(pgxpool.Pool) // never used
	for _, test := range []struct {
		name   string
		db     store.DB
		config store.PostgresConfig
		words  []string
	}{
		{"nil", nil, store.PostgresConfig{}, []string{"db is nil"}},
		{"a nil pool", (*pgxpool.Pool)(nil), store.PostgresConfig{}, []string{"nil *pgxpool.Pool"}},
		{"a nil connection", (*pgx.Conn)(nil), store.PostgresConfig{}, []string{"nil *pgx.Conn"}},
		{"a connection", new(pgx.Conn), store.PostgresConfig{}, []string{"single connection (*pgx.Conn)"}},
		{"a pooled connection", new(pgxpool.Conn), store.PostgresConfig{}, []string{"single connection (*pgxpool.Conn)"}},
		{"a pool's transaction", new(pgxpool.Tx), store.PostgresConfig{}, []string{"transaction (*pgxpool.Tx)"}},
		{"a transaction", struct{ pgx.Tx }{}, store.PostgresConfig{}, []string{"transaction"}},
		{"everything at once", nil, store.PostgresConfig{
			Schema:        strings.Repeat("x", 64),
			Timeout:       9 * time.Millisecond,
			SweepInterval: 999 * time.Millisecond,
			QueryExecMode: 17,
		}, []string{
			"db is nil",
			"PostgresConfig.Schema: migrations: schema \"xxxx", "at most 63",
			"PostgresConfig.Timeout is 9ms", "10ms to 1h",
			"PostgresConfig.SweepInterval is 999ms", "at least 1s",
			"PostgresConfig.QueryExecMode is 17",
		}},
		{
			"negative", pool,
			store.PostgresConfig{Timeout: -1, SweepInterval: -1, QueryExecMode: -1, Schema: "a\x00b"},
			[]string{"Schema", "Timeout is -1ns", "SweepInterval is -1ns", "QueryExecMode is -1"},
		},
		{"the least", pool, store.PostgresConfig{
			Schema: strings.Repeat("x", 63), Timeout: 10 * time.Millisecond, SweepInterval: time.Second, QueryExecMode: pgx.QueryExecModeSimpleProtocol,
		}, nil},
		{"nothing", pool, store.PostgresConfig{}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, err := store.NewPostgres(test.db, test.config)
			if (s == nil) != (err != nil) || (err != nil) != (test.words != nil) {
				t.Fatalf("NewPostgres returned %v and error %v", s, err)
			}
			var missing []string
			for _, word := range test.words {
				if !strings.Contains(err.Error(), word) {
					missing = append(missing, word)
				}
			}
			if diff := cmp.Diff([]string{}, missing, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("error is %q; what it does not say (-want +got):\n%s", err, diff)
			}
			if err != nil && len(strings.Split(err.Error(), "\n")) > len(test.words) {
				t.Errorf("error is %q, more than wanted", err)
			}
		})
	}
}
