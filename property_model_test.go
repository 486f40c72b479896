package ratelimit_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"math"
	"math/big"
	"sort"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/krow/ratelimit"
)

// This file says what limiters must decide, with maps and loops and without a thought for speed. The
// property tests compare it with what they do decide.

// A bucket is what is counted together. A span is one window of it.
type (
	bucket struct {
		scope, kind, subject string
		window               time.Duration
		sliding              bool
	}
	span struct {
		bucket
		number int64
	}
)

// row is the bucket's name in the store, as the design has it.
func (b bucket) row() string {
	return fmt.Sprintf("%s:%s:%x", b.scope, b.kind, sha256.Sum256([]byte(b.subject)))
}

// before is the window before.
func (s span) before() span { return span{s.bucket, s.number - 1} }

// expired reports whether nobody asks for the window any more, when so many have ended.
func (s span) expired(ended int64) bool {
	return s.number < ended && !s.sliding || s.number < ended-1
}

// A model is a store and what has been seen of it.
type model struct {
	window func(time.Duration) (number int64, left time.Duration) // by the store's clock
	local  func(time.Duration) (number int64, left time.Duration) // by the limiters' clock
	// exact says that time is the test's own. Otherwise nobody can tell from outside when a limiter has forgotten
	// a refusal: it may refuse from memory what it has any reason to, but need not.
	exact    bool
	counts   map[span]int
	admitted map[span]int // since the last reset, by count
	limits   map[span]int // the highest under which one was admitted
}

func (m *model) reset() {
	m.counts, m.admitted, m.limits = make(map[span]int), make(map[span]int), make(map[span]int)
}

// forget is what an instance does that resets buckets: below zero, whoever was asked before knows nothing of them.
func (m *model) forget(p *instance, hits []charged) {
	for _, h := range hits {
		for _, counts := range []map[span]int{m.counts, m.admitted, m.limits, p.local} {
			maps.DeleteFunc(counts, func(s span, _ int) bool { return s.bucket == h.bucket })
		}
		p.gaveBack[h.bucket] += math.MaxInt32
		if k, ok := p.known[h.bucket]; ok {
			k.least -= math.MaxInt32
			p.known[h.bucket] = k
		}
	}
}

// gave is what an instance knows when something was given back to a window.
func (p *instance) gave(s span, n int) {
	p.gaveBack[s.bucket] += n
	if k, ok := p.known[s.bucket]; ok { // of whatever window: to know too little is no harm
		k.least -= n
		if k.number != s.number {
			k.previous -= n
		}
		p.known[s.bucket] = k
	}
}

// An instance is a limiter.
type instance struct {
	rules    []rule
	known    map[bucket]knowledge
	gaveBack map[bucket]int
	local    map[span]int
}

// A knowledge is what a limiter knows of a bucket that it saw without anything left: that the window has counted
// at least so many, and the one before, until then. It ends at the one time at the earliest and the other at the latest.
type knowledge struct {
	number          int64
	least, previous int
	until           time.Time
	first, last     time.Time
}

func newInstance(rules []rule) *instance {
	return &instance{rules, make(map[bucket]knowledge), make(map[bucket]int), make(map[span]int)}
}

// An inquiry is a request on its way through a limiter, and what must be decided.
type inquiry struct {
	*instance
	began  time.Time
	gone   bool // its client has left
	asks   bool // the store is asked
	hits   []charged
	want   ratelimit.Decision
	counts []int
	owes   bool // something is given back
}

// A charged is one policy's part of an inquiry.
type charged struct {
	rule
	span
	n        int
	left     time.Duration
	previous int // what the window before has counted
	gaveBack int // of the bucket before the store was asked
}

// givesBack reports whether what the policy refuses is given back even if it is alone.
func (h charged) givesBack() bool { return h.Cost != nil || h.Sliding }

// spent is how much of the limit is spent if so much is counted. Of the window before remains the part that is left
// of this one, and any fraction is one more.
func (h charged) spent(count, previous int, left time.Duration) int {
	if !h.Sliding {
		return count
	}
	part := big.NewRat(int64(left), int64(h.window))
	part.Mul(part, big.NewRat(int64(max(0, min(previous, h.Limit.Requests))), 1))
	whole, rest := new(big.Int).QuoRem(part.Num(), part.Denom(), new(big.Int))
	return count + int(whole.Int64()) + rest.Sign()
}

// wait is how long it takes until n fit in a sliding window, found by looking.
func (h charged) wait(count, previous int, left time.Duration, n int) time.Duration {
	// What was not admitted is given back.
	count = max(0, min(count, h.Limit.Requests-h.spent(0, previous, left)))
	return time.Duration(sort.Search(int(left+h.window), func(d int) bool {
		switch d := time.Duration(d); {
		case d < left:
			return h.spent(count+n, previous, left-d) <= h.Limit.Requests
		default:
			return h.spent(n, count, left+h.window-d) <= h.Limit.Requests
		}
	}))
}

// hits returns what a caller's request is counted in. A caller without the key is counted as its peer.
func (p *instance) hits(c caller) []charged {
	var hits []charged
	for _, r := range p.rules {
		if r.Limit = r.limit(c); r.Limit == ratelimit.Unlimited() {
			continue
		}
		kind, subject := r.who(c)
		switch {
		case subject != "":
		case r.Optional:
			continue
		case c.addr != "":
			kind, subject = "peer", c.addr
		default:
			kind, subject = "none", "no address"
		}
		_, window, _ := strings.Cut(r.Limit.String(), "/")
		if r.Sliding {
			window += "-sliding"
		}
		b := bucket{r.Name + "/" + window, kind, subject, r.Limit.Window, r.Sliding}
		n := 1
		if r.Cost != nil {
			n = c.cost
		}
		hits = append(hits, charged{rule: r, span: span{bucket: b}, n: n, gaveBack: p.gaveBack[b]})
	}
	return hits
}

// begin decides from memory, if that refuses. Where time is not exact, got are the results to be explained.
func (m *model) begin(p *instance, c caller, gone bool, now time.Time, got []ratelimit.Result) *inquiry {
	q := &inquiry{instance: p, began: now, gone: gone, asks: true, hits: p.hits(c)}
	q.want.Results = make([]ratelimit.Result, len(q.hits))
	for i, h := range q.hits {
		r := &q.want.Results[i]
		*r = ratelimit.Result{Policy: h.Name, Bucket: h.row(), Limit: h.Limit, Cost: h.n, KeyKind: h.kind, DryRun: h.DryRun}
		k, ok := p.known[h.bucket]
		fresh := now.Before(k.until)
		if !m.exact {
			fresh = i < len(got) && got[i].Remembered
		}
		if ok && fresh && h.spent(k.least+h.n, k.previous, k.first.Sub(now)) > h.Limit.Requests {
			h.left, h.previous = k.last.Sub(now), k.previous
			decide(r, h, k.least+h.n)
			r.Remembered = true
			if !m.exact && got[i].Remaining < h.n {
				r.Remaining = got[i].Remaining
			}
			if !m.exact && h.Sliding && got[i].Reset <= r.Reset+h.window {
				r.Reset = got[i].Reset // it may know of more that was counted
			}
			q.asks = false
		}
	}
	q.asks = q.asks && len(q.hits) > 0
	if !q.asks {
		for i := range q.want.Results {
			if r := &q.want.Results[i]; !r.Remembered {
				r.Outcome = ratelimit.Allowed
			}
		}
		q.conclude()
	}
	return q
}

// count counts the request, whatever the limits.
func (m *model) count(q *inquiry) {
	for i := range q.hits {
		h := &q.hits[i]
		h.number, h.left = m.window(h.window)
		m.counts[h.span] += h.n
		h.previous = m.counts[h.before()]
		q.counts = append(q.counts, m.counts[h.span])
	}
}

// answer decides when the store has answered, or failed if err is not nil.
func (m *model) answer(q *inquiry, now time.Time, err error) {
	if err != nil {
		q.fail(m, err)
		return
	}
	for i, h := range q.hits {
		decide(&q.want.Results[i], h, q.counts[i])
	}
	q.conclude()
	gives := givesBack(q.hits)
	for i, h := range q.hits {
		if !(q.refused() && gives) && !(h.givesBack() && q.want.Results[i].Outcome == ratelimit.Refused) {
			continue
		}
		q.owes = true
		m.counts[h.span] -= h.n
		q.gave(h.span, h.n)
	}
	for i, h := range q.hits {
		if h.spent(q.counts[i], h.previous, h.left) < h.Limit.Requests || h.DryRun {
			continue
		}
		// What was given back while the store was asked may have been in its count.
		least := q.counts[i] - (q.gaveBack[h.bucket] - h.gaveBack)
		k, ok := q.known[h.bucket]
		ok = ok && k.number == h.number
		if ok && (q.began.Before(k.until) || !m.exact) {
			if least > k.least {
				k.least, k.previous = least, h.previous
			}
			q.known[h.bucket] = k
			continue
		}
		memory := 5 * time.Second
		if gives && !ok {
			memory = time.Second / 2
		}
		q.known[h.bucket] = knowledge{h.number, least, h.previous, q.began.Add(min(memory, h.left)), q.began.Add(h.left), now.Add(h.left)}
	}
}

// refund gives back what an allowed request has spent: all but what was given back already.
func (m *model) refund(q *inquiry) {
	for i, h := range q.hits {
		r := q.want.Results[i]
		switch {
		case !r.Counted || h.givesBack() && r.Outcome == ratelimit.Refused:
		case r.Local:
			q.local[h.span] -= h.n
		default:
			m.counts[h.span] -= h.n
			if !h.DryRun {
				m.admitted[h.span] -= h.n
			}
			q.gave(h.span, h.n)
		}
	}
}

// fail decides by the failure modes.
func (q *inquiry) fail(m *model, err error) {
	q.want.Err = err
	if q.gone {
		q.conclude()
		return
	}
	for i := range q.hits {
		h, r := &q.hits[i], &q.want.Results[i]
		switch h.OnFailure {
		case ratelimit.FailOpen:
			r.Outcome = ratelimit.Allowed
		case ratelimit.FailClosed:
			r.Outcome = ratelimit.Unavailable
		case ratelimit.FailLocal:
			h.number, h.left = m.local(h.window)
			q.local[h.span] += h.n
			h.previous = q.local[h.before()]
			decide(r, *h, q.local[h.span])
			r.Local = true
		}
	}
	q.conclude()
	for i, h := range q.hits {
		r := q.want.Results[i]
		if r.Local && (q.want.Outcome != ratelimit.Allowed && givesBack(q.hits) || h.givesBack() && r.Outcome == ratelimit.Refused) {
			q.local[h.span] -= h.n
		}
	}
}

// givesBack reports whether what is refused is given back.
func givesBack(hits []charged) bool { return len(hits) > 1 || len(hits) == 1 && hits[0].givesBack() }

// decide is one policy's word on a count.
func decide(r *ratelimit.Result, h charged, count int) {
	r.Counted, r.Outcome = true, ratelimit.Allowed
	next := 1
	if h.spent(count, h.previous, h.left) > h.Limit.Requests {
		r.Outcome = ratelimit.Refused
		count -= h.n
		next = h.n
	}
	r.Remaining, r.Reset = max(0, h.Limit.Requests-h.spent(count, h.previous, h.left)), h.left
	if h.Sliding && r.Remaining < next {
		r.Reset = h.wait(count, h.previous, h.left, next)
	}
}

func (q *inquiry) refused() bool {
	for _, r := range q.want.Results {
		if r.Outcome == ratelimit.Refused && !r.DryRun {
			return true
		}
	}
	return false
}

// conclude puts the policies' words together. A client that has left is not served.
func (q *inquiry) conclude() {
	d := &q.want
	d.Outcome = ratelimit.Allowed
	for _, r := range d.Results {
		if r.Outcome == ratelimit.Unavailable && !r.DryRun {
			d.Outcome, d.RetryAfter = ratelimit.Unavailable, time.Second
		}
	}
	if q.refused() {
		d.Outcome, d.RetryAfter = ratelimit.Refused, 0
		for _, r := range d.Results {
			if r.Outcome == ratelimit.Refused && !r.DryRun {
				d.RetryAfter = max(d.RetryAfter, r.Reset)
			}
		}
	}
	if !q.gone {
		return
	}
	d.Outcome, d.RetryAfter, d.Err = ratelimit.Canceled, 0, context.Canceled
	for i := range d.Results {
		if !d.Results[i].Counted {
			d.Results[i].Outcome = ratelimit.Canceled
		}
	}
}

// admit notes what was decided: whatever has gone before, no limit admits more than it says, by count.
func (m *model) admit(t *rapid.T, hits []charged, got ratelimit.Decision) {
	if got.Outcome != ratelimit.Allowed || got.Err != nil {
		return
	}
	for _, h := range hits {
		if h.DryRun {
			continue
		}
		m.admitted[h.span] += h.n
		m.limits[h.span] = max(m.limits[h.span], h.Limit.Requests)
		if m.admitted[h.span] > m.limits[h.span] {
			t.Errorf("%d were admitted in one window of %v, of %d", m.admitted[h.span], h.bucket, m.limits[h.span])
		}
	}
}
