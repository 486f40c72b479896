package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// A curve is what becomes of decisions per second as one thing grows.
type curve struct {
	name   string // of its files
	title  string
	xLabel string
	xs     []int
	// load is the workload at x.
	load func(x int) workload
	// measure takes the place of load where one process is not enough.
	measure func(ctx context.Context, env environment, x int) ([]point, error)
}

// A point is a line of a curve's file.
type point struct {
	Curve     string  `json:"curve"`
	System    string  `json:"system"`
	X         int     `json:"x"`
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50_us,omitempty"`
	P99       float64 `json:"p99_us,omitempty"`

	Statements float64 `json:"statements_per_second,omitempty"`
}

var shared = []string{ratelimitPostgres, oneStatement, oneStatementAsync, "redis_rate", "ulule, Redis", "INCR and EXPIRE, Redis"}

func curves() []curve {
	return []curve{
		{
			name: "callers", title: "10,000 keys: callers in one process", xLabel: "callers",
			xs: []int{1, 4, 16, 64, 256, 1024},
			load: func(x int) workload {
				return workload{name: "callers", level: storeLevel, callers: x, keys: 10_000, names: shared}
			},
		},
		{
			name: "hot", title: "One key: callers in one process", xLabel: "callers",
			xs: []int{1, 4, 16, 64, 256, 1024},
			load: func(x int) workload {
				return workload{name: "hot", level: storeLevel, callers: x, keys: 1, names: shared}
			},
		},
		{
			name: "keys", title: "64 callers: keys", xLabel: "keys",
			xs: []int{1, 10, 100, 1_000, 10_000, 100_000, 1_000_000},
			load: func(x int) workload {
				return workload{name: "keys", level: storeLevel, callers: 64, keys: x, names: shared}
			},
		},
		{
			name: "rows", title: "64 callers on 10,000 keys: rows that are in the table already", xLabel: "rows",
			xs: []int{1, 10_000, 100_000, 1_000_000, 5_000_000},
			load: func(x int) workload {
				return workload{
					name: "rows", level: storeLevel, callers: 64, keys: 10_000, rows: x,
					names: []string{ratelimitPostgres, oneStatement, oneStatementAsync},
				}
			},
		},
		{
			name: "instances", title: "64 callers in each of several processes", xLabel: "processes",
			xs:      []int{1, 2, 4, 8},
			measure: measureInstances,
		},
	}
}

const (
	curveRounds = 3
	curveSlice  = time.Second
)

// grow measures the curves and writes for each a chart and the figures it is drawn from.
func grow(ctx context.Context, postgres, redis, only, dir string) error {
	chosen, err := choose(curves(), func(c curve) string { return c.name }, only)
	if err != nil {
		return err
	}
	env, stop, err := start(ctx, postgres, redis)
	if err != nil {
		return err
	}
	defer stop()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, c := range chosen {
		var points []point
		for _, x := range c.xs {
			fmt.Fprintf(os.Stderr, "%s: %d\n", c.name, x)
			more, err := c.at(ctx, env, x)
			if err != nil {
				return fmt.Errorf("%s at %d: %w", c.name, x, err)
			}
			points = append(points, more...)
		}
		if err := writePoints(filepath.Join(dir, c.name+".json"), points); err != nil {
			return err
		}
		if err := drawCurve(filepath.Join(dir, c.name+".svg"), c, points); err != nil {
			return err
		}
	}
	return nil
}

// at measures one x.
func (c *curve) at(ctx context.Context, env environment, x int) ([]point, error) {
	if c.measure != nil {
		return c.measure(ctx, env, x)
	}
	w := c.load(x)
	runs, err := w.measure(ctx, env, curveRounds, curveSlice)
	if err != nil {
		return nil, err
	}
	var points []point
	for _, r := range runs {
		res := r.result()
		if res.Error != "" {
			return nil, fmt.Errorf("%s: %s", res.System, res.Error)
		}
		points = append(points, point{Curve: c.name, System: res.System, X: x, PerSecond: res.PerSecond, P50: res.P50, P99: res.P99})
	}
	return points, nil
}

func writePoints(name string, points []point) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	e := json.NewEncoder(f)
	for _, p := range points {
		if err := e.Encode(p); err != nil {
			return err
		}
	}
	return f.Close()
}

// measureInstances runs x processes that share one table.
func measureInstances(ctx context.Context, env environment, x int) ([]point, error) {
	var points []point
	for _, keys := range []int{1, 10_000} {
		r, err := load{Instances: x, Callers: 64, Keys: keys}.run(ctx, env, 2*curveSlice, false)
		if err != nil {
			return nil, err
		}
		name := "one key"
		if keys > 1 {
			name = "10,000 keys"
		}
		points = append(points, point{Curve: "instances", System: name, X: x, PerSecond: r.PerSecond, Statements: r.Statements})
	}
	return points, nil
}
