// Package store holds the stores that count for package ratelimit: [Postgres], which is shared by
// all processes that use one database, and [Memory], which is one process's own.
package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/logevery"
	"github.com/krow/ratelimit/internal/patience"
)

// DB is what [Postgres] needs of a pool. A *pgxpool.Pool is one, and so is anything that wraps one.
// It must be safe for concurrent use, and each call must be a transaction of its own.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Postgres counts in a table of a Postgres database, 14 or later: one row for each bucket and window.
// Hits that arrive while a statement is in flight share the next one, so that a store has at most
// two counting statements in flight, never on the same bucket, and one that sweeps. It uses three connections of
// the pool at most, whatever the load, and none while it is idle.
//
// When three statements in a row have failed, the database is left alone for a second, in which hits fail
// at once with the error of the last; then one statement tries it again, and hits wait behind that for a
// fifth of Timeout at most. A wait for a row lock that lock_timeout ended does not count as a failure.
//
// A store of [NewPostgres] has nothing to close. A Postgres is safe for concurrent use.
type Postgres struct {
	db       DB
	config   PostgresConfig
	table    string // qualified and quoted
	sender   sender
	punctual bool // whether a call of db returns when its context ends
	queue    queue
	breaker  *breaker
	log      *logevery.Logger

	own     *pgxpool.Pool // nil if the pool was lent
	resetAt atomic.Int64  // when own was reset last, as a time.Duration since started
	sever   func()        // ends the connections of own at once

	sweeps    context.Context // that sweeps by the store itself run in
	endSweeps context.CancelFunc

	started  time.Time
	sweepAt  atomic.Int64 // when the next sweep is due, as a time.Duration since started
	sweeping atomic.Bool
}

var _ ratelimit.Store = (*Postgres)(nil)

// NewPostgres returns a store that counts in the table rate_limits, which the migrations of package
// migrations make. It does not ask the database anything: whether the table is there shows with the
// first hit, as [ratelimit.ErrNoTable]. The pool remains the caller's; the store never closes it.
//
// Transactions and single connections are refused, since a count must not depend on the fate of somebody
// else's. Every mistake in the configuration is reported at once.
func NewPostgres(db DB, config PostgresConfig) (*Postgres, error) {
	if err := errors.Join(checkPool(db, config.Routed), config.validate()); err != nil {
		return nil, err
	}
	config = config.withDefaults()
	p := &Postgres{
		db:       db,
		config:   config,
		table:    pgx.Identifier{config.Schema, "rate_limits"}.Sanitize(),
		punctual: isPunctual(db),
		breaker:  newBreaker(config.Logger, config.OnBreaker),
		log:      logevery.New(config.Logger, time.Second),
		started:  time.Now(),
	}
	p.sweeps, p.endSweeps = context.WithCancel(context.Background())
	if config.Routed {
		p.sender = &routed{db.(Batcher), newRoutedStatements(p.table, config.Timeout, config.SynchronousCommit)}
	} else {
		p.sender = &arrays{db, config.QueryExecMode, newStatements(p.table, config.Timeout, config.SynchronousCommit)}
	}
	p.queue.flush, p.queue.lost, p.queue.maxWait = p.flush, p.notGivenBack, config.Timeout
	// The first sweep is due at any moment within the interval: processes that live shorter than it
	// sweep too, and those that start together do not sweep together.
	p.sweepIn(rand.N(config.SweepInterval))
	return p, nil
}

// checkPool refuses what has the methods of a pool and is none.
func checkPool(db DB, routed bool) error {
	if db == nil {
		return errors.New("ratelimit: NewPostgres: db is nil, want a pool such as *pgxpool.Pool")
	}
	if v := reflect.ValueOf(db); v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("ratelimit: NewPostgres: db is a nil %T, want a pool", db)
	}
	switch db.(type) {
	case interface{ Commit(context.Context) error }:
		return fmt.Errorf("ratelimit: NewPostgres: db is a transaction (%T), want a pool", db)
	case *pgx.Conn, *pgxpool.Conn:
		return fmt.Errorf("ratelimit: NewPostgres: db is a single connection (%T), which is not safe for concurrent use, want a pool", db)
	}
	if _, ok := db.(Batcher); routed && !ok {
		return fmt.Errorf("ratelimit: NewPostgres: db (%T) has no method SendBatch, which PostgresConfig.Routed needs", db)
	}
	return nil
}

// Add counts hits, as [ratelimit.Store] says. All hits of a call share one transaction. When ctx ends
// before the statement has answered, Add returns and the hits are still counted.
func (p *Postgres) Add(ctx context.Context, hits []ratelimit.Hit) ([]ratelimit.Count, error) {
	// A hit that Postgres would refuse must not join a batch: it would fail its neighbours.
	if err := validate(hits); err != nil {
		return nil, err
	}
	if len(hits) == 0 {
		return nil, nil
	}
	var few [4]place
	b, places, leads, err := p.queue.join(hits, few[:0], p.mayLead(ctx))
	switch {
	case err != nil:
		return nil, err
	case leads:
		b.until, _ = ctx.Deadline()
		p.queue.lead(b)
	default:
		if err := b.wait(ctx); err != nil {
			return nil, err
		}
	}
	if b.err != nil {
		return nil, b.err
	}
	counts := make([]ratelimit.Count, len(hits))
	for i, place := range places {
		row := &b.rows[place.row]
		if row.count.Total == 0 {
			return nil, fmt.Errorf("%w: Postgres kept a bucket from being written to %s: look for row-level security, a trigger or a rule", ratelimit.ErrUnavailable, p.table)
		}
		counts[i] = row.count
		// The second is the larger for a call that alone adds more than the column holds.
		counts[i].Total = max(row.count.Total+place.sum-row.n, place.sum)
	}
	return counts, nil
}

// mayLead reports whether a caller may send a statement by itself, which it cannot leave before it has ended: if
// its context never ends, or is the limiter's own and leaves the statement about all its time.
func (p *Postgres) mayLead(ctx context.Context) bool {
	if own, ok := ctx.(*patience.Context); ok {
		deadline, _ := own.Deadline()
		return p.punctual && time.Until(deadline) >= p.config.Timeout*9/10
	}
	return ctx.Done() == nil
}

// isPunctual reports whether a call of db returns when its context ends, whatever the database does. Nobody knows that
// of what wraps a pool, nor of a pool that asks functions of the application, or that waits for the database
// to cancel what it does.
func isPunctual(db DB) (is bool) {
	pool, ok := db.(*pgxpool.Pool)
	if !ok {
		return false
	}
	err := recovered(func() error { // the function need not expect a connection that is none
		config := pool.Config()
		handler, ok := config.ConnConfig.BuildContextWatcherHandler(new(pgconn.PgConn)).(*pgconn.DeadlineContextWatcherHandler)
		//lint:ignore SA1019 BeforeAcquire is deprecated, and applications have it
		is = ok && handler.DeadlineDelay == 0 && config.PrepareConn == nil && config.BeforeAcquire == nil
		return nil
	})
	return is && err == nil
}

// flush is the way of a batch, unless the database has failed too often just now.
//
// When it tries such a database again, others wait for that a fifth of the time that it may take. A database
// that is back answers sooner, and nobody fails who need not; one that still hangs costs this batch
// the timeout, and not everybody, once a second.
func (p *Postgres) flush(b *batch) error {
	sent := false
	err := p.breaker.run(func(leftAlone error) error {
		sent = true
		if leftAlone != nil {
			defer p.queue.probe(p.config.Timeout/5, leftAlone)()
		}
		return p.send(b)
	})
	if !sent && len(b.charges) > 0 {
		p.notGivenBack(err)
	}
	if err == nil {
		p.sweepIfDue()
	}
	return err
}

// send sends what is given back and then what is counted.
func (p *Postgres) send(b *batch) error {
	if len(b.charges) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), giveBackTimeout(p.config.Timeout))
		err := p.giveBack(ctx, b.charges)
		cancel()
		if err != nil {
			p.giveBackLater(b.charges, err)
			err = fmt.Errorf("%w: %w", errNotCounting, err)
		}
		if len(b.rows) == 0 {
			return err
		}
	}
	began := time.Now()
	deadline := began.Add(p.config.Timeout)
	if !b.until.IsZero() && b.until.Before(deadline) {
		deadline = b.until
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	err := p.count(ctx, b)
	if p.config.OnFlush != nil {
		stats := FlushStats{Buckets: len(b.rows), Elapsed: time.Since(began), Err: err}
		for i := range b.rows {
			stats.Hits += b.rows[i].n
		}
		p.config.OnFlush(stats)
	}
	return err
}
