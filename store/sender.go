package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/krow/ratelimit"
)

// A sender knows the statements and how they are sent. Each of its methods is one transaction, and one round trip.
type sender interface {
	// count counts a batch and fills in the answers of its rows.
	count(ctx context.Context, b *batch) error
	// giveBack takes sums off, which are in the order of their windows.
	giveBack(ctx context.Context, sums []windowSum) error
	// get returns a count for each hit, and Previous whether it is sliding or not.
	get(ctx context.Context, hits []ratelimit.Hit) ([]ratelimit.Count, error)
	reset(ctx context.Context, buckets []string) error
	// sweep deletes about so many rows that expired longer ago than the grace. If there are fewer, there are no more.
	sweep(ctx context.Context, grace time.Duration, most int) (deleted int64, err error)
}

// count sends a batch.
func (p *Postgres) count(ctx context.Context, b *batch) error {
	err := p.retry(ctx, func() error { return p.sender.count(ctx, b) })
	if err != nil {
		return p.describe(err, fmt.Sprintf("counting (buckets: %d)", len(b.rows)))
	}
	return nil
}

// giveBack sends charges.
func (p *Postgres) giveBack(ctx context.Context, charges []charge) error {
	sums := sum(charges)
	err := p.retry(ctx, func() error { return p.sender.giveBack(ctx, sums) })
	if err != nil {
		return p.describe(err, fmt.Sprintf("giving back (buckets: %d)", len(sums)))
	}
	return nil
}

// A windowSum is what is given back to one window, which starts at a time in microseconds since 1970.
type windowSum struct {
	bucket string
	start  int64
	n      int64
}

// sum adds up the charges of each window, since an update touches a row once.
func sum(charges []charge) []windowSum {
	sums := make([]windowSum, 0, len(charges))
	for _, c := range charges {
		sums = append(sums, windowSum{c.Bucket, c.Start.UnixMicro(), int64(c.N)})
	}
	slices.SortFunc(sums, func(a, b windowSum) int {
		return cmp.Or(cmp.Compare(a.bucket, b.bucket), cmp.Compare(a.start, b.start))
	})
	last := 0
	for _, s := range sums[min(1, len(sums)):] {
		if l := &sums[last]; l.bucket == s.bucket && l.start == s.start {
			l.n += s.n
			continue
		}
		last++
		sums[last] = s
	}
	return sums[:min(last+1, len(sums))]
}
