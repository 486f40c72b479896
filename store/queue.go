package store

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/krow/ratelimit"
)

const (
	// maxInFlight is how many statements a store has in flight. Two keep the database busy while the answers of
	// one are handed out: on two cores, 64 callers on 10,000 buckets are counted 1.4 times as fast as with one.
	maxInFlight = 2
	// minShare is the least number of rows of a statement that goes beside another. To have a statement at all
	// costs as much as 16 rows of it, so that two small ones are slower than one.
	minShare = 20
	// maxRows bounds the buckets of one statement: large enough that a bigger one would not be
	// faster, small enough that it never runs for long.
	maxRows = 512
	// maxWaiting bounds the batches that wait while a statement is in flight, and so the memory
	// that a stalled database can cost: 65,536 buckets.
	maxWaiting = 128
)

// A queue is the group commit. While a batch is being counted, further hits gather in the next, added up per
// bucket; an idle queue sends the first hit at once. A large batch goes beside one in flight, but never with a
// bucket in common: so a hot row has as many waiters as there are processes, and what is given back is
// taken off before later hits on the bucket are counted.
//
// The goroutines that flush exist only while there is something to flush, and a lone caller that cannot
// leave needs none.
type queue struct {
	// flush counts a batch. It fills in the results of its rows.
	flush func(*batch) error
	// lost is told why the charges of a batch were given up, which nobody waits for.
	lost func(error)
	// maxWait is how long a batch waits behind statements that run into their deadlines.
	maxWait time.Duration

	mu        sync.Mutex
	waiting   []*batch // in the order they go; only the last one takes further hits
	inFlight  []*batch
	rows      int   // of all batches, those in flight and those that wait
	expect    int   // how many rows the batch had that went last
	flushers  int   // who has a batch in flight, or gathers the next
	probing   bool  // whether one batch tries a database that has failed, and no other may go
	rejecting error // why nothing may wait at the moment, or nil
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
			i = b.add(row{bucket: hit.Bucket, window: hit.Window, sliding: hit.Sliding})
			q.rows++
		}
		b.rows[i].n += int64(hit.N)
		places = append(places, place{row: i, sum: b.rows[i].n})
	}
	if mayLead && q.flushers == 0 {
		q.flushers++
		q.takeLocked() // nothing waits while nobody flushes, so this is the batch
		q.mu.Unlock()
		return b, places, true, nil
	}
	q.unlockAndFlush()
	return b, places, false, nil
}

// lead flushes the batch of a caller that leads, on its goroutine: a lone caller is spared two changes from one
// goroutine to another, which cost it a tenth of the statement. What has gathered meanwhile is left to
// a goroutine of the queue.
func (q *queue) lead(b *batch) {
	q.send(b)
	q.mu.Lock()
	q.removeLocked(b)
	q.flushers--
	q.unlockAndFlush()
}

// giveBack adds charges to the batch that goes next.
func (q *queue) giveBack(charges []charge) error {
	q.mu.Lock()
	b, err := q.openLocked(nil)
	if err != nil {
		q.mu.Unlock()
		return err
	}
	b.charges = append(b.charges, charges...)
	q.unlockAndFlush()
	return nil
}

// openLocked returns the batch that goes next, a new one if the last cannot take the hits. It is an error
// if too many are waiting already, or nothing may.
func (q *queue) openLocked(hits []ratelimit.Hit) (*batch, error) {
	if q.rejecting != nil {
		return nil, q.rejecting
	}
	if n := len(q.waiting); n > 0 && q.waiting[n-1].fits(hits, q.shareLocked()) {
		return q.waiting[n-1], nil
	}
	if len(q.waiting) >= maxWaiting {
		return nil, fmt.Errorf("%w: %d statements are waiting for the database already", ratelimit.ErrUnavailable, maxWaiting)
	}
	b := &batch{born: time.Now(), done: make(chan struct{}), rows: make([]row, 0, q.expect)}
	q.waiting = append(q.waiting, b)
	return b, nil
}

// shareLocked is how many rows a batch may have: half of all there are, for two statements to share them.
func (q *queue) shareLocked() int { return min(max(q.rows/2, minShare), maxRows) }

// unlockAndFlush sees to it that what waits will go. The goroutine is started after unlocking because
// its first steps are to lock: started before, it would often have to wait for that.
func (q *queue) unlockAndFlush() {
	b := q.moreLocked()
	q.mu.Unlock()
	if b != nil {
		go q.run(b)
	}
}

// moreLocked returns a batch for one more flusher, or nil if there is none or one that gathers will take it.
func (q *queue) moreLocked() *batch {
	if q.flushers > len(q.inFlight) {
		return nil
	}
	b := q.takeLocked()
	if b != nil {
		q.flushers++
	}
	return b
}

// takeLocked takes the batch that goes next and puts it in flight, if there is one and it may go.
func (q *queue) takeLocked() *batch {
	if len(q.waiting) == 0 || len(q.inFlight) == maxInFlight || q.probing {
		return nil
	}
	b := q.waiting[0]
	if len(q.inFlight) > 0 && len(b.rows) < minShare {
		return nil
	}
	for _, other := range q.inFlight {
		if b.behind == other || b.conflictsWith(other) {
			b.behind = other // it does not change: a batch only gains rows
			return nil
		}
	}
	b.behind = nil // which would keep all that ever went
	q.popLocked()
	q.inFlight = append(q.inFlight, b)
	return b
}

// popLocked takes the first of the batches that wait.
func (q *queue) popLocked() *batch {
	b := q.waiting[0]
	q.waiting[0] = nil // the array lives on
	q.waiting = q.waiting[1:]
	q.expect = max(len(b.rows), 1)
	return b
}

// dropLocked takes those of the batches that wait that are not to be sent: the first ones, as long as drop says so.
func (q *queue) dropLocked(drop func(*batch) bool) (dropped []*batch) {
	for len(q.waiting) > 0 && drop(q.waiting[0]) {
		b := q.popLocked()
		q.rows -= len(b.rows)
		dropped = append(dropped, b)
	}
	return dropped
}

// removeLocked takes a batch that has been flushed off those in flight.
func (q *queue) removeLocked(b *batch) {
	q.rows -= len(b.rows)
	q.inFlight = slices.DeleteFunc(q.inFlight, func(other *batch) bool { return other == b })
}

// run flushes a batch, and then batch after batch until none may go.
func (q *queue) run(b *batch) {
	for b != nil {
		q.send(b)
		q.mu.Lock()
		q.removeLocked(b)
		q.mu.Unlock()
		q.gather(b.calls)
		q.mu.Lock()
		if b = q.takeLocked(); b == nil {
			q.flushers--
		}
		q.unlockAndFlush()
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

// fail gives up what has waited for longer than a statement may take, when one has run into its
// deadline: a database that does not answer would only let each batch in turn do the same.
func (q *queue) fail(err error) {
	q.mu.Lock()
	old := q.dropLocked(func(b *batch) bool { return time.Since(b.born) >= q.maxWait })
	q.mu.Unlock()
	q.giveUp(old, fmt.Errorf("%w (and this was not sent, behind it)", err))
}

// probe lets a batch in flight try a database that has failed with err. Until over is called no other goes, and
// nothing waits behind it for longer than d: what has come by then is given up with err, and what comes
// later is refused with it at once.
func (q *queue) probe(d time.Duration, err error) (over func()) {
	q.mu.Lock()
	q.probing = true
	q.mu.Unlock()
	isOver := false
	timer := time.AfterFunc(d, func() {
		q.mu.Lock()
		var old []*batch
		if !isOver {
			q.rejecting = err
			old = q.dropLocked(func(*batch) bool { return true })
		}
		q.mu.Unlock()
		q.giveUp(old, err)
	})
	return func() {
		timer.Stop()
		q.mu.Lock()
		defer q.mu.Unlock()
		isOver, q.probing, q.rejecting = true, false, nil
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
