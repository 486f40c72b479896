package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/krow/ratelimit/store"
)

// capacity tells what decisions cost Postgres: statements, connections, write-ahead log and room.
func capacity(ctx context.Context, postgres, redis string, callers int, d time.Duration) error {
	env, stop, err := start(ctx, postgres, redis)
	if err != nil {
		return err
	}
	defer stop()
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "keys\tdecisions/s\tstatements/s\tdecisions per statement\tconnections\tWAL per decision\trows\troom per row\t")
	for _, keys := range []int{1, 10_000, 1_000_000} {
		if err := capacityOf(ctx, t, env, callers, keys, d); err != nil {
			return err
		}
	}
	return t.Flush()
}

func capacityOf(ctx context.Context, w io.Writer, env environment, callers, keys int, d time.Duration) error {
	fresh, err := env.fresh(ctx, 0)
	if err != nil {
		return err
	}
	defer func() { _ = fresh.drop(context.WithoutCancel(ctx)) }()
	pool, err := fresh.pool(nil)
	if err != nil {
		return err
	}
	defer pool.Close()
	var statements atomic.Int64
	s, err := store.NewPostgres(pool, store.PostgresConfig{
		Schema: fresh.schema, Timeout: time.Minute, ManualSweep: true,
		OnFlush: func(store.FlushStats) { statements.Add(1) },
	})
	if err != nil {
		return err
	}
	subject, err := ours(s, quota{requests: 1_000_000_000, keys: addresses(keys)}, func() {})
	if err != nil {
		return err
	}
	r := run{workload: &workload{level: storeLevel, keys: keys}, subject: subject}
	admin, err := fresh.pool(nil)
	if err != nil {
		return err
	}
	defer admin.Close()
	var before, after string
	if err := admin.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&before); err != nil {
		return err
	}
	got := measure(ctx, callers, d, func() func() error { return r.operation(ctx, nil) })
	if got.err != nil {
		return got.err
	}
	connections := pool.Stat().TotalConns()
	var wal, rows, room float64
	err = admin.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&after)
	if err != nil {
		return err
	}
	err = admin.QueryRow(ctx, fresh.sql(`SELECT ($1::text::pg_lsn - $2::text::pg_lsn)::float8, count(*)::float8,
		pg_total_relation_size('{table}')::float8 FROM {table}`), after, before).Scan(&wal, &rows, &room)
	if err != nil {
		return err
	}
	decisions := got.perSecond * d.Seconds()
	fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.1f\t%d\t%.0f bytes\t%.0f\t%.0f bytes\t\n", thousands(keys), got.perSecond,
		float64(statements.Load())/d.Seconds(), decisions/float64(statements.Load()), connections, wal/decisions, rows, room/rows)
	return nil
}
