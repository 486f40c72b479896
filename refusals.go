package ratelimit

import (
	"hash/maphash"
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
	lowered atomic.Int64 // the sum of all that was taken off
	mu      sync.Mutex
	entries map[string]*refusal
	ring    []*refusal // in the order in which they came, once it is full with the oldest at next
	next    int
}

type refusal struct {
	bucket string
	start  time.Time // of the window
	total  int64
	// until is when the entry is no longer good, as time since the origin. It is reckoned from before
	// the store was asked: too early by a round trip perhaps, and never too late.
	until time.Duration
	// end is when the window ends, for what clients are told. It is reckoned from after the store had
	// answered: a client that waits so long is not too early.
	end time.Duration
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
	memory := refusalMemory
	e := s.entries[bucket]
	switch {
	case e == nil:
		e = &refusal{bucket: bucket}
		s.addLocked(e)
		fallthrough
	case !e.start.Equal(c.Start): // first seen in this window
		if several {
			memory = unconfirmedMemory
		}
	case asked < e.until: // asked before the first answer of a burst was remembered: both are bounds
		e.total = max(e.total, bound)
		return
	}
	e.start, e.total = c.Start, bound
	e.until = asked + min(c.Left, memory)
	e.end = answered + c.Left
}

func (s *refusalShard) addLocked(e *refusal) {
	if s.entries == nil {
		s.entries = make(map[string]*refusal)
	}
	s.entries[e.bucket] = e
	if len(s.ring) < maxRefusals/refusalShards {
		s.ring = append(s.ring, e)
		return
	}
	delete(s.entries, s.ring[s.next].bucket)
	s.ring[s.next] = e
	s.next = (s.next + 1) % len(s.ring)
}

// recall returns the least that the bucket's window has counted at a time, as far as is remembered, and how long
// from then until the window ends.
func (m *refusals) recall(bucket string, at time.Time) (total int64, left time.Duration, ok bool) {
	now := at.Sub(m.origin)
	s := m.shard(bucket)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[bucket]
	if e == nil || e.until <= now {
		return 0, 0, false
	}
	return e.total, e.end - now, true
}

// lower corrects the memory of a bucket from whose count n is taken off.
func (m *refusals) lower(bucket string, n int) {
	s := m.shard(bucket)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lowered.Add(int64(n))
	if e := s.entries[bucket]; e != nil {
		e.total -= int64(n)
	}
}
