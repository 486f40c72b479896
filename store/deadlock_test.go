package store_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

// Several stores count and give back overlapping sets of buckets, in whatever order their callers
// name them, while three of them sweep expired rows of the same buckets. No statement ever deadlocks,
// not even one that would be sent again, and the counts are exact (G17, P9, row 56).
func TestNoDeadlocks(t *testing.T) {
	t.Parallel()
	const nStores, callers, calls, keys, perCall = 3, 16, 15, 40, 16
	url := testdb.New(t)
	pools := pools(t, url, nStores)
	var stores []*store.Postgres
	for _, pool := range pools {
		stores = append(stores, newStore(t, pool, store.PostgresConfig{}))
	}
	bucket := func(k int) string { return fmt.Sprint("key ", k) }
	exec(t, pools[0], `INSERT INTO rate_limits SELECT 'key ' || n % $1::int, timestamptz 'epoch' + n * interval '1 s', 1, now() - interval '1 day'
		FROM generate_series(1, 10000) AS n`, keys)

	var sweeping sync.WaitGroup
	stop := make(chan struct{})
	for _, s := range stores {
		sweeping.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := s.Sweep(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var mu sync.Mutex
	want := make(map[string]int64)
	together(nStores*callers, func(i int) {
		random := rand.New(rand.NewPCG(uint64(i), 0))
		mine := make(map[string]int64)
		s := stores[i%nStores]
		for range calls {
			var hs []ratelimit.Hit
			for _, k := range random.Perm(keys)[:perCall] {
				hs = append(hs, hit(bucket(k)))
			}
			counts, err := s.Add(t.Context(), hs)
			if err != nil {
				t.Error(err)
				return
			}
			var charges []ratelimit.Charge
			for n, h := range hs {
				if mine[h.Bucket]++; n%4 == 0 {
					mine[h.Bucket]--
					charges = append(charges, ratelimit.Charge{Bucket: h.Bucket, Start: counts[n].Start, N: 1})
				}
			}
			s.GiveBack(charges)
		}
		mu.Lock()
		defer mu.Unlock()
		for bucket, n := range mine {
			want[bucket] += n
		}
	})
	close(stop)
	sweeping.Wait()
	for _, s := range stores {
		addOne(t, s, hit("last")) // what was given back has gone before it
	}

	got := make(map[string]int64)
	for k := range keys {
		got[bucket(k)] = count(t, pools[0], bucket(k))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	s := statistics[[]int64](t, url, `SELECT ARRAY[deadlocks, xact_rollback] FROM pg_stat_database WHERE datname = current_database()`, pools...)
	if diff := cmp.Diff([]int64{0, 0}, s); diff != "" {
		t.Errorf("deadlocks and transactions rolled back (-want +got):\n%s", diff)
	}
}

// A deadlock that others cause is got over: the statement counted nothing and is sent again.
func TestRetriesAfterDeadlock(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	observer := testdb.Pool(t, url)
	pool := testdb.Pool(t, url)
	s := newStore(t, pool, store.PostgresConfig{})
	add(t, s, hits("a", "b")...)
	other := connect(t, url)
	exec(t, other, "SET deadlock_timeout = '1min'") // so that Postgres refuses the store's session
	exec(t, other, "BEGIN")
	exec(t, other, "UPDATE rate_limits SET count = count + 10 WHERE bucket = 'b'")

	got := make(chan []ratelimit.Count, 1)
	go func() {
		counts, err := s.Add(t.Context(), hits("a", "b"))
		if err != nil {
			t.Error(err)
		}
		got <- counts
	}()
	awaitBlocked(t, observer, 1) // it has a and waits for b
	exec(t, other, "UPDATE rate_limits SET count = count + 10 WHERE bucket = 'a'")
	exec(t, other, "COMMIT")
	if diff := cmp.Diff([]int64{12, 12}, totals(receive(t, "an answer", got))); diff != "" {
		t.Errorf("totals (-want +got):\n%s", diff)
	}
	if err := other.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := statistics[int64](t, url, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`, pool, observer); n == 0 {
		t.Error("there was no deadlock, so the test did not reach what it tests")
	}
}
