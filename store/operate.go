package store

import (
	"context"
	"fmt"

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
	var counts []ratelimit.Count
	err := p.retry(ctx, func() (err error) {
		counts, err = p.sender.get(ctx, hits)
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
	err := p.retry(ctx, func() error { return p.sender.reset(ctx, buckets) })
	if err != nil {
		return p.describe(err, fmt.Sprintf("resetting (buckets: %d)", len(buckets)))
	}
	return nil
}
