package otelratelimit_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/otelratelimit"
	"github.com/krow/ratelimit/store"
)

func TestNewReportsAllMistakes(t *testing.T) {
	t.Parallel()
	_, err := otelratelimit.New(otelratelimit.Config{Attributes: []attribute.KeyValue{
		attribute.String("", "x"),
		attribute.String("ratelimit.outcome", "x"),
		attribute.String("error.type", "x"),
		attribute.String("limiter", "a"),
		attribute.String("limiter", "b"),
	}})
	if err == nil {
		t.Fatal("New returned no error")
	}
	var got []string
	for _, line := range strings.Split(err.Error(), "\n") {
		field, _, _ := strings.Cut(line, " has ")
		got = append(got, field)
	}
	want := []string{
		"otelratelimit: Config.Attributes[0]",
		"otelratelimit: Config.Attributes[1]",
		"otelratelimit: Config.Attributes[2]",
		"otelratelimit: Config.Attributes[4]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%v\n(-want +got):\n%s", err, diff)
	}
}

// Attributes are on all that is measured, and changing the slice later changes nothing.
func TestAttributes(t *testing.T) {
	t.Parallel()
	reader := metric.NewManualReader()
	attributes := []attribute.KeyValue{attribute.String("limiter", "oauth")}
	m := newMetrics(t, otelratelimit.Config{
		MeterProvider: metric.NewMeterProvider(metric.WithReader(reader)),
		Attributes:    attributes,
	})
	attributes[0] = attribute.String("limiter", "another")
	m.OnDecision(request(), ratelimit.Decision{
		Outcome: ratelimit.Allowed,
		Results: []ratelimit.Result{{Policy: "p", Outcome: ratelimit.Allowed}},
	})
	m.OnFlush(store.FlushStats{})
	m.OnSweep(store.SweepStats{})
	m.OnBreaker(true)
	names := make(map[string]bool)
	each(t, reader, func(name, attributes string, _ int64, _ metricdata.Metrics) {
		names[name] = true
		if !strings.Contains(attributes, "limiter=oauth") {
			t.Errorf("%s{%s} is without limiter=oauth", name, attributes)
		}
	})
	if len(names) != 9 {
		t.Errorf("measured %v, want all nine", names)
	}
}

// What an alert looks at is there, at zero, before the first fault.
func TestCountersBeginAtZero(t *testing.T) {
	t.Parallel()
	reader := metric.NewManualReader()
	m := newMetrics(t, otelratelimit.Config{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))})
	m.OnDecision(request(), ratelimit.Decision{
		Outcome: ratelimit.Allowed,
		Results: []ratelimit.Result{{Policy: "p", Outcome: ratelimit.Allowed, Counted: true}},
	})
	got := make(map[string]int64)
	each(t, reader, func(name, attributes string, n int64, _ metricdata.Metrics) { got[name+"{"+attributes+"}"] = n })
	want := map[string]int64{
		"ratelimit.decision.duration{ratelimit.outcome=allowed}":                                                           1,
		"ratelimit.decisions{ratelimit.dry_run=false,ratelimit.outcome=allowed,ratelimit.policy=p,ratelimit.source=store}": 1,
		"ratelimit.decisions{ratelimit.dry_run=false,ratelimit.outcome=refused,ratelimit.policy=p,ratelimit.source=store}": 0,
		"ratelimit.store.breaker.open{}":                 0,
		"ratelimit.store.errors{error.type=_OTHER}":      0,
		"ratelimit.store.errors{error.type=deadline}":    0,
		"ratelimit.store.errors{error.type=invalid_hit}": 0,
		"ratelimit.store.errors{error.type=no_table}":    0,
		"ratelimit.store.errors{error.type=read_only}":   0,
		"ratelimit.store.errors{error.type=timeout}":     0,
		"ratelimit.store.errors{error.type=unavailable}": 0,
		"ratelimit.store.sweep.deleted{}":                0,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("measured (-want +got):\n%s", diff)
	}
}

func TestGlobalProvider(t *testing.T) { // the only test that may set it
	reader := metric.NewManualReader()
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))
	newMetrics(t, otelratelimit.Config{}).OnBreaker(true)
	if n := collect(t, reader)["ratelimit.store.breaker.open{}"]; n != 1 {
		t.Errorf("the global provider got %d, want 1", n)
	}
}
