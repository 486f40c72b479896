package otelratelimit

import (
	"context"
	"errors"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/krow/ratelimit"
)

// The attributes of measurements.
const (
	policyKey  = attribute.Key("ratelimit.policy")
	outcomeKey = attribute.Key("ratelimit.outcome")
	sourceKey  = attribute.Key("ratelimit.source")
	dryRunKey  = attribute.Key("ratelimit.dry_run")
	errorKey   = attribute.Key("error.type")
)

func isOwn(k attribute.Key) bool {
	return slices.Contains([]attribute.Key{policyKey, outcomeKey, sourceKey, dryRunKey, errorKey}, k)
}

var (
	outcomes = []ratelimit.Outcome{ratelimit.Allowed, ratelimit.Refused, ratelimit.Unavailable, ratelimit.Canceled}
	sources  = []string{"store", "memory", "local", "none"}
)

// sourceOf returns which of the sources a result comes from.
func sourceOf(r *ratelimit.Result) int {
	switch {
	case r.Remembered:
		return 1
	case r.Local:
		return 2
	case r.Counted:
		return 0
	}
	return 3
}

// policySets has what the counter of decisions is told of a policy: a set for each outcome, source and mode.
type policySets [4][4][2][]metric.AddOption

func (m *Metrics) newPolicySets(name string) *policySets {
	p := new(policySets)
	for i, outcome := range outcomes {
		for j, source := range sources {
			for k, dryRun := range []bool{false, true} {
				p[i][j][k] = m.set(policyKey.String(name), outcomeKey.String(string(outcome)),
					sourceKey.String(source), dryRunKey.Bool(dryRun)).add
			}
		}
	}
	return p
}

// of returns the set of a result, and nil for an outcome that there is not.
func (p *policySets) of(r *ratelimit.Result) []metric.AddOption {
	outcome := slices.Index(outcomes, r.Outcome)
	if outcome < 0 {
		return nil
	}
	dryRun := 0
	if r.DryRun {
		dryRun = 1
	}
	return p[outcome][sourceOf(r)][dryRun]
}

const (
	errorCanceled = "canceled"
	errorOther    = "_OTHER" // the fallback of the semantic conventions
)

// errorTypes are the values of error.type.
var errorTypes = []string{"timeout", "unavailable", "read_only", "no_table", "invalid_hit", "deadline", errorCanceled, errorOther}

// errorType returns the value of error.type for an error of a decision, a statement or a sweep, and "" for nil.
func errorType(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.Canceled):
		return errorCanceled
	case errors.Is(err, ratelimit.ErrTimeout):
		return "timeout"
	case errors.Is(err, ratelimit.ErrReadOnly):
		return "read_only"
	case errors.Is(err, ratelimit.ErrNoTable):
		return "no_table"
	case errors.Is(err, ratelimit.ErrInvalidHit):
		return "invalid_hit"
	case errors.Is(err, ratelimit.ErrUnavailable):
		return "unavailable"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline"
	}
	return errorOther
}
