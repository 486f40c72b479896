package otelratelimit_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/otelratelimit"
	"github.com/krow/ratelimit/store"
)

// patience is how long a test waits for what will come soon unless something is broken.
const patience = 30 * time.Second

var silent = slog.New(slog.DiscardHandler)

// A bed is a service whose limiter and store report to a provider of the test.
type bed struct {
	metrics *otelratelimit.Metrics
	store   *store.Postgres
	reader  *metric.ManualReader
	limiter *ratelimit.Limiter
}

// newBed returns a bed on a database. Its store gets much more time than by default, for the machines that run tests
// are busy, and sweeps only when it is told to.
func newBed(t *testing.T, url string, policies ...ratelimit.Policy) *bed {
	t.Helper()
	b := &bed{reader: metric.NewManualReader()}
	b.metrics = newMetrics(t, otelratelimit.Config{MeterProvider: metric.NewMeterProvider(metric.WithReader(b.reader))})
	var err error
	b.store, err = store.NewPostgres(testdb.Pool(t, url), store.PostgresConfig{
		Timeout:     patience,
		ManualSweep: true,
		OnFlush:     b.metrics.OnFlush,
		OnSweep:     b.metrics.OnSweep,
		OnBreaker:   b.metrics.OnBreaker,
		Logger:      silent,
	})
	if err != nil {
		t.Fatal(err)
	}
	b.limiter, err = ratelimit.New(b.store, ratelimit.Config{
		Policies:   policies,
		Deadline:   patience,
		OnDecision: b.metrics.OnDecision,
		Logger:     silent,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func newMetrics(t testing.TB, config otelratelimit.Config) *otelratelimit.Metrics {
	t.Helper()
	m, err := otelratelimit.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// limit is one whose window does not end while a test runs, unless that happens to be in one of the few seconds a year
// in which it does.
func limit(requests int) ratelimit.Limit {
	return ratelimit.Limit{Requests: requests, Window: ratelimit.MaxWindow}
}

func request() *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "192.0.2.7:1234"
	return r
}

// collect returns what a reader has, as name{attributes}: the value of a counter, and the count of a histogram. Counters
// that are at zero are left out.
func collect(t *testing.T, reader metric.Reader) map[string]int64 {
	t.Helper()
	values := make(map[string]int64)
	each(t, reader, func(name, attributes string, n int64, _ metricdata.Metrics) {
		if n != 0 {
			values[name+"{"+attributes+"}"] = n
		}
	})
	return values
}

// each calls f with all that a reader has.
func each(t *testing.T, reader metric.Reader, f func(name, attributes string, n int64, m metricdata.Metrics)) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					f(m.Name, text(p.Attributes), p.Value, m)
				}
			case metricdata.Histogram[int64]:
				for _, p := range data.DataPoints {
					f(m.Name, text(p.Attributes), int64(p.Count), m)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					f(m.Name, text(p.Attributes), int64(p.Count), m)
				}
			default:
				t.Fatalf("%s is a %T", m.Name, data)
			}
		}
	}
}

func text(attributes attribute.Set) string {
	var parts []string
	for _, kv := range attributes.ToSlice() {
		parts = append(parts, fmt.Sprintf("%s=%s", kv.Key, kv.Value.String()))
	}
	return strings.Join(parts, ",")
}

// eventually waits until f is true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		if time.Now().After(deadline) {
			t.Fatalf("still not, after %v: %s", patience, what)
		}
		<-tick.C
	}
}
