package otelratelimit_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/otelratelimit"
)

// Each thing that can become of a request shows under its own attributes, and once.
func TestDecisions(t *testing.T) {
	t.Parallel()
	policy := func(name string, requests int) ratelimit.Policy {
		return ratelimit.Policy{Name: name, Limit: limit(requests)}
	}
	dry := policy("dry", 0)
	dry.DryRun = true
	failing := func(mode ratelimit.FailureMode) ratelimit.Policy {
		p := policy("p", 1)
		p.OnFailure = mode
		return p
	}
	for name, test := range map[string]struct {
		database func(testing.TB) string
		policies []ratelimit.Policy
		context  func(context.Context) (context.Context, context.CancelFunc)
		requests int
		want     map[string]int64
	}{
		"allowed": {
			database: testdb.New, policies: []ratelimit.Policy{policy("p", 10)}, requests: 3,
			want: map[string]int64{
				"ratelimit.decision.duration{ratelimit.outcome=allowed}":                                                           3,
				"ratelimit.decisions{ratelimit.dry_run=false,ratelimit.outcome=allowed,ratelimit.policy=p,ratelimit.source=store}": 3,
			},
		},
		"refused by the store, then from memory": {
			database: testdb.New, policies: []ratelimit.Policy{policy("p", 0)}, requests: 3,
			want: map[string]int64{
				"ratelimit.decision.duration{ratelimit.outcome=refused}":                                                            3,
				"ratelimit.decisions{ratelimit.dry_run=false,ratelimit.outcome=refused,ratelimit.policy=p,ratelimit.source=store}":  1,
				"ratelimit.decisions{ratelimit.dry_run=false,ratelimit.outcome=refused,ratelimit.policy=p,ratelimit.source=memory}": 2,
			},
		},
		"a policy beside one that refuses, and one that is tried out": {
			database: testdb.New, policies: []ratelimit.Policy{policy("wide", 10), policy("narrow", 0), dry}, requests: 1,
			want: map[string]int64{
				"ratelimit.decision.duration{ratelimit.outcome=refused}":                                                                1,
				"ratelimit.decisions{ratelimit.dry_run=false,ratelimit.outcome=allowed,ratelimit.policy=wide,ratelimit.source=store}":   1,
				"ratelimit.decisions{ratelimit.dry_run=false,ratelimit.outcome=refused,ratelimit.policy=narrow,ratelimit.source=store}": 1,
				"ratelimit.decisions{ratelimit.dry_run=true,ratelimit.outcome=refused,ratelimit.policy=dry,ratelimit.source=store}":     1,
			},
		},
		"tried out": {
			database: testdb.New, policies: []ratelimit.Policy{dry}, requests: 2,
			want: map[string]int64{
				"ratelimit.decision.duration{ratelimit.outcome=allowed}":                                                            2,
				"ratelimit.decisions{ratelimit.dry_run=true,ratelimit.outcome=refused,ratelimit.policy=dry,ratelimit.source=store}": 2,
			},
		},
		"no table, open": {
			database: testdb.Empty, policies: []ratelimit.Policy{failing(ratelimit.FailOpen)}, requests: 5,
			want: map[string]int64{
				"ratelimit.decision.duration{ratelimit.outcome=allowed}":                                                          5,
				"ratelimit.decisions{ratelimit.dry_run=false,ratelimit.outcome=allowed,ratelimit.policy=p,ratelimit.source=none}": 5,
				"ratelimit.store.errors{error.type=no_table}":                                                                     5,
			},
		},
		"no table, closed": {
			database: testdb.Empty, policies: []ratelimit.Policy{failing(ratelimit.FailClosed)}, requests: 5,
			want: map[string]int64{
				"ratelimit.decision.duration{ratelimit.outcome=unavailable}":                                                          5,
				"ratelimit.decisions{ratelimit.dry_run=false,ratelimit.outcome=unavailable,ratelimit.policy=p,ratelimit.source=none}": 5,
				"ratelimit.store.errors{error.type=no_table}":                                                                         5,
			},
		},
		"no table, local": {
			database: testdb.Empty, policies: []ratelimit.Policy{failing(ratelimit.FailLocal)}, requests: 3,
			want: map[string]int64{
				"ratelimit.decision.duration{ratelimit.outcome=allowed}":                                                           1,
				"ratelimit.decision.duration{ratelimit.outcome=refused}":                                                           2,
				"ratelimit.decisions{ratelimit.dry_run=false,ratelimit.outcome=allowed,ratelimit.policy=p,ratelimit.source=local}": 1,
				"ratelimit.decisions{ratelimit.dry_run=false,ratelimit.outcome=refused,ratelimit.policy=p,ratelimit.source=local}": 2,
				"ratelimit.store.errors{error.type=no_table}":                                                                      3,
			},
		},
		"the client has left": {
			database: testdb.New, policies: []ratelimit.Policy{policy("p", 10)}, requests: 1,
			context: func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				cancel()
				return ctx, cancel
			},
			want: map[string]int64{
				"ratelimit.decision.duration{ratelimit.outcome=canceled}":                                                          1,
				"ratelimit.decisions{ratelimit.dry_run=false,ratelimit.outcome=allowed,ratelimit.policy=p,ratelimit.source=store}": 1,
			},
		},
		"the request's own deadline has passed": {
			database: testdb.New, policies: []ratelimit.Policy{policy("p", 10)}, requests: 1,
			context: func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithDeadline(ctx, time.Unix(0, 0))
			},
			want: map[string]int64{
				"ratelimit.decision.duration{ratelimit.outcome=unavailable}":                                                          1,
				"ratelimit.decisions{ratelimit.dry_run=false,ratelimit.outcome=unavailable,ratelimit.policy=p,ratelimit.source=none}": 1,
				"ratelimit.store.errors{error.type=deadline}":                                                                         1,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, test.database(t), test.policies...)
			ctx := t.Context()
			if test.context != nil {
				var cancel context.CancelFunc
				ctx, cancel = test.context(ctx)
				defer cancel()
			}
			for range test.requests {
				b.limiter.Check(request().WithContext(ctx))
			}
			got := collect(t, b.reader)
			for key := range got {
				if !isOfDecisions(key) {
					delete(got, key)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("measured (-want +got):\n%s", diff)
			}
		})
	}
}

// Policies that are met for the first time by many requests at once are counted exactly.
func TestPoliciesMetAtOnce(t *testing.T) {
	t.Parallel()
	reader := metric.NewManualReader()
	m := newMetrics(t, otelratelimit.Config{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))})
	names := []string{"a", "b", "c", "d"}
	var results []ratelimit.Result
	want := make(map[string]int64)
	for _, name := range names {
		results = append(results, ratelimit.Result{Policy: name, Outcome: ratelimit.Refused, Counted: true})
		want["ratelimit.decisions{ratelimit.dry_run=false,ratelimit.outcome=refused,ratelimit.policy="+name+",ratelimit.source=store}"] = 80
	}
	want["ratelimit.decision.duration{ratelimit.outcome=refused}"] = 80
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				m.OnDecision(request(), ratelimit.Decision{Outcome: ratelimit.Refused, Results: results})
			}
		})
	}
	wg.Wait()
	if diff := cmp.Diff(want, collect(t, reader)); diff != "" {
		t.Errorf("measured (-want +got):\n%s", diff)
	}
}
