package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// maxLocalBuckets bounds what a limiter counts by itself while its store is away.
const maxLocalBuckets = 65_536

// unavailableFor is how long a client is told to wait when no decision could be made. The store may
// be back at any moment.
const unavailableFor = time.Second

// fail decides without the store, as each policy's failure mode says.
func (l *Limiter) fail(hits []Hit, results []Result, err error) Decision {
	err = l.late(err)
	counts := make([]Count, len(hits))
	for i := range results {
		switch result := &results[i]; result.onFailure {
		case FailOpen:
			result.Outcome = Allowed
		case FailClosed:
			result.Outcome = Unavailable
		case FailLocal:
			c := &counts[i]
			*c = Count(l.local.Add(hits[i].Bucket, hits[i].Window, hits[i].N, hits[i].Sliding))
			result.apply(*c)
			result.Local = true
		}
	}
	d := Decision{Results: results, Err: err}
	d.conclude()
	l.log.Error("ratelimit: could not count a request", err, slog.String("outcome", string(d.Outcome)))
	gives := d.Outcome != Allowed && givesBack(results)
	for i := range results {
		r := &results[i]
		if !r.Local {
			continue
		}
		r.charge = Charge{Bucket: hits[i].Bucket, Start: counts[i].Start, N: hits[i].N}
		if gives || r.Outcome == Refused && r.givesBack {
			r.refunded.Store(true)
			l.refund(r)
		}
	}
	return d
}

// late returns err as an ErrTimeout if a deadline has passed that the store does not know of.
func (l *Limiter) late(err error) error {
	if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrTimeout) {
		return fmt.Errorf("%w: no count within %v: %w", ErrTimeout, l.config.Deadline, err)
	}
	return err
}
