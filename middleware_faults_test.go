package ratelimit_test

import (
	"testing"
	"time"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/migrations"
)

// A fault is a way in which a database fails.
type fault struct {
	name string
	// own has the database on a server of its own, proxied has a proxy in front of it, and role is
	// what the limiters' sessions work as.
	own, proxied bool
	role         string
	begin, end   func(t *testing.T, b *faultBed)
	// underLoad sends requests while the fault begins, too.
	underLoad bool
	// want is the kind of the errors. A busy machine may make a timeout of any.
	want error
	// countsNothing tells that what fails in the fault is surely not counted.
	countsNothing bool
	// forgets tells that what was counted before is gone.
	forgets bool
	// hangs tells that nothing answers, not even to the end of a connection. One whose statement ran into its
	// deadline then keeps its place in the pool for up to 15 seconds, by the way of pgx, and one that is being
	// made stays wanted: a limiter has more than two.
	hangs bool
}

// Faults 43, 44, 46, 50, 11 and G7: the limiter keeps its word whatever happens to its database.
//
// Before a fault, in it and after it, three limiters, one for each failure mode, get many requests at once, and
// a fourth that starts up in it.
// Every decision comes in time; a request that could be counted is decided by its count, any other by the
// failure mode alone. Goroutines, connections and the log stay small. When the fault has ended, counting
// resumes by itself: nothing that was acknowledged is lost, and nothing is counted twice.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, f := range []fault{
		{
			name: "stopped", own: true, hangs: true, want: ratelimit.ErrTimeout,
			begin: func(t *testing.T, b *faultBed) { must(t, b.server.Pause(t.Context())) },
			end:   func(t *testing.T, b *faultBed) { must(t, b.server.Resume()) },
		},
		{
			name: "killed", own: true, want: ratelimit.ErrUnavailable, countsNothing: true,
			begin: func(t *testing.T, b *faultBed) { must(t, b.server.Kill(t.Context())) },
			end:   func(t *testing.T, b *faultBed) { must(t, b.server.Restart(t.Context())) },
		},
		{
			name: "restarted under load", own: true, underLoad: true, want: ratelimit.ErrUnavailable,
			begin: func(t *testing.T, b *faultBed) {
				must(t, b.server.Kill(t.Context()))
				must(t, b.server.Restart(t.Context()))
			},
			end: func(*testing.T, *faultBed) {},
		},
		{
			name: "read-only", own: true, want: ratelimit.ErrReadOnly, countsNothing: true,
			begin: func(t *testing.T, b *faultBed) { b.setReadOnly(t, "on") },
			end:   func(t *testing.T, b *faultBed) { b.setReadOnly(t, "off") },
		},
		{
			name: "out of connections", own: true, want: ratelimit.ErrUnavailable, countsNothing: true,
			begin: func(t *testing.T, b *faultBed) { b.takeAllConnections(t) },
			end:   func(_ *testing.T, b *faultBed) { b.dismissOthers() },
		},
		{
			name: "permission denied", role: "pg_read_all_data", want: ratelimit.ErrUnavailable, countsNothing: true,
			begin: func(t *testing.T, b *faultBed) { b.exec(t, "REVOKE INSERT ON rate_limits FROM pg_read_all_data") },
			end:   func(t *testing.T, b *faultBed) { b.exec(t, "GRANT INSERT ON rate_limits TO pg_read_all_data") },
		},
		{
			name: "table dropped", want: ratelimit.ErrNoTable, countsNothing: true, forgets: true,
			begin: func(t *testing.T, b *faultBed) { b.exec(t, "DROP TABLE rate_limits") },
			end:   func(t *testing.T, b *faultBed) { must(t, migrations.Up(t.Context(), testdb.Pool(t, b.url))) },
		},
		{
			name: "black hole for new connections", proxied: true, hangs: true, want: ratelimit.ErrTimeout,
			begin: func(_ *testing.T, b *faultBed) {
				for _, r := range b.replicas {
					r.pool.Reset()
				}
				b.proxy.hold()
			},
			end: func(_ *testing.T, b *faultBed) { b.proxy.forward() },
		},
		{
			name: "black hole within connections", proxied: true, underLoad: true, hangs: true, want: ratelimit.ErrTimeout,
			begin: func(_ *testing.T, b *faultBed) { b.proxy.hold() },
			end:   func(_ *testing.T, b *faultBed) { b.proxy.forward() },
		},
		{
			name: "answers after 800 ms", proxied: true, hangs: true, want: ratelimit.ErrTimeout,
			begin: func(_ *testing.T, b *faultBed) { b.proxy.late(800 * time.Millisecond) },
			end:   func(_ *testing.T, b *faultBed) { b.proxy.forward() },
		},
		{
			name: "connections terminated", underLoad: true, want: ratelimit.ErrUnavailable,
			begin: func(t *testing.T, b *faultBed) { b.terminate(t) },
			end:   func(*testing.T, *faultBed) {},
		},
		{
			name: "pool exhausted", want: ratelimit.ErrTimeout, countsNothing: true,
			begin: func(t *testing.T, b *faultBed) { b.lendAll(t) },
			end:   func(_ *testing.T, b *faultBed) { b.takeBack() },
		},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			b := newFaultBed(t, f)
			b.await(t, "counting begins", f)
			b.load(t, f)
			b.settle(t)
			b.verify(t, f)

			b.addReplica(t, "mode.late", ratelimit.FailLocal).unharmed = f.underLoad
			before := b.failures()
			began := time.Now()
			if f.underLoad {
				under := b.keepLoading(t)
				f.begin(t, b)
				b.judge(t, f, under())
			} else {
				f.begin(t, b)
			}
			if f.forgets {
				b.forget()
			}
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for rounds := 0; rounds < faultRounds || time.Since(began) < faultLasts || !b.felt(f) && time.Since(began) < faultFelt; rounds++ {
				b.load(t, f)
				<-tick.C
			}
			if f.countsNothing {
				b.settle(t) // or a hit that was answered by the deadline might yet be counted
				for i, r := range b.replicas {
					r.failed = before[i]
				}
			}

			f.end(t, b)
			ended := time.Now()
			b.await(t, "counting resumes", f)
			b.checkLogs(t)
			t.Logf("%s: resumed after %v", f.name, time.Since(ended).Round(time.Millisecond))
			b.load(t, f)
			b.settle(t)
			b.verify(t, f)
			b.checkModes(t, f)
		})
	}
}
