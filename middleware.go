package ratelimit

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/krow/ratelimit/internal/patience"
)

// Handler returns a handler that passes to next the requests that are within the limits, with the decision in their
// context, and answers the others: 429 over a limit, 503 if a [FailClosed] policy cannot be counted or the request's
// own deadline has passed, and 499, for logs, if the client has left. It panics if next is nil.
//
// A request that has passed this Limiter before is not counted again. Of nested limiters, the header fields tell of all,
// and what an inner one refuses stays counted in the outer ones.
func (l *Limiter) Handler(next http.Handler) http.Handler {
	if next == nil {
		panic("ratelimit: Handler: next is nil")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		outer, _ := r.Context().Value(contextKey{}).(*passed)
		if l.skips(r) || outer.has(l) {
			next.ServeHTTP(w, r)
			return
		}
		d, own := l.check(r, nil)
		d = outer.join(d)
		l.config.Headers.write(w.Header(), d, time.Now)
		switch d.Outcome {
		case Refused:
			if l.config.Refused != nil {
				setRefusalHeaders(w.Header(), d)
				serve(l.config.Refused, w, r, passed{r.Context(), outer, l, d})
			} else {
				refuse(w, r, d)
				own.release()
			}
		case Unavailable:
			if l.config.Unavailable != nil {
				setRefusalHeaders(w.Header(), d)
				serve(l.config.Unavailable, w, r, passed{r.Context(), outer, l, d})
			} else {
				unavailable(w, r, d)
			}
		case Canceled:
			w.WriteHeader(statusClientClosedRequest)
		default:
			serve(next, w, r, passed{r.Context(), outer, l, d})
		}
	})
}

// serve calls a handler with a copy of the request that carries the decision.
func serve(handler http.Handler, w http.ResponseWriter, original *http.Request, p passed) {
	r := original.WithContext(&p)
	// What handlers put into the copy and others look for in the original: net/http removes the
	// temporary files of the form, and whoever is further out logs the pattern.
	defer func() {
		if r.MultipartForm != original.MultipartForm {
			original.MultipartForm = r.MultipartForm
		}
		if r.Pattern != original.Pattern {
			original.Pattern = r.Pattern
		}
	}()
	handler.ServeHTTP(w, r)
}

// statusClientClosedRequest is what nginx logs for a client that left before it was answered. A client
// only sees it if something else has canceled the request's context, such as a server's BaseContext that
// ends with the process.
const statusClientClosedRequest = 499

// Check decides on a request and counts it, and writes nothing. It waits for [Config].Deadline at most, or until that of
// the request's context. What [Config].Skip picks is Allowed.
func (l *Limiter) Check(r *http.Request) Decision {
	if l.skips(r) {
		return Decision{Outcome: Allowed}
	}
	d, _ := l.check(r, nil)
	return d
}

func (l *Limiter) skips(r *http.Request) bool { return l.config.Skip != nil && l.config.Skip(r) }

// check is Check of a request that is not skipped, under the keys given if there are any. If nobody has been told of the
// decision it also returns where that lies, for whoever lets go of it to release.
func (l *Limiter) check(r *http.Request, given []Key) (Decision, *single) {
	began := time.Now()
	hits, results, own := l.keys(r, given)
	d, ok := l.recall(hits, results, began)
	switch {
	case ok:
	case len(hits) == 0: // no policy has a limit for the caller
		d.Outcome, own = Allowed, nil
	default:
		d, own = l.ask(r.Context(), hits, results), nil
	}
	if err := ended(r.Context()); err != nil {
		d.end(err)
	}
	d.Elapsed = time.Since(began)
	for i := range d.Results {
		if r := &d.Results[i]; r.DryRun && r.Outcome == Refused {
			l.dryLog.Info("ratelimit: would have been refused", slog.String("policy", r.Policy), slog.String("key_kind", r.KeyKind))
		}
	}
	if l.config.OnDecision != nil {
		l.config.OnDecision(r, d)
		own = nil
	}
	return d, own
}

// A single is the hit and the result of a request that one policy applies to, in one allocation.
type single struct {
	hits     [1]Hit
	results  [1]Result
	refunded [1]atomic.Bool
}

// singles are for use again, so that a flood that is refused from memory makes little garbage.
var singles = sync.Pool{New: func() any { return new(single) }}

// release gives s back if there is one. Nobody may have it any more. What is in it will be written over, and was not
// refunded: the request was refused.
func (s *single) release() {
	if s != nil {
		singles.Put(s)
	}
}

// keys finds out who is calling and what the limits are: one hit and one result, still to be decided, for each
// policy that applies. If there is one policy, they lie in the single that it returns.
func (l *Limiter) keys(r *http.Request, given []Key) (hits []Hit, results []Result, own *single) {
	policies := *l.policies.Load()
	var refunded []atomic.Bool
	if len(policies) == 1 {
		own = singles.Get().(*single)
		hits, results, refunded = own.hits[:0], own.results[:0], own.refunded[:]
	} else {
		hits, results, refunded = make([]Hit, 0, len(policies)), make([]Result, 0, len(policies)), make([]atomic.Bool, len(policies))
	}
	for i := range policies {
		p := &policies[i]
		limit := l.limitOf(p, r)
		if limit == Unlimited() {
			continue
		}
		var key Key
		if given == nil {
			key = p.Key(r)
		} else {
			key = given[min(i, len(given)-1)]
		}
		if key.IsZero() {
			if p.Optional {
				continue
			}
			key = fallbackKey(r)
		}
		var bucket string
		if limit.Window == p.Limit.Window {
			bucket = p.memo.bucket(l.hasher, p.prefix, key)
		} else {
			bucket = l.hasher.bucket(bucketPrefix(p.Policy, limit.Window), key)
		}
		result := Result{
			Policy: p.Name, Bucket: bucket, Limit: limit, Cost: 1, KeyKind: key.Kind(), DryRun: p.DryRun,
			limiter: l, refunded: &refunded[i], onFailure: p.OnFailure, sliding: p.Sliding, givesBack: p.Cost != nil || p.Sliding,
		}
		if p.Cost != nil {
			result.Cost = min(max(p.Cost(r), 1), MaxRequests)
		}
		if l.config.PartitionKey {
			result.partitionKey = l.hasher.partitionKey(bucket)
		}
		hits = append(hits, Hit{Bucket: bucket, Window: limit.Window, N: result.Cost, Sliding: p.Sliding})
		results = append(results, result)
	}
	return hits, results, own
}

// recall refuses a request without asking the store, if one of its buckets is known to be over its limit
// already. Nothing is counted then. It reports false if the store has to be asked.
func (l *Limiter) recall(hits []Hit, results []Result, at time.Time) (Decision, bool) {
	refused := false
	for i := range hits {
		if results[i].DryRun {
			continue // to be counted, as what it refuses is not spared
		}
		c, end, ok := l.refusals.recall(hits[i].Bucket, at)
		c.Total += int64(hits[i].N)
		if ok && results[i].spent(c) > int64(results[i].Limit.Requests) {
			c.Left = end
			results[i].apply(c)
			results[i].Remembered = true
			refused = true
		}
	}
	if !refused {
		return Decision{}, false
	}
	for i := range results {
		if !results[i].Remembered {
			results[i].Outcome, results[i].spared = Allowed, true
		}
	}
	d := Decision{Results: results}
	d.conclude()
	return d, true
}

// ask decides by the store's counts of all policies at once, or without them if it fails.
func (l *Limiter) ask(parent context.Context, hits []Hit, results []Result) Decision {
	for i := range hits {
		results[i].lowered = l.refusals.lowered(hits[i].Bucket)
	}
	asked := time.Now()
	ctx := patience.New(parent, asked.Add(l.config.Deadline))
	defer ctx.End()
	counts, err := l.store.Add(ctx, hits)
	if err == nil {
		err = checkCounts(counts, hits)
	}
	switch {
	case err == nil:
		return l.decide(hits, results, counts, asked)
	case ended(parent) != nil:
		return Decision{Results: results, Err: err}
	default:
		return l.fail(hits, results, err)
	}
}

// checkCounts finds counts that cannot be right. A store that is not the limiter's own may return them, and would
// let everybody pass.
func checkCounts(counts []Count, hits []Hit) error {
	if err := checkNumber(counts, hits); err != nil {
		return err
	}
	for i, hit := range hits {
		if counts[i].Total < int64(hit.N) || counts[i].Previous < 0 {
			return fmt.Errorf("%w: it returned counts of %d, and %d before, for a hit of %d", ErrUnavailable, counts[i].Total, counts[i].Previous, hit.N)
		}
	}
	return nil
}

// checkNumber finds counts that are more or less than were asked for.
func checkNumber(counts []Count, hits []Hit) error {
	if len(counts) != len(hits) {
		return fmt.Errorf("%w: it returned %d counts for %d hits", ErrUnavailable, len(counts), len(hits))
	}
	return nil
}

// ended returns why the request's context has ended, or nil. Its deadline may have passed a moment before the
// context says so.
func ended(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && ctx.Err() == nil && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// decide compares the counts with the limits.
//
// A refused request is given back to all its policies if there are several, those that refuse it
// included. Otherwise a caller that hammers a narrow limit would use up a broad one that others share;
// and of a burst that both refuse, the broad one would keep what the narrow one has refused. What is
// left counted is what was admitted. So it is for a policy that gives back by itself, also with what one that is
// tried out would refuse: in the same window a cheaper request may still fit, or a later one.
func (l *Limiter) decide(hits []Hit, results []Result, counts []Count, asked time.Time) Decision {
	for i := range results {
		results[i].apply(counts[i])
	}
	d := Decision{Results: results}
	d.conclude()
	gives := givesBack(results)
	var charges []Charge
	for i := range results {
		r := &results[i]
		charge := Charge{Bucket: hits[i].Bucket, Start: counts[i].Start, N: hits[i].N}
		if d.Outcome == Refused && gives || r.Outcome == Refused && r.givesBack {
			charges = append(charges, charge)
		} else {
			r.charge = charge
		}
	}
	if len(charges) > 0 {
		l.giveBack(charges)
	}
	for i := range results {
		if r := &results[i]; (r.Remaining == 0 || r.Outcome == Refused) && !r.DryRun {
			l.refusals.remember(hits[i].Bucket, counts[i], asked, r.lowered, gives)
		}
	}
	return d
}

// giveBack takes charges off. The memory is told after the store: a call that is begun then is
// counted after they were taken off.
func (l *Limiter) giveBack(charges []Charge) {
	l.store.GiveBack(charges)
	for _, c := range charges {
		l.refusals.lower(c)
	}
}

// refund gives back what is charged to a policy.
func (l *Limiter) refund(r *Result) {
	if r.Local {
		l.local.GiveBack(r.charge.Bucket, r.charge.Start, r.charge.N)
		return
	}
	l.giveBack([]Charge{r.charge})
}
