package ratelimit

import (
	"errors"
	"log/slog"
	"net/http"
	"time"
)

// A policy is a [Policy] and what New derives from it.
type policy struct {
	Policy
	prefix string // of its buckets: the name, the window and the mode
	memo   *memo
}

// SetPolicies replaces the policies, for whole requests. What has kept its name, window and mode goes on with its counts.
// It returns all mistakes, by field, and then changes nothing.
func (l *Limiter) SetPolicies(policies []Policy) error {
	if err := errors.Join(validatePolicies("ratelimit: SetPolicies: policies", policies)...); err != nil {
		return err
	}
	l.usePolicies(policies)
	return nil
}

// Policies returns a copy of the policies in force. Key is set in all of them.
func (l *Limiter) Policies() []Policy {
	all := *l.policies.Load()
	policies := make([]Policy, len(all))
	for i := range all {
		policies[i] = all[i].Policy
	}
	return policies
}

func (l *Limiter) usePolicies(policies []Policy) {
	all := make([]policy, 0, len(policies))
	for _, p := range policies {
		if p.Key == nil {
			p.Key = ClientIP
		}
		all = append(all, policy{p, bucketPrefix(p, p.Limit.Window), newMemo()})
	}
	l.policies.Store(&all)
}

// bucketPrefix is what the buckets of a policy and a window begin with. Rows of sliding windows live longer than
// others, so that the two modes cannot share buckets.
func bucketPrefix(p Policy, window time.Duration) string {
	if p.Sliding {
		return p.Name + "/" + windowText(window) + "-sliding:"
	}
	return p.Name + "/" + windowText(window) + ":"
}

// limitOf returns the limit that the policy has for a request.
func (l *Limiter) limitOf(p *policy, r *http.Request) Limit {
	if p.LimitFor == nil {
		return p.Limit
	}
	limit := p.LimitFor(r)
	if limit == (Limit{}) {
		return p.Limit
	}
	if mistake := limit.mistake(); mistake != "" {
		l.log.Error("ratelimit: LimitFor returned a limit that is not valid", errors.New(mistake), slog.String("policy", p.Name))
		return p.Limit
	}
	return limit
}
