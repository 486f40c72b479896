package store_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

// BenchmarkCountingWhileSweeping has three stores count for 64 callers on 10,000 keys, beside a million
// expired rows: a second without a sweep, and a second while all three sweep. A round is both, on one
// database, so that a noisy machine is noisy for both. The figures are medians over the rounds: how long
// a hit takes in milliseconds without (p50, p99) and with (swept-p50, swept-p99), how many
// times longer the slow ones take, and how many rows a second all three delete. One half is for Sweep
// as a cron job calls it, and one for the sweeps that stores begin by themselves.
//
//	go test -run='^$' -bench=CountingWhileSweeping -benchtime=15x ./store
func BenchmarkCountingWhileSweeping(b *testing.B) {
	const instances, callers, expired, lasts = 3, 64, 1_000_000, time.Second
	for _, mode := range []struct {
		name  string
		begin func(s *store.Postgres)
	}{
		{"Sweep", func(s *store.Postgres) { go func() { _, _ = s.Sweep(context.Background()) }() }}, // OnSweep tells
		{"by itself", (*store.Postgres).DueSweep},
	} {
		b.Run(mode.name, func(b *testing.B) {
			url := testdb.New(b)
			admin := testdb.Pool(b, url)
			var stopped atomic.Bool
			swept := make(chan store.SweepStats, instances)
			var stores []*store.Postgres
			for range instances {
				s, err := store.NewPostgres(stoppable{testdb.Pool(b, url), &stopped}, store.PostgresConfig{
					Timeout:       time.Minute,
					SweepInterval: 24 * time.Hour, // it begins when the benchmark says so
					OnSweep:       func(s store.SweepStats) { swept <- s },
					Logger:        slog.New(slog.DiscardHandler),
				})
				if err != nil {
					b.Fatal(err)
				}
				stores = append(stores, s)
			}
			latencies(b, stores, callers, time.Second) // warm up: connections, plans, rows

			var p50, p99, sweptP50, sweptP99, rowsPerSecond []float64
			missing := int64(expired)
			for b.Loop() {
				for _, sql := range []string{
					fmt.Sprintf(`INSERT INTO rate_limits SELECT 'old ' || n, now() - interval '2 days', 1, now() - interval '1 day' + n * interval '1 ms'
						FROM generate_series(1, %d) AS n`, missing),
					"VACUUM ANALYZE rate_limits",
					"CHECKPOINT",
				} {
					if _, err := admin.Exec(b.Context(), sql); err != nil {
						b.Fatal(err)
					}
				}
				without := latencies(b, stores, callers, lasts)
				p50, p99 = append(p50, percentile(without, 50)), append(p99, percentile(without, 99))

				stopped.Store(false)
				for _, s := range stores {
					mode.begin(s)
				}
				with := latencies(b, stores, callers, lasts)
				stopped.Store(true)
				missing = 0
				for range stores {
					stats := <-swept
					if stats.Err != nil && !errors.Is(stats.Err, errStopped) {
						b.Error(stats.Err)
					}
					missing += stats.Deleted
				}
				sweptP50, sweptP99 = append(sweptP50, percentile(with, 50)), append(sweptP99, percentile(with, 99))
				rowsPerSecond = append(rowsPerSecond, float64(missing)/lasts.Seconds())
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(p50), "p50-ms")
			b.ReportMetric(median(p99), "p99-ms")
			b.ReportMetric(median(sweptP50), "swept-p50-ms")
			b.ReportMetric(median(sweptP99), "swept-p99-ms")
			b.ReportMetric(median(ratios(sweptP99, p99)), "x_p99")
			b.ReportMetric(median(rowsPerSecond), "rows/s")
		})
	}
}

// stoppable is a pool on which a sweep ends, before its next statement, when it is stopped.
type stoppable struct {
	store.DB
	stopped *atomic.Bool
}

var errStopped = errors.New("stopped")

func (s stoppable) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if s.stopped.Load() {
		return pgconn.CommandTag{}, errStopped
	}
	return s.DB.Exec(ctx, sql, args...)
}

// latencies has callers share the stores and count one hit after another for some time, and returns how
// long each hit took, in milliseconds, sorted.
func latencies(b *testing.B, stores []*store.Postgres, callers int, lasts time.Duration) []float64 {
	const keys = 10_000
	all := make([][]float64, callers)
	var wg sync.WaitGroup
	until := time.Now().Add(lasts)
	for i := range all {
		wg.Go(func() {
			s := stores[i%len(stores)]
			for began := time.Now(); began.Before(until); began = time.Now() {
				_, err := s.Add(b.Context(), []ratelimit.Hit{{
					Bucket: fmt.Sprintf("bench/1h:ip:%064x", rand.IntN(keys)),
					Window: time.Hour,
					N:      1,
				}})
				if err != nil {
					b.Error(err)
					return
				}
				all[i] = append(all[i], time.Since(began).Seconds()*1000)
			}
		})
	}
	wg.Wait()
	return slices.Sorted(slices.Values(slices.Concat(all...)))
}

// percentile returns the p-th percentile of what is sorted.
func percentile(sorted []float64, p int) float64 { return sorted[(len(sorted)-1)*p/100] }

func ratios(a, b []float64) []float64 {
	r := make([]float64, len(a))
	for i := range a {
		r[i] = a[i] / b[i]
	}
	return r
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
