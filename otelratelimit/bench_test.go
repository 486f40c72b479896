package otelratelimit_test

import (
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/otelratelimit"
)

// BenchmarkOnDecision is what a decision of two policies costs, without a span.
//
//	go test -run='^$' -bench=OnDecision .
func BenchmarkOnDecision(b *testing.B) {
	decision := ratelimit.Decision{
		Outcome: ratelimit.Refused,
		Elapsed: 200 * time.Microsecond,
		Results: []ratelimit.Result{
			{Policy: "ip", Outcome: ratelimit.Allowed, Counted: true},
			{Policy: "token", Outcome: ratelimit.Refused, Counted: true},
		},
	}
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
				m.OnDecision(r, decision)
			}
		})
		b.Run(name+" at once", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					m.OnDecision(r, decision)
				}
			})
		})
	}
}
