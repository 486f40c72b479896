package ratelimit

import (
	"context"
	"slices"
)

type contextKey struct{}

// passed is the context of a request that a limiter has decided on. It leads to the limiters that the request
// has passed, the last one first, and to what they said together.
type passed struct {
	context.Context
	outer    *passed
	limiter  *Limiter
	decision Decision
}

// Value returns p itself for the key of this package: a context and what it carries are one allocation.
func (p *passed) Value(key any) any {
	if key == (contextKey{}) {
		return p
	}
	return p.Context.Value(key)
}

// has reports whether the request has passed l.
func (p *passed) has(l *Limiter) bool {
	for ; p != nil; p = p.outer {
		if p.limiter == l {
			return true
		}
	}
	return false
}

// join returns d together with what the limiters further out said, which let the request pass.
func (p *passed) join(d Decision) Decision {
	if p == nil {
		return d
	}
	d.Results = slices.Concat(p.decision.Results, d.Results)
	d.Elapsed += p.decision.Elapsed
	if d.Err == nil {
		d.Err = p.decision.Err
	}
	return d
}

// FromContext returns the decision of all limiters that a request has passed, by its context, and whether there is one.
func FromContext(ctx context.Context) (Decision, bool) {
	p, _ := ctx.Value(contextKey{}).(*passed)
	if p == nil {
		return Decision{}, false
	}
	return p.decision, true
}
