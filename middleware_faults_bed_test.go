package ratelimit_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/goroutines"
	"github.com/krow/ratelimit/internal/pgserver"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/migrations"
	"github.com/krow/ratelimit/store"
)

const (
	// faultDeadline is the default of limiters and stores.
	faultDeadline = 250 * time.Millisecond
	faultLimit    = 300
	// faultLoad is how many requests a limiter gets at once. In a round of them one is of a client that stays
	// within the limit and all others are of one that does not.
	faultLoad = 64
	// faultRounds of load are more than the limit.
	faultRounds = 6
	// faultLasts is how long a fault lasts at least. The breaker then tries the database in it.
	faultLasts = 1100 * time.Millisecond
	// faultFelt is how long a fault goes on until each limiter has had the error that it leads to: a busy machine
	// may make timeouts of the first ones.
	faultFelt = 30 * time.Second

	steadyClient, greedyClient = "203.0.113.7:1", "203.0.113.8:1"
)

// A faultBed is what a fault happens to: replicas with one database.
type faultBed struct {
	url      string           // of the database
	server   *pgserver.Server // nil unless it is the test's own
	proxy    *proxy           // nil if there is none
	others   []net.Conn       // those of others that take all
	replicas []*faultReplica
	// connectAs returns a replica's pool.
	connectAs func(name string) *pgxpool.Pool
}

// A faultReplica is a process with a limiter, and what was seen of it.
type faultReplica struct {
	name                 string // of its policy and its sessions
	mode                 ratelimit.FailureMode
	since                time.Time
	unharmed             bool // perhaps: it may have come when the fault was over
	pool                 *pgxpool.Pool
	applications         []*pgxpool.Conn // those that the application holds, or held
	handler              http.Handler
	log, storeLog        logbook
	acknowledged, failed int             // hits that were counted, and that nobody knows of
	places               map[string]bool // of the counts that were told
	kinds                map[error]int   // of errors
	local                int             // requests of the greedy client that were admitted by itself
}

// An answer is what became of a request.
type answer struct {
	client   string
	reply    reply
	decision ratelimit.Decision
	served   bool // by the next handler
}

type answerKey struct{}

func newFaultBed(t *testing.T, f fault) *faultBed {
	t.Helper()
	b := new(faultBed)
	if f.own {
		b.server = testdb.Server(t)
		b.url = b.server.URL()
		must(t, migrations.Up(t.Context(), testdb.Pool(t, b.url)))
	} else {
		b.url = testdb.New(t)
	}
	url := b.url
	if f.proxied {
		b.proxy, url = newProxy(t, b.url)
	}
	if f.role != "" {
		b.exec(t, "GRANT SELECT, INSERT, UPDATE, DELETE ON rate_limits TO "+f.role)
	}
	b.connectAs = func(name string) *pgxpool.Pool {
		return testdb.Pool(t, url, func(c *pgxpool.Config) {
			c.ConnConfig.RuntimeParams["application_name"] = name
			if f.role != "" {
				c.ConnConfig.RuntimeParams["role"] = f.role
			}
		})
	}
	for _, mode := range []ratelimit.FailureMode{ratelimit.FailOpen, ratelimit.FailClosed, ratelimit.FailLocal} {
		b.addReplica(t, "mode."+mode.String(), mode)
	}
	return b
}

// addReplica starts a process.
func (b *faultBed) addReplica(t *testing.T, name string, mode ratelimit.FailureMode) *faultReplica {
	t.Helper()
	r := &faultReplica{name: name, mode: mode, since: time.Now(), pool: b.connectAs(name), places: make(map[string]bool), kinds: make(map[error]int)}
	counters := postgresStore(t, r.pool, func(c *store.PostgresConfig) {
		c.Timeout, c.Logger = faultDeadline, r.storeLog.logger()
		c.SynchronousCommit = true // so that a crash loses nothing
	})
	r.handler = newLimiter(t, counters, ratelimit.Config{
		Policies: []ratelimit.Policy{{Name: name, Limit: long(faultLimit), OnFailure: mode}},
		Deadline: faultDeadline, Logger: r.log.logger(),
		OnDecision: func(request *http.Request, d ratelimit.Decision) {
			request.Context().Value(answerKey{}).(*answer).decision = d
		},
	}).Handler(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		request.Context().Value(answerKey{}).(*answer).served = true
	}))
	b.replicas = append(b.replicas, r)
	return r
}

func (r *faultReplica) ask(client string) answer {
	a := answer{client: client}
	a.reply = serve(r.handler, request(client).WithContext(context.WithValue(context.Background(), answerKey{}, &a)))
	return a
}

// round sends a load to all replicas at once.
func (b *faultBed) round(t *testing.T) [][]answer {
	answers := make([][]answer, len(b.replicas))
	goroutines.Labelled(t, func() {
		var wg sync.WaitGroup
		for i, r := range b.replicas {
			answers[i] = make([]answer, faultLoad)
			for k := range answers[i] {
				client := greedyClient
				if k == 0 {
					client = steadyClient
				}
				wg.Go(func() { answers[i][k] = r.ask(client) })
			}
		}
		wg.Wait()
	})
	return answers
}

// mostConns is how many connections a limiter may have: the three that it uses, and one that pgx went on making
// for a statement that a busy machine let run into its deadline.
const mostConns = 4

// load sends a load, and judges what has become of it and of the process.
func (b *faultBed) load(t *testing.T, f fault) {
	t.Helper()
	b.judge(t, f, b.round(t))
	for _, r := range b.replicas {
		if n := int(r.pool.Stat().TotalConns()) - len(r.applications); n > mostConns && !f.hangs {
			t.Errorf("%s: the pool has %d connections for the limiter, want %d at most", r.name, n, mostConns)
		}
	}
	// A pool's connections, and for each a request to cancel what it does.
	if b.proxy != nil && b.proxy.peak() > 8*len(b.replicas) {
		t.Errorf("there were %d connections at once, want few", b.proxy.peak())
	}
	// A batch in flight, connections that are being made, and those that pgx has given up.
	if n := goroutines.Count(t); n > 20*len(b.replicas) {
		t.Errorf("%d goroutines are left by %d requests", n, faultLoad*len(b.replicas))
	}
}

// keepLoading sends one load after another until the function that it returns is called, which returns
// the answers.
func (b *faultBed) keepLoading(t *testing.T) (stop func() [][]answer) {
	all := make([][]answer, len(b.replicas))
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			for i, answers := range b.round(t) {
				all[i] = append(all[i], answers...)
			}
			select {
			case <-stopped:
				return
			case <-tick.C:
			}
		}
	}()
	end := sync.OnceFunc(func() {
		close(stopped)
		<-done
	})
	t.Cleanup(end) // if the fault cannot begin
	return func() [][]answer {
		end()
		return all
	}
}

// await asks until each replica counts.
func (b *faultBed) await(t *testing.T, what string, f fault) {
	t.Helper()
	for _, r := range b.replicas {
		eventually(t, fmt.Sprintf("%s: %s", r.name, what), func() bool {
			var a answer
			goroutines.Labelled(t, func() { a = r.ask(steadyClient) })
			r.judge(t, f, a)
			return a.decision.Err == nil
		})
	}
}

// settle waits until nothing is left to be counted: no process holds on to a hit, nor does Postgres.
func (b *faultBed) settle(t *testing.T) {
	t.Helper()
	eventually(t, "no goroutine is left", func() bool { return goroutines.Count(t) == 0 })
}

// failures returns the hits of each replica of which nobody knows whether they were counted.
func (b *faultBed) failures() []int {
	var failed []int
	for _, r := range b.replicas {
		failed = append(failed, r.failed)
	}
	return failed
}

// forget forgets what was counted.
func (b *faultBed) forget() {
	for _, r := range b.replicas {
		r.acknowledged = 0
		clear(r.places)
	}
}
