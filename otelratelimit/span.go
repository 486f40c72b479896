package otelratelimit

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/krow/ratelimit"
)

// The attributes of spans, in addition to the outcome and the policy. The error has a key of its own, since error.type
// is for that of the whole request.
const (
	elapsedKey      = attribute.Key("ratelimit.elapsed")
	spanErrorKey    = attribute.Key("ratelimit.error")
	dryRunPolicyKey = attribute.Key("ratelimit.dry_run_policy")
)

// annotate puts a decision on the span of the request. failed is the error.type, if there was an error.
func annotate(ctx context.Context, d *ratelimit.Decision, failed string) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	attributes := make([]attribute.KeyValue, 0, 5)
	attributes = append(attributes, outcomeKey.String(string(d.Outcome)), elapsedKey.Float64(d.Elapsed.Seconds()))
	if failed != "" {
		attributes = append(attributes, spanErrorKey.String(failed))
	}
	if d.Outcome != ratelimit.Allowed {
		if r := first(d, false, d.Outcome); r != nil {
			attributes = append(attributes, policyKey.String(r.Policy))
		}
	}
	if r := first(d, true, ratelimit.Refused); r != nil {
		attributes = append(attributes, dryRunPolicyKey.String(r.Policy))
	}
	span.SetAttributes(attributes...)
}

// first returns the first result with an outcome, of policies that are dry runs or of others.
func first(d *ratelimit.Decision, dryRun bool, outcome ratelimit.Outcome) *ratelimit.Result {
	for i := range d.Results {
		if r := &d.Results[i]; r.DryRun == dryRun && r.Outcome == outcome {
			return r
		}
	}
	return nil
}
