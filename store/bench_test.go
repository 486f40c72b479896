package store_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

// oneStatement is what a limiter without group commit sends for each request.
const oneStatement = `
	INSERT INTO public.rate_limits AS r (bucket, window_start, count, expires_at)
	VALUES ($1, date_bin($2, statement_timestamp(), 'epoch'), 1, date_bin($2, statement_timestamp(), 'epoch') + $2)
	ON CONFLICT (bucket, window_start) DO UPDATE SET count = r.count + 1
	RETURNING count`

// BenchmarkAgainstOneStatement compares the store with one statement per request, on one database and
// in turn, so that a noisy machine is noisy for both. Each iteration is a round of some seconds.
// The figures are medians over the rounds: decisions per second of the store, of one statement
// per request, of the same without waiting for the disk, and how many times faster the store is.
//
//	go test -run='^$' -bench=AgainstOneStatement -benchtime=5x ./store
func BenchmarkAgainstOneStatement(b *testing.B) {
	for _, load := range []struct {
		name          string
		callers, keys int
	}{
		{"one caller", 1, 1},
		{"64 callers on one key", 64, 1},
		{"64 callers on 10000 keys", 64, 10_000},
	} {
		b.Run(load.name, func(b *testing.B) {
			url := testdb.New(b)
			pool := testdb.Pool(b, url)
			async := testdb.Pool(b, url, func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
			})
			s, err := store.NewPostgres(testdb.Pool(b, url), store.PostgresConfig{Timeout: time.Minute})
			if err != nil {
				b.Fatal(err)
			}
			statement := func(pool *pgxpool.Pool) func(string) error {
				return func(bucket string) error {
					var count int64
					return pool.QueryRow(b.Context(), oneStatement, bucket, time.Hour).Scan(&count)
				}
			}
			systems := []func(bucket string) error{
				func(bucket string) error {
					_, err := s.Add(b.Context(), []ratelimit.Hit{{Bucket: bucket, Window: time.Hour, N: 1}})
					return err
				},
				statement(pool),
				statement(async),
			}
			rates := make([][]float64, len(systems))
			for _, f := range systems { // warm up: connections, plans, rows
				rate(b, load.callers, load.keys, 200*time.Millisecond, f)
			}
			for b.Loop() {
				for i, f := range systems {
					rates[i] = append(rates[i], rate(b, load.callers, load.keys, time.Second, f))
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(rates[0]), "store/s")
			b.ReportMetric(median(rates[1]), "statement/s")
			b.ReportMetric(median(rates[2]), "async/s")
			b.ReportMetric(median(ratios(rates[0], rates[1])), "x_statement")
			b.ReportMetric(median(ratios(rates[0], rates[2])), "x_async")
		})
	}
}

// rate calls f from many callers for about d and returns calls per second.
func rate(b *testing.B, callers, keys int, d time.Duration, f func(bucket string) error) float64 {
	buckets := make([]string, keys)
	for i := range buckets {
		buckets[i] = fmt.Sprintf("bench/1h:ip:%064x", i)
	}
	var calls atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range callers {
		wg.Go(func() {
			for time.Since(began) < d {
				if err := f(buckets[rand.IntN(keys)]); err != nil {
					b.Error(err)
					return
				}
				calls.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(calls.Load()) / time.Since(began).Seconds()
}

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
