package ratelimit

import (
	"context"
	"errors"
	"time"
)

// A Store counts hits. Package store has two, Postgres and Memory; any other must pass the suite of
// package storetest.
//
// Implementations are safe for concurrent use.
type Store interface {
	// Add counts the hits, all of them or none, and returns one [Count] for each, in the same order.
	// Hits of equal Bucket have equal Window and Sliding, also across calls. Add does not keep the slice.
	//
	// A hit falls in the window that the store's clock is in when it is counted. Of n hits that
	// reach one bucket in one window at once, each gets its own place: their counts differ.
	//
	// When ctx ends first, Add stops waiting and returns an error that wraps ctx.Err(); the hits are
	// counted all the same, if the store is able to. Any other error means that the store could not count,
	// and never that a request is over its limit. It wraps [ErrInvalidHit], [ErrTimeout],
	// [ErrReadOnly], [ErrNoTable] or [ErrUnavailable].
	Add(ctx context.Context, hits []Hit) ([]Count, error)

	// GiveBack takes earlier hits off the windows they were charged to. A window that is gone is
	// left alone, and no count falls below zero. GiveBack does not wait for the store: each charge is
	// taken off before any later hit on its bucket through the same Store value is counted, or lost if
	// the store fails. It does not keep the slice.
	GiveBack(charges []Charge)

	// Get returns what the current windows of the hits' buckets have counted, one Count for each hit and in the
	// same order, and counts nothing. Total is zero where nothing was counted. N is not looked at. Its errors are
	// those of Add.
	Get(ctx context.Context, hits []Hit) ([]Count, error)

	// Reset forgets what was counted in buckets, in all their windows. Hits that are being counted meanwhile are
	// forgotten or not. Its errors are those of Add.
	Reset(ctx context.Context, buckets []string) error
}

// A Hit is a number of requests to count in one bucket.
type Hit struct {
	// Bucket names what is counted: 1 to 512 bytes of UTF-8 without NUL. It must not hold a raw
	// credential or address, for it is stored as it is. [Limiter] makes it of the policy, the
	// window and the hashed key.
	Bucket string
	// Window is the length of the bucket's windows, from a millisecond to [MaxWindow], in whole
	// milliseconds.
	Window time.Duration
	// N is how much the hit adds, from 1 to [MaxRequests].
	N int
	// Sliding asks for [Count].Previous. A window of the bucket is then kept until the next one has ended.
	Sliding bool
}

// A Count is the state of a bucket right after a hit was counted in it.
type Count struct {
	// Total is what the window has counted, this hit and all before it included.
	Total int64
	// Previous is what the window before has counted, if the hit is Sliding, and zero otherwise.
	Previous int64
	// Left is the time until the window ends: zero or more, and at most the window's length.
	Left time.Duration
	// Start is when the window started, by the store's clock. It names the window in a [Charge] and
	// is not to be compared with this machine's clock.
	Start time.Time
}

// A Charge is a hit that was counted, as [Store.GiveBack] takes it off again.
type Charge struct {
	// Bucket is the bucket of the [Hit].
	Bucket string
	// Start is the start of the window that was charged, from the [Count].
	Start time.Time
	// N is how much to take off, from 1 to [MaxRequests].
	N int
}

// Errors that a [Store] returns, wrapped, and that [Decision].Err holds. None of them is a refusal:
// each means that the store could not count.
var (
	// ErrUnavailable: the store could not be reached or refused to work.
	ErrUnavailable = errors.New("ratelimit: store unavailable")
	// ErrTimeout: the store did not answer in time, or the wait for a lock took too long.
	ErrTimeout = errors.New("ratelimit: store timed out")
	// ErrReadOnly: the store accepts no writes, as a Postgres standby does (SQLSTATE 25006). After a
	// fail-over behind one address, connections to the former primary stay read-only until the pool
	// is reset.
	ErrReadOnly = errors.New("ratelimit: store is read-only")
	// ErrNoTable: the table of the counters is missing; the migrations have not run.
	ErrNoTable = errors.New("ratelimit: table is missing")
	// ErrInvalidHit: a hit or its bucket breaks the rules of [Hit]. Nothing was counted.
	ErrInvalidHit = errors.New("ratelimit: invalid hit")
)
