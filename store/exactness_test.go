package store_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

// Three stores with a pool each, as three processes have them, count one bucket at once: of the 500
// counts exactly 50 are within a limit of 50, since they are 1 to 500, each once. It is so for a new
// bucket, where the first hits race to make the row, and where the row of the window before is
// still there. Nothing of it is owed to an error that was got over (GO-14; rows 10 and P1).
func TestExactAcrossStores(t *testing.T) {
	t.Parallel()
	t.Run("arrays", func(t *testing.T) { t.Parallel(); testExactAcrossStores(t, 200, store.PostgresConfig{}) })
	t.Run("routed", func(t *testing.T) { t.Parallel(); testExactAcrossStores(t, 50, store.PostgresConfig{Routed: true}) })
}

func testExactAcrossStores(t *testing.T, rounds int, config store.PostgresConfig) {
	const callers, limit = 500, 50

	url := testdb.New(t)
	var stores []*store.Postgres
	pools := pools(t, url, 3)
	for _, pool := range pools {
		stores = append(stores, newStore(t, pool, config))
	}

	// Half of the buckets have been over the limit in the window before.
	bucket := func(round int) string { return fmt.Sprint("round ", round) }
	var before []ratelimit.Hit
	for round := 0; round < rounds; round += 2 {
		h := hit(bucket(round))
		h.N = 2 * limit
		before = append(before, h)
	}
	add(t, stores[0], before...)
	exec(t, pools[0], `UPDATE rate_limits SET window_start = window_start - $1::bigint * interval '1 microsecond',
		expires_at = expires_at - $1::bigint * interval '1 microsecond'`, long.Microseconds())

	want := make([]int64, callers)
	for i := range want {
		want[i] = int64(i + 1)
	}
	got := make([]int64, callers)
	for round := range rounds {
		together(callers, func(i int) {
			ctx := t.Context()
			if i%2 == 0 {
				ctx = context.Background() // which lets its caller send the statement by itself
			}
			counts, err := stores[i%len(stores)].Add(ctx, hits(bucket(round)))
			if err != nil {
				t.Error(err)
				return
			}
			got[i] = counts[0].Total
		})
		admitted := 0
		for _, total := range got {
			if total <= limit {
				admitted++
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" || admitted != limit {
			t.Fatalf("round %d: %d hits are within the limit, want %d; totals (-want +got):\n%s", round, admitted, limit, diff)
		}
	}

	// Every statement is a transaction, and an ERROR in the server's log would be a rollback.
	type transactions struct{ Committed, RolledBack bool }
	s := statistics[[]int64](t, url, `SELECT ARRAY[xact_commit, xact_rollback] FROM pg_stat_database WHERE datname = current_database()`, pools...)
	if diff := cmp.Diff(transactions{true, false}, transactions{s[0] >= int64(rounds), s[1] > 0}); diff != "" {
		t.Errorf("transactions are %v (-want +got):\n%s", s, diff)
	}
}
