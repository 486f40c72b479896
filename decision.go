package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// An Outcome says what is to be done with a request.
type Outcome string

const (
	// Allowed: the request may pass.
	Allowed Outcome = "allowed"
	// Refused: the request is over a limit. [Limiter.Handler] answers 429.
	Refused Outcome = "refused"
	// Unavailable: the store could not count and a policy that is [FailClosed] applies, or the
	// deadline of the request's context has passed. [Limiter.Handler] answers 503.
	Unavailable Outcome = "unavailable"
	// Canceled: the client left before the decision. The request is counted like any other, and must
	// not be served.
	Canceled Outcome = "canceled"
)

// A Decision is what a [Limiter] says of one request. The zero value is no decision.
type Decision struct {
	// Outcome is what is to be done with the request. Of what the policies say, Refused comes before
	// Unavailable and Unavailable before Allowed.
	Outcome Outcome
	// RetryAfter is how long the client should wait: until all windows of the refusing policies have
	// ended, or a second when Unavailable. Zero otherwise.
	RetryAfter time.Duration
	// Results has one entry for each policy that applied, in the order of the configuration.
	// In a request's context, those of limiters further out come first.
	Results []Result
	// Err is why the store did not count the request in time, or nil. It is set on an allowed request too,
	// when it was let through by [FailOpen] or decided by [FailLocal]. See [ErrUnavailable] and its
	// neighbours; for a client that left it wraps [context.Canceled].
	Err error
	// Elapsed is how long the decision took.
	Elapsed time.Duration
}

// A Result is what one policy says of one request.
type Result struct {
	// Policy is the policy's name.
	Policy string
	// Bucket is what is counted, as it is named in the store: by the policy, the window and the hash of the key.
	Bucket string
	// Limit is the limit that was applied.
	Limit Limit
	// Cost is how much of the limit the request asks for: 1 without [Policy].Cost.
	Cost int
	// KeyKind is the kind of the key that was counted, such as "ip". It is "peer" where the
	// policy's key function found no key, and "none" where not even the peer has an address.
	KeyKind string
	// Outcome is what the policy alone would do with the request.
	Outcome Outcome
	// DryRun tells that the policy is one of [Policy].DryRun: its Outcome is not acted on.
	DryRun bool
	// Counted tells whether Remaining and Reset are known: from the store, or from this process if
	// Local or Remembered is set. It is false when the store failed and the failure mode alone decided,
	// when the client left or its deadline passed before, and when another policy refused the request from memory.
	Counted bool
	// Local tells that the store failed and this process counted by itself, as [FailLocal] asks.
	Local bool
	// Remembered tells that the policy refuses the request from memory: within the last five seconds the
	// store returned a count that leaves nothing of the window. The request was not counted.
	Remembered bool
	// Remaining is how many more requests the window admits: never negative.
	Remaining int
	// Reset is the time until the window ends. For a policy that is [Policy].Sliding and cannot admit the request,
	// or would not the next one, it is the time until it can.
	Reset time.Duration

	limiter      *Limiter
	charge       Charge       // what stays counted of the request, for Refund
	refunded     *atomic.Bool // shared by copies
	onFailure    FailureMode
	sliding      bool   // the policy is
	givesBack    bool   // the policy counts only what it admits, even if it is alone
	spared       bool   // not counted because another policy refused the request from memory
	lowered      int64  // what remember needs to know of the time before the store was asked
	partitionKey []byte // if Config.PartitionKey is set
}

// apply compares a count with the limit, which is inclusive: the hit that makes the count equal to
// it is admitted. One that is refused has spent nothing.
func (r *Result) apply(c Count) {
	if r.spent(c) > int64(r.Limit.Requests) {
		c.Total -= int64(r.Cost)
		r.set(Refused, c, r.Cost)
	} else {
		r.set(Allowed, c, 1)
	}
}

// peek says what apply would say of a request that came now, after those that were counted.
func (r *Result) peek(c Count) {
	if r.spent(c)+int64(r.Cost) > int64(r.Limit.Requests) {
		r.set(Refused, c, r.Cost)
	} else {
		r.set(Allowed, c, r.Cost)
	}
}

// set notes an outcome and what is left after the count. What comes next costs so much.
func (r *Result) set(o Outcome, c Count, next int) {
	r.Counted, r.Outcome, r.Reset = true, o, c.Left
	r.Remaining = int(max(0, int64(r.Limit.Requests)-r.spent(c)))
	if r.sliding && r.Remaining < next {
		r.Reset = untilFree(c, r.Limit, int64(next))
	}
}

// spent is how much of the limit a count has spent.
func (r *Result) spent(c Count) int64 {
	if r.sliding {
		return c.Total + carried(c, r.Limit)
	}
	return c.Total
}

// givesBack tells whether a refused request is given back to its policies. One that is alone and counts requests in
// fixed windows need not be: within the window none that comes later would be admitted.
func givesBack(results []Result) bool {
	return len(results) > 1 || len(results) == 1 && results[0].givesBack
}

// refuses tells whether the policy keeps the request from being served.
func (r *Result) refuses() bool { return r.Outcome == Refused && !r.DryRun }

// conclude makes the outcome of the whole from those of the results.
func (d *Decision) conclude() {
	d.Outcome = Allowed
	for i := range d.Results {
		switch r := &d.Results[i]; {
		case r.DryRun:
		case r.Outcome == Refused:
			d.Outcome = Refused
			d.RetryAfter = max(d.RetryAfter, r.Reset)
		case r.Outcome == Unavailable && d.Outcome == Allowed:
			d.Outcome = Unavailable
		}
	}
	if d.Outcome == Unavailable {
		d.RetryAfter = unavailableFor
	}
}

// end makes the decision that of a request whose context has ended with err. It must not be served,
// whatever the count says: a client that leaves early would get its work done for free.
func (d *Decision) end(err error) {
	if !errors.Is(d.Err, err) { // the store was done with the request, one way or the other
		d.Err = errors.Join(fmt.Errorf("ratelimit: the request ended before the decision: %w", err), d.Err)
	}
	d.Outcome, d.RetryAfter = Canceled, 0
	if errors.Is(err, context.DeadlineExceeded) {
		d.Outcome, d.RetryAfter = Unavailable, unavailableFor
	}
	for i := range d.Results {
		if r := &d.Results[i]; !r.Counted {
			r.Outcome = d.Outcome
		}
	}
}

// Refund gives back what an allowed request has spent, for limits on what comes of requests, such as log-ins
// that fail. It is taken off the windows that were charged, as far as they are still there, before the next request
// of the caller is counted. The decision's other copies know of it: a request is given back once. For any
// other outcome Refund does nothing. It does not wait for the store, and is safe for concurrent use.
//
// Another process that has seen the count at the limit goes on refusing for up to five seconds.
func (d Decision) Refund() {
	if d.Outcome != Allowed {
		return
	}
	for i := range d.Results {
		if r := &d.Results[i]; r.charge.N > 0 && r.refunded.CompareAndSwap(false, true) {
			r.limiter.refund(r)
		}
	}
}
