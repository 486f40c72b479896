package ratelimit

import (
	"context"
	"errors"
	"time"
)

// A Store counts hits. Package store has two, Postgres and Memory; any other must pass the suite of package storetest.
// Implementations are safe for concurrent use and keep no slice that they are given.
type Store interface {
	// Add counts the hits, all or none, and returns a [Count] for each, in their order. Each falls in the window that the
	// store's clock is in, and of n hits that reach a bucket at once each has a count of its own. Hits of equal Bucket have
	// equal Window and Sliding, also across calls. When ctx ends, Add returns an error that wraps ctx.Err(), and the hits
	// are counted all the same if that is possible. Any other error is one of this package's.
	Add(ctx context.Context, hits []Hit) ([]Count, error)
	// GiveBack takes hits off the windows they were charged to, as far as these are still there, and not below zero. It
	// does not wait: each is off before a later hit on its bucket through this value is counted, or lost if the store fails.
	GiveBack(charges []Charge)
	// Get returns what Add would of the current windows, and counts nothing. N is not looked at.
	Get(ctx context.Context, hits []Hit) ([]Count, error)
	// Reset forgets what was counted in buckets, in all their windows.
	Reset(ctx context.Context, buckets []string) error
}

// A Hit is a number of requests to count in one bucket.
type Hit struct {
	Bucket  string        // 1 to 512 bytes of UTF-8 without NUL, stored as they are: no raw credential or address
	Window  time.Duration // the length of the bucket's windows: whole milliseconds, up to MaxWindow
	N       int           // how much it adds, from 1 to MaxRequests
	Sliding bool          // asks for Count.Previous; a window is then kept until the next one has ended
}

// A Count is the state of a bucket right after a hit was counted in it.
type Count struct {
	Total    int64         // what the window has counted, with this hit and all before it
	Previous int64         // what the window before has counted, if the hit is Sliding
	Left     time.Duration // until the window ends: from zero to its length
	Start    time.Time     // when the window started, by the store's clock: its name in a Charge
}

// A Charge is a hit that was counted, as [Store].GiveBack takes it off again.
type Charge struct {
	Bucket string    // that of the Hit
	Start  time.Time // that of the Count
	N      int       // how much to take off, from 1 to MaxRequests
}

// Errors of a [Store], wrapped, also in [Decision].Err. None means that a request is over a limit.
var (
	ErrUnavailable = errors.New("ratelimit: store unavailable")  // it could not be reached or refused to work
	ErrTimeout     = errors.New("ratelimit: store timed out")    // it did not answer in time, or a lock was held too long
	ErrReadOnly    = errors.New("ratelimit: store is read-only") // as a Postgres standby is (SQLSTATE 25006)
	ErrNoTable     = errors.New("ratelimit: table is missing")   // the migrations have not run
	ErrInvalidHit  = errors.New("ratelimit: invalid hit")        // it breaks the rules of Hit; nothing was counted
)
