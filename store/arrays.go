package store

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/krow/ratelimit"
)

// arrays sends what there is in one statement, as arrays with an element for each bucket: the fastest way on Postgres.
type arrays struct {
	db   DB
	mode pgx.QueryExecMode // or zero for the pool's own
	sql  statements
}

func (a *arrays) count(ctx context.Context, b *batch) error {
	rows, order, err := a.query(ctx, b)
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
			Left:  row.left(left),
			Start: time.UnixMicro(start),
		}
		if row.sliding {
			row.count.Previous = previous
		}
	}
	return rows.Err()
}

// query sends a batch and returns the order in which its rows went.
func (a *arrays) query(ctx context.Context, b *batch) (_ pgx.Rows, order []int, err error) {
	for i := range b.rows {
		b.rows[i].count = ratelimit.Count{} // an attempt that was rolled back may have left one
	}
	order = b.sorted()
	if len(order) == 1 && !b.sliding {
		r := &b.rows[0]
		rows, err := a.db.Query(ctx, a.sql.countOne, a.args(r.bucket, r.window.Microseconds(), r.n)...)
		return rows, order, err
	}
	buckets := make([]string, len(order))
	windows := make([]int64, len(order))
	ns := make([]int64, len(order))
	for k, i := range order {
		r := &b.rows[i]
		buckets[k], windows[k], ns[k] = r.bucket, r.window.Microseconds(), r.n
	}
	if !b.sliding {
		rows, err := a.db.Query(ctx, a.sql.countMany, a.args(buckets, windows, ns)...)
		return rows, order, err
	}
	lives := make([]int64, len(order))
	for k, i := range order {
		lives[k] = b.rows[i].life().Microseconds()
	}
	rows, err := a.db.Query(ctx, a.sql.countSliding, a.args(buckets, windows, ns, lives)...)
	return rows, order, err
}

func (a *arrays) giveBack(ctx context.Context, sums []windowSum) error {
	var buckets []string
	var starts, ns []int64
	for _, s := range sums {
		buckets, starts, ns = append(buckets, s.bucket), append(starts, s.start), append(ns, s.n)
	}
	_, err := a.db.Exec(ctx, a.sql.giveBack, a.args(buckets, starts, ns)...)
	return err
}

func (a *arrays) get(ctx context.Context, hits []ratelimit.Hit) ([]ratelimit.Count, error) {
	buckets, windows := make([]string, len(hits)), make([]int64, len(hits))
	for i, hit := range hits {
		buckets[i], windows[i] = hit.Bucket, hit.Window.Microseconds()
	}
	rows, err := a.db.Query(ctx, a.sql.get, a.args(buckets, windows)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c ratelimit.Count, err error) {
		var start, left int64
		err = row.Scan(&c.Total, &c.Previous, &start, &left)
		c.Start, c.Left = time.UnixMicro(start), max(time.Duration(left)*time.Microsecond, 0)
		return c, err
	})
}

func (a *arrays) reset(ctx context.Context, buckets []string) error {
	_, err := a.db.Exec(ctx, a.sql.reset, a.args(buckets)...)
	return err
}

func (a *arrays) sweep(ctx context.Context, grace time.Duration, most int) (int64, error) {
	tag, err := a.db.Exec(ctx, a.sql.sweep, a.args(grace.Microseconds(), int64(most))...)
	return tag.RowsAffected(), err
}

// args puts the query mode, if there is one, in front of a statement's arguments, where pgx takes it from.
func (a *arrays) args(args ...any) []any {
	if a.mode == 0 {
		return args
	}
	return append([]any{a.mode}, args...)
}
