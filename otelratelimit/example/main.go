// Example serves a limited handler and its metrics, as Prometheus scrapes them.
//
// It uses the Postgres that DATABASE_URL names, or else starts one that ends with the program: in Docker, or from the
// Postgres binaries of this machine.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/pgserver"
	"github.com/krow/ratelimit/migrations"
	"github.com/krow/ratelimit/otelratelimit"
	"github.com/krow/ratelimit/store"
)

func main() {
	log.SetFlags(0)
	addr := flag.String("addr", "127.0.0.1:0", "`address` to serve on; port 0 takes a free one")
	once := flag.Bool("once", false, "send ten requests, print the metrics and exit")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := start(ctx, *addr, *once); err != nil && ctx.Err() == nil {
		log.Fatal("example: ", err)
	}
}

// start finds a Postgres and runs the example on it.
func start(ctx context.Context, addr string, once bool) error {
	url := os.Getenv("DATABASE_URL")
	if url == "" {
		server, err := pgserver.Start(ctx)
		if err != nil {
			return err
		}
		defer func() {
			if err := server.Stop(); err != nil {
				log.Print("example: ", err)
			}
		}()
		url = server.URL()
	}
	return run(ctx, os.Stdout, url, addr, once)
}

func run(ctx context.Context, out io.Writer, database, addr string, once bool) error {
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrations.Up(ctx, pool); err != nil {
		return err
	}
	handler, err := newHandler(pool)
	if err != nil {
		return err
	}

	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	url := "http://" + listener.Addr().String()
	if once {
		err = show(ctx, out, url)
	} else {
		fmt.Fprintf(out, "Serving until Ctrl-C. Five requests a minute are admitted:\n\n  curl -i %s/\n  curl -s %s/metrics | grep ^ratelimit\n", url, url)
		select {
		case <-ctx.Done():
		case err = <-served:
		}
	}
	return errors.Join(err, server.Close())
}

// newHandler is the service: a limited handler, and the metrics of all that happens.
func newHandler(pool *pgxpool.Pool) (http.Handler, error) {
	registry := prometheus.NewRegistry()
	exporter, err := promexporter.New(promexporter.WithRegisterer(registry))
	if err != nil {
		return nil, err
	}
	metrics, err := otelratelimit.New(otelratelimit.Config{
		MeterProvider: metric.NewMeterProvider(metric.WithReader(exporter)),
	})
	if err != nil {
		return nil, err
	}
	counters, err := store.NewPostgres(pool, store.PostgresConfig{
		OnFlush:   metrics.OnFlush,
		OnSweep:   metrics.OnSweep,
		OnBreaker: metrics.OnBreaker,
	})
	if err != nil {
		return nil, err
	}
	limiter, err := ratelimit.New(counters, ratelimit.Config{
		Secret: []byte(rand.Text() + rand.Text()), // in a service, the same in all replicas
		Policies: []ratelimit.Policy{
			{Name: "hello", Limit: ratelimit.PerMinute(5)},
			{Name: "hello.stricter", Limit: ratelimit.PerMinute(3), DryRun: true},
		},
		OnDecision: metrics.OnDecision,
	})
	if err != nil {
		return nil, err
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", limiter.Handler(hello))
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return mux, nil
}

// show sends requests and prints the limiter's metrics but for the buckets of histograms.
func show(ctx context.Context, out io.Writer, url string) error {
	for range 10 {
		if _, err := get(ctx, url+"/"); err != nil {
			return err
		}
	}
	metrics, err := get(ctx, url+"/metrics")
	if err != nil {
		return err
	}
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, "ratelimit_") && !strings.Contains(line, "_bucket{") {
			fmt.Fprint(out, line)
		}
	}
	return nil
}

func get(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(response.Body)
	return string(body), errors.Join(err, response.Body.Close())
}
