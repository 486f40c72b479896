package store

import (
	"context"
	"errors"
	"runtime"
	"sync"

	"github.com/krow/ratelimit"
)

const (
	// maxRows bounds the buckets of one statement: large enough that a bigger one would not be
	// faster, small enough that it never runs for long.
	maxRows = 512
	// maxWaiting bounds the batches that wait while a statement is in flight, and so the memory
	// that a stalled database can cost: 65,536 buckets.
	maxWaiting = 128
)

// A queue is the group commit. While one batch is being counted, further hits gather in the next,
// added up per bucket; an idle queue sends the first hit at once. One batch is in flight at a time,
// so no bucket is ever in two statements of one store, and a hot row has as many waiters as there
// are processes. A second batch in flight was measured and gained nothing.
//
// The goroutine that flushes exists only while there is something to flush.
type queue struct {
	// flush counts a batch. It fills in the results of its rows.
	flush func(*batch) error
	// lost is told why the charges of a batch were given up, which nobody waits for.
	lost func(error)

	mu       sync.Mutex
	waiting  []*batch // in the order they go; only the last one takes further hits
	flushing bool
}

// A batch is what goes to the database together.
type batch struct {
	rows    []row
	index   map[string]int // bucket to its place in rows
	charges []ratelimit.Charge
	done    chan struct{} // closed when rows and err are final
	err     error
}

// A row is one bucket of a batch: what all its hits add, and the answer.
type row struct {
	hit ratelimit.Hit // N is the sum of the hits
	// count is the answer for the last of the hits. Its Total is zero until the database has
	// returned the row.
	count ratelimit.Count
}

// A place is where a hit stands in its batch.
type place struct {
	row int
	sum int // the hit and all before it in its row
}

// join adds hits to the batch that goes next and appends a place for each to places. It returns no
// batch if too many are waiting already.
func (q *queue) join(hits []ratelimit.Hit, places []place) (*batch, []place) {
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.openLocked(hits)
	if b == nil {
		return nil, nil
	}
	for _, hit := range hits {
		i, ok := b.index[hit.Bucket]
		if ok {
			b.rows[i].hit.N += hit.N
		} else {
			i = len(b.rows)
			b.index[hit.Bucket] = i
			b.rows = append(b.rows, row{hit: hit})
		}
		places = append(places, place{row: i, sum: b.rows[i].hit.N})
	}
	return b, places
}

// giveBack adds charges to the batch that goes next. It reports false if too many are waiting.
func (q *queue) giveBack(charges []ratelimit.Charge) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.openLocked(nil)
	if b == nil {
		return false
	}
	b.charges = append(b.charges, charges...)
	return true
}

// openLocked returns the batch that goes next, a new one if the last cannot take the hits, and
// sees to it that it will go. It returns nil if too many are waiting.
func (q *queue) openLocked(hits []ratelimit.Hit) *batch {
	if n := len(q.waiting); n > 0 && q.waiting[n-1].takes(hits) {
		return q.waiting[n-1]
	}
	if len(q.waiting) >= maxWaiting {
		return nil
	}
	b := &batch{index: make(map[string]int), done: make(chan struct{})}
	q.waiting = append(q.waiting, b)
	if !q.flushing {
		q.flushing = true
		go q.run()
	}
	return b
}

// takes tells whether the hits fit. Windows of two lengths in one bucket break the rules of
// ratelimit.Store; they go in separate statements, so that whoever does so fails nobody else.
func (b *batch) takes(hits []ratelimit.Hit) bool {
	if len(b.rows)+len(hits) > maxRows && len(b.rows) > 0 || len(b.charges) >= maxRows {
		return false
	}
	for _, hit := range hits {
		if i, ok := b.index[hit.Bucket]; ok {
			if h := b.rows[i].hit; h.Window != hit.Window || h.N+hit.N > ratelimit.MaxRequests {
				return false
			}
		}
	}
	return true
}

// run flushes batch after batch until none is waiting.
func (q *queue) run() {
	for b := q.next(); b != nil; b = q.next() {
		b.err = q.flush(b)
		close(b.done)
		if errors.Is(b.err, context.DeadlineExceeded) {
			q.fail(b.err)
		}
		// Let the callers that were just answered come back with their next hits, so that these
		// share a statement instead of the first of them taking one for itself.
		runtime.Gosched()
	}
}

// next takes the batch that goes next, or ends the flushing if there is none.
func (q *queue) next() *batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		q.flushing = false
		return nil
	}
	b := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	return b
}

// fail gives up everything that waits behind a batch that ran into its deadline: its callers have
// waited as long, and a database that does not answer would only let each batch in turn do the same.
func (q *queue) fail(err error) {
	q.mu.Lock()
	waiting := q.waiting
	q.waiting = nil
	q.mu.Unlock()
	for _, b := range waiting {
		b.err = err
		close(b.done)
		if len(b.charges) > 0 {
			q.lost(err)
		}
	}
}
