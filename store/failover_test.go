package store_test

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/goroutines"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/migrations"
	"github.com/krow/ratelimit/store"
)

// A primary dies under load and its replica becomes the primary. Three stores that know both hosts go on counting
// by themselves, from what the replica had received: no bucket starts anew, and no limit is multiplied.
func TestFailOver(t *testing.T) {
	t.Parallel()
	const stores, callers, limit = 3, 4, 500
	primary := testdb.Server(t)
	if err := migrations.Up(t.Context(), testdb.Pool(t, primary.URL())); err != nil {
		t.Fatal(err)
	}
	replica, err := primary.Replica(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := replica.Stop(); err != nil {
			t.Error(err)
		}
	})
	standby := testdb.Pool(t, replica.URL())
	goroutines.Labelled(t, func() {
		before := goroutines.Count(t)
		logger, _ := logged()
		var all []*store.Postgres
		for range stores {
			all = append(all, open(t, hosts(t, replica.URL(), primary.URL()), store.PostgresConfig{Timeout: time.Second, ManualSweep: true, Logger: logger}))
		}

		// What the replica is known to have.
		for _, s := range all {
			h := hit("hot")
			h.N = 50
			add(t, s, h)
		}
		const known = 50 * stores
		eventually(t, "the replica has the counts", func() bool {
			return value[int64](t, standby, "SELECT coalesce(sum(count), 0) FROM rate_limits") == known
		})

		// Each caller counts the bucket that all share and one of its own, one after the other.
		var admitted, acknowledged, failed, resumed atomic.Int64
		admitted.Store(known)
		var promoted atomic.Bool
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i, s := range all {
			for j := range callers {
				own := hit(fmt.Sprint("own ", i, j))
				wg.Go(func() {
					var acked, unknown int64 // of its own bucket
					again := false
					tick := time.NewTicker(time.Millisecond)
					defer tick.Stop()
					for ; ctx.Err() == nil; <-tick.C {
						since := promoted.Load()
						counts, err := s.Add(context.Background(), []ratelimit.Hit{hit("hot"), own})
						if err != nil {
							failed.Add(1)
							unknown++
							continue
						}
						acknowledged.Add(1)
						acked++
						if counts[0].Total <= limit {
							admitted.Add(1)
						}
						if total := counts[1].Total; total > acked+unknown {
							t.Errorf("the total of %s is %d after %d hits, of which %d failed", own.Bucket, total, acked+unknown, unknown)
						}
						if since && !again {
							again = true
							resumed.Add(1)
						}
					}
				})
			}
		}
		eventually(t, "hits are counted", func() bool { return acknowledged.Load() > 200 })
		if err := primary.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "hits fail", func() bool { return failed.Load() > 10 })
		if err := replica.Promote(t.Context()); err != nil {
			t.Fatal(err)
		}
		promoted.Store(true)
		began := time.Now()
		eventually(t, "every caller counts again", func() bool { return resumed.Load() == stores*callers })
		t.Logf("resumed %v after the promotion", time.Since(began))
		stop()
		wg.Wait()

		stored := count(t, standby, "hot")
		counted := known + acknowledged.Load()
		lost := counted + failed.Load() - stored // at most: of those that failed, some were not counted
		t.Logf("%d hits were counted, %d failed, %d are stored", counted, failed.Load(), stored)
		if stored < known {
			t.Errorf("%d are stored, want at least the %d that the replica had", stored, known)
		}
		if stored > counted+failed.Load() {
			t.Errorf("%d are stored, want at most the %d that were counted and the %d that failed", stored, counted, failed.Load())
		}
		if admitted.Load() > limit+lost {
			t.Errorf("%d were admitted, want at most the limit of %d and the %d that were lost", admitted.Load(), limit, lost)
		}
		for _, s := range all {
			s.Close()
		}
		eventually(t, "no goroutine is left", func() bool { return goroutines.Count(t) == before })
	})
}

// hosts returns the URL of a cluster whose servers have the same password.
func hosts(t *testing.T, first, second string) string {
	t.Helper()
	a, err := url.Parse(first)
	if err != nil {
		t.Fatal(err)
	}
	b, err := url.Parse(second)
	if err != nil {
		t.Fatal(err)
	}
	a.Host += "," + b.Host
	return a.String()
}
