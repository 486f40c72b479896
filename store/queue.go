package store

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

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
// The goroutine that flushes exists only while there is something to flush, and a lone caller that cannot
// leave needs none.
type queue struct {
	// flush counts a batch. It fills in the results of its rows.
	flush func(*batch) error
	// lost is told why the charges of a batch were given up, which nobody waits for.
	lost func(error)
	// patience is how long a batch waits behind statements that run into their deadlines.
	patience time.Duration

	mu       sync.Mutex
	waiting  []*batch // in the order they go; only the last one takes further hits
	expect   int      // how many rows the batch had that went last
	flushing bool
	closed   error // why nothing may wait at the moment, or nil
}

// A batch is what goes to the database together.
type batch struct {
	born    time.Time
	rows    []row
	calls   int            // how many callers wait for it
	expect  int            // how many rows there may come to be
	index   map[string]int // bucket to its place in rows, once there are more than fewRows
	charges []ratelimit.Charge
	done    chan struct{} // closed when rows and err are final
	err     error
}

// fewRows is how many rows are searched one by one: faster than a map, and a lone caller needs none.
const fewRows = 8

// A row is one bucket of a batch: what all its hits add, and the answer.
type row struct {
	bucket string
	window time.Duration
	n      int64
	// count is the answer for the last of the hits. Its Total is zero until the database has
	// returned the row.
	count ratelimit.Count
}

// A place is where a hit stands in its batch.
type place struct {
	row int
	sum int64 // the hit and all before it in its row
}

// join adds hits to the batch that goes next and appends a place for each to places. If nothing is in flight, a
// caller that may lead is to flush the batch itself.
func (q *queue) join(hits []ratelimit.Hit, places []place, mayLead bool) (_ *batch, _ []place, leads bool, _ error) {
	q.mu.Lock()
	b, err := q.openLocked(hits)
	if err != nil {
		q.mu.Unlock()
		return nil, nil, false, err
	}
	b.calls++
	for _, hit := range hits {
		i := b.find(hit.Bucket)
		if i < 0 {
			i = b.add(row{bucket: hit.Bucket, window: hit.Window})
		}
		b.rows[i].n += int64(hit.N)
		places = append(places, place{row: i, sum: b.rows[i].n})
	}
	if mayLead && !q.flushing {
		q.flushing = true
		q.popLocked() // nothing waits while nothing is in flight, so this is the batch
		q.mu.Unlock()
		return b, places, true, nil
	}
	q.unlockAndRun()
	return b, places, false, nil
}

// lead flushes the batch of a caller that leads, on its goroutine: a lone caller is spared two changes from one
// goroutine to another, which cost it a tenth of the statement. What has gathered meanwhile is left to
// a goroutine of the queue.
func (q *queue) lead(b *batch) {
	q.send(b)
	q.mu.Lock()
	q.flushing = false
	if len(q.waiting) > 0 {
		q.unlockAndRun()
		return
	}
	q.mu.Unlock()
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

// giveBack adds charges to the batch that goes next.
func (q *queue) giveBack(charges []ratelimit.Charge) error {
	q.mu.Lock()
	b, err := q.openLocked(nil)
	if err != nil {
		q.mu.Unlock()
		return err
	}
	b.charges = append(b.charges, charges...)
	q.unlockAndRun()
	return nil
}

// openLocked returns the batch that goes next, a new one if the last cannot take the hits. It is an error
// if too many are waiting already, or nothing may.
func (q *queue) openLocked(hits []ratelimit.Hit) (*batch, error) {
	if q.closed != nil {
		return nil, q.closed
	}
	if n := len(q.waiting); n > 0 && q.waiting[n-1].takes(hits) {
		return q.waiting[n-1], nil
	}
	if len(q.waiting) >= maxWaiting {
		return nil, fmt.Errorf("%w: %d statements are waiting for the database already", ratelimit.ErrUnavailable, maxWaiting)
	}
	b := &batch{born: time.Now(), done: make(chan struct{}), expect: q.expect}
	b.rows = make([]row, 0, b.expect)
	q.waiting = append(q.waiting, b)
	return b, nil
}

// unlockAndRun sees to it that what is waiting will go. The goroutine is started after unlocking because
// its first step is to lock: started before, it would often have to wait for that.
func (q *queue) unlockAndRun() {
	idle := !q.flushing
	q.flushing = true
	q.mu.Unlock()
	if idle {
		go q.run()
	}
}

// takes tells whether the hits fit. Windows of two lengths in one bucket break the rules of
// ratelimit.Store; they go in separate statements, so that whoever does so fails nobody else.
func (b *batch) takes(hits []ratelimit.Hit) bool {
	if len(b.rows)+len(hits) > maxRows && len(b.rows) > 0 || len(b.charges) >= maxRows {
		return false
	}
	for _, hit := range hits {
		if i := b.find(hit.Bucket); i >= 0 {
			if r := &b.rows[i]; r.window != hit.Window || r.n+int64(hit.N) > ratelimit.MaxRequests {
				return false
			}
		}
	}
	return true
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
	if b.index != nil {
		b.index[r.bucket] = len(b.rows) - 1
	} else if len(b.rows) > fewRows {
		b.index = make(map[string]int, max(b.expect, 2*len(b.rows)))
		for i := range b.rows {
			b.index[b.rows[i].bucket] = i
		}
	}
	return len(b.rows) - 1
}

// run flushes batch after batch until none is waiting.
func (q *queue) run() {
	for b := q.next(); b != nil; b = q.next() {
		q.send(b)
		q.gather(b.calls)
	}
}

// gather lets callers that were just answered come back with their next hits, so that these share a statement
// instead of the first of them taking one for itself. It yields until all are back or nobody has come for
// some turns, and never waits: 64 callers on one bucket are counted half as fast again as with one turn.
func (q *queue) gather(callers int) {
	const idleTurns = 5
	before := q.gathered()
	for last, idle := before, 0; idle < idleTurns && last-before < callers; {
		runtime.Gosched()
		if now := q.gathered(); now > last {
			last, idle = now, 0
		} else {
			idle++
		}
	}
}

// gathered returns how many calls wait.
func (q *queue) gathered() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, b := range q.waiting {
		n += b.calls
	}
	return n
}

// send flushes a batch and tells those who wait for it.
func (q *queue) send(b *batch) {
	b.err = recovered(func() error { return q.flush(b) })
	close(b.done)
	if len(b.rows) > 0 && (errors.Is(b.err, context.DeadlineExceeded) || hasCode(b.err, "57014")) { // or a statement_timeout
		q.fail(b.err)
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
	return q.popLocked()
}

// popLocked takes the first of the batches that wait.
func (q *queue) popLocked() *batch {
	b := q.waiting[0]
	q.expect = max(len(b.rows), 1)
	q.waiting[0] = nil // the array lives on
	q.waiting = q.waiting[1:]
	return b
}

// fail gives up what has waited for longer than a statement may take, when one has run into its
// deadline: a database that does not answer would only let each batch in turn do the same.
func (q *queue) fail(err error) {
	q.mu.Lock()
	var old []*batch
	for len(q.waiting) > 0 && time.Since(q.waiting[0].born) >= q.patience {
		old = append(old, q.popLocked())
	}
	q.mu.Unlock()
	q.giveUp(old, fmt.Errorf("%w (and this was not sent, behind it)", err))
}

// closeAfter lets nothing wait behind the batch in flight for longer than d: what has come by then is given
// up with err, and what comes later is refused with it at once, until open is called.
func (q *queue) closeAfter(d time.Duration, err error) (open func()) {
	over := false
	timer := time.AfterFunc(d, func() {
		q.mu.Lock()
		var old []*batch
		if !over {
			q.closed, q.waiting, old = err, nil, q.waiting
		}
		q.mu.Unlock()
		q.giveUp(old, err)
	})
	return func() {
		timer.Stop()
		q.mu.Lock()
		defer q.mu.Unlock()
		over, q.closed = true, nil
	}
}

// giveUp answers batches that are not sent.
func (q *queue) giveUp(batches []*batch, err error) {
	for _, b := range batches {
		b.err = err
		close(b.done)
		if len(b.charges) > 0 {
			q.lost(err)
		}
	}
}

// recovered is f with a panic made an error. The goroutines of a store are not those of requests,
// where net/http catches the panic of a hook, a logger or a driver; here it would end the process.
func recovered(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: panic: %v\n%s", ratelimit.ErrUnavailable, v, debug.Stack())
		}
	}()
	return f()
}
