package store_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	patient "github.com/krow/ratelimit/internal/patience"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

// A lone caller that cannot leave sends its statement by itself, and leaves what gathers meanwhile to a goroutine
// of the store. It does not wait for that.
func TestCallerThatLeads(t *testing.T) {
	t.Parallel()
	g := newGate(testdb.Pool(t, testdb.New(t)))
	s := newStore(t, g, store.PostgresConfig{})
	answered := make(chan int64, 8)
	ask := func(ctx context.Context) {
		counts, err := s.Add(ctx, hits("a"))
		if err != nil {
			t.Error(err)
		}
		answered <- totals(counts)[0]
	}
	go ask(context.Background())
	g.next(t)
	for range 3 {
		go ask(context.Background())
	}
	eventually(t, "three hits wait", func() bool { return s.Queued() == 3 })
	g.open <- struct{}{}
	if total := receive(t, "the caller that leads is answered", answered); total != 1 {
		t.Errorf("its total is %d, want 1", total)
	}
	g.next(t)
	g.open <- struct{}{}
	sum := int64(0)
	for range 3 {
		sum += receive(t, "the others are answered", answered)
	}
	if sum != 2+3+4 {
		t.Errorf("their totals add up to %d, want those of 2, 3 and 4", sum)
	}
	eventually(t, "the store is idle", func() bool { return !s.Flushing() })
}

// A caller whose time is up before the statement's returns when it is up, as the limiter's own do with a
// deadline that is shorter than the store's timeout, or with what wraps a pool and looks at no context.
func TestCallerThatMayNotLead(t *testing.T) {
	t.Parallel()
	t.Run("shorter deadline", func(t *testing.T) {
		t.Parallel()
		url := testdb.New(t)
		s := newStore(t, testdb.Pool(t, url), store.PostgresConfig{Timeout: time.Hour})
		release := lock(t, url, "a")
		runOutOfTime(t, s)
		release()
		if total := addOne(t, s, hit("a")); total != 2 {
			t.Errorf("the next total is %d, want 2: the hit was counted", total)
		}
	})
	t.Run("late database", func(t *testing.T) {
		t.Parallel()
		g := newGate(testdb.Pool(t, testdb.New(t)))
		s := newStore(t, g, store.PostgresConfig{Timeout: 50 * time.Millisecond})
		go func() { <-g.arrived }()
		runOutOfTime(t, s)
		g.open <- struct{}{}
		eventually(t, "the store is idle", func() bool { return !s.Flushing() })
	})
}

// runOutOfTime makes a call like the limiter's whose deadline passes before the statement has ended.
func runOutOfTime(t *testing.T, s *store.Postgres) {
	t.Helper()
	ctx := patient.New(context.Background(), time.Now().Add(50*time.Millisecond))
	defer ctx.End()
	failed := make(chan error, 1)
	go func() {
		_, err := s.Add(ctx, hits("a"))
		failed <- err
	}()
	if err := receive(t, "the caller leaves", failed); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v, want the deadline", err)
	}
}

// A caller that sends its statement itself, and has a little less time than the store, gives the statement no more
// than it has.
func TestDeadlineOfACallerThatLeads(t *testing.T) {
	t.Parallel()
	var deadlines deadlines
	pool := testdb.Pool(t, testdb.New(t), func(c *pgxpool.Config) { c.ConnConfig.Tracer = &deadlines })
	s := newStore(t, pool, store.PostgresConfig{Timeout: time.Hour})
	own := time.Now().Add(58 * time.Minute)
	ctx := patient.New(context.Background(), own)
	defer ctx.End()
	add := func() {
		t.Helper()
		if _, err := s.Add(ctx, hits("a")); err != nil {
			t.Fatal(err)
		}
	}
	add()
	if got := deadlines.last(); !got.Equal(own) {
		t.Errorf("the statement may last until %v, want until %v, as the caller", got, own)
	}
	ctx = patient.New(context.Background(), own.Add(time.Hour))
	add()
	if got := deadlines.last(); got.After(time.Now().Add(time.Hour)) {
		t.Errorf("the statement may last until %v, want an hour from when it was sent", got)
	}
}

// deadlines is a tracer that keeps when statements must have ended.
type deadlines struct{ all []time.Time }

func (d *deadlines) last() time.Time { return d.all[len(d.all)-1] }

func (d *deadlines) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	deadline, _ := ctx.Deadline()
	d.all = append(d.all, deadline)
	return ctx
}

func (d *deadlines) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
