package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/krow/ratelimit"
)

// A batch is what goes to the database together.
type batch struct {
	born    time.Time
	until   time.Time // when whoever flushes it must have returned, or zero
	rows    []row
	sliding bool           // whether any row is
	calls   int            // how many callers wait for it
	index   map[string]int // bucket to its place in rows, once there are more than fewRows
	charges []charge
	behind  *batch        // the batch in flight that it is known to conflict with
	done    chan struct{} // closed when rows and err are final
	err     error
}

// fewRows is how many rows are searched one by one: faster than a map, and a lone caller needs none.
const fewRows = 8

// A row is one bucket of a batch: what all its hits add, and the answer.
type row struct {
	bucket  string
	window  time.Duration
	sliding bool
	n       int64
	// count is the answer for the last of the hits. Its Total is zero until the database has
	// returned the row.
	count ratelimit.Count
}

// life is how long the row is kept from the start of its window.
func (r *row) life() time.Duration {
	if r.sliding {
		return 2 * r.window
	}
	return r.window
}

// left returns how long the window still lasts, of so many microseconds until the row expires.
func (r *row) left(micros int64) time.Duration {
	return min(max(time.Duration(micros)*time.Microsecond-(r.life()-r.window), 0), r.window)
}

// A charge is what is given back, and how often that was tried.
type charge struct {
	ratelimit.Charge
	tries int
}

// A place is where a hit stands in its batch.
type place struct {
	row int
	sum int64 // the hit and all before it in its row
}

// sorted returns the places of the rows in the order of their buckets, in which they are to be locked.
func (b *batch) sorted() []int {
	order := make([]int, len(b.rows))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(b.rows[i].bucket, b.rows[j].bucket) })
	return order
}

// wait returns when the batch has been flushed, or an error when ctx ends before.
func (b *batch) wait(ctx context.Context) error {
	select {
	case <-b.done:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-b.done: // both at once: what is known counts
		return nil
	default:
		return fmt.Errorf("ratelimit: waiting for a count: %w", ctx.Err())
	}
}

// fits reports whether the hits fit in so many rows. Windows of two kinds in one bucket break the rules of
// ratelimit.Store; they go in separate statements, so that whoever does so fails nobody else.
func (b *batch) fits(hits []ratelimit.Hit, share int) bool {
	added := 0
	for _, hit := range hits {
		i := b.find(hit.Bucket)
		if i < 0 {
			added++
			continue
		}
		if r := &b.rows[i]; r.window != hit.Window || r.sliding != hit.Sliding || r.n+int64(hit.N) > ratelimit.MaxRequests {
			return false
		}
	}
	return len(b.charges) < maxRows && (added == 0 || len(b.rows) == 0 || len(b.rows)+added <= share)
}

// find returns the place of a bucket in the rows, or -1.
func (b *batch) find(bucket string) int {
	if b.index != nil {
		if i, ok := b.index[bucket]; ok {
			return i
		}
		return -1
	}
	for i := range b.rows {
		if b.rows[i].bucket == bucket {
			return i
		}
	}
	return -1
}

// add appends a row and returns its place.
func (b *batch) add(r row) int {
	b.rows = append(b.rows, r)
	b.sliding = b.sliding || r.sliding
	if b.index != nil {
		b.index[r.bucket] = len(b.rows) - 1
	} else if len(b.rows) > fewRows {
		b.index = make(map[string]int, max(cap(b.rows), 2*len(b.rows)))
		for i := range b.rows {
			b.index[b.rows[i].bucket] = i
		}
	}
	return len(b.rows) - 1
}

// conflictsWith reports whether the two must not be in flight at once. Only giving back to one bucket twice does no harm.
func (b *batch) conflictsWith(other *batch) bool {
	return slices.ContainsFunc(b.rows, func(r row) bool { return other.find(r.bucket) >= 0 }) ||
		slices.ContainsFunc(b.charges, func(c charge) bool { return other.find(c.Bucket) >= 0 }) ||
		slices.ContainsFunc(other.charges, func(c charge) bool { return b.find(c.Bucket) >= 0 })
}
