package ratelimit_test

import (
	stdcmp "cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

// Two limiters, each with a store and a pool of its own, decide on one table of Postgres as the model does.
// Windows are so long that none ends by itself; they are ended with SQL. How long a refusal is remembered is
// left to TestModelOnMemory: here it must only be well-founded.
//
//	go test -race -run=TestModelOnPostgres -rapid.checks=1000 .
func TestModelOnPostgres(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	admin := testdb.Pool(t, url)
	var pools [2]*pgxpool.Pool
	for i := range pools {
		pools[i] = testdb.Pool(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = fmt.Sprint("process ", i) })
	}
	rapid.Check(t, func(rt *rapid.T) {
		c := &cluster{tb: t, admin: admin, pools: pools}
		c.setUp(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"":                 c.check,
			"again":            c.again,
			"again, too":       c.again,
			"at once":          c.atOnce,
			"at once, too":     c.atOnce,
			"lost connections": c.loseConnections,
			"operator reset":   c.reset,
			"restart":          c.restart,
			"sweep":            c.sweep,
			"window ends":      c.endWindow,
		})
	})
}

// A cluster is two processes and their database.
type cluster struct {
	tb        testing.TB // of the whole test, for helpers that need one
	admin     *pgxpool.Pool
	pools     [2]*pgxpool.Pool
	processes [2]*server
	model     *model
	ended     map[time.Duration]int64 // how many windows of each length have ended
}

// A server is one of the processes.
type server struct {
	process
	store *store.Postgres
	lost  bool // the connections of its pool, so that the next statement may fail
}

func (c *cluster) exec(t *rapid.T, sql string, args ...any) {
	if _, err := c.admin.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) setUp(t *rapid.T) {
	c.exec(t, "DELETE FROM rate_limits")
	var began time.Time
	if err := c.admin.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&began); err != nil {
		t.Fatal(err)
	}
	asked := time.Now()
	// Far from the ends of their windows, whoever's clock decides.
	const far = 5 * time.Minute
	var windows []time.Duration
	for _, size := range []time.Duration{25*time.Hour + time.Millisecond, 7 * 24 * time.Hour, 100*time.Hour + time.Second, ratelimit.MaxWindow} {
		if gone := time.Duration(began.UnixNano() % int64(size)); gone > far && size-gone > far {
			windows = append(windows, size)
		}
	}
	c.ended = make(map[time.Duration]int64)
	left := func(size time.Duration) time.Duration {
		return size - time.Duration(began.Add(time.Since(asked)).UnixNano()%int64(size))
	}
	c.model = &model{
		window: func(size time.Duration) (int64, time.Duration) { return c.ended[size], left(size) },
		local:  func(size time.Duration) (int64, time.Duration) { return 0, left(size) },
	}
	c.model.reset()
	rules := drawRules(t, windows)
	for i := range c.processes {
		c.start(t, i, rules)
	}
}

// start starts a process, in place of another one perhaps.
func (c *cluster) start(t *rapid.T, i int, rules []rule) {
	s := &server{store: postgresStore(c.tb, c.pools[i], func(config *store.PostgresConfig) { config.Logger = logTo(t) })}
	if old := c.processes[i]; old != nil {
		s.lost = old.lost
	}
	limiter, err := ratelimit.New(s.store, ratelimit.Config{Policies: policies(rules), Deadline: time.Minute, Logger: logTo(t)})
	if err != nil {
		t.Fatal(err)
	}
	s.process = process{limiter, newInstance(rules)}
	c.processes[i] = s
}

// settle returns when what was given back is taken off: a later hit on the same store is counted after that.
func (s *server) settle(t *rapid.T) {
	if err := s.countAnother(t); err != nil {
		t.Fatal(err)
	}
}

const another = "another"

func (s *server) countAnother(t *rapid.T) error {
	_, err := s.store.Add(t.Context(), []ratelimit.Hit{{Bucket: another, Window: ratelimit.MaxWindow, N: 1}})
	return err
}

// again makes one request after another.
func (c *cluster) again(t *rapid.T) {
	s, who := c.processes[rapid.IntRange(0, 1).Draw(t, "process")], callers[rapid.IntRange(0, len(callers)-1).Draw(t, "caller")]
	refund := rapid.IntRange(0, 3).Draw(t, "refund") == 0
	owes := false // a statement, to give back or to show that the database answers again
	for i := range rapid.IntRange(1, 7).Draw(t, "times") {
		began := time.Now()
		got := s.limiter.Check(who.request())
		q := c.model.begin(s.instance, who, false, began, got.Results)
		if q.asks {
			var err error
			if s.lost && got.Err != nil {
				err = ratelimit.ErrUnavailable
			} else {
				c.model.count(q)
			}
			s.lost = false
			c.model.answer(q, time.Now(), err)
			owes = owes || err != nil || q.owes
		}
		if about(&q.want, &got); !equal(q.want, got) {
			t.Fatalf("request %d (-want +got):\n%s", i, cmp.Diff(q.want, got, equalDecisions))
		}
		c.model.admit(t, q.hits, got)
		if refund && got.Outcome == ratelimit.Allowed {
			c.model.refund(q)
			owes = owes || len(q.hits) > 0
		}
		if refund {
			got.Refund()
		}
	}
	if owes {
		s.settle(t)
	}
}

// about makes the times until a window ends equal that are nearly so, since the model's clock was set by the
// database's when the example began, and all of them coarse: rapid only shrinks what fails with the same words again.
func about(want, got *ratelimit.Decision) {
	near := func(want, got *time.Duration) {
		if (*want-*got).Abs() < time.Minute && *want > time.Minute {
			*got = *want
		}
		for _, d := range []*time.Duration{want, got} {
			if *d > time.Minute {
				*d = d.Round(time.Hour)
			}
		}
	}
	near(&want.RetryAfter, &got.RetryAfter)
	for i := range min(len(got.Results), len(want.Results)) {
		near(&want.Results[i].Reset, &got.Results[i].Reset)
	}
}

// endWindow ends the windows of one length: all that is counted in such is moved to the past, by way of one far away,
// so that no row meets another. The processes start anew, for their clock does not move.
func (c *cluster) endWindow(t *rapid.T) {
	size := rapid.SampledFrom(c.processes[0].rules).Draw(t, "of").Limit.Window
	c.ended[size]++
	const away = 100 * ratelimit.MaxWindow // further than windows end in one example
	for _, by := range []time.Duration{away, size - away} {
		c.exec(t, `UPDATE rate_limits SET
				window_start = window_start - $2::bigint * interval '1 microsecond',
				expires_at = expires_at - $2::bigint * interval '1 microsecond'
			WHERE bucket <> $3 AND expires_at - window_start IN ($1::bigint * interval '1 microsecond', 2 * $1::bigint * interval '1 microsecond')`,
			size.Microseconds(), by.Microseconds(), another)
	}
	for i, s := range c.processes {
		c.start(t, i, s.rules)
	}
}

func (c *cluster) restart(t *rapid.T) {
	i := rapid.IntRange(0, 1).Draw(t, "process")
	rules := c.processes[i].rules
	if rapid.Bool().Draw(t, "with other limits") {
		rules = withOtherLimits(t, rules)
	}
	c.start(t, i, rules)
}

// reset deletes all counts. What the processes remember they may go on refusing.
func (c *cluster) reset(t *rapid.T) {
	c.exec(t, "DELETE FROM rate_limits")
	c.model.reset()
}

// sweep deletes the rows of windows that have ended.
func (c *cluster) sweep(t *rapid.T) {
	s := c.processes[rapid.IntRange(0, 1).Draw(t, "process")]
	got, err := s.store.Sweep(t.Context())
	if err != nil && s.lost {
		got, err = s.store.Sweep(t.Context())
	}
	s.lost = false
	if err != nil {
		t.Fatal(err)
	}
	want := int64(0)
	for old := range c.model.counts {
		if old.expired(c.ended[old.window]) {
			want++
			delete(c.model.counts, old)
		}
	}
	if got != want {
		t.Errorf("%d rows were swept, want %d", got, want)
	}
}

// loseConnections ends all connections of a process. Its next statement may fail, and nothing of it is counted; the
// one after that must not.
func (c *cluster) loseConnections(t *rapid.T) {
	i := rapid.IntRange(0, 1).Draw(t, "process")
	for left := 1; left > 0; { // until they have ended
		err := c.admin.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = $1`, fmt.Sprint("process ", i)).Scan(&left)
		if err != nil {
			t.Fatal(err)
		}
	}
	for n, conn := range c.pools[i].AcquireAllIdle(t.Context()) {
		if n > 0 { // each of them would let a statement fail
			_ = conn.Conn().Close(t.Context())
		}
		conn.Release()
	}
	c.processes[i].lost = true
	t.Cleanup(c.pools[i].Reset) // the next example has the pool too
}

// check compares the table with what is counted.
func (c *cluster) check(t *rapid.T) {
	rows, err := c.admin.Query(t.Context(), `SELECT bucket || CASE WHEN expires_at <= now() THEN ' (ended)' ELSE '' END, count
		FROM rate_limits WHERE bucket <> $1`, another)
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		Bucket string
		Count  int
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		t.Fatal(err)
	}
	var want []row
	for s, n := range c.model.counts {
		name := s.row()
		if s.expired(c.ended[s.window]) {
			name += " (ended)"
		}
		want = append(want, row{name, n})
	}
	for _, rows := range [][]row{want, got} {
		slices.SortFunc(rows, func(a, b row) int {
			return stdcmp.Or(stdcmp.Compare(a.Bucket, b.Bucket), stdcmp.Compare(a.Count, b.Count))
		})
	}
	if !slices.Equal(want, got) {
		t.Logf("the table (-want +got):\n%s", cmp.Diff(want, got))
		t.Error("the table does not hold what is counted") // in the same words each time: see about
	}
}
