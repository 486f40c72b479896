package otelratelimit

import (
	"errors"

	"go.opentelemetry.io/otel/metric"
)

// The boundaries of histograms are advice to the provider, whose views may have others. The first are fine where
// decisions are: from a refusal that was remembered to the default deadline of 250 ms and what lies a little above it.
var (
	decisionSeconds = []float64{
		0.00001, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.3, 0.5, 1, 2.5, 5,
	}
	sweepSeconds = []float64{0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800}
	sizes        = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096}
)

func (m *Metrics) makeInstruments(meter metric.Meter) error {
	errs := make([]error, 9)
	m.decisions, errs[0] = meter.Int64Counter("ratelimit.decisions",
		metric.WithUnit("{request}"),
		metric.WithDescription("What each policy said of requests."))
	m.duration, errs[1] = meter.Float64Histogram("ratelimit.decision.duration",
		metric.WithUnit("s"),
		metric.WithDescription("How long decisions on requests took."),
		metric.WithExplicitBucketBoundaries(decisionSeconds...))
	m.storeErrors, errs[2] = meter.Int64Counter("ratelimit.store.errors",
		metric.WithUnit("{request}"),
		metric.WithDescription("Requests that the store did not count."))
	m.flush, errs[3] = meter.Float64Histogram("ratelimit.store.flush.duration",
		metric.WithUnit("s"),
		metric.WithDescription("How long counting statements took, the wait for a connection included."),
		metric.WithExplicitBucketBoundaries(decisionSeconds...))
	m.flushRows, errs[4] = meter.Int64Histogram("ratelimit.store.flush.rows",
		metric.WithUnit("{row}"),
		metric.WithDescription("How many buckets, each a row, counting statements counted."),
		metric.WithExplicitBucketBoundaries(sizes...))
	m.flushHits, errs[5] = meter.Int64Histogram("ratelimit.store.flush.hits",
		metric.WithUnit("{hit}"),
		metric.WithDescription("How much counting statements added to their buckets."),
		metric.WithExplicitBucketBoundaries(sizes...))
	m.breaker, errs[6] = meter.Int64UpDownCounter("ratelimit.store.breaker.open",
		metric.WithUnit("{store}"),
		metric.WithDescription("How many stores leave their database alone because it keeps failing."))
	m.sweep, errs[7] = meter.Float64Histogram("ratelimit.store.sweep.duration",
		metric.WithUnit("s"),
		metric.WithDescription("How long sweeps took, their rests included."),
		metric.WithExplicitBucketBoundaries(sweepSeconds...))
	m.sweepDeleted, errs[8] = meter.Int64Counter("ratelimit.store.sweep.deleted",
		metric.WithUnit("{row}"),
		metric.WithDescription("How many expired rows sweeps deleted."))
	return errors.Join(errs...)
}
