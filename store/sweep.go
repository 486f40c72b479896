package store

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// maxSwept is how many rows one statement deletes: few enough that it is over in milliseconds. Three
	// stores that swept 5,000 at a time made the slow ones among the hits beside them three times as
	// slow; 1,000 at a time make them 2.3 times, and with the rests of sweepPace 1.7 times as slow,
	// and still delete more than 100,000 a second together (BenchmarkCountingWhileSweeping).
	maxSwept = 1_000
	// sweepPace is how many times as long as its last statement took a sweep that a store began by
	// itself rests before the next: its share of the database is small, and smaller when that is busy.
	sweepPace = 3
	// sweepTimeout bounds a statement of such a sweep. What is left waits for the next sweep.
	sweepTimeout = 30 * time.Second
	// sweepGrace is how long a row outlives its window, in addition to PostgresConfig.Timeout. A
	// statement that began in the last moment of a window may lock its row after the window's end; if
	// the row were gone by then, it would count from one again.
	sweepGrace = time.Second
)

// SweepStats tell of one sweep.
type SweepStats struct {
	Deleted int64         // how many rows it deleted
	Elapsed time.Duration // how long it took
	Err     error         // why it ended early, or nil
}

// Sweep deletes the rows that expired [PostgresConfig].Timeout and a second ago, by the database's clock, in
// batches of 1,000, and returns how many. Each batch is a transaction of its own: when ctx
// ends or an error comes, what was deleted stays deleted. Any number of sweeps may run at once.
//
// A store that counts sweeps by itself unless [PostgresConfig].ManualSweep is set, and then rests
// between batches. Sweep does not: call it now and then, from a cron job for instance.
func (p *Postgres) Sweep(ctx context.Context) (int64, error) {
	return p.sweep(func() (int64, error) { return p.deleteExpired(ctx) })
}

// sweep deletes batch after batch and tells the hook.
func (p *Postgres) sweep(deleteBatch func() (int64, error)) (int64, error) {
	began := time.Now()
	var stats SweepStats
	for {
		n, err := deleteBatch()
		stats.Deleted += n
		stats.Err = err
		// Fewer than asked for are all that nobody has locked. Going on until there are none would
		// make a sweep endless where some expire all the time.
		if err != nil || n < maxSwept {
			break
		}
	}
	stats.Elapsed = time.Since(began)
	if p.config.OnSweep != nil {
		p.config.OnSweep(stats)
	}
	return stats.Deleted, stats.Err
}

// sweepGently is Sweep with a rest after each batch, and a time limit on each in place of a context.
func (p *Postgres) sweepGently() error {
	var rest time.Duration
	_, err := p.sweep(func() (int64, error) {
		select {
		case <-time.After(rest):
		case <-p.sweeps.Done():
			return 0, p.sweeps.Err()
		}
		ctx, cancel := context.WithTimeout(p.sweeps, sweepTimeout)
		defer cancel()
		began := time.Now()
		defer func() { rest = sweepPace * time.Since(began) }()
		return p.deleteExpired(ctx)
	})
	return err
}

func (p *Postgres) deleteExpired(ctx context.Context) (deleted int64, err error) {
	grace := p.config.Timeout + sweepGrace
	err = p.retry(ctx, func() (err error) {
		deleted, err = p.sender.sweep(ctx, grace, maxSwept)
		return err
	})
	if err != nil {
		return 0, p.describe(err, "sweeping")
	}
	return deleted, nil
}

// sweepIfDue begins a sweep if it is time for one and none is running.
func (p *Postgres) sweepIfDue() {
	if p.config.ManualSweep || time.Since(p.started) < time.Duration(p.sweepAt.Load()) || !p.sweeping.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer p.sweeping.Store(false)
		if err := recovered(p.sweepGently); err != nil && p.sweeps.Err() == nil {
			_ = recovered(func() error {
				p.config.Logger.Error("ratelimit: sweep ended early", "error", err)
				return nil
			})
		}
		interval := p.config.SweepInterval
		p.sweepIn(interval/4*3 + rand.N(interval/2))
	}()
}

// sweepIn sets when the next sweep is due.
func (p *Postgres) sweepIn(d time.Duration) {
	p.sweepAt.Store(int64(time.Since(p.started) + d))
}
