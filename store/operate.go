package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/krow/ratelimit"
)

// Get returns counts, as [ratelimit.Store] says, in a statement of its own. It waits for [PostgresConfig].Timeout
// at most, and asks the database also when that has just failed.
func (p *Postgres) Get(ctx context.Context, hits []ratelimit.Hit) ([]ratelimit.Count, error) {
	if err := validateWindows(hits); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	buckets, windows := make([]string, len(hits)), make([]int64, len(hits))
	for i, hit := range hits {
		buckets[i], windows[i] = hit.Bucket, hit.Window.Microseconds()
	}
	var counts []ratelimit.Count
	err := p.retry(ctx, func() error {
		rows, err := p.db.Query(ctx, p.sql.get, p.args(buckets, windows)...)
		if err != nil {
			return err
		}
		counts, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c ratelimit.Count, err error) {
			var start, left int64
			err = row.Scan(&c.Total, &c.Previous, &start, &left)
			c.Start, c.Left = time.UnixMicro(start), max(time.Duration(left)*time.Microsecond, 0)
			return c, err
		})
		return err
	})
	if err == nil && len(counts) != len(hits) {
		err = fmt.Errorf("%d rows came back", len(counts))
	}
	if err != nil {
		return nil, p.describe(err, fmt.Sprintf("reading (buckets: %d)", len(hits)))
	}
	for i, hit := range hits {
		if !hit.Sliding {
			counts[i].Previous = 0
		}
	}
	return counts, nil
}

// Reset deletes the rows of buckets, as [ratelimit.Store] says, in a statement of its own. It waits for
// [PostgresConfig].Timeout at most.
func (p *Postgres) Reset(ctx context.Context, buckets []string) error {
	if err := validateBuckets(buckets); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	err := p.retry(ctx, func() error {
		_, err := p.db.Exec(ctx, p.sql.reset, p.args(buckets)...)
		return err
	})
	if err != nil {
		return p.describe(err, fmt.Sprintf("resetting (buckets: %d)", len(buckets)))
	}
	return nil
}
