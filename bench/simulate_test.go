package main

import (
	"math"
	"testing"
	"time"
)

// of is what a load did, by what a statement has and takes.
func of(statements, hits, rows float64, cpu, database time.Duration) loadResult {
	return loadResult{
		PerSecond: hits * statements, Statements: statements, Rows: rows * statements,
		CPU: cpu.Seconds() * statements, Database: database.Seconds() * statements,
	}
}

// Each figure has its own median, so that a round that was slow in one does not count in the others.
func TestMedians(t *testing.T) {
	t.Parallel()
	const µs = time.Microsecond
	got := medians([]loadResult{
		of(100, 50, 5, 10*µs, 900*µs),
		of(900, 60, 2, 30*µs, 20*µs),
		of(200, 10, 3, 20*µs, 30*µs),
	})
	want := of(100, 50, 3, 20*µs, 30*µs)
	for name, f := range map[string]func(loadResult) float64{
		"PerSecond": func(r loadResult) float64 { return r.PerSecond },
		"hits":      loadResult.hits, "rows": loadResult.rows, "cpu": loadResult.cpu, "database": loadResult.database,
	} {
		if math.Abs(f(got)-f(want)) > 1e-9*f(want) {
			t.Errorf("%s is %v, want %v", name, f(got), f(want))
		}
	}
}

// The costs are those that the loads differ by, and with them the model does what was measured.
func TestCalibrate(t *testing.T) {
	t.Parallel()
	const µs = time.Microsecond
	measured := map[load]loadResult{
		hotLoad:             of(5700, 58.6, 1, 143*µs, 74*µs),
		crowdLoad:           of(3345, 198.6, 1, 330*µs, 83*µs),
		fewLoad:             of(2835, 14.9, 14.9, 217*µs, 246*µs),
		wideLoad:            of(1055, 87.2, 87, 512*µs, 834*µs),
		manyLoad(2, 1):      of(5657, 56.6, 1, 182*µs, 112*µs),
		manyLoad(2, 10_000): of(2540, 21.5, 21.5, 343*µs, 313*µs),
	}
	m, err := calibrate(measured, 2)
	if err != nil {
		t.Fatal(err)
	}
	row, hit := (834-246)/(87-14.9), 187.0/140
	clientRow := (512 - 217 - hit*(87.2-14.9)) / (87 - 14.9)
	statement := 143 - 58.6*hit - clientRow
	for _, c := range []struct {
		name string
		got  time.Duration
		want float64 // µs
	}{
		{"Row", m.Row, row},
		{"Statement", m.Statement, 74 - row},
		{"Several", m.Several, 246 - 14.9*row - (74 - row)},
		{"Blocked", m.Blocked, 112 - 74},
		{"ClientHit", m.ClientHit, hit},
		{"ClientRow", m.ClientRow, clientRow},
		{"ClientStatement", m.ClientStatement, statement},
		{"ClientSeveral", m.ClientSeveral, 217 - statement - 14.9*(hit+clientRow)},
	} {
		if got := float64(c.got) / float64(µs); math.Abs(got-c.want) > 0.01 {
			t.Errorf("%s is %v µs, want %v", c.name, got, c.want)
		}
	}
	for name, part := range map[string]float64{"Neighbours": m.Neighbours, "NeighboursRows": m.NeighboursRows, "Crowded": m.Crowded} {
		if part <= 0 || part >= 2 {
			t.Errorf("%s is %v, want what makes several instances slower", name, part)
		}
	}
	for l, within := range map[load]float64{hotLoad: 0.1, wideLoad: 0.15, manyLoad(2, 1): 0.05, manyLoad(2, 10_000): 0.05} {
		r, err := l.in(m)
		if err != nil {
			t.Fatal(err)
		}
		if off := r.PerSecond/measured[l].PerSecond - 1; math.Abs(off) > within {
			t.Errorf("%+v: simulated %.0f/s, measured %.0f/s, which is %+.0f %%", l, r.PerSecond, measured[l].PerSecond, 100*off)
		}
	}
}
