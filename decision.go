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
	Allowed     Outcome = "allowed"     // the request may pass
	Refused     Outcome = "refused"     // it is over a limit
	Unavailable Outcome = "unavailable" // a FailClosed policy could not be counted, or the request's own deadline passed
	Canceled    Outcome = "canceled"    // the client left before; the request is counted, and must not be served
)

// A Decision is what a [Limiter] says of one request. The zero value is no decision.
type Decision struct {
	Outcome    Outcome       // Refused if any policy refuses, or else Unavailable if any is
	RetryAfter time.Duration // until all policies that refuse may admit the request, or a second if Unavailable
	Results    []Result      // of the policies that applied, in their order, after those of outer limiters
	Err        error         // why the store did not count in time, or nil; also set if the request passed all the same
	Elapsed    time.Duration // how long the decision took
}

// A Result is what one policy says of one request.
type Result struct {
	Policy     string        // its name
	Bucket     string        // what is counted, as it is named in the store
	Limit      Limit         // the limit that was applied
	Cost       int           // how much of the limit the request asks for
	KeyKind    string        // such as "ip"; "peer" where there was no key, and "none" where the peer has no address
	Outcome    Outcome       // what the policy alone would do
	DryRun     bool          // the outcome is not acted on
	Counted    bool          // whether Remaining and Reset are known
	Local      bool          // the store failed, and this process has counted by itself: FailLocal
	Remembered bool          // the policy refuses by a count of the last five seconds, and has not counted the request
	Remaining  int           // how much more is admitted
	Reset      time.Duration // until the window ends, or for a sliding policy with nothing left, until there is something

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

// givesBack reports whether a refused request is given back to its policies. One that is alone and counts requests in
// fixed windows need not be: within the window none that comes later would be admitted.
func givesBack(results []Result) bool {
	return len(results) > 1 || len(results) == 1 && results[0].givesBack
}

// refuses reports whether the policy keeps the request from being served.
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

// Refund gives back what an allowed request has spent, once, for limits on what comes of requests, such as failed
// log-ins. Another process that saw the limit reached may go on refusing for five seconds.
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
