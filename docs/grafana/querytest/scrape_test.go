package querytest

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/util/teststorage"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/otelratelimit"
	"github.com/krow/ratelimit/store"
)

const (
	scrapes  = 5
	interval = 30 * time.Second // of the scrapes, as Prometheus is told
)

// lastScrape is the time of the last scrape.
var lastScrape = time.Unix(0, 0).Add((scrapes - 1) * interval)

var queryParser = parser.NewParser(parser.Options{})

// scraped returns what a Prometheus has that scraped a service several times, while everything happened that the
// metrics tell of: on one Postgres that works, and on one that does not.
func scraped(t *testing.T) *teststorage.TestStorage {
	t.Helper()
	registry := prometheus.NewRegistry()
	exporter, err := promexporter.New(promexporter.WithRegisterer(registry))
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := otelratelimit.New(otelratelimit.Config{
		MeterProvider: metric.NewMeterProvider(metric.WithReader(exporter)),
	})
	if err != nil {
		t.Fatal(err)
	}
	working, failing := testdb.New(t), testdb.Empty(t)
	good, limiter := service(t, metrics, working,
		ratelimit.Policy{Name: "api", Limit: ratelimit.PerDay(2)},
		ratelimit.Policy{Name: "api.stricter", Limit: ratelimit.PerDay(1), DryRun: true},
	)
	bad, without := service(t, metrics, failing,
		ratelimit.Policy{Name: "login", Limit: ratelimit.PerDay(2), OnFailure: ratelimit.FailClosed},
		ratelimit.Policy{Name: "local", Limit: ratelimit.PerDay(2), OnFailure: ratelimit.FailLocal},
	)
	pool := testdb.Pool(t, working)
	db := teststorage.New(t)
	metricsPage := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(metricsPage.Close)
	for i := range scrapes {
		for range 5 {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.RemoteAddr = fmt.Sprintf("192.0.2.%d:1234", i)
			limiter.Check(r)
		}
		// One a time: the third failure opens the breaker, and what fails is to show in more than one scrape.
		without.Check(httptest.NewRequest(http.MethodGet, "/", nil))
		_, err := pool.Exec(t.Context(), `INSERT INTO rate_limits
			VALUES ('old', now() - interval '2 hours', 1, now() - interval '1 hour')`)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := good.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := bad.Sweep(t.Context()); err == nil {
			t.Fatal("a sweep of a table that is missing did not fail")
		}
		scrape(t, metricsPage.URL, db, time.Unix(0, 0).Add(time.Duration(i)*interval))
	}
	return db
}

func service(t *testing.T, m *otelratelimit.Metrics, url string, policies ...ratelimit.Policy) (*store.Postgres, *ratelimit.Limiter) {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	s, err := store.NewPostgres(testdb.Pool(t, url), store.PostgresConfig{
		Timeout:     time.Minute,
		ManualSweep: true,
		OnFlush:     m.OnFlush,
		OnSweep:     m.OnSweep,
		OnBreaker:   m.OnBreaker,
		Logger:      logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := ratelimit.New(s, ratelimit.Config{
		Policies:   policies,
		Deadline:   time.Minute,
		OnDecision: m.OnDecision,
		Logger:     logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, l
}

// scrape reads a page of metrics as Prometheus does, which adds the job and the instance.
func scrape(t *testing.T, url string, db *teststorage.TestStorage, at time.Time) {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	page = append(page, '\n')
	app := db.Appender(t.Context())
	p := textparse.NewPromParser(page, labels.NewSymbolTable(), false)
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		_, _, value := p.Series()
		var series labels.Labels
		p.Labels(&series)
		b := labels.NewBuilder(series)
		b.Set("job", "service")
		b.Set("instance", "127.0.0.1:8080")
		if _, err := app.Append(0, b.Labels(), at.UnixMilli(), value); err != nil {
			t.Fatal(err)
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

func newEngine(t *testing.T) *promql.Engine {
	t.Helper()
	return promqltest.NewTestEngine(t, false, 5*time.Minute, 1_000_000)
}

// evaluate returns what a query yields at a time.
func evaluate(t *testing.T, engine *promql.Engine, db *teststorage.TestStorage, query string, at time.Time) promql.Vector {
	t.Helper()
	q, err := engine.NewInstantQuery(t.Context(), db, nil, query, at)
	if err != nil {
		t.Fatalf("%s\n%v", query, err)
	}
	defer q.Close()
	result := q.Exec(t.Context())
	vector, err := result.Vector()
	if err != nil {
		t.Fatalf("%s\n%v", query, err)
	}
	return append(promql.Vector(nil), vector...)
}

// checkSelectors finds what a query asks for that there is not: metrics, values of labels, and labels to group by.
func checkSelectors(t *testing.T, engine *promql.Engine, db *teststorage.TestStorage, query string) {
	t.Helper()
	expr, err := queryParser.ParseExpr(query)
	if err != nil {
		t.Errorf("%s\n%v", query, err)
		return
	}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			bare := &parser.VectorSelector{Name: n.Name, LabelMatchers: n.LabelMatchers}
			if len(evaluate(t, engine, db, bare.String(), lastScrape)) == 0 {
				t.Errorf("%s\n%s is nothing that is exposed", query, bare)
			}
			series := evaluate(t, engine, db, n.Name, lastScrape)
			for _, matcher := range n.LabelMatchers {
				if !hasLabel(series, matcher.Name) {
					t.Errorf("%s\n%s has no label %s", query, n.Name, matcher.Name)
				}
			}
		case *parser.AggregateExpr:
			for _, selector := range selectors(n) {
				series := evaluate(t, engine, db, selector.Name, lastScrape)
				for _, label := range n.Grouping {
					if !hasLabel(series, label) {
						t.Errorf("%s\n%s has no label %s to group by", query, selector.Name, label)
					}
				}
			}
		}
		return nil
	})
}

// selectors are those in an expression.
func selectors(expr parser.Expr) []*parser.VectorSelector {
	var all []*parser.VectorSelector
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if n, ok := node.(*parser.VectorSelector); ok {
			all = append(all, n)
		}
		return nil
	})
	return all
}

func hasLabel(series promql.Vector, name string) bool {
	for _, s := range series {
		if s.Metric.Has(name) {
			return true
		}
	}
	return false
}
