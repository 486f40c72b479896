package store_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/goroutines"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

// expired makes n rows that are long over.
func expired(t *testing.T, db store.DB, n int) {
	t.Helper()
	exec(t, db, `INSERT INTO rate_limits SELECT 'old ' || n, 'epoch', 1, now() - interval '1 day' - n * interval '1 ms'
		FROM generate_series(1, $1::int) AS n`, n)
}

func rows(t *testing.T, db store.DB) int {
	t.Helper()
	return value[int](t, db, "SELECT count(*)::int FROM rate_limits")
}

// What has expired goes and what lives stays, in every query mode. A row outlives its window by the
// timeout of a statement that may still be about to count in it, and a second.
func TestSweepDeletesExpired(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	for name, config := range configs() {
		t.Run(name, func(t *testing.T) {
			exec(t, pool, "TRUNCATE rate_limits")
			config.Timeout = 19 * time.Second
			s := newStore(t, pool, config)
			for bucket, age := range map[string]string{ // since its window's end
				"ends in a year":    "-1 year",
				"ends in a minute":  "-1 min",
				"may be locked yet": "10 s",
				"just over":         "40 s",
				"long over":         "1 year",
			} {
				exec(t, pool, "INSERT INTO rate_limits VALUES ($1, 'epoch', 1, now() - $2::text::interval)", bucket, age)
			}
			if n, err := s.Sweep(t.Context()); n != 2 || err != nil {
				t.Errorf("Sweep returned %d and error %v, want 2 and none", n, err)
			}
			want := []string{"ends in a minute", "ends in a year", "may be locked yet"}
			if diff := cmp.Diff(want, value[[]string](t, pool, "SELECT array_agg(bucket ORDER BY bucket) FROM rate_limits")); diff != "" {
				t.Errorf("rows that are left (-want +got):\n%s", diff)
			}
			if n, err := s.Sweep(t.Context()); n != 0 || err != nil {
				t.Errorf("a second Sweep returned %d and error %v, want 0 and none", n, err)
			}
		})
	}
}

// A sweep deletes in batches of 1,000, so that none holds its locks for long, until one finds fewer.
func TestSweepInBatches(t *testing.T) {
	t.Parallel()
	r := newRecorder()
	pool := testdb.Pool(t, testdb.New(t), r.trace)
	var told []store.SweepStats
	s := newStore(t, pool, store.PostgresConfig{OnSweep: func(s store.SweepStats) { told = append(told, s) }})
	for _, test := range []struct{ rows, statements int }{{0, 1}, {999, 1}, {1_000, 2}, {2_501, 3}} {
		expired(t, pool, test.rows)
		r.texts, told = nil, nil
		if n, err := s.Sweep(t.Context()); n != int64(test.rows) || err != nil {
			t.Errorf("Sweep returned %d and error %v, want %d and none", n, err, test.rows)
		}
		if n := r.sent("DELETE"); n != test.statements {
			t.Errorf("%d rows took %d statements, want %d", test.rows, n, test.statements)
		}
		if len(told) != 1 || told[0].Deleted != int64(test.rows) || told[0].Err != nil || told[0].Elapsed <= 0 {
			t.Errorf("OnSweep was told %+v, want %d rows and how long it took", told, test.rows)
		}
	}
	if n := rows(t, pool); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// Sweepers that meet share the work: no row is deleted twice, nobody waits or fails (row 62).
func TestSweepersMeet(t *testing.T) {
	t.Parallel()
	t.Run("skipping", func(t *testing.T) { t.Parallel(); testSweepersMeet(t, store.PostgresConfig{}) })
	t.Run("routed", func(t *testing.T) {
		t.Parallel()
		testSweepersMeet(t, store.PostgresConfig{Routed: true, Timeout: patience})
	})
}

func testSweepersMeet(t *testing.T, config store.PostgresConfig) {
	url := testdb.New(t)
	pools := pools(t, url, 3)
	expired(t, pools[0], 20_001)
	exec(t, pools[0], "INSERT INTO rate_limits SELECT 'live ' || n, 'epoch', 1, now() + interval '1 day' FROM generate_series(1, 100) AS n")
	var deleted atomic.Int64
	together(len(pools), func(i int) {
		n, err := newStore(t, pools[i], config).Sweep(t.Context())
		if err != nil {
			t.Error(err)
		}
		deleted.Add(n)
	})
	// One that finds the last rows in others' hands leaves them to these.
	if n := deleted.Load(); n != 20_001 {
		t.Errorf("%d rows were deleted, want 20001", n)
	}
	if n := rows(t, pools[0]); n != 100 {
		t.Errorf("%d rows are left, want 100", n)
	}
	s := statistics[[]int64](t, url, `SELECT ARRAY[deadlocks, xact_rollback] FROM pg_stat_database WHERE datname = current_database()`, pools...)
	if diff := cmp.Diff([]int64{0, 0}, s); diff != "" {
		t.Errorf("deadlocks and transactions rolled back (-want +got):\n%s", diff)
	}
}

// A sweep whose context ends keeps what it has done, and says how much that is.
func TestSweepCutShort(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	expired(t, pool, 2_501)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var told []store.SweepStats
	s := newStore(t, execHook{pool, cancel}, store.PostgresConfig{OnSweep: func(s store.SweepStats) { told = append(told, s) }})
	n, err := s.Sweep(ctx)
	if n != 1_000 || !errors.Is(err, context.Canceled) {
		t.Errorf("Sweep returned %d and error %v, want 1000 and one that wraps context.Canceled", n, err)
	}
	if len(told) != 1 || told[0].Deleted != 1_000 || !errors.Is(told[0].Err, context.Canceled) {
		t.Errorf("OnSweep was told %+v, want 1000 rows and that the context has ended", told)
	}
	if n := rows(t, pool); n != 1_501 {
		t.Errorf("%d rows are left, want 1501", n)
	}
	if n, err := s.Sweep(t.Context()); n != 1_501 || err != nil {
		t.Errorf("the next Sweep returned %d and error %v, want 1501 and none", n, err)
	}
}

// A row that somebody is writing is left alone, without waiting, and one that has come back to life
// meanwhile stays for good (P13, row 62).
func TestSweepLeavesLockedRows(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	pool := testdb.Pool(t, url)
	s := newStore(t, pool, store.PostgresConfig{})
	expired(t, pool, 10)
	other := connect(t, url)
	exec(t, other, "BEGIN")
	exec(t, other, "UPDATE rate_limits SET expires_at = now() + interval '1 day', count = 7 WHERE bucket = 'old 3'")
	exec(t, other, "UPDATE rate_limits SET count = 8 WHERE bucket = 'old 4'")
	ctx, cancel := context.WithTimeout(t.Context(), patience/3)
	defer cancel()
	if n, err := s.Sweep(ctx); n != 8 || err != nil { // it would wait if it did not skip
		t.Errorf("Sweep returned %d and error %v, want 8 and none", n, err)
	}
	exec(t, other, "COMMIT")
	if n, err := s.Sweep(t.Context()); n != 1 || err != nil {
		t.Errorf("Sweep returned %d and error %v, want 1, the row that was only locked, and none", n, err)
	}
	if got := count(t, pool, "old 3"); got != 7 {
		t.Errorf("count of the row that came back is %d, want 7", got)
	}
}

// However many rows live, a sweep reads those that have expired, by the index, whether Postgres
// plans for these parameters or for any (row 61).
func TestSweepUsesIndex(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	pool := testdb.Pool(t, url)
	plan := planner(t, url, newStore(t, pool, store.PostgresConfig{}))
	exec(t, pool, "INSERT INTO rate_limits SELECT 'live ' || n, 'epoch', 1, now() + n * interval '1 s' FROM generate_series(1, 50000) AS n")
	expired(t, pool, 5_000)
	plan("never analyzed")
	exec(t, pool, "ANALYZE rate_limits")
	plan("analyzed")
	exec(t, pool, "UPDATE rate_limits SET expires_at = expires_at - interval '1 year'")
	exec(t, pool, "ANALYZE rate_limits")
	plan("all expired")
}

// A store that counts sweeps without being told to, within its interval from the start and then
// about once in it.
func TestSweepsByItself(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	expired(t, pool, 10)
	type told struct {
		store.SweepStats
		at time.Time
	}
	swept := make(chan told, 10)
	s := newStore(t, pool, store.PostgresConfig{
		SweepInterval: time.Second,
		OnSweep:       func(s store.SweepStats) { swept <- told{s, time.Now()} },
	})
	var last time.Time
	for _, want := range []int64{10, 0} {
		var got told
		eventually(t, "a sweep has run", func() bool {
			addOne(t, s, hit("a"))
			select {
			case got = <-swept:
				return true
			default:
				return false
			}
		})
		if got.Deleted != want || got.Err != nil {
			t.Errorf("the sweep deleted %d rows with error %v, want %d and none", got.Deleted, got.Err, want)
		}
		if after := got.at.Sub(last); after < 750*time.Millisecond {
			t.Errorf("a sweep came %v after the one before, want at least three quarters of the interval", after)
		}
		last = got.at
	}
}

// A sweep that a store began by itself rests after each batch three times as long as that took.
func TestSweepsGently(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	expired(t, pool, 2_500)
	timed := &stopwatch{DB: pool}
	swept := make(chan store.SweepStats, 1)
	s := newStore(t, timed, store.PostgresConfig{SweepInterval: time.Hour, OnSweep: func(s store.SweepStats) { swept <- s }})
	s.DueSweep()
	addOne(t, s, hit("a"))
	if got := receive(t, "a sweep has run", swept); got.Deleted != 2_500 || got.Err != nil {
		t.Errorf("the sweep deleted %d rows with error %v, want 2500 and none", got.Deleted, got.Err)
	}
	if len(timed.took) != 3 || len(timed.rested) != 2 {
		t.Fatalf("the sweep sent %d statements, want 3", len(timed.took))
	}
	for i, rested := range timed.rested {
		if rested < 3*timed.took[i] {
			t.Errorf("the sweep rested %v after a batch that took %v, want three times as long", rested, timed.took[i])
		}
	}
}

// A stopwatch is a pool that notes how long each Exec takes, and how long it is until the next.
type stopwatch struct {
	store.DB
	took, rested []time.Duration
	ended        time.Time
}

func (w *stopwatch) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	began := time.Now()
	if !w.ended.IsZero() {
		w.rested = append(w.rested, began.Sub(w.ended))
	}
	tag, err := w.DB.Exec(ctx, sql, args...)
	w.ended = time.Now()
	w.took = append(w.took, w.ended.Sub(began))
	return tag, err
}

// Hits are counted while a sweep of their store is going on.
func TestSweepHoldsUpNobody(t *testing.T) {
	t.Parallel()
	counted := make(chan struct{})
	s := newStore(t, testdb.Pool(t, testdb.New(t)), store.PostgresConfig{SweepInterval: time.Hour, OnSweep: func(store.SweepStats) {
		select {
		case <-counted:
		case <-time.After(patience / 3):
			t.Error("hits wait for the sweep")
		}
	}})
	goroutines.Labelled(t, func() {
		s.DueSweep()
		addOne(t, s, hit("a")) // begins the sweep
		addOne(t, s, hit("a"))
	})
	close(counted)
	eventually(t, "the sweep has ended", func() bool { return goroutines.Count(t) == 0 })
}

func TestManualSweep(t *testing.T) {
	t.Parallel()
	r := newRecorder()
	pool := testdb.Pool(t, testdb.New(t), r.trace)
	for manual, want := range map[bool]int{false: 1, true: 0} {
		r.texts = nil
		s, err := store.NewPostgres(pool, store.PostgresConfig{ManualSweep: manual, Timeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		goroutines.Labelled(t, func() {
			s.DueSweep()
			addOne(t, s, hit("a"))
		})
		eventually(t, "no goroutine of the store is left", func() bool { return goroutines.Count(t) == 0 })
		if n := r.sent("DELETE"); n != want {
			t.Errorf("ManualSweep %t: %d statements of a sweep were sent, want %d", manual, n, want)
		}
	}
}

// A sweep that fails tells the log and the hook. No caller sees it, and the next sweep comes.
func TestSweepFails(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	expired(t, pool, 10)
	exec(t, pool, `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'not today'; END$$;
		CREATE TRIGGER fail BEFORE DELETE ON rate_limits FOR EACH ROW EXECUTE FUNCTION fail()`)
	logger, text := logged()
	swept := make(chan store.SweepStats, 1)
	s := newStore(t, pool, store.PostgresConfig{
		SweepInterval: time.Hour,
		OnSweep:       func(s store.SweepStats) { swept <- s },
		Logger:        logger,
	})
	sweep := func() store.SweepStats {
		s.DueSweep()
		goroutines.Labelled(t, func() { addOne(t, s, hit("a")) })
		got := receive(t, "a sweep has run", swept)
		eventually(t, "the sweep has ended", func() bool { return goroutines.Count(t) == 0 })
		return got
	}
	if got := sweep(); got.Deleted != 0 || !errors.Is(got.Err, ratelimit.ErrUnavailable) || !strings.Contains(got.Err.Error(), "not today") {
		t.Errorf("OnSweep was told %+v, want an ErrUnavailable that says why", got)
	}
	for _, word := range []string{"level=ERROR", "sweep ended early", "not today", `rate_limits`} {
		if !strings.Contains(text(), word) {
			t.Errorf("the log does not say %q:\n%s", word, text())
		}
	}
	exec(t, pool, "DROP TRIGGER fail ON rate_limits")
	if got := sweep(); got.Deleted != 10 || got.Err != nil {
		t.Errorf("OnSweep was told %+v after the cause was gone, want 10 rows and no error", got)
	}
	if n := strings.Count(text(), "\n"); n != 1 {
		t.Errorf("%d lines were logged, want 1:\n%s", n, text())
	}
}
