package otelratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/migrations"
	"github.com/krow/ratelimit/otelratelimit"
	"github.com/krow/ratelimit/store"
)

func isOfDecisions(key string) bool {
	return strings.HasPrefix(key, "ratelimit.decision") || strings.HasPrefix(key, "ratelimit.store.errors")
}

// A statement shows how many buckets it counted, how much it added, and how it ended.
func TestFlush(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		database func(testing.TB) string
		failed   string
	}{
		"counted":  {testdb.New, ""},
		"no table": {testdb.Empty, "error.type=no_table"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, test.database(t), ratelimit.Policy{Name: "p", Limit: limit(1)})
			_, err := b.store.Add(t.Context(), []ratelimit.Hit{
				{Bucket: "a", Window: time.Hour, N: 1},
				{Bucket: "b", Window: time.Hour, N: 40},
			})
			if (err != nil) != (test.failed != "") {
				t.Fatalf("Add: %v", err)
			}
			want := map[string]int64{
				"ratelimit.store.flush.duration{" + test.failed + "}": 1,
				"ratelimit.store.flush.rows{}":                        1,
				"ratelimit.store.flush.hits{}":                        1,
			}
			if diff := cmp.Diff(want, collect(t, b.reader)); diff != "" {
				t.Errorf("measured (-want +got):\n%s", diff)
			}
			sums := make(map[string]int64)
			each(t, b.reader, func(name, _ string, _ int64, m metricdata.Metrics) {
				if data, ok := m.Data.(metricdata.Histogram[int64]); ok {
					sums[name] += data.DataPoints[0].Sum
				}
			})
			if diff := cmp.Diff(map[string]int64{"ratelimit.store.flush.rows": 2, "ratelimit.store.flush.hits": 41}, sums); diff != "" {
				t.Errorf("sizes (-want +got):\n%s", diff)
			}
		})
	}
}

// A sweep shows what it deleted, and why it ended early if it did.
func TestSweep(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		database func(testing.TB) string
		canceled bool
		want     map[string]int64
	}{
		"three rows": {
			database: testdb.New,
			want:     map[string]int64{"ratelimit.store.sweep.duration{}": 1, "ratelimit.store.sweep.deleted{}": 3},
		},
		"no table": {
			database: testdb.Empty,
			want:     map[string]int64{"ratelimit.store.sweep.duration{error.type=no_table}": 1},
		},
		"canceled": {
			database: testdb.New, canceled: true,
			want: map[string]int64{"ratelimit.store.sweep.duration{error.type=canceled}": 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := test.database(t)
			b := newBed(t, url, ratelimit.Policy{Name: "p", Limit: limit(1)})
			if test.want["ratelimit.store.sweep.deleted{}"] > 0 {
				_, err := testdb.Pool(t, url).Exec(t.Context(), `INSERT INTO rate_limits
					SELECT 'old ' || n, now() - interval '2 hours', 1, now() - interval '1 hour' FROM generate_series(1, 3) AS n`)
				if err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if test.canceled {
				cancel()
			}
			_, _ = b.store.Sweep(ctx) // its error is what is measured
			if diff := cmp.Diff(test.want, collect(t, b.reader)); diff != "" {
				t.Errorf("measured (-want +got):\n%s", diff)
			}
		})
	}
}

// The breaker counts as open while it is, and errors go on while no statement is sent.
func TestBreaker(t *testing.T) {
	t.Parallel()
	url := testdb.Empty(t)
	b := newBed(t, url, ratelimit.Policy{Name: "p", Limit: limit(1_000_000)})
	const requests = 100
	for range requests {
		b.limiter.Check(request())
	}
	got := collect(t, b.reader)
	if n := got["ratelimit.store.breaker.open{}"]; n != 1 {
		t.Errorf("open breakers: %d, want 1", n)
	}
	if n := got["ratelimit.store.errors{error.type=no_table}"]; n != requests {
		t.Errorf("errors: %d, want %d", n, requests)
	}
	if n := got["ratelimit.store.flush.duration{error.type=no_table}"]; n >= requests/2 {
		t.Errorf("statements: %d, want a few", n)
	}
	if err := migrations.Up(t.Context(), testdb.Pool(t, url)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the store counts again", func() bool { return b.limiter.Check(request()).Err == nil })
	if n := collect(t, b.reader)["ratelimit.store.breaker.open{}"]; n != 0 {
		t.Errorf("open breakers afterwards: %d, want 0", n)
	}
}

// Whatever the error, error.type is one of few.
func TestErrorTypes(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"":                       nil,
		"error.type=timeout":     fmt.Errorf("%w: %w", ratelimit.ErrTimeout, context.DeadlineExceeded),
		"error.type=unavailable": fmt.Errorf("%w: at 192.0.2.7", ratelimit.ErrUnavailable),
		"error.type=read_only":   fmt.Errorf("%w: standby", ratelimit.ErrReadOnly),
		"error.type=no_table":    fmt.Errorf("%w: rate_limits", ratelimit.ErrNoTable),
		"error.type=invalid_hit": fmt.Errorf("%w: bucket", ratelimit.ErrInvalidHit),
		"error.type=deadline":    fmt.Errorf("ended: %w", context.DeadlineExceeded),
		"error.type=canceled":    fmt.Errorf("%w: %w", ratelimit.ErrUnavailable, context.Canceled),
		"error.type=_OTHER":      errors.New("of a store of somebody else"),
	} {
		reader := metric.NewManualReader()
		m := newMetrics(t, otelratelimit.Config{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))})
		m.OnFlush(store.FlushStats{Err: err})
		if got := collect(t, reader); got["ratelimit.store.flush.duration{"+want+"}"] != 1 {
			t.Errorf("%v: measured %v, want %q", err, got, want)
		}
	}
}
