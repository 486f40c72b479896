package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/krow/ratelimit"
)

// count sends a batch and fills in the answers of its rows.
func (p *Postgres) count(ctx context.Context, b *batch) error {
	err := p.retry(ctx, func() error { return p.countOnce(ctx, b) })
	if err != nil {
		return p.describe(err, fmt.Sprintf("counting (buckets: %d)", len(b.rows)))
	}
	return nil
}

func (p *Postgres) countOnce(ctx context.Context, b *batch) error {
	rows, order, err := p.queryCounts(ctx, b)
	if err != nil {
		return err
	}
	defer rows.Close()

	var bucket pgtype.DriverBytes
	var total, start, left, previous int64
	into := []any{&bucket, &total, &start, &left}
	if b.sliding {
		into = append(into, &previous)
	}
	for k := 0; rows.Next(); k++ {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		// Rows come back in the order they were sent, unless one is missing. The bucket decides.
		if k >= len(order) || b.rows[order[k]].bucket != string(bucket) {
			if k = slices.IndexFunc(order, func(i int) bool { return b.rows[i].bucket == string(bucket) }); k < 0 {
				return errors.New("a bucket came back that was not sent")
			}
		}
		row := &b.rows[order[k]]
		row.count = ratelimit.Count{
			Total: total,
			Left:  min(max(time.Duration(left)*time.Microsecond-(row.life()-row.window), 0), row.window),
			Start: time.UnixMicro(start),
		}
		if row.sliding {
			row.count.Previous = previous
		}
	}
	return rows.Err()
}

// queryCounts sends a batch and returns the order in which its rows went.
func (p *Postgres) queryCounts(ctx context.Context, b *batch) (_ pgx.Rows, order []int, err error) {
	order = make([]int, len(b.rows))
	for i := range order {
		order[i] = i
		b.rows[i].count = ratelimit.Count{} // an attempt that was rolled back may have left one
	}
	if len(b.rows) == 1 && !b.sliding {
		r := &b.rows[0]
		rows, err := p.db.Query(ctx, p.sql.countOne, p.args(r.bucket, r.window.Microseconds(), r.n)...)
		return rows, order, err
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(b.rows[i].bucket, b.rows[j].bucket) })
	buckets := make([]string, len(order))
	windows := make([]int64, len(order))
	ns := make([]int64, len(order))
	for k, i := range order {
		r := &b.rows[i]
		buckets[k], windows[k], ns[k] = r.bucket, r.window.Microseconds(), r.n
	}
	if !b.sliding {
		rows, err := p.db.Query(ctx, p.sql.countMany, p.args(buckets, windows, ns)...)
		return rows, order, err
	}
	lives := make([]int64, len(order))
	for k, i := range order {
		lives[k] = b.rows[i].life().Microseconds()
	}
	rows, err := p.db.Query(ctx, p.sql.countSliding, p.args(buckets, windows, ns, lives)...)
	return rows, order, err
}
