package sim

import (
	"slices"
	"time"
)

// The rules of a store's batches, as store/queue.go has them.
const (
	maxInFlight = 2
	minShare    = 20
	maxRows     = 512
)

// An instance gathers hits in batches and sends them.
type instance struct {
	*world
	cpu       *cpu
	waiting   []*batch
	inFlight  []*batch
	rowCount  int // of all batches
	gathering int // batches that have landed and whose callers are not back yet
}

// A batch is the hits of one statement.
type batch struct {
	instance *instance
	keys     []int // in the order of the statement's locks
	asked    []time.Duration
	blocked  bool // by another's row, once
}

// arrive is a request of a caller.
func (i *instance) arrive() {
	key := i.key()
	var b *batch
	if n := len(i.waiting); n > 0 {
		b = i.waiting[n-1]
	}
	place, has := -1, false
	if b != nil {
		place, has = slices.BinarySearch(b.keys, key)
	}
	if b == nil || !has && len(b.keys)+1 > min(max(i.rowCount/2, minShare), maxRows) {
		b, place, has = &batch{instance: i}, 0, false
		i.waiting = append(i.waiting, b)
	}
	if !has {
		b.keys = slices.Insert(b.keys, place, key)
		i.rowCount++
	}
	b.asked = append(b.asked, i.now)
	i.arrivals++
}

func (i *instance) arriveAtRandom() {
	i.after(time.Duration(i.rng.ExpFloat64()*float64(time.Second)/i.Rate), func() {
		i.arrive()
		i.flush()
		i.arriveAtRandom()
	})
}

// flush sends what may go.
func (i *instance) flush() {
	for i.gathering == 0 && len(i.waiting) > 0 && len(i.inFlight) < maxInFlight {
		b := i.waiting[0]
		if len(i.inFlight) > 0 && (len(b.keys) < minShare || slices.ContainsFunc(i.inFlight, b.meets)) {
			return
		}
		i.waiting = i.waiting[1:]
		i.inFlight = append(i.inFlight, b)
		takes := i.ClientStatement
		if len(b.keys) > 1 {
			takes += i.ClientSeveral
		}
		aside := time.Duration(i.Aside * float64(takes))
		i.cpu.run(takes-aside+time.Duration(len(b.keys))*i.ClientRow, func() {
			i.after(i.RTT/2, func() { i.lock(b, 0) })
			if aside > 0 {
				i.cpu.run(aside, func() {})
			}
		})
	}
}

func (b *batch) meets(other *batch) bool {
	return slices.ContainsFunc(b.keys, func(k int) bool {
		_, has := slices.BinarySearch(other.keys, k)
		return has
	})
}

// lock takes the rows of a batch from the n-th on, in their order, and waits for those that another has.
func (w *world) lock(b *batch, n int) {
	for ; n < len(b.keys); n++ {
		k := b.keys[n]
		w.locks[k] = append(w.locks[k], b)
		if len(w.locks[k]) > 1 {
			if !b.blocked {
				b.blocked = true
				w.waits++
			}
			return // whoever has it calls again
		}
	}
	takes := w.Statement + time.Duration(len(b.keys))*w.Row
	if len(b.keys) > 1 {
		takes += w.Several
	}
	w.database.run(takes, func() { w.unlock(b) })
}

func (w *world) unlock(b *batch) {
	w.statements++
	w.rows += len(b.keys)
	for _, k := range b.keys {
		if w.locks[k] = w.locks[k][1:]; len(w.locks[k]) == 0 {
			delete(w.locks, k)
			continue
		}
		next := w.locks[k][0]
		place, _ := slices.BinarySearch(next.keys, k)
		w.database.run(w.Blocked, func() { w.lock(next, place+1) })
	}
	w.after(w.RTT/2, func() { b.instance.land(b) })
}

// land hands the answers out, on all cores at once. The callers come back with their next requests, and those that are
// not late share the next statement.
func (i *instance) land(b *batch) {
	i.inFlight = slices.DeleteFunc(i.inFlight, func(other *batch) bool { return other == b })
	i.rowCount -= len(b.keys)
	late, odds := 0, min(i.Late*float64(len(b.asked)), 0.5)
	for range b.asked {
		if i.rng.Float64() < odds {
			late++
		}
	}
	i.gathering++
	i.answer(b.asked[late:], func() {
		i.gathering--
		i.answer(b.asked[:late], i.flush)
		i.flush()
	})
}

// answer hands answers out to callers.
func (i *instance) answer(asked []time.Duration, done func()) {
	if len(asked) == 0 {
		done()
		return
	}
	parts := slices.Collect(slices.Chunk(asked, (len(asked)+i.cpu.cores-1)/i.cpu.cores))
	left := len(parts)
	for _, part := range parts {
		i.cpu.run(time.Duration(len(part))*i.ClientHit, func() {
			for _, at := range part {
				i.decisions++
				i.latencies = append(i.latencies, i.now-at)
				if i.Callers > 0 {
					i.arrive()
				}
			}
			if left--; left == 0 {
				done()
			}
		})
	}
}
