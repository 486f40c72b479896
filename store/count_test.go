package store_test

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

// A count at the largest value of its column is a count over every limit, and no error (row 41).
func TestCountStopsGrowing(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	s := newStore(t, pool, store.PostgresConfig{})
	add(t, s, hits("a", "b")...)
	most := hit("a")
	most.N = ratelimit.MaxRequests
	for _, n := range []int64{math.MaxInt32 - 1, math.MaxInt32} {
		exec(t, pool, "UPDATE rate_limits SET count = $1", n)
		for _, hs := range [][]ratelimit.Hit{{hit("a")}, {most}, hits("a", "b"), {most, hit("b")}, hits("a", "a", "a")} {
			for _, total := range add(t, s, hs...) {
				if total <= ratelimit.MaxRequests || total > math.MaxInt32 {
					t.Errorf("Add(%v) on a count of %d: total is %d, want more than %d", hs, n, total, ratelimit.MaxRequests)
				}
			}
		}
		if got := count(t, pool, "a"); got != math.MaxInt32 {
			t.Errorf("count is %d, want %d", got, math.MaxInt32)
		}
	}
}

// Hits of one call that together are more than the column holds have totals that are no smaller than
// what they add.
func TestCountOfHugeCall(t *testing.T) {
	t.Parallel()
	s := newStore(t, testdb.Pool(t, testdb.New(t)), store.PostgresConfig{})
	most := hit("a")
	most.N = ratelimit.MaxRequests
	got := add(t, s, most, most, most)
	if diff := cmp.Diff([]int64{most64, 2 * most64, 3 * most64}, got); diff != "" {
		t.Errorf("totals (-want +got):\n%s", diff)
	}
}

const most64 = int64(ratelimit.MaxRequests)

// A hit changes the count alone. Nothing that is indexed changes, so that the updates are HOT and
// neither the table nor its indexes grow with them (row 58).
func TestUpdatesAreHOT(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	pool := testdb.Pool(t, url)
	s := newStore(t, pool, store.PostgresConfig{})
	add(t, s, hits("a", "b")...)
	type times struct{ Start, Expires time.Time }
	read := func() (ts times) {
		if err := pool.QueryRow(t.Context(), "SELECT window_start, expires_at FROM rate_limits WHERE bucket = 'a'").Scan(&ts.Start, &ts.Expires); err != nil {
			t.Fatal(err)
		}
		return ts
	}
	before := read()
	if got := before.Expires.Sub(before.Start); got != long {
		t.Errorf("the row expires %v after its window's start, want %v", got, long)
	}
	const updates = 600
	for i := range updates / 3 {
		add(t, s, hit("a"))
		counts, err := s.Add(t.Context(), hits("b", "a"))
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			s.GiveBack([]ratelimit.Charge{{Bucket: "a", Start: counts[1].Start, N: 1}})
		}
	}
	add(t, s, hit("last")) // what was given back has gone before it
	if diff := cmp.Diff(before, read()); diff != "" {
		t.Errorf("times of the row (-want +got):\n%s", diff)
	}
	got := statistics[[]int64](t, url, `SELECT ARRAY[n_tup_upd, n_tup_hot_upd] FROM pg_stat_user_tables WHERE relname = 'rate_limits'`, pool)
	if got[0] != updates+updates/6 || got[1] < got[0]*9/10 {
		t.Errorf("%d updates, of which %d HOT; want %d, nearly all HOT", got[0], got[1], updates+updates/6)
	}
}

// Buckets with windows of different lengths on one store do not disturb each other (G13).
func TestBucketsAreIndependent(t *testing.T) {
	t.Parallel()
	s := newStore(t, testdb.Pool(t, testdb.New(t)), store.PostgresConfig{})
	day := ratelimit.Hit{Bucket: "login/24h:ip:0f", Window: 24 * time.Hour, N: 1}
	year := ratelimit.Hit{Bucket: "login/8784h:ip:0f", Window: long, N: 1}
	var want, got [][]int64
	first := add(t, s, day, year)
	for i := int64(1); i <= 10; i++ {
		want = append(want, []int64{first[1] + i})
		got = append(got, add(t, s, year))
		if total := addOne(t, s, day); total > first[0]+i { // a day may end meanwhile
			t.Errorf("total of the day is %d after %d hits", total, first[0]+i)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("totals (-want +got):\n%s", diff)
	}
}

// When the database's clock is set back, hits are counted in the window that it is in then. A row of a
// time to come holds nobody up, and no wait is negative or longer than a window (row 4).
func TestDatabaseClockSetBack(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	s := newStore(t, pool, store.PostgresConfig{})
	first := addOne(t, s, hit("a"))
	exec(t, pool, `UPDATE rate_limits SET window_start = window_start + $1::bigint * interval '1 microsecond',
		expires_at = expires_at + $1::bigint * interval '1 microsecond', count = 1000`, long.Microseconds())
	// This window's row, made by a clock of another opinion on when it ends.
	exec(t, pool, `INSERT INTO rate_limits
		SELECT bucket, window_start - $1::bigint * interval '1 microsecond', 7, expires_at + interval '3 years' FROM rate_limits`, long.Microseconds())
	counts, err := s.Add(t.Context(), hits("a"))
	if err != nil {
		t.Fatal(err)
	}
	if first != 1 || counts[0].Total != 8 || counts[0].Left != long {
		t.Errorf("count is %+v, want a total of 8 and a whole window left at most", counts[0])
	}
	exec(t, pool, `UPDATE rate_limits SET expires_at = window_start + interval '1 microsecond'`)
	if counts, err = s.Add(t.Context(), hits("a")); err != nil || counts[0].Left != 0 {
		t.Errorf("count is %+v, %v, want nothing left", counts, err)
	}
}
