// Package memory counts in windows in this process's memory. It serves the in-memory store and
// the limiter's own counting while its store is away.
package memory

import (
	"container/heap"
	"hash/maphash"
	"math"
	"slices"
	"sync"
	"time"
)

const shardCount = 64

// A Counter counts per bucket and window, as the table in Postgres does: a new window is a new
// row. It holds a bounded number of rows. It is safe for concurrent use.
type Counter struct {
	// Now is the clock. New sets it to one that starts with the machine's time and then follows the
	// monotonic clock: setting the machine's clock neither ends a window early nor makes one again.
	Now func() time.Time

	seed   maphash.Seed
	shards [shardCount]shard
}

type shard struct {
	mu      sync.Mutex
	max     int
	rows    map[key]*row
	expires expiry // the same rows, the one that expires first on top
}

type key struct {
	bucket string
	start  int64 // in milliseconds since 1970
}

type row struct {
	key     key
	expires int64 // in milliseconds since 1970
	count   int64
}

// New returns a Counter that holds about max rows. When it is full, the row that expires
// first makes room.
func New(max int) *Counter {
	began := time.Now()
	c := &Counter{
		Now:  func() time.Time { return began.Add(time.Since(began)) },
		seed: maphash.MakeSeed(),
	}
	for i := range c.shards {
		c.shards[i] = shard{max: (max + shardCount - 1) / shardCount, rows: make(map[key]*row)}
	}
	return c
}

// A Count is the state of a bucket: what the current window has counted, what the one before has if the bucket's
// windows are sliding, how long the window still lasts, and when it started.
type Count struct {
	Total, Previous int64
	Left            time.Duration
	Start           time.Time
}

// Add adds n to the bucket's current window. The window is a whole number of milliseconds. Those of a bucket are
// sliding or are not, each time.
func (c *Counter) Add(bucket string, window time.Duration, n int, sliding bool) Count {
	s := c.shard(bucket)
	s.mu.Lock()
	defer s.mu.Unlock()
	// Under the lock, or the row of a window that has just ended could be gone already.
	now := c.Now()
	k, end := windowAt(now, bucket, window)
	r := s.rows[k]
	if r == nil {
		s.makeRoomLocked(now.UnixMilli())
		r = &row{key: k, expires: end}
		if sliding {
			r.expires += window.Milliseconds() // the next window asks for it
		}
		s.rows[k] = r
		heap.Push(&s.expires, r)
	}
	r.count = min(r.count+int64(n), math.MaxInt32)
	return s.countLocked(k, end, now, window, sliding)
}

// Get returns the bucket's state and adds nothing.
func (c *Counter) Get(bucket string, window time.Duration, sliding bool) Count {
	s := c.shard(bucket)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := c.Now()
	k, end := windowAt(now, bucket, window)
	return s.countLocked(k, end, now, window, sliding)
}

func (s *shard) countLocked(k key, end int64, now time.Time, window time.Duration, sliding bool) Count {
	count := Count{Left: time.UnixMilli(end).Sub(now), Start: time.UnixMilli(k.start)}
	if r := s.rows[k]; r != nil {
		count.Total = r.count
	}
	if sliding {
		k.start -= window.Milliseconds()
		if r := s.rows[k]; r != nil {
			count.Previous = r.count
		}
	}
	return count
}

// windowAt returns the key of the window that a bucket is in, and when it ends, in milliseconds since 1970.
func windowAt(now time.Time, bucket string, window time.Duration) (k key, end int64) {
	size := window.Milliseconds()
	k = key{bucket, now.UnixMilli() / size * size}
	return k, k.start + size
}

// Reset forgets all windows of a bucket.
func (c *Counter) Reset(bucket string) {
	s := c.shard(bucket)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expires = slices.DeleteFunc(s.expires, func(r *row) bool {
		if r.key.bucket != bucket {
			return false
		}
		delete(s.rows, r.key)
		return true
	})
	heap.Init(&s.expires)
}

// GiveBack takes n off a window if it is still there, but not below zero.
func (c *Counter) GiveBack(bucket string, start time.Time, n int) {
	s := c.shard(bucket)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.rows[key{bucket, start.UnixMilli()}]; r != nil {
		r.count = max(r.count-int64(n), 0)
	}
}

// Len returns how many rows the Counter holds.
func (c *Counter) Len() int {
	n := 0
	for i := range c.shards {
		c.shards[i].mu.Lock()
		n += len(c.shards[i].rows)
		c.shards[i].mu.Unlock()
	}
	return n
}

func (c *Counter) shard(bucket string) *shard {
	return &c.shards[maphash.String(c.seed, bucket)%shardCount]
}

// makeRoomLocked drops the rows that have expired, and one more if the shard is still full.
// Nothing else sweeps: only new rows take room.
func (s *shard) makeRoomLocked(nowMilli int64) {
	for len(s.expires) > 0 && (s.expires[0].expires <= nowMilli || len(s.expires) >= s.max) {
		delete(s.rows, heap.Pop(&s.expires).(*row).key)
	}
}

// expiry is a heap of rows by when they expire.
type expiry []*row

func (h expiry) Len() int           { return len(h) }
func (h expiry) Less(i, j int) bool { return h[i].expires < h[j].expires }
func (h expiry) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *expiry) Push(x any)        { *h = append(*h, x.(*row)) }
func (h *expiry) Pop() any {
	last := len(*h) - 1
	r := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return r
}
