package ratelimit

import (
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// refusalShards keeps callers on different cores from waiting for one lock.
	refusalShards = 64
	// maxRefusals bounds how many buckets are remembered: a flood of invented keys must not fill the
	// memory of the process.
	maxRefusals = 65_536
	// refusalMemory is how long a bucket is remembered at most, so that a count that was set back, or
	// lowered by another process, is seen again.
	refusalMemory = 5 * time.Second
	// unconfirmedMemory is how long it is at first, if the request came with several policies. The store
	// may have been asked between a burst of others and its giving back, which takes that much less.
	unconfirmedMemory = 500 * time.Millisecond
)

// refusals remembers the counts of buckets that were seen at or over their limit, so that a flood on one
// of them does not reach the store. Within a window a count only grows, so what was seen is a lower
// bound until the window ends. It is a count and not a verdict: under a limit that was raised it refuses
// nobody. When it is full, the bucket that came first is forgotten.
//
// It is safe for concurrent use.
type refusals struct {
	seed   maphash.Seed
	origin time.Time
	shards [refusalShards]refusalShard
}

type refusalShard struct {
	lowered atomic.Int64            // the sum of all that was taken off
	latest  atomic.Pointer[refusal] // one of the entries, so that a flood on one bucket waits for no lock
	mu      sync.Mutex
	entries map[string]*refusal
	ring    []string // buckets in the order in which they came, once it is full with the oldest at next
	next    int
}

// A refusal is what is remembered of a bucket. It is replaced, and not changed.
type refusal struct {
	bucket string
	start  time.Time // of the window
	// total is the least that the window has counted, and previous the one before if it is sliding.
	total, previous int64
	// until is when the entry is no longer good, as time since the origin. It is reckoned from before
	// the store was asked: too early by a round trip perhaps, and never too late.
	until time.Duration
	// first and last are when the window ends, reckoned from before the store was asked and from after it had
	// answered. What a sliding window still counts of the one before is no less than by the first, and a client that
	// waits until the last is not too early.
	first, last time.Duration
}

func newRefusals() *refusals {
	return &refusals{seed: maphash.MakeSeed(), origin: time.Now()}
}

func (m *refusals) shard(bucket string) *refusalShard {
	return &m.shards[maphash.String(m.seed, bucket)%refusalShards]
}

// lowered is what a call has to note before it asks the store, for remember.
func (m *refusals) lowered(bucket string) int64 { return m.shard(bucket).lowered.Load() }

// remember notes a count that the store has returned to a call that asked it at that time, for a request with
// several policies or not. Of a burst that shared one statement, each has seen the others' hits, which
// are given back one by one: what was taken off since the call asked is not a bound any more. That of
// other buckets of the shard is taken for this one's too, which leads to asking the store once more.
func (m *refusals) remember(bucket string, c Count, at time.Time, loweredBefore int64, several bool) {
	asked, answered := at.Sub(m.origin), time.Since(m.origin)
	s := m.shard(bucket)
	s.mu.Lock()
	defer s.mu.Unlock()
	bound := c.Total - (s.lowered.Load() - loweredBefore)
	e := s.entries[bucket]
	seen := e != nil && e.start.Equal(c.Start) // in this window, before
	if seen && asked < e.until {               // before the first answer of a burst was remembered: both are bounds
		if bound > e.total {
			higher := *e
			higher.total, higher.previous = bound, c.Previous
			s.putLocked(&higher)
		}
		return
	}
	memory := refusalMemory
	if !seen && several {
		memory = unconfirmedMemory
	}
	s.putLocked(&refusal{
		bucket: bucket, start: c.Start, total: bound, previous: c.Previous,
		until: asked + min(c.Left, memory), first: asked + c.Left, last: answered + c.Left,
	})
}

// putLocked adds an entry, or replaces that of its bucket.
func (s *refusalShard) putLocked(e *refusal) {
	if s.entries == nil {
		s.entries = make(map[string]*refusal)
	}
	_, known := s.entries[e.bucket]
	s.entries[e.bucket] = e
	s.latest.Store(e)
	switch {
	case known:
	case len(s.ring) < maxRefusals/refusalShards:
		s.ring = append(s.ring, e.bucket)
	default:
		delete(s.entries, s.ring[s.next])
		s.ring[s.next] = e.bucket
		s.next = (s.next + 1) % len(s.ring)
	}
}

// get returns the entry of a bucket, or nil.
func (s *refusalShard) get(bucket string) *refusal {
	if e := s.latest.Load(); e != nil && e.bucket == bucket {
		return e
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[bucket]
	if e != nil {
		s.latest.Store(e)
	}
	return e
}

// recall returns the least that the bucket's windows have counted at a time, as far as is remembered, and how long
// from then until the present one has ended for sure.
func (m *refusals) recall(bucket string, at time.Time) (least Count, end time.Duration, ok bool) {
	now := at.Sub(m.origin)
	e := m.shard(bucket).get(bucket)
	if e == nil || e.until <= now {
		return Count{}, 0, false
	}
	return Count{Total: e.total, Previous: e.previous, Left: e.first - now, Start: e.start}, e.last - now, true
}

// lower corrects the memory of a bucket from which a charge is taken off. An answer that is on its way to a sliding
// window may hold more of the window before than is left then: it is believed like one of another process.
func (m *refusals) lower(c Charge) {
	s := m.shard(c.Bucket)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lowered.Add(int64(c.N))
	e := s.entries[c.Bucket]
	if e == nil {
		return
	}
	less := *e
	less.total -= int64(c.N)
	if !e.start.Equal(c.Start) { // of whatever window: to know too little is no harm
		less.previous -= int64(c.N)
	}
	s.putLocked(&less)
}

// forget makes the memory of a bucket less than whatever was counted, also for answers that are on their way.
func (m *refusals) forget(bucket string) {
	s := m.shard(bucket)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lowered.Add(math.MaxInt32)
	if e := s.entries[bucket]; e != nil {
		less := *e
		less.total -= math.MaxInt32
		s.putLocked(&less)
	}
}
