package store

import (
	"context"
	"fmt"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/memory"
)

// MemoryConfig is the configuration of a [Memory] store. The zero value is ready to use.
type MemoryConfig struct {
	// MaxBuckets bounds about how many buckets are held at once; a sliding one counts twice. When a new one finds no
	// room, the one that expires first is forgotten and will count from one again. At least 1.
	// Defaults to 1,000,000, which take some 200 MB.
	MaxBuckets int
}

// Memory counts in the memory of one process, by the same rules as [Postgres]: for tests, for
// a service that only ever runs once, and for trying things out. Behind N processes that each have
// one, the limit is N times what it says.
//
// There is nothing to start or close. A Memory is safe for concurrent use.
type Memory struct {
	counter *memory.Counter
}

var _ ratelimit.Store = (*Memory)(nil)

// NewMemory returns an empty store.
func NewMemory(config MemoryConfig) (*Memory, error) {
	if config.MaxBuckets < 0 {
		return nil, fmt.Errorf("ratelimit: MemoryConfig.MaxBuckets is %d, want at least 1, or zero for 1,000,000", config.MaxBuckets)
	}
	if config.MaxBuckets == 0 {
		config.MaxBuckets = 1_000_000
	}
	return &Memory{counter: memory.New(config.MaxBuckets)}, nil
}

// Add counts hits, as [ratelimit.Store] says. It never waits, and its only error is
// [ratelimit.ErrInvalidHit].
func (m *Memory) Add(_ context.Context, hits []ratelimit.Hit) ([]ratelimit.Count, error) {
	if err := validate(hits); err != nil {
		return nil, err
	}
	counts := make([]ratelimit.Count, len(hits))
	for i, hit := range hits {
		counts[i] = ratelimit.Count(m.counter.Add(hit.Bucket, hit.Window, hit.N, hit.Sliding))
	}
	return counts, nil
}

// Get returns counts, as [ratelimit.Store] says. Its only error is [ratelimit.ErrInvalidHit].
func (m *Memory) Get(_ context.Context, hits []ratelimit.Hit) ([]ratelimit.Count, error) {
	if err := validateWindows(hits); err != nil {
		return nil, err
	}
	counts := make([]ratelimit.Count, len(hits))
	for i, hit := range hits {
		counts[i] = ratelimit.Count(m.counter.Get(hit.Bucket, hit.Window, hit.Sliding))
	}
	return counts, nil
}

// Reset forgets buckets, as [ratelimit.Store] says. Its only error is [ratelimit.ErrInvalidHit].
func (m *Memory) Reset(_ context.Context, buckets []string) error {
	if err := validateBuckets(buckets); err != nil {
		return err
	}
	for _, bucket := range buckets {
		m.counter.Reset(bucket)
	}
	return nil
}

// GiveBack takes charges off, as [ratelimit.Store] says. Invalid ones are left out.
func (m *Memory) GiveBack(charges []ratelimit.Charge) {
	for _, c := range charges {
		if validateCharge(c) == nil {
			m.counter.GiveBack(c.Bucket, c.Start, c.N)
		}
	}
}
