package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"text/tabwriter"
	"time"

	"github.com/krow/ratelimit/bench/sim"
)

// A checked point is a load that is measured and simulated.
type checked struct {
	load
	Measured  float64 `json:"measured_per_second"`
	Simulated float64 `json:"simulated_per_second"`
	Error     float64 `json:"error"` // of the simulated rate

	MeasuredStatements  float64 `json:"measured_statements_per_second"`
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
	P50        float64 `json:"p50_ms,omitempty"` // none if requests wait for longer and longer
	P99        float64 `json:"p99_ms,omitempty"`
	Statements float64 `json:"statements_per_second"`
	Busy       float64 `json:"database_busy"`
}

// simulateRounds is how often each load is measured. The medians count.
const simulateRounds = 7

// The loads that show what things cost. None of them is checked.
var (
	hotLoad   = load{Instances: 1, Callers: 64, Keys: 1}
	crowdLoad = load{Instances: 1, Callers: 256, Keys: 1}
	fewLoad   = load{Instances: 1, Callers: 16, Keys: 10_000}
	wideLoad  = load{Instances: 1, Callers: 256, Keys: 10_000}
)

// manyLoad is more instances than cores.
func manyLoad(cores, keys int) load { return load{Instances: 3 * cores, Callers: 64, Keys: keys} }

var checkedLoads = []load{
	{Instances: 1, Callers: 8, Keys: 1},
	{Instances: 2, Callers: 64, Keys: 1},
	{Instances: 4, Callers: 64, Keys: 1},
	{Instances: 8, Callers: 64, Keys: 1},
	{Instances: 8, Callers: 16, Keys: 1},
	{Instances: 8, Callers: 256, Keys: 1},
	{Instances: 1, Callers: 8, Keys: 10_000},
	{Instances: 1, Callers: 64, Keys: 10_000},
	{Instances: 1, Callers: 128, Keys: 10_000},
	{Instances: 2, Callers: 64, Keys: 10_000},
	{Instances: 4, Callers: 64, Keys: 10_000},
	{Instances: 8, Callers: 64, Keys: 10_000},
	{Instances: 1, Callers: 64, Keys: 10_000, Zipf: 1.2},
	{Instances: 8, Callers: 64, Keys: 10_000, Zipf: 1.2},
}

// simulate finds out what things cost on this machine, checks the simulation at loads that it can make, and predicts
// what it cannot.
func simulate(ctx context.Context, postgres, redis string, asJSON bool, d time.Duration) error {
	env, stop, err := start(ctx, postgres, redis)
	if err != nil {
		return err
	}
	defer stop()
	cores := runtime.NumCPU()
	rounds := make(map[load][]loadResult)
	for range simulateRounds {
		for _, l := range append([]load{hotLoad, crowdLoad, fewLoad, wideLoad, manyLoad(cores, 1), manyLoad(cores, 10_000)}, checkedLoads...) {
			r, err := l.run(ctx, env, d, true)
			if err != nil {
				return err
			}
			rounds[l] = append(rounds[l], r)
		}
	}
	measured := make(map[load]loadResult)
	for l, all := range rounds {
		measured[l] = medians(all)
	}
	base, err := calibrate(measured, cores)
	if err != nil {
		return err
	}
	var points []checked
	for _, l := range checkedLoads {
		r, err := l.in(base)
		if err != nil {
			return err
		}
		m := measured[l]
		points = append(points, checked{l, m.PerSecond, r.PerSecond, r.PerSecond/m.PerSecond - 1, m.Statements, r.Statements})
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

// medians are those of the rate, and of what a statement has and takes, each by itself.
func medians(rounds []loadResult) loadResult {
	of := func(figure func(loadResult) float64) float64 {
		var all []float64
		for _, r := range rounds {
			all = append(all, figure(r))
		}
		return median(all)
	}
	rate := of(func(r loadResult) float64 { return r.PerSecond })
	statements := rate / of(loadResult.hits)
	return loadResult{
		PerSecond:  rate,
		Statements: statements,
		Rows:       statements * of(loadResult.rows),
		CPU:        statements * of(loadResult.cpu),
		Database:   statements * of(loadResult.database),
	}
}

// wayOnOneMachine is there and back between two processes of a machine. It parts what a caller waits for into what is on the
// way and what is the client's. Half of it, or twice as much, moves what is simulated here by a tenth at most.
const wayOnOneMachine = 20 * time.Microsecond

// calibrate returns a model with the costs that the loads show.
func calibrate(measured map[load]loadResult, cores int) (sim.Model, error) {
	hot, crowd, few, wide := measured[hotLoad], measured[crowdLoad], measured[fewLoad], measured[wideLoad]
	m := sim.Model{Cores: cores, Settle: 100 * time.Millisecond, Duration: time.Second, RTT: wayOnOneMachine}
	if crowd.hits() <= hot.hits() || wide.rows() <= few.rows() {
		return m, fmt.Errorf("bench: 256 callers have %.1f hits and %.1f rows in a statement, want more than the %.1f of 64 and %.1f of 16",
			crowd.hits(), wide.rows(), hot.hits(), few.rows())
	}

	row := (wide.database() - few.database()) / (wide.rows() - few.rows())
	m.Row = seconds(row)
	m.Statement = seconds(hot.database() - row)
	m.Several = seconds(few.database() - row*few.rows() - m.Statement.Seconds())
	m.Blocked = seconds(measured[manyLoad(cores, 1)].database() - hot.database())

	hit := (crowd.cpu() - hot.cpu()) / (crowd.hits() - hot.hits())
	clientRow := (wide.cpu() - few.cpu() - hit*(wide.hits()-few.hits())) / (wide.rows() - few.rows())
	statement := hot.cpu() - hit*hot.hits() - clientRow
	several := few.cpu() - hit*few.hits() - clientRow*few.rows() - statement
	m.ClientHit, m.ClientRow, m.ClientStatement, m.ClientSeveral = seconds(hit), seconds(clientRow), seconds(statement), seconds(several)
	// Part of what a statement costs the client is spent while that is on its way, when the scheduler looks for other
	// work: as much as does not fit into the time of a statement.
	before := 1/hot.Statements - hot.database() - hit*hot.hits()/float64(cores) - clientRow - m.RTT.Seconds()
	m.Aside = min(max(0, 1-before/statement), 1)
	m.RTT += seconds(before - statement)
	late := func(l load) float64 { return (1 - measured[l].hits()/float64(l.Callers)) / measured[l].hits() }
	m.Late = (late(hotLoad) + late(crowdLoad)) / 2

	// What several instances cost each other is what their statements take more, and what makes the model as slow as
	// they are.
	if err := fit(&m, &m.Neighbours, manyLoad(cores, 1), measured); err != nil {
		return m, err
	}
	many := measured[manyLoad(cores, 10_000)]
	further := float64(3*cores-1) / float64(cores)
	rest := many.cpu() - (1+m.Neighbours*further)*(statement+hit*many.hits())
	m.NeighboursRows = max(0, (rest/(max(0, several)+clientRow*many.rows())-1)/further)
	return m, fit(&m, &m.Crowded, manyLoad(cores, 10_000), measured)
}

// fit finds the value of a cost, from 0 to 2, with which the model's rate for the load is nearest to what was measured. How
// near that is the checked loads show.
func fit(m *sim.Model, cost *float64, l load, measured map[load]loadResult) error {
	low, high := 0.0, 2.0
	for range 12 {
		*cost = (low + high) / 2
		r, err := l.in(*m)
		if err != nil {
			return err
		}
		if r.PerSecond > measured[l].PerSecond {
			low = *cost
		} else {
			high = *cost
		}
	}
	return nil
}

// in runs the load in a model.
func (l load) in(m sim.Model) (sim.Result, error) {
	m.Instances, m.Callers, m.Keys, m.Zipf = l.Instances, l.Callers, l.Keys, l.Zipf
	return sim.Run(m)
}

func seconds(s float64) time.Duration { return time.Duration(max(0, s) * float64(time.Second)) }

// What a statement of the load has and takes, in seconds of a core.
func (r loadResult) hits() float64     { return r.PerSecond / r.Statements }
func (r loadResult) rows() float64     { return r.Rows / r.Statements }
func (r loadResult) cpu() float64      { return r.CPU / r.Statements }
func (r loadResult) database() float64 { return r.Database / r.Statements }

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
			m.Cores, m.ClientCores, m.RTT = cores, 2, time.Millisecond
			m.Settle, m.Duration = 3*time.Second, 3*time.Second
			r, err := sim.Run(m)
			if err != nil {
				return nil, err
			}
			p := predicted{
				Instances: m.Instances, Load: l.name, Cores: cores, RTT: m.RTT.String(), Demand: r.Arrived,
				PerSecond: r.PerSecond, Statements: r.Statements, Busy: r.Busy,
			}
			if r.PerSecond > 0.99*r.Arrived {
				p.P50, p.P99 = milliseconds(r.P50), milliseconds(r.P99)
			}
			all = append(all, p)
		}
	}
	return all, nil
}

func milliseconds(d time.Duration) float64 { return microseconds(d) / 1000 }

func writeSimulation(w io.Writer, m sim.Model, points []checked, predictions []predicted) error {
	e := json.NewEncoder(w)
	if err := e.Encode(map[string]any{"costs_ns": m.Costs, "round_trip_ns": m.RTT, "cores": m.Cores}); err != nil {
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
	fmt.Fprintf(w, "Of a core of the database: %v for a statement (%v more for one of several rows), %v for a row, %v if another has the row.\n",
		m.Statement, m.Several, m.Row, m.Blocked)
	fmt.Fprintf(w, "Of a core of an instance: %v for a statement (%v more; %.0f %% while that is on its way), %v for a row, %v for a request.\n",
		m.ClientStatement, m.ClientSeveral, 100*m.Aside, m.ClientRow, m.ClientHit)
	fmt.Fprintf(w, "There and back %v. Late %.5f, neighbours %.3f and %.3f for rows, crowded %.4f.\n\n", m.RTT, m.Late, m.Neighbours, m.NeighboursRows, m.Crowded)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "instances\tcallers\tkeys\tzipf\tmeasured/s\tsimulated/s\terror\tstatements/s\tsimulated\t")
	worst := 0.0
	for _, p := range points {
		fmt.Fprintf(t, "%d\t%d\t%d\t%g\t%.0f\t%.0f\t%+.0f %%\t%.0f\t%.0f\t\n",
			p.Instances, p.Callers, p.Keys, p.Zipf, p.Measured, p.Simulated, 100*p.Error, p.MeasuredStatements, p.SimulatedStatements)
		worst = max(worst, math.Abs(p.Error))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nThe largest error is %.0f %%.\n\n", 100*worst)
	fmt.Fprintln(t, "instances\tload\tcores\tdemand/s\tdecisions/s\tp50 ms\tp99 ms\tstatements/s\tdatabase busy\t")
	for _, p := range predictions {
		p50, p99 := "longer", "and longer"
		if p.P50 > 0 {
			p50, p99 = fmt.Sprintf("%.1f", p.P50), fmt.Sprintf("%.1f", p.P99)
		}
		fmt.Fprintf(t, "%d\t%s\t%d\t%.0f\t%.0f\t%s\t%s\t%.0f\t%.0f %%\t\n",
			p.Instances, p.Load, p.Cores, p.Demand, p.PerSecond, p50, p99, p.Statements, 100*p.Busy)
	}
	return t.Flush()
}
