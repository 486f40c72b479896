package store_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/goroutines"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

// chargeOne counts one hit and returns the charge for it.
func chargeOne(t *testing.T, s ratelimit.Store, bucket string) ratelimit.Charge {
	t.Helper()
	counts, err := s.Add(t.Context(), hits(bucket))
	if err != nil {
		t.Fatal(err)
	}
	return ratelimit.Charge{Bucket: bucket, Start: counts[0].Start, N: 1}
}

// A charge goes back to the window that it was made to, or nowhere: not to a later window, not to one
// that was swept, not below zero, and it makes no row (row 37).
func TestGiveBackToNothingElse(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	for name, config := range configs() {
		t.Run(name, func(t *testing.T) {
			exec(t, pool, "TRUNCATE rate_limits")
			s := newStore(t, pool, config)
			earlier := func(bucket string) ratelimit.Charge {
				c := chargeOne(t, s, bucket)
				exec(t, pool, `UPDATE rate_limits SET window_start = window_start - $2::bigint * interval '1 microsecond',
					expires_at = now() - interval '1 day' WHERE bucket = $1`, bucket, long.Microseconds())
				c.Start = c.Start.Add(-long)
				return c
			}
			swept := earlier("swept")
			if n, err := s.Sweep(t.Context()); n != 1 || err != nil {
				t.Fatalf("Sweep returned %d and error %v, want 1 and none", n, err)
			}
			over := earlier("over")
			sweptAndBack := swept
			sweptAndBack.Bucket = "swept and back"
			live, more := chargeOne(t, s, "live"), chargeOne(t, s, "more")
			more.N = 1000
			add(t, s, hits("over", "over", "swept and back")...)
			s.GiveBack([]ratelimit.Charge{swept, over, sweptAndBack, more, live, live, {Bucket: "none", Start: live.Start, N: 1}})
			add(t, s, hit("last"))

			got := make(map[string]int64)
			r, err := pool.Query(t.Context(), "SELECT bucket || CASE WHEN expires_at < now() THEN ' before' ELSE '' END, count FROM rate_limits")
			if err != nil {
				t.Fatal(err)
			}
			for r.Next() {
				var bucket string
				var n int64
				if err := r.Scan(&bucket, &n); err != nil {
					t.Fatal(err)
				}
				got[bucket] = n
			}
			want := map[string]int64{"over before": 0, "over": 2, "swept and back": 1, "live": 0, "more": 0, "last": 1}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
		})
	}
}

// What is given back is off before later hits on the bucket are counted, also when statements are in
// flight, and it is not counted twice when several give back at once.
func TestGiveBackComesFirst(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	r := newRecorder()
	s := newStore(t, testdb.Pool(t, url, r.trace), store.PostgresConfig{})
	const n = 100
	var charges []ratelimit.Charge
	for range n {
		charges = append(charges, chargeOne(t, s, "a"))
	}
	release := lock(t, url, "busy")
	var wg sync.WaitGroup
	wg.Go(func() { addOne(t, s, hit("busy")) })
	awaitBlocked(t, testdb.Pool(t, url), 1)
	r.texts = nil
	together(n, func(i int) { s.GiveBack(charges[i : i+1]) }) // it does not wait
	wg.Go(func() {
		if got := addOne(t, s, hit("a")); got != 1 {
			t.Errorf("total is %d after %d hits were given back, want 1", got, n)
		}
	})
	eventually(t, "the hit is queued", func() bool { return s.Queued() == 1 })
	release()
	wg.Wait()
	if diff := cmp.Diff([]int{1, 1}, []int{r.sent("UPDATE"), r.sent("INSERT")}); diff != "" {
		t.Errorf("statements that gave back and that counted (-want +got):\n%s", diff)
	}
}

// Hits on a bucket wait for what is being given back to it, however many they are with. Others need not.
func TestGiveBackInFlight(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	observer := testdb.Pool(t, url)
	s := newStore(t, testdb.Pool(t, url), store.PostgresConfig{})
	c := chargeOne(t, s, "a")
	eventually(t, "the store is idle", func() bool { return !s.Flushing() })
	release := lock(t, url, "a")
	s.GiveBack([]ratelimit.Charge{c})
	awaitBlocked(t, observer, 1)
	if _, err := s.Add(t.Context(), many("other", store.MinShare)); err != nil {
		t.Fatal(err)
	}
	totals := make(chan int64, 1)
	go func() {
		counts, err := s.Add(t.Context(), append(hits("a"), many("more", store.MinShare)...))
		if err != nil {
			t.Error(err)
			return
		}
		totals <- counts[0].Total
	}()
	eventually(t, "the hits are queued", func() bool { return s.Queued() == 1+store.MinShare })
	release()
	if got := receive(t, "the hit is counted", totals); got != 1 {
		t.Errorf("total is %d after the other hit was given back, want 1", got)
	}
}

// What a locked row has kept from being given back is tried again.
func TestGiveBackBehindALock(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	r := newRecorder()
	pool := testdb.Pool(t, url, r.trace)
	logger, text := logged()
	s := newStore(t, pool, store.PostgresConfig{Timeout: 2 * time.Second, Logger: logger})
	c := chargeOne(t, s, "a")
	release := lock(t, url, "a")
	s.GiveBack([]ratelimit.Charge{c})
	eventually(t, "it is tried again", func() bool { return r.sent("UPDATE") >= 2 })
	release()
	eventually(t, "the charge is off", func() bool { return count(t, pool, "a") == 0 })
	eventually(t, "the store is idle", func() bool { return !s.Flushing() })
	if text() != "" {
		t.Errorf("the store logs:\n%s", text())
	}
}

// What is given back while the database is left alone is lost, and the log says so.
func TestGiveBackToADatabaseLeftAlone(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	pool := testdb.Pool(t, url)
	logger, text := logged()
	s := newStore(t, pool, store.PostgresConfig{Logger: logger})
	c := chargeOne(t, s, "a")
	exec(t, connect(t, url), "DROP TABLE rate_limits")
	for range 3 {
		_, err := s.Add(t.Context(), hits("a"))
		wantOnly(t, err, ratelimit.ErrNoTable)
	}
	s.GiveBack([]ratelimit.Charge{c})
	eventually(t, "the log says that it is lost", func() bool { return strings.Contains(text(), "not given back") })
}

// It does not take a hit to give back.
func TestGiveBackAlone(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	var flushes int
	s := newStore(t, pool, store.PostgresConfig{OnFlush: func(store.FlushStats) { flushes++ }})
	c := chargeOne(t, s, "a")
	eventually(t, "the store is idle", func() bool { return !s.Flushing() })
	goroutines.Labelled(t, func() { s.GiveBack([]ratelimit.Charge{c}) })
	eventually(t, "the charge is off", func() bool { return count(t, pool, "a") == 0 })
	eventually(t, "no goroutine of the store is left", func() bool { return goroutines.Count(t) == 0 })
	if flushes != 1 {
		t.Errorf("OnFlush was told of %d counting statements, want 1", flushes)
	}
}

// Giving back that fails is logged and no caller's trouble: the hits that come with it are counted.
func TestGiveBackFails(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	exec(t, pool, `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'not today'; END$$;
		CREATE TRIGGER fail BEFORE UPDATE ON rate_limits FOR EACH ROW WHEN (NEW.count < OLD.count) EXECUTE FUNCTION fail()`)
	logger, text := logged()
	s := newStore(t, pool, store.PostgresConfig{Logger: logger})
	c := chargeOne(t, s, "a")
	s.GiveBack([]ratelimit.Charge{c})
	if got := addOne(t, s, hit("a")); got != 2 {
		t.Errorf("total is %d, want 2, for nothing could be given back", got)
	}
	for _, word := range []string{"level=ERROR", "not given back", "not today", "giving back (buckets: 1)"} {
		if !strings.Contains(text(), word) {
			t.Errorf("the log does not say %q:\n%s", word, text())
		}
	}
	exec(t, pool, "DROP TRIGGER fail ON rate_limits")
	s.GiveBack([]ratelimit.Charge{c})
	if got := addOne(t, s, hit("a")); got != 2 {
		t.Errorf("total is %d after the cause was gone, want 2", got)
	}
}

// Invalid charges are logged without what their buckets hold, and spoil nothing.
func TestGiveBackInvalid(t *testing.T) {
	t.Parallel()
	logger, text := logged()
	s := newStore(t, testdb.Pool(t, testdb.New(t)), store.PostgresConfig{Logger: logger})
	c := chargeOne(t, s, "a")
	s.GiveBack([]ratelimit.Charge{{Bucket: "secret\xff", Start: c.Start, N: 1}, c, {Bucket: "secret", N: 1}})
	if got := addOne(t, s, hit("a")); got != 1 {
		t.Errorf("total is %d, want 1", got)
	}
	if strings.Contains(text(), "secret") || !strings.Contains(text(), "not given back") {
		t.Errorf("the log has to say that a charge was not given back, and not its bucket:\n%s", text())
	}
}

// Charges behind a statement that has found no database are lost, not kept for later, and that is logged.
func TestGiveBackBehindStall(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	pool := testdb.Pool(t, url, maxConns(1))
	logger, text := logged()
	c := chargeOne(t, newStore(t, pool, store.PostgresConfig{}), "a")
	s := newStore(t, pool, store.PostgresConfig{Logger: logger, Timeout: 500 * time.Millisecond})
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	goroutines.Labelled(t, func() {
		left := make(chan struct{})
		wg.Go(func() {
			defer close(left)
			_, err := s.Add(t.Context(), hits("b"))
			wantOnly(t, err, ratelimit.ErrTimeout)
		})
		eventually(t, "the statement waits for a connection", func() bool { return s.Flushing() && s.Queued() == 0 })
		s.GiveBack([]ratelimit.Charge{c})
		<-left
	})
	wg.Wait()
	eventually(t, "no goroutine of the store is left", func() bool { return goroutines.Count(t) == 0 })
	conn.Release()
	if !strings.Contains(text(), "not given back") {
		t.Errorf("the log does not say that a charge was not given back:\n%s", text())
	}
	again := newStore(t, pool, store.PostgresConfig{})
	if got := addOne(t, again, hit("a")); got != 2 {
		t.Errorf("total is %d, want 2", got)
	}
}
