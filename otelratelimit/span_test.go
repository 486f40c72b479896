package otelratelimit_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
)

// serve sends a request through a middleware that has a span for it and then through the limiter, and returns what
// was put on the span but for the time it took, which is only looked at.
func serve(t *testing.T, limiter *ratelimit.Limiter, r *http.Request) map[string]string {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	tracer := trace.NewTracerProvider(trace.WithSpanProcessor(recorder)).Tracer("test")
	ctx, span := tracer.Start(r.Context(), "GET /")
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	limiter.Handler(next).ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx))
	span.End()
	spans := recorder.Ended()
	if len(spans) != 1 {
		t.Fatalf("%d spans, want that of the request alone", len(spans))
	}
	got := make(map[string]string)
	for _, kv := range spans[0].Attributes() {
		if kv.Key == "ratelimit.elapsed" {
			if s := kv.Value.AsFloat64(); s <= 0 || s > patience.Seconds() {
				t.Errorf("ratelimit.elapsed is %v s", s)
			}
			continue
		}
		got[string(kv.Key)] = kv.Value.String()
	}
	return got
}

func TestSpan(t *testing.T) {
	t.Parallel()
	wide := ratelimit.Policy{Name: "wide", Limit: limit(100)}
	narrow := ratelimit.Policy{Name: "narrow", Limit: limit(0)}
	dry := ratelimit.Policy{Name: "dry", Limit: limit(0), DryRun: true}
	closed := ratelimit.Policy{Name: "closed", Limit: limit(100), OnFailure: ratelimit.FailClosed}
	for name, test := range map[string]struct {
		database func(testing.TB) string
		policies []ratelimit.Policy
		want     map[string]string
	}{
		"allowed": {testdb.New, []ratelimit.Policy{wide}, map[string]string{"ratelimit.outcome": "allowed"}},
		"refused": {testdb.New, []ratelimit.Policy{wide, dry, narrow}, map[string]string{
			"ratelimit.outcome": "refused", "ratelimit.policy": "narrow", "ratelimit.dry_run_policy": "dry",
		}},
		"tried out": {testdb.New, []ratelimit.Policy{dry, wide}, map[string]string{
			"ratelimit.outcome": "allowed", "ratelimit.dry_run_policy": "dry",
		}},
		"open": {testdb.Empty, []ratelimit.Policy{wide}, map[string]string{
			"ratelimit.outcome": "allowed", "ratelimit.error": "no_table",
		}},
		"closed": {testdb.Empty, []ratelimit.Policy{wide, closed}, map[string]string{
			"ratelimit.outcome": "unavailable", "ratelimit.policy": "closed", "ratelimit.error": "no_table",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := serve(t, newBed(t, test.database(t), test.policies...).limiter, request())
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("attributes of the span (-want +got):\n%s", diff)
			}
		})
	}
}

// Neither spans nor metrics tell who the client is.
func TestPrivacy(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.New(t),
		ratelimit.Policy{Name: "ip", Limit: limit(0)},
		ratelimit.Policy{Name: "token", Limit: limit(0), Key: ratelimit.BearerToken},
	)
	r := request()
	r.Header.Set("Authorization", "Bearer 4f5c-secret")
	results, err := b.limiter.Peek(t.Context(), ratelimit.ClientIP(r), ratelimit.BearerToken(r))
	if err != nil {
		t.Fatal(err)
	}
	secrets := []string{"192.0.2.7", "4f5c-secret"}
	for _, result := range results {
		_, hash, _ := strings.Cut(result.Bucket, ":")
		secrets = append(secrets, hash)
	}
	said := make(map[string]bool)
	for k, v := range serve(t, b.limiter, r) {
		said[k+"="+v] = true
	}
	each(t, b.reader, func(name, attributes string, _ int64, _ metricdata.Metrics) { said[name+attributes] = true })
	for s := range said {
		for _, secret := range secrets {
			if strings.Contains(s, secret) {
				t.Errorf("%q is in %q", secret, s)
			}
		}
	}
}
