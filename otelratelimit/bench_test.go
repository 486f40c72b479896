package otelratelimit_test

import (
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/otelratelimit"
)

var ofTwoPolicies = ratelimit.Decision{
	Outcome: ratelimit.Refused,
	Elapsed: 200 * time.Microsecond,
	Results: []ratelimit.Result{
		{Policy: "ip", Outcome: ratelimit.Allowed, Counted: true},
		{Policy: "token", Outcome: ratelimit.Refused, Counted: true},
	},
}

func TestDecisionAllocatesNothing(t *testing.T) { // not beside others, whose allocations would count
	m := newMetrics(t, otelratelimit.Config{MeterProvider: metric.NewMeterProvider(metric.WithReader(metric.NewManualReader()))})
	r := request()
	if n := testing.AllocsPerRun(1000, func() { m.OnDecision(r, ofTwoPolicies) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// BenchmarkOnDecision is what a decision of two policies costs, without a span.
//
//	go test -run='^$' -bench=OnDecision .
func BenchmarkOnDecision(b *testing.B) {
	r := request()
	sdk := metric.NewMeterProvider(metric.WithReader(metric.NewManualReader()))
	for name, config := range map[string]otelratelimit.Config{
		"sdk":  {MeterProvider: sdk},
		"noop": {MeterProvider: noop.NewMeterProvider()},
	} {
		m := newMetrics(b, config)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m.OnDecision(r, ofTwoPolicies)
			}
		})
		b.Run(name+" at once", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					m.OnDecision(r, ofTwoPolicies)
				}
			})
		})
	}
}
