package otelratelimit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/store"
)

// scope is the name of the instrumentation.
const scope = "github.com/krow/ratelimit/otelratelimit"

// Config is the configuration of [Metrics]. The zero value is ready to use.
type Config struct {
	// MeterProvider is where the measurements go. Defaults to the global one, [otel.GetMeterProvider].
	MeterProvider metric.MeterProvider

	// Attributes are added to all measurements, to tell the limiters or stores of one process apart that have Metrics of
	// their own. Their keys must differ from each other and from those of this package. Defaults to none.
	Attributes []attribute.KeyValue
}

// Metrics are instruments and the hooks that feed them. It is made by [New], has nothing to close, and is safe for
// concurrent use. Any number of limiters and stores may share one.
type Metrics struct {
	base []attribute.KeyValue

	decisions    metric.Int64Counter
	duration     metric.Float64Histogram
	storeErrors  metric.Int64Counter
	flush        metric.Float64Histogram
	flushRows    metric.Int64Histogram
	flushHits    metric.Int64Histogram
	breaker      metric.Int64UpDownCounter
	sweep        metric.Float64Histogram
	sweepDeleted metric.Int64Counter

	// What the instruments are told is made once, so that a decision allocates nothing.
	plain     set
	byOutcome map[ratelimit.Outcome]set
	byError   map[string]set // by error.type

	// policies has what is told of each policy. It is replaced by a larger one when a new name comes.
	policies atomic.Pointer[map[string]*policySets]
}

// A set is one set of attributes, as the two kinds of instruments take it.
type set struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

// New returns Metrics. All mistakes in the configuration are reported at once, and so are errors of the provider.
func New(config Config) (*Metrics, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	provider := config.MeterProvider
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	m := &Metrics{base: slices.Clone(config.Attributes)}
	if err := m.makeInstruments(provider.Meter(scope)); err != nil {
		return nil, fmt.Errorf("otelratelimit: making the instruments: %w", err)
	}
	m.plain = m.set()
	m.byOutcome = make(map[ratelimit.Outcome]set)
	for _, outcome := range outcomes {
		m.byOutcome[outcome] = m.set(outcomeKey.String(string(outcome)))
	}
	m.byError = map[string]set{"": m.plain}
	for _, name := range errorTypes {
		m.byError[name] = m.set(errorKey.String(name))
	}
	m.policies.Store(new(map[string]*policySets))
	m.begin()
	return m, nil
}

func (c Config) validate() error {
	var errs []error
	seen := make(map[attribute.Key]bool)
	for i, kv := range c.Attributes {
		switch {
		case !kv.Valid():
			errs = append(errs, fmt.Errorf("otelratelimit: Config.Attributes[%d] has no key, want one", i))
		case isOwn(kv.Key):
			errs = append(errs, fmt.Errorf("otelratelimit: Config.Attributes[%d] has the key %q, want one that is not this package's own", i, kv.Key))
		case seen[kv.Key]:
			errs = append(errs, fmt.Errorf("otelratelimit: Config.Attributes[%d] has the key %q once more, want different ones", i, kv.Key))
		}
		seen[kv.Key] = true
	}
	return errors.Join(errs...)
}

func (m *Metrics) set(with ...attribute.KeyValue) set {
	s := metric.WithAttributeSet(attribute.NewSet(append(with, m.base...)...))
	return set{[]metric.AddOption{s}, []metric.RecordOption{s}}
}

// begin has the counters start at zero: whoever looks at their increase would miss the first one of a counter that
// comes into being with it.
func (m *Metrics) begin() {
	ctx := context.Background()
	for _, name := range errorTypes {
		if name != errorCanceled {
			m.storeErrors.Add(ctx, 0, m.byError[name].add...)
		}
	}
	m.breaker.Add(ctx, 0, m.plain.add...)
	m.sweepDeleted.Add(ctx, 0, m.plain.add...)
}

// OnDecision is for [ratelimit.Config].OnDecision.
func (m *Metrics) OnDecision(r *http.Request, d ratelimit.Decision) {
	ctx := r.Context()
	m.duration.Record(ctx, d.Elapsed.Seconds(), m.byOutcome[d.Outcome].record...)
	for i := range d.Results {
		result := &d.Results[i]
		m.decisions.Add(ctx, 1, m.policy(result).of(result)...)
	}
	failed := errorType(d.Err)
	if failed != "" && failed != errorCanceled { // a client that left is no fault of the store
		m.storeErrors.Add(ctx, 1, m.byError[failed].add...)
	}
	annotate(ctx, &d, failed)
}

// OnFlush is for [store.PostgresConfig].OnFlush.
func (m *Metrics) OnFlush(s store.FlushStats) {
	ctx := context.Background()
	m.flush.Record(ctx, s.Elapsed.Seconds(), m.byError[errorType(s.Err)].record...)
	m.flushRows.Record(ctx, int64(s.Buckets), m.plain.record...)
	m.flushHits.Record(ctx, s.Hits, m.plain.record...)
}

// OnSweep is for [store.PostgresConfig].OnSweep.
func (m *Metrics) OnSweep(s store.SweepStats) {
	ctx := context.Background()
	m.sweep.Record(ctx, s.Elapsed.Seconds(), m.byError[errorType(s.Err)].record...)
	m.sweepDeleted.Add(ctx, s.Deleted, m.plain.add...)
}

// OnBreaker is for [store.PostgresConfig].OnBreaker.
func (m *Metrics) OnBreaker(open bool) {
	n := int64(-1)
	if open {
		n = 1
	}
	m.breaker.Add(context.Background(), n, m.plain.add...)
}

// policy returns the sets of a result's policy.
func (m *Metrics) policy(r *ratelimit.Result) *policySets {
	known := m.policies.Load()
	if p := (*known)[r.Policy]; p != nil {
		return p
	}
	p := m.newPolicySets(r.Policy)
	more := make(map[string]*policySets, len(*known)+1)
	maps.Copy(more, *known)
	more[r.Policy] = p
	m.policies.CompareAndSwap(known, &more) // if another was faster, the next request makes them again
	// As in begin: the first refusal is to show as an increase.
	m.decisions.Add(context.Background(), 0, p.of(&ratelimit.Result{Outcome: ratelimit.Refused, Counted: true, DryRun: r.DryRun})...)
	return p
}
