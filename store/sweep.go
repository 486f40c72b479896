package store

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// maxSwept is how many rows one statement deletes: it then holds its locks for some tens of
	// milliseconds.
	maxSwept = 5_000
	// sweepTimeout bounds a sweep that a store begins by itself. What is left waits for the next.
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

// Sweep deletes the rows whose windows have ended, by the database's clock and a few seconds late, in
// batches of 5,000, and returns how many. Each batch is a transaction of its own: when ctx
// ends or an error comes, what was deleted stays deleted. Any number of sweeps may run at once.
//
// A store that counts sweeps by itself unless [PostgresConfig].ManualSweep is set; then call Sweep
// now and then, from a cron job for instance.
func (p *Postgres) Sweep(ctx context.Context) (int64, error) {
	began := time.Now()
	var stats SweepStats
	for {
		n, err := p.deleteExpired(ctx)
		stats.Deleted += n
		stats.Err = err
		// Fewer than asked for does not mean that none are left: some may have been locked.
		if err != nil || n == 0 {
			break
		}
	}
	stats.Elapsed = time.Since(began)
	if p.config.OnSweep != nil {
		p.config.OnSweep(stats)
	}
	return stats.Deleted, stats.Err
}

func (p *Postgres) deleteExpired(ctx context.Context) (deleted int64, err error) {
	grace := p.config.Timeout + sweepGrace
	err = p.retry(ctx, func() error {
		tag, err := p.db.Exec(ctx, p.sql.sweep, p.args(grace.Microseconds(), int64(maxSwept))...)
		deleted = tag.RowsAffected()
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
		ctx, cancel := context.WithTimeout(context.Background(), sweepTimeout)
		defer cancel()
		err := recovered(func() error {
			_, err := p.Sweep(ctx)
			return err
		})
		if err != nil {
			_ = recovered(func() error {
				p.config.Logger.Error("ratelimit: sweep ended early", "error", err)
				return nil
			})
		}
		interval := p.config.SweepInterval
		p.sweepIn(interval*3/4 + rand.N(interval/2))
	}()
}

// sweepIn sets when the next sweep is due.
func (p *Postgres) sweepIn(d time.Duration) {
	p.sweepAt.Store(int64(time.Since(p.started) + d))
}
