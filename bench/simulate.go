package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/bench/sim"
	"github.com/krow/ratelimit/store"
)

// A checked point is a load that is measured and simulated.
type checked struct {
	Instances int     `json:"instances"`
	Callers   int     `json:"callers"`
	Keys      int     `json:"keys"`
	Measured  float64 `json:"measured_per_second"`
	Simulated float64 `json:"simulated_per_second"`
	Error     float64 `json:"error"` // of the simulated rate

	MeasuredStatements  float64 `json:"measured_statements_per_second,omitempty"`
	SimulatedStatements float64 `json:"simulated_statements_per_second"`
}

// A predicted load is one that no machine here could make.
type predicted struct {
	Instances  int     `json:"instances"`
	Load       string  `json:"load"`
	Cores      int     `json:"database_cores"`
	RTT        string  `json:"round_trip"`
	Demand     float64 `json:"demand_per_second"`
	PerSecond  float64 `json:"per_second"`
	P50        float64 `json:"p50_ms"`
	P99        float64 `json:"p99_ms"`
	Statements float64 `json:"statements_per_second"`
	Busy       float64 `json:"database_busy"`
}

// simulate finds out what things cost on this machine, checks the simulation at loads that it can make, and predicts
// what it cannot.
func simulate(ctx context.Context, postgres, redis string, asJSON bool, d time.Duration) error {
	env, stop, err := start(ctx, postgres, redis)
	if err != nil {
		return err
	}
	defer stop()
	base, err := calibrate(ctx, env, d)
	if err != nil {
		return err
	}
	var points []checked
	for _, c := range []checked{
		{Instances: 1, Callers: 8, Keys: 1},
		{Instances: 1, Callers: 64, Keys: 1},
		{Instances: 1, Callers: 8, Keys: 10_000},
		{Instances: 1, Callers: 256, Keys: 10_000},
		{Instances: 2, Callers: instanceCallers, Keys: 1},
		{Instances: 4, Callers: instanceCallers, Keys: 1},
		{Instances: 8, Callers: instanceCallers, Keys: 1},
		{Instances: 2, Callers: instanceCallers, Keys: 10_000},
		{Instances: 4, Callers: instanceCallers, Keys: 10_000},
		{Instances: 8, Callers: instanceCallers, Keys: 10_000},
	} {
		if err := c.check(ctx, env, base, d); err != nil {
			return err
		}
		points = append(points, c)
	}
	predictions, err := predict(base)
	if err != nil {
		return err
	}
	if asJSON {
		return writeSimulation(os.Stdout, base, points, predictions)
	}
	return printSimulation(os.Stdout, base, points, predictions)
}

// calibrate measures what a model needs: of a core of the database for a statement and for a row, of a core of an
// instance for these and for a request, and how much slower things are while all cores are busy, by the rate of 64
// callers on 10,000 keys.
func calibrate(ctx context.Context, env environment, d time.Duration) (m sim.Model, err error) {
	const many, crowd = 256, 256
	one, err := load(ctx, env, 1, 1, 1, d)
	if err != nil {
		return m, err
	}
	rows, err := load(ctx, env, 1, 100_000, many, d)
	if err != nil {
		return m, err
	}
	hot, err := load(ctx, env, crowd, 1, 1, d)
	if err != nil {
		return m, err
	}
	spread, err := load(ctx, env, 64, 10_000, 1, d)
	if err != nil {
		return m, err
	}
	m = sim.Model{Cores: runtime.NumCPU(), Duration: 2 * time.Second, RTT: 20 * time.Microsecond}
	per := func(d time.Duration, n float64) time.Duration { return time.Duration(float64(d) / n) }
	m.ClientRow = max(0, per(rows.cpu-one.cpu, many-1))
	m.Row = max(0, per(rows.took-one.took, many-1)-m.ClientRow)
	m.ClientStatement = one.cpu - m.ClientRow
	m.Statement = max(0, one.took-one.cpu-m.Row-m.RTT)
	// What a statement of many hits on one row takes longer than that of one.
	m.ClientHit = max(0, per(per(time.Second, hot.statements)-one.took, hot.perStatement-1))
	m.Instances, m.Callers, m.Keys = 1, 64, 10_000
	low, high := 1.0, 3.0
	for range 12 {
		m.Crowded = (low + high) / 2
		r, err := sim.Run(m)
		if err != nil {
			return m, err
		}
		if r.PerSecond > spread.perSecond {
			low = m.Crowded
		} else {
			high = m.Crowded
		}
	}
	return m, nil
}

// A loaded store is what calls of it took, each of them.
type loaded struct {
	perSecond, perStatement, statements float64
	took, cpu                           time.Duration // of one caller, and of this process
}

// load is the median of what loadOnce measures.
func load(ctx context.Context, env environment, callers, keys, hits int, d time.Duration) (loaded, error) {
	var all []loaded
	for range curveRounds {
		l, err := loadOnce(ctx, env, callers, keys, hits, d)
		if err != nil {
			return l, err
		}
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b loaded) int { return cmp.Compare(a.perSecond, b.perSecond) })
	return all[len(all)/2], nil
}

// loadOnce measures calls of a store with so many hits each, by callers at once.
func loadOnce(ctx context.Context, env environment, callers, keys, hits int, d time.Duration) (l loaded, err error) {
	fresh, err := env.fresh(ctx, 0)
	if err != nil {
		return l, err
	}
	defer func() { _ = fresh.drop(context.WithoutCancel(ctx)) }()
	pool, err := fresh.pool(nil)
	if err != nil {
		return l, err
	}
	defer pool.Close()
	var statements atomic.Int64
	s, err := store.NewPostgres(pool, store.PostgresConfig{
		Schema: fresh.schema, Timeout: time.Minute, ManualSweep: true,
		OnFlush: func(store.FlushStats) { statements.Add(1) },
	})
	if err != nil {
		return l, err
	}
	operation := adding(ctx, s, keys)
	if hits > 1 {
		operation = addingMany(ctx, s, keys, hits)
	}
	measure(ctx, callers, d/2, operation) // connections, plans, rows
	statements.Store(0)
	before, began := cpuTime(), time.Now()
	sample := measure(ctx, callers, d, operation)
	elapsed, cpu := time.Since(began), cpuTime()-before
	calls := sample.perSecond * elapsed.Seconds()
	l.perSecond = sample.perSecond
	l.perStatement = calls / float64(statements.Load())
	l.statements = float64(statements.Load()) / elapsed.Seconds()
	l.took = time.Duration(float64(elapsed) * float64(callers) / calls)
	l.cpu = time.Duration(float64(cpu) / calls)
	return l, sample.err
}

// addingMany returns operations that count so many hits on keys that follow one another.
func addingMany(ctx context.Context, s *store.Postgres, keys, n int) func() func() error {
	rows := buckets(addresses(keys))
	ctx = context.WithoutCancel(ctx)
	return func() func() error {
		next := 0
		return func() error {
			hits := make([]ratelimit.Hit, n)
			for i := range hits {
				hits[i] = ratelimit.Hit{Bucket: rows[next], Window: window, N: 1}
				next = (next + 1) % keys
			}
			_, err := s.Add(ctx, hits)
			return err
		}
	}
}

// cpuTime is how long this process has used cores.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// check measures a point and simulates it.
func (c *checked) check(ctx context.Context, env environment, m sim.Model, d time.Duration) error {
	if c.Instances == 1 {
		l, err := load(ctx, env, c.Callers, c.Keys, 1, d)
		if err != nil {
			return err
		}
		c.Measured, c.MeasuredStatements = l.perSecond, l.statements
	} else {
		var rates, statements []float64
		for range curveRounds {
			i, err := runInstances(ctx, env, c.Instances, c.Keys)
			if err != nil {
				return err
			}
			rates, statements = append(rates, i.PerSecond), append(statements, i.Statements)
		}
		c.Measured, c.MeasuredStatements = median(rates), median(statements)
	}
	m.Instances, m.Callers, m.Keys = c.Instances, c.Callers, c.Keys
	r, err := sim.Run(m)
	if err != nil {
		return err
	}
	c.Simulated, c.SimulatedStatements = r.PerSecond, r.Statements
	c.Error = r.PerSecond/c.Measured - 1
	return nil
}

// predict simulates 1,000 instances that are asked for 1,000,000 decisions a second, on a database with a round trip of
// a millisecond.
func predict(base sim.Model) ([]predicted, error) {
	var all []predicted
	for _, cores := range []int{16, 64} {
		for _, l := range []struct {
			name string
			keys int
			zipf float64
		}{
			{"one key", 1, 0},
			{"1,000,000 keys, a few of them hot (Zipf 1.2)", 1_000_000, 1.2},
			{"1,000,000 keys, evenly", 1_000_000, 0},
		} {
			m := base
			m.Instances, m.Rate, m.Keys, m.Zipf = 1000, 1000, l.keys, l.zipf
			m.Cores, m.ClientCores, m.RTT, m.Duration = cores, 2, time.Millisecond, time.Second
			r, err := sim.Run(m)
			if err != nil {
				return nil, err
			}
			ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
			all = append(all, predicted{
				m.Instances, l.name, cores, m.RTT.String(), float64(m.Instances) * m.Rate,
				r.PerSecond, ms(r.P50), ms(r.P99), r.Statements, r.Busy,
			})
		}
	}
	return all, nil
}

func writeSimulation(w io.Writer, m sim.Model, points []checked, predictions []predicted) error {
	e := json.NewEncoder(w)
	if err := e.Encode(map[string]any{"costs": m.Costs, "round_trip": m.RTT, "cores": m.Cores}); err != nil {
		return err
	}
	for _, p := range points {
		if err := e.Encode(p); err != nil {
			return err
		}
	}
	for _, p := range predictions {
		if err := e.Encode(p); err != nil {
			return err
		}
	}
	return nil
}

func printSimulation(w io.Writer, m sim.Model, points []checked, predictions []predicted) error {
	fmt.Fprintf(w, "Of a core of the database: %v for a statement, %v for a row.\n", m.Statement, m.Row)
	fmt.Fprintf(w, "Of a core of an instance: %v for a statement, %v for a row, %v for a request.\n", m.ClientStatement, m.ClientRow, m.ClientHit)
	fmt.Fprintf(w, "While all cores are busy, %.2f times that.\n\n", m.Crowded)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "instances\tcallers\tkeys\tmeasured/s\tsimulated/s\terror\tstatements/s\tsimulated\t")
	worst := 0.0
	for _, p := range points {
		fmt.Fprintf(t, "%d\t%d\t%d\t%.0f\t%.0f\t%+.0f %%\t%.0f\t%.0f\t\n",
			p.Instances, p.Callers, p.Keys, p.Measured, p.Simulated, 100*p.Error, p.MeasuredStatements, p.SimulatedStatements)
		worst = max(worst, math.Abs(p.Error))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nThe largest error is %.0f %%.\n\n", 100*worst)
	fmt.Fprintln(t, "instances\tload\tcores\tdemand/s\tdecisions/s\tp50 ms\tp99 ms\tstatements/s\tdatabase busy\t")
	for _, p := range predictions {
		fmt.Fprintf(t, "%d\t%s\t%d\t%.0f\t%.0f\t%.1f\t%.1f\t%.0f\t%.0f %%\t\n",
			p.Instances, p.Load, p.Cores, p.Demand, p.PerSecond, p.P50, p.P99, p.Statements, 100*p.Busy)
	}
	return t.Flush()
}
