package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/migrations"
	"github.com/krow/ratelimit/store"
)

// Counting does not wait for the disk, in either text, giving back or sweeping, even under
// a role that asks for it; with SynchronousCommit every statement does. A form of the setting that
// Postgres does not evaluate would change nothing but the number of fsyncs, so they are counted, on
// a server where nobody else makes any.
func TestFsyncs(t *testing.T) {
	t.Parallel()
	server := testdb.Server(t)
	conn := connect(t, server.URL())
	if err := migrations.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, "ALTER ROLE current_user SET synchronous_commit = on")
	fsyncs := "SELECT wal_sync FROM pg_stat_wal"
	if value[int](t, conn, "SELECT current_setting('server_version_num')::int") >= 180000 {
		fsyncs = "SELECT sum(fsyncs)::bigint FROM pg_stat_io WHERE object = 'wal'"
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	const statements = 100
	for _, test := range []struct {
		name string
		run  func(s *store.Postgres, i int)
	}{
		{"one bucket", func(s *store.Postgres, i int) { add(t, s, hit(fmt.Sprint("one ", i))) }},
		{"many buckets", func(s *store.Postgres, i int) { add(t, s, hit(fmt.Sprint("many ", i)), hit("a")) }},
		{"sweep", func(s *store.Postgres, _ int) {
			exec(t, conn, `INSERT INTO rate_limits VALUES ('old', 'epoch', 1, now() - interval '1 day')`)
			if n, err := s.Sweep(t.Context()); n != 1 || err != nil {
				t.Errorf("Sweep returned %d and error %v, want 1 and none", n, err)
			}
		}},
		{"give back", func(s *store.Postgres, i int) {
			// The charge goes with a hit of a window that the row of the charge is not in.
			s.GiveBack([]ratelimit.Charge{{Bucket: "given", Start: time.Unix(0, 0), N: 1}})
			add(t, s, hit("b"))
		}},
	} {
		for _, routed := range []bool{false, true} {
			got := make(map[bool]int64)
			for _, synchronous := range []bool{false, true} {
				before := statistics[int64](t, server.URL(), fsyncs)
				pool := testdb.Pool(t, server.URL(), maxConns(1))
				s := newStore(t, pool, store.PostgresConfig{SynchronousCommit: synchronous, Routed: routed})
				conn = connect(t, server.URL())
				exec(t, conn, "SET synchronous_commit = off")
				exec(t, conn, "INSERT INTO rate_limits VALUES ('given', 'epoch', 1000, now() + interval '1 day') ON CONFLICT DO NOTHING")
				for i := range statements {
					test.run(s, i)
				}
				if err := conn.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				got[synchronous] = statistics[int64](t, server.URL(), fsyncs, pool) - before
			}
			// The WAL writer makes some of its own, every 200 ms.
			if got[false] > statements/4 || got[true] < statements*9/10 {
				t.Errorf("%s, routed %v: %d statements cost %d fsyncs, and %d with SynchronousCommit; want few, and about one for each",
					test.name, routed, statements, got[false], got[true])
			}
		}
	}
}

// A wait for a row ends by lock_timeout, in all texts: an ErrTimeout (P7), and on the same
// connection as before, which a context that ends would have cost.
func TestLockTimeout(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	// A row for each: who is not the first to wait for a row waits for two locks, each for its time.
	releaseA, releaseC, releaseE := lock(t, url, "a"), lock(t, url, "c"), lock(t, url, "e")
	observer := testdb.Pool(t, url)
	texts := [][]string{{"a"}, {"d", "c", "b"}, {"f", "e"}}
	pools := pools(t, url, len(texts), maxConns(1))
	together(len(texts), func(i int) {
		s := newStore(t, pools[i], store.PostgresConfig{Timeout: 2 * time.Second, Routed: texts[i][0] == "f"})
		pid := value[int32](t, pools[i], "SELECT pg_backend_pid()")
		counts, err := s.Add(t.Context(), hits(texts[i]...))
		var pg *pgconn.PgError
		if !errors.Is(err, ratelimit.ErrTimeout) || !errors.As(err, &pg) || pg.Code != "55P03" {
			t.Errorf("%q: Add returned %v and error %v, want an ErrTimeout by SQLSTATE 55P03", texts[i], counts, err)
		}
		if now := value[int32](t, pools[i], "SELECT pg_backend_pid()"); now != pid {
			t.Errorf("%q: the connection was lost: backend %d, before %d", texts[i], now, pid)
		}
	})
	releaseA()
	releaseC()
	releaseE()
	if got := value[int64](t, observer, "SELECT sum(count) FROM rate_limits"); got != 0 {
		t.Errorf("%d hits were counted by calls that failed", got)
	}
}

// Giving back that waits for a row leaves the counting after it less time, of which lock_timeout is
// again a part: the connection survives that, too.
func TestLockTimeoutAfterGivingBack(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	pool := testdb.Pool(t, url, maxConns(1))
	logger, text := logged()
	s := newStore(t, pool, store.PostgresConfig{Timeout: 3 * time.Second, Logger: logger})
	c := chargeOne(t, s, "a")
	release := lock(t, url, "a")
	defer release()
	pid := value[int32](t, pool, "SELECT pg_backend_pid()")

	// The store is kept busy, so that the charge and the hit share a statement.
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { addOne(t, s, hit("b")) })
	eventually(t, "the store waits for a connection", func() bool { return s.Queued() == 0 && s.Flushing() })
	s.GiveBack([]ratelimit.Charge{c})
	wg.Go(func() {
		_, err := s.Add(t.Context(), hits("a"))
		var pg *pgconn.PgError
		if !errors.Is(err, ratelimit.ErrTimeout) || !errors.As(err, &pg) || pg.Code != "55P03" {
			t.Errorf("error is %v, want an ErrTimeout by SQLSTATE 55P03", err)
		}
	})
	eventually(t, "the hit is queued", func() bool { return s.Queued() == 1 })
	conn.Release()
	wg.Wait()
	eventually(t, "the log says that the charge was not given back", func() bool { return strings.Contains(text(), "55P03") })
	if now := value[int32](t, pool, "SELECT pg_backend_pid()"); now != pid {
		t.Errorf("the connection was lost: backend %d, before %d", now, pid)
	}
}

// What a statement sets for itself is gone after it.
func TestSessionSettingsUntouched(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	for name, config := range configs() {
		pool := testdb.Pool(t, url, maxConns(1),
			set("synchronous_commit", "local"), set("lock_timeout", "7s"), set("application_name", "mine"))
		settings := func() []string {
			rows, err := pool.Query(t.Context(), `SELECT name || ' = ' || setting FROM pg_settings
				WHERE name NOT IN ('transaction_isolation', 'transaction_read_only') ORDER BY name`)
			if err != nil {
				t.Fatal(err)
			}
			all, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			return all
		}
		before := settings()
		if !slices.Contains(before, "synchronous_commit = local") || !slices.Contains(before, "lock_timeout = 7000") {
			t.Fatal("the test could not set what it looks for")
		}
		s := newStore(t, pool, config)
		counts, err := s.Add(t.Context(), hits("a"))
		if err != nil {
			t.Fatal(err)
		}
		s.GiveBack([]ratelimit.Charge{{Bucket: "a", Start: counts[0].Start, N: 1}})
		add(t, s, hits("a", "b")...)
		if _, err := s.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, settings()); diff != "" {
			t.Errorf("%s: settings of the session (-before +after):\n%s", name, diff)
		}
	}
}

// configs returns a configuration for each query mode, and one that sends a statement for each bucket.
func configs() map[string]store.PostgresConfig {
	all := map[string]store.PostgresConfig{"routed": {Routed: true}}
	for name, mode := range queryModes() {
		all[name] = store.PostgresConfig{QueryExecMode: mode}
	}
	return all
}

// queryModes are all of pgx's query modes.
func queryModes() map[string]pgx.QueryExecMode {
	return map[string]pgx.QueryExecMode{
		"default":         0,
		"cache statement": pgx.QueryExecModeCacheStatement,
		"cache describe":  pgx.QueryExecModeCacheDescribe,
		"describe exec":   pgx.QueryExecModeDescribeExec,
		"exec":            pgx.QueryExecModeExec,
		"simple protocol": pgx.QueryExecModeSimpleProtocol,
	}
}

// The texts that numbers and times have in a session do not matter, and no window depends on a local
// midnight (row 5): Start and Left agree with the database's clock to the microsecond.
func TestOddSessions(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	odd := []func(*pgxpool.Config){
		set("TimeZone", "Australia/Lord_Howe"), // its daylight saving is half an hour
		set("DateStyle", "SQL, DMY"),
		set("IntervalStyle", "sql_standard"),
		set("extra_float_digits", "-15"),
		set("backslash_quote", "off"),
		set("quote_all_identifiers", "on"),
	}
	pool := testdb.Pool(t, url, odd...)
	for name, config := range configs() {
		s := newStore(t, pool, config)
		for _, window := range []time.Duration{7 * time.Second, 24 * time.Hour, 7 * 24 * time.Hour, long} {
			h := ratelimit.Hit{Bucket: fmt.Sprint(name, window), Window: window, N: 1}
			sliding := h
			sliding.Bucket, sliding.Sliding = h.Bucket+" sliding", true
			for _, hs := range [][]ratelimit.Hit{{h}, {h, hit(name)}, {sliding}} {
				now := `SELECT (extract(epoch FROM clock_timestamp()) * 1e6)::bigint`
				before := value[int64](t, pool, now)
				counts, err := s.Add(t.Context(), hs)
				if err != nil {
					t.Fatal(err)
				}
				after := value[int64](t, pool, now)
				c := counts[0]
				if over := c.Start.UnixMicro() % window.Microseconds(); over != 0 {
					t.Errorf("%s, %v: the window starts at %v, %d µs off the grid", name, window, c.Start.UTC(), over)
				}
				if at := c.Start.Add(window - c.Left).UnixMicro(); at < before || at > after {
					t.Errorf("%s, %v: start and time left are %v and %v: it would be %d µs, not %d to %d",
						name, window, c.Start.UTC(), c.Left, at, before, after)
				}
			}
		}
	}
}

// Windows lie on one grid that starts in 1970, for the count as for the time left (row 2), and
// a day has 24 hours from midnight UTC also when the session's zone changes to and from daylight
// saving (row 5). The texts are the store's own, with a clock that stands.
func TestWindowsAtCertainTimes(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t), set("TimeZone", "America/New_York"))
	one, many, sliding, _ := newStore(t, pool, store.PostgresConfig{}).Texts()
	const day = 24 * time.Hour
	for i, test := range []struct {
		now    string
		window time.Duration
		start  string
		left   time.Duration
	}{
		{"2027-01-15 08:00:01Z", 7 * time.Second, "2027-01-15 07:59:59Z", 5 * time.Second}, // Unix second 1,800,000,001
		{"2027-01-15 08:00:01Z", 13 * time.Second, "2027-01-15 07:59:54Z", 6 * time.Second},
		{"2027-01-15 08:00:01Z", 7 * day, "2027-01-14 00:00:00Z", 6*day - 8*time.Hour - time.Second},
		{"2027-01-15 08:00:01Z", 2500 * time.Millisecond, "2027-01-15 08:00:00Z", 1500 * time.Millisecond},
		{"2027-01-15 08:00:01Z", time.Minute, "2027-01-15 08:00:00Z", 59 * time.Second},
		{"2026-03-08 06:59:59Z", day, "2026-03-08 00:00:00Z", 17*time.Hour + time.Second}, // before the spring change
		{"2026-03-08 07:00:00Z", day, "2026-03-08 00:00:00Z", 17 * time.Hour},             // after it
		{"2026-03-08 23:59:59Z", day, "2026-03-08 00:00:00Z", time.Second},
		{"2026-03-09 00:00:00Z", day, "2026-03-09 00:00:00Z", day},
		{"2026-11-01 05:59:59Z", day, "2026-11-01 00:00:00Z", 18*time.Hour + time.Second}, // before the autumn change
		{"2026-11-01 06:00:00Z", day, "2026-11-01 00:00:00Z", 18 * time.Hour},             // after it
		{"2026-11-01 23:59:59.999999Z", day, "2026-11-01 00:00:00Z", time.Microsecond},
		{"1970-01-01 00:00:00Z", time.Hour, "1970-01-01 00:00:00Z", time.Hour},
	} {
		parse := func(s string) time.Time {
			at, err := time.Parse("2006-01-02 15:04:05Z07:00", s)
			if err != nil {
				t.Fatal(err)
			}
			return at
		}
		type window struct{ Start, End time.Time }
		want := window{parse(test.start), parse(test.now).Add(test.left)}
		if want.End.Sub(want.Start) != test.window {
			t.Fatalf("%s, %v: the test is wrong, its window has %v", test.now, test.window, want.End.Sub(want.Start))
		}
		for name, text := range map[string]string{"one": one, "many": many, "sliding": sliding} {
			still := strings.NewReplacer(
				"statement_timestamp()", "timestamptz '"+test.now+"'",
				"clock_timestamp()", "timestamptz '"+test.now+"'",
			).Replace(text)
			bucket, micros := fmt.Sprint(name, i), test.window.Microseconds()
			args := []any{bucket, micros, int64(1)}
			if name == "many" {
				args = []any{[]string{bucket}, []int64{micros}, []int64{1}}
			}
			var got struct {
				bucket                       string
				total, start, left, previous int64
			}
			into := []any{&got.bucket, &got.total, &got.start, &got.left}
			want := want // with the next window, if the row is kept for that
			if name == "sliding" {
				want.End = want.End.Add(test.window)
				args = []any{[]string{bucket}, []int64{micros}, []int64{1}, []int64{2 * micros}}
				into = append(into, &got.previous)
				exec(t, pool, "INSERT INTO rate_limits VALUES ($1, $2, 5, $3)", bucket, want.Start.Add(-test.window), want.Start)
			}
			if err := pool.QueryRow(t.Context(), still, args...).Scan(into...); err != nil {
				t.Fatal(err)
			}
			if name == "sliding" && got.previous != 5 {
				t.Errorf("at %s, the window of %v before has counted %d, want 5", test.now, test.window, got.previous)
			}
			returned := window{time.UnixMicro(got.start).UTC(), parse(test.now).Add(time.Duration(got.left) * time.Microsecond)}
			if diff := cmp.Diff(want, returned); diff != "" {
				t.Errorf("%s: at %s, returned window of %v (-want +got):\n%s", name, test.now, test.window, diff)
			}
			var stored window
			if err := pool.QueryRow(t.Context(), "SELECT window_start, expires_at FROM rate_limits WHERE bucket = $1 AND window_start = $2", bucket, want.Start).
				Scan(&stored.Start, &stored.End); err != nil {
				t.Fatal(err)
			}
			stored = window{stored.Start.UTC(), stored.End.UTC()}
			if diff := cmp.Diff(want, stored); diff != "" {
				t.Errorf("%s: at %s, stored window of %v (-want +got):\n%s", name, test.now, test.window, diff)
			}
		}
	}
}

// The schema's name is enough: what search_path finds does not matter, not even a temporary table,
// and no SET is sent (row 52).
func TestSearchPathDoesNotMatter(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	admin := testdb.Pool(t, url)
	const schema = `Rl "app".x`
	if err := migrations.Schema(schema).Up(t.Context(), admin); err != nil {
		t.Fatal(err)
	}
	exec(t, admin, `CREATE SCHEMA decoy; CREATE TABLE decoy.rate_limits (LIKE public.rate_limits INCLUDING ALL)`)
	r := newRecorder()
	pool := testdb.Pool(t, url, maxConns(1), r.trace, set("search_path", "decoy, public"))
	exec(t, pool, "CREATE TEMPORARY TABLE rate_limits (LIKE public.rate_limits INCLUDING ALL)")
	r.texts = nil

	s := newStore(t, pool, store.PostgresConfig{Schema: schema})
	add(t, s, hit("a"))
	counts, err := s.Add(t.Context(), hits("a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	s.GiveBack([]ratelimit.Charge{{Bucket: "b", Start: counts[1].Start, N: 1}})
	add(t, s, hit("a"))
	exec(t, admin, `INSERT INTO "Rl ""app"".x".rate_limits VALUES ('old', 'epoch', 1, 'epoch'::timestamptz + interval '1 s')`)
	if n, err := s.Sweep(t.Context()); n != 1 || err != nil {
		t.Errorf("Sweep returned %d and error %v, want 1 and none", n, err)
	}
	var verbs []string
	for _, text := range r.texts {
		verbs = append(verbs, strings.Fields(text)[0])
	}
	if diff := cmp.Diff([]string{"INSERT", "INSERT", "UPDATE", "INSERT", "DELETE"}, verbs); diff != "" {
		t.Errorf("statements (-want +got):\n%s", diff)
	}
	got := make(map[string]int64)
	for _, table := range []string{`"Rl ""app"".x".rate_limits`, "public.rate_limits", "decoy.rate_limits", "pg_temp.rate_limits"} {
		got[table] = value[int64](t, pool, "SELECT coalesce(sum(count), 0)::bigint FROM "+table)
	}
	want := map[string]int64{`"Rl ""app"".x".rate_limits`: 3, "public.rate_limits": 0, "decoy.rate_limits": 0, "pg_temp.rate_limits": 0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sums of counts (-want +got):\n%s", diff)
	}
}

// Under a strict default isolation Postgres refuses some statements with 40001; they count nothing
// and are sent again. Counting stays exact and nobody sees an error (P15).
func TestExactUnderStrictIsolation(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"repeatable read", "serializable"} {
		for _, config := range []store.PostgresConfig{{}, {Routed: true}} {
			t.Run(fmt.Sprintf("%s/routed %t", isolation, config.Routed), func(t *testing.T) {
				t.Parallel()
				exactUnder(t, isolation, config)
			})
		}
	}
}

func exactUnder(t *testing.T, isolation string, config store.PostgresConfig) {
	t.Helper()
	const callers, calls = 50, 4
	url := testdb.New(t)
	var refused refusals
	pools := pools(t, url, 3, set("default_transaction_isolation", isolation), refused.trace)
	var stores []*store.Postgres
	for _, pool := range pools {
		stores = append(stores, newStore(t, pool, config))
	}
	rounds := 0
	for ; rounds < 50 && refused.n.Load() == 0; rounds++ { // until the stores have met
		together(callers*len(stores), func(i int) {
			s := stores[i%len(stores)]
			for range calls {
				addOne(t, s, hit("one"))
				counts, err := s.Add(t.Context(), hits("a", "b", fmt.Sprint(i)))
				if err != nil {
					t.Error(err)
					return
				}
				s.GiveBack([]ratelimit.Charge{{Bucket: "b", Start: counts[1].Start, N: 1}})
			}
		})
	}
	for _, s := range stores {
		addOne(t, s, hit("b")) // what was given back has gone before it
	}
	n := int64(callers * len(stores) * calls * rounds)
	got := map[string]int64{"one": count(t, pools[0], "one"), "a": count(t, pools[0], "a"), "b": count(t, pools[0], "b")}
	if diff := cmp.Diff(map[string]int64{"one": n, "a": n, "b": int64(len(stores))}, got); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	if refused.n.Load() == 0 {
		t.Error("no statement was refused, so the test did not reach what it tests")
	}
}

// A refusals counts the statements, or batches of them, that Postgres refuses with 40001.
type refusals struct{ n atomic.Int64 }

func (r *refusals) trace(c *pgxpool.Config) { c.ConnConfig.Tracer = r }

func (r *refusals) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (r *refusals) TraceQueryEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	r.add(data.Err)
}

func (r *refusals) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (r *refusals) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (r *refusals) TraceBatchEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	r.add(data.Err)
}

func (r *refusals) add(err error) {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "40001" {
		r.n.Add(1)
	}
}
