package store_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

// Three stores sweep a million expired rows at once, each the older windows of buckets that all three
// count meanwhile, while somebody brings rows back to life right where the sweeps are. Nothing fails or
// deadlocks, each of the three deletes some, every expired row goes, and every other is left
// with its exact count. Not one statement reads the table from end to end (rows 61, 62 and P13).
func TestSweepUnderLoad(t *testing.T) {
	t.Parallel()
	const instances, counters, keys, expired, live = 3, 4, 500, 1_000_000, 50_000
	url := testdb.New(t)
	pools := pools(t, url, instances)
	admin := testdb.Pool(t, url)
	exec(t, admin, `INSERT INTO rate_limits SELECT 'live ' || n, 'epoch', n, now() + interval '1 day' FROM generate_series(1, $1::int) AS n`, live)
	exec(t, admin, `INSERT INTO rate_limits SELECT 'key ' || n % $2::int, timestamptz 'epoch' + n * interval '1 ms', 1, now() - interval '1 day' + n * interval '1 ms'
		FROM generate_series(1, $1::int) AS n`, expired, keys)
	exec(t, admin, "ANALYZE rate_limits")

	// The plans are looked at before, in the middle, and when a hundredth is left.
	const perBatch, middle, late = 1_000, 500, 990
	var batches atomic.Int64 // sent by all
	reached := map[int64]chan struct{}{middle: make(chan struct{}), late: make(chan struct{})}
	var stores []*store.Postgres
	for _, pool := range pools {
		stores = append(stores, newStore(t, execHook{pool, func() {
			if c := reached[batches.Add(1)]; c != nil {
				close(c)
			}
		}}, store.PostgresConfig{}))
	}
	plan := planner(t, url, stores[0])
	plan("at first")

	swept := make(chan struct{}) // closed when all sweeps have ended
	running := func() bool {
		select {
		case <-swept:
			return false
		default:
			return true
		}
	}
	var beside sync.WaitGroup
	defer beside.Wait()
	deleted := make([]int64, instances)
	var mu sync.Mutex
	want := make(map[string]int64)
	beside.Go(func() {
		defer close(swept)
		together(instances, func(i int) {
			var err error
			if deleted[i], err = stores[i].Sweep(t.Context()); err != nil {
				t.Error(err)
			}
		})
	})
	for i := range instances * counters {
		beside.Go(func() {
			mine := make(map[string]int64)
			for running() {
				hs := hits("hot", fmt.Sprint("key ", rand.IntN(keys)))
				if _, err := stores[i%instances].Add(t.Context(), hs); err != nil {
					t.Error(err)
					break
				}
				mine[hs[0].Bucket]++
				mine[hs[1].Bucket]++
			}
			mu.Lock()
			defer mu.Unlock()
			for bucket, n := range mine {
				want[bucket] += n
			}
		})
	}
	var revived []int64 // by what they were, the n of above
	beside.Go(func() {
		for running() {
			n := batches.Load()*perBatch + rand.Int64N(3*perBatch)
			tag, err := admin.Exec(t.Context(), `UPDATE rate_limits SET count = 7, expires_at = now() + interval '1 day'
				WHERE bucket = 'key ' || $1::bigint % $2::int AND window_start = timestamptz 'epoch' + $1::bigint * interval '1 ms'
				AND expires_at < now()`, n, keys)
			if err != nil {
				t.Error(err)
				return
			}
			if tag.RowsAffected() == 1 {
				revived = append(revived, n)
			}
		}
	})
	for _, when := range []int64{middle, late} {
		select {
		case <-reached[when]:
		case <-swept: // it has failed, and says so itself
		}
		plan(fmt.Sprintf("after %d batches", when))
		exec(t, admin, "ANALYZE rate_limits")
		plan(fmt.Sprintf("after %d batches, analyzed", when))
	}
	<-swept
	beside.Wait()

	var sum int64
	for i, n := range deleted {
		sum += n
		if n == 0 {
			t.Errorf("sweep %d has deleted nothing: %d", i, deleted)
		}
	}
	if len(revived) == 0 || sum+int64(len(revived)) != expired {
		t.Errorf("%d rows were deleted, %d by each, and %d brought back, want %d together and some of both", sum, deleted, len(revived), expired)
	}
	// Looked at before anything else reads the table. Each session has reported when it is over. Transactions
	// that were rolled back are not counted: an autovacuum that makes way is one.
	s := statistics[[]int64](t, url, `SELECT ARRAY[deadlocks, seq_scan] FROM pg_stat_database, pg_stat_user_tables
		WHERE datname = current_database() AND relname = 'rate_limits'`, append(pools, admin)...)
	if diff := cmp.Diff([]int64{0, 0}, s); diff != "" {
		t.Errorf("deadlocks and sequential scans (-want +got):\n%s", diff)
	}

	db := connect(t, url)
	type left struct{ Expired, Live, Revived int }
	got := left{
		value[int](t, db, "SELECT count(*)::int FROM rate_limits WHERE expires_at < now()"),
		value[int](t, db, "SELECT count(*)::int FROM rate_limits WHERE bucket = 'live ' || count"),
		value[int](t, db, `SELECT count(*)::int FROM rate_limits JOIN unnest($1::bigint[]) AS n
			ON bucket = 'key ' || n % $2::int AND window_start = timestamptz 'epoch' + n * interval '1 ms' WHERE count = 7`, revived, keys),
	}
	if diff := cmp.Diff(left{0, live, len(revived)}, got); diff != "" {
		t.Errorf("rows that are left (-want +got):\n%s", diff)
	}
	counted := make(map[string]int64)
	for bucket := range want {
		counted[bucket] = value[int64](t, db, `SELECT sum(count)::bigint FROM rate_limits
			WHERE bucket = $1 AND window_start > timestamptz 'epoch' + $2::int * interval '1 ms'`, bucket, expired)
	}
	if diff := cmp.Diff(want, counted); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

// planner returns a function that checks how Postgres would run the sweep as the store sends it, when it
// plans for these parameters and when it plans for any: by the index.
func planner(t *testing.T, url string, s *store.Postgres) func(when string) {
	t.Helper()
	_, _, _, text := s.Texts()
	return func(when string) {
		t.Helper()
		conn := connect(t, url)
		defer func() { _ = conn.Close(t.Context()) }()
		exec(t, conn, "PREPARE sweep (bigint, bigint) AS "+text)
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			exec(t, conn, "SET plan_cache_mode = "+mode)
			r, err := conn.Query(t.Context(), "EXPLAIN EXECUTE sweep (1000000, 1000)")
			if err != nil {
				t.Fatal(err)
			}
			lines, err := pgx.CollectRows(r, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			plan := strings.Join(lines, "\n")
			if !strings.Contains(plan, "rate_limits_expires_idx") || !strings.Contains(plan, "Tid Scan") || strings.Contains(plan, "Seq Scan") {
				t.Errorf("%s, %s:\n%s", when, mode, plan)
			}
		}
	}
}

// When the session of a sweep ends in the middle of a statement, what earlier statements deleted stays
// deleted, no lock is left, and sweeping goes on, in the same store and in another (row 59).
func TestSweepSessionKilled(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	pools := pools(t, url, 2)
	first := newStore(t, pools[0], store.PostgresConfig{})
	second := newStore(t, pools[1], store.PostgresConfig{})
	expired(t, pools[0], 2_501)

	// The rows go in the order of their age, that is from the last: this one is in the second batch.
	exec(t, pools[0], `CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM pg_advisory_xact_lock(1); RETURN OLD; END$$;
		CREATE TRIGGER wait BEFORE DELETE ON rate_limits FOR EACH ROW WHEN (OLD.bucket = 'old 1000') EXECUTE FUNCTION wait()`)
	holder := connect(t, url)
	exec(t, holder, "SELECT pg_advisory_lock(1)")
	type result struct {
		n   int64
		err error
	}
	ended := make(chan result, 1)
	go func() {
		n, err := first.Sweep(t.Context())
		ended <- result{n, err}
	}()
	awaitBlocked(t, holder, 1)
	if n, err := second.Sweep(t.Context()); n != 501 || err != nil {
		t.Errorf("Sweep beside one that hangs returned %d and error %v, want 501, which the other has not locked, and none", n, err)
	}
	exec(t, holder, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
	if r := receive(t, "the sweep has ended", ended); r.n != 1_000 || !errors.Is(r.err, ratelimit.ErrUnavailable) || !strings.Contains(r.err.Error(), "57P01") {
		t.Errorf("Sweep returned %d and error %v, want 1000 and an ErrUnavailable with the code 57P01", r.n, r.err)
	}
	exec(t, holder, "SELECT pg_advisory_unlock(1)")
	noLocks := func() {
		t.Helper()
		eventually(t, "no lock is left", func() bool {
			return value[bool](t, holder, `SELECT NOT EXISTS (SELECT FROM pg_locks WHERE pid <> pg_backend_pid()
				AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`)
		})
	}
	noLocks()
	if n, err := first.Sweep(t.Context()); n != 1_000 || err != nil {
		t.Errorf("the next Sweep returned %d and error %v, want 1000, the rest, and none", n, err)
	}
	for range 10 {
		expired(t, pools[0], 100)
		var sum atomic.Int64
		together(2, func(i int) {
			n, err := []*store.Postgres{first, second}[i].Sweep(t.Context())
			if err != nil {
				t.Error(err)
			}
			sum.Add(n)
		})
		if sum.Load() != 100 {
			t.Errorf("%d rows were deleted, want 100", sum.Load())
		}
		noLocks()
	}
}

// The table stops growing: what counting and sweeping leave behind is used again. Each round has the
// same buckets counted in a new window, ten times, swept as when that window is over, and vacuumed,
// which the test does itself where a database has autovacuum (row 58). It runs alone, since Postgres clears
// away fewer old versions while a long transaction goes on, in whatever database.
func TestBloatLevelsOff(t *testing.T) {
	const rounds, level, buckets, live, perRow = 8, 4, 1_000, 10_000, 10
	url := testdb.New(t)
	pool := testdb.Pool(t, url)
	s := newStore(t, pool, store.PostgresConfig{})
	_, _, _, sweep := s.Texts()
	exec(t, pool, `INSERT INTO rate_limits SELECT 'live ' || n, 'epoch', 1, now() + interval '10 years' FROM generate_series(1, $1::int) AS n`, live)
	var sizes []int64
	for range rounds {
		for range perRow {
			for some := range slices.Chunk(rand.Perm(buckets), 100) { // as they come, and not as they lie in the pages
				var hs []ratelimit.Hit
				for _, n := range some {
					hs = append(hs, hit(fmt.Sprint("key ", n)))
				}
				add(t, s, hs...)
			}
		}
		// A negative grace sweeps as of the day on which the window is over.
		tag, err := pool.Exec(t.Context(), sweep, -2*long.Microseconds(), buckets)
		if err != nil || tag.RowsAffected() != buckets {
			t.Fatalf("the sweep deleted %d rows with error %v, want %d and none", tag.RowsAffected(), err, buckets)
		}
		exec(t, pool, "VACUUM rate_limits")
		sizes = append(sizes, value[int64](t, pool, "SELECT pg_total_relation_size('rate_limits')"))
	}
	if last := sizes[rounds-1]; last*10 > sizes[level-1]*11 {
		t.Errorf("after %d rounds the table is more than a tenth larger than after %d: %d", rounds, level, sizes)
	}
	share := statistics[float64](t, url, `SELECT n_tup_hot_upd::float8 / n_tup_upd FROM pg_stat_user_tables WHERE relname = 'rate_limits'`, pool)
	if share < 0.9 {
		t.Errorf("%.1f %% of the updates were HOT, want 90 or more", 100*share)
	}
}
