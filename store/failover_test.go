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
// by themselves, from exactly what the replica had received: no bucket starts anew, and no more pass in addition to
// the limit than the hits that were lost.
func TestFailOver(t *testing.T) {
	t.Parallel()
	const stores, callers, limit = 3, 4, 3000
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
	wantReadOnlyAlone(t, replica.URL())
	goroutines.Labelled(t, func() {
		before := goroutines.Count(t)
		logger, _ := logged()
		const name = "failover"
		cluster := hosts(t, replica.URL(), primary.URL(), name)
		var all []*store.Postgres
		for range stores {
			all = append(all, open(t, cluster, store.PostgresConfig{Timeout: time.Second, ManualSweep: true, Logger: logger}))
		}

		// What the replica is known to have.
		for _, s := range all {
			h := hit("hot")
			h.N = 50
			add(t, s, h)
		}
		const known = 50 * stores
		eventually(t, "the replica has the counts", func() bool { return count(t, standby, "hot") == known })

		// Each caller counts the bucket that all share and one of its own, one after the other.
		var admitted, acknowledged, failed, down, resumed, reached atomic.Int64
		admitted.Store(known)
		var killed, promoted atomic.Bool
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var wg sync.WaitGroup
		for i, s := range all {
			for j := range callers {
				own := hit(fmt.Sprint("own ", i, j))
				wg.Go(func() {
					var acked, unknown int64 // of its own bucket
					isDown, again, isReached := false, false, false
					// first adds one to n at the caller's first time.
					first := func(done *bool, n *atomic.Int64) {
						if !*done {
							*done = true
							n.Add(1)
						}
					}
					tick := time.NewTicker(time.Millisecond)
					defer tick.Stop()
					for ; ctx.Err() == nil; <-tick.C {
						sinceKill, sincePromotion := killed.Load(), promoted.Load()
						counts, err := s.Add(context.Background(), []ratelimit.Hit{hit("hot"), own})
						if err != nil {
							failed.Add(1)
							unknown++
							if sinceKill {
								first(&isDown, &down)
							}
							continue
						}
						acknowledged.Add(1)
						acked++
						if counts[0].Total <= limit {
							admitted.Add(1)
						} else if sincePromotion {
							first(&isReached, &reached)
						}
						if total := counts[1].Total; total > acked+unknown {
							t.Errorf("the total of %s is %d after %d hits, of which %d failed", own.Bucket, total, acked+unknown, unknown)
						}
						if sincePromotion {
							first(&again, &resumed)
						}
					}
				})
			}
		}
		var seen int64
		eventually(t, "the replica has some of them", func() bool {
			seen = count(t, standby, "hot")
			return seen > known
		})
		more := acknowledged.Load() + 100
		eventually(t, "more are counted", func() bool { return acknowledged.Load() > more })
		if err := primary.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		killed.Store(true)
		// From then on nothing is counted: the replica can only be read.
		eventually(t, "every caller fails", func() bool { return down.Load() == stores*callers })
		// It is told to stream from nobody, or it would try the primary's address for as long as connecting takes,
		// and sleeps when there is nothing left to replay. (The last record that it has received may be cut off,
		// so the numbers of what it has received and replayed need not meet.)
		for _, sql := range []string{"ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"} {
			if _, err := standby.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "the replica has replayed what it has received", func() bool {
			return value[bool](t, standby, `SELECT EXISTS (SELECT FROM pg_stat_activity
				WHERE backend_type = 'startup' AND wait_event = 'RecoveryRetrieveRetryInterval')`)
		})
		counted, unclear, had := known+acknowledged.Load(), failed.Load(), count(t, standby, "hot")
		lost := max(counted-had, 0)
		if had < seen {
			t.Errorf("the replica has %d, want at least the %d that it was seen to have", had, seen)
		}
		if err := replica.Promote(t.Context()); err != nil {
			t.Fatal(err)
		}
		promoted.Store(true)
		began := time.Now()
		eventually(t, "every caller counts again", func() bool { return resumed.Load() == stores*callers })
		t.Logf("resumed %v after the promotion", time.Since(began))
		eventually(t, "every caller reaches the limit", func() bool { return reached.Load() == stores*callers })
		stop()
		wg.Wait()

		since := known + acknowledged.Load() - counted
		stored := count(t, standby, "hot")
		t.Logf("%d hits were counted before, of which %d were lost; %d since, and %d are stored", counted, lost, since, stored)
		// A hit that failed since may have been counted.
		if most := had + since + failed.Load() - unclear; stored < had+since || stored > most {
			t.Errorf("%d are stored, want the %d that the replica had and the %d since, and at most %d", stored, had, since, most)
		}
		if admitted.Load() > limit+lost {
			t.Errorf("%d were admitted, want at most the limit of %d and the %d that were lost", admitted.Load(), limit, lost)
		}
		sessions := func() int {
			return value[int](t, standby, "SELECT count(*)::int FROM pg_stat_activity WHERE application_name = $1", name)
		}
		if n := sessions(); n < stores || n > 2*stores {
			t.Errorf("%d stores have %d sessions, want one or two each", stores, n)
		}
		for _, s := range all {
			s.Close()
		}
		eventually(t, "no session is left", func() bool { return sessions() == 0 })
		eventually(t, "no goroutine is left", func() bool { return goroutines.Count(t) == before })
	})
}

// wantReadOnlyAlone fails the test unless stores that know a replica alone say that it can only be read.
func wantReadOnlyAlone(t *testing.T, replica string) {
	t.Helper()
	logger, _ := logged()
	for _, attrs := range []string{"", "any", "read-write", "primary"} {
		u, err := url.Parse(replica)
		if err != nil {
			t.Fatal(err)
		}
		query := u.Query()
		query.Set("target_session_attrs", attrs)
		if attrs == "" {
			query.Del("target_session_attrs")
		}
		u.RawQuery = query.Encode()
		_, err = open(t, u.String(), store.PostgresConfig{Logger: logger}).Add(t.Context(), hits("a"))
		wantOnly(t, err, ratelimit.ErrReadOnly)
	}
}

// hosts returns the URL of a cluster whose servers have the same password, with an application_name.
func hosts(t *testing.T, first, second, name string) string {
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
	query := a.Query()
	query.Set("application_name", name)
	a.RawQuery = query.Encode()
	return a.String()
}
