package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"
)

// A result is a run's line: medians over the rounds.
type result struct {
	Workload  string  `json:"workload"`
	Level     level   `json:"level"`
	System    string  `json:"system"`
	Family    family  `json:"family"`
	Callers   int     `json:"callers"`
	Keys      int     `json:"keys"`
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	Errors    int64   `json:"errors,omitempty"`
	Error     string  `json:"error,omitempty"` // the first
}

func (r *run) result() result {
	res := result{
		Workload: r.workload.name, Level: r.workload.level, System: r.system.name, Family: r.system.family,
		Callers: r.workload.callers, Keys: r.workload.keys,
	}
	if r.err != nil {
		res.Error = r.err.Error()
		return res
	}
	var rates []float64
	var p50s, p99s []time.Duration
	for _, s := range r.samples {
		rates, p50s, p99s = append(rates, s.perSecond), append(p50s, s.p50), append(p99s, s.p99)
		res.Errors += s.errors
		if res.Error == "" && s.err != nil {
			res.Error = s.err.Error()
		}
	}
	res.PerSecond = math.Round(median(rates))
	res.P50, res.P99 = microseconds(median(p50s)), microseconds(median(p99s))
	return res
}

func microseconds(d time.Duration) float64 {
	return math.Round(float64(d)/float64(time.Microsecond)*100) / 100
}

// ratios say how many times faster this limiter is than others, and for a lone caller how many times as long
// it takes as the bare upsert. Each is the median over the rounds, in which both were measured one
// after the other. Those of workloads that were not run are nil.
type ratios struct {
	HotVsBestRedis      *float64 `json:"hot_vs_best_redis,omitempty"`
	HotVsNaive          *float64 `json:"hot_vs_naive,omitempty"`
	SpreadVsBestRedis   *float64 `json:"spread_vs_best_redis,omitempty"`
	SpreadVsNaive       *float64 `json:"spread_vs_naive,omitempty"`
	SingleVsBareUpsert  *float64 `json:"single_vs_bare_upsert,omitempty"`
	RefusedVsBestMemory *float64 `json:"refused_vs_best_memory,omitempty"`
	AdmittedVsHTTPRate  *float64 `json:"admitted_vs_httprate,omitempty"`
}

func newRatios(runs []*run) ratios {
	of := func(workload string, level level, ours string, theirs func(*run) bool) *float64 {
		var our *run
		var their []*run
		for _, r := range runs {
			switch {
			case r.workload.name != workload || r.workload.level != level || len(r.samples) == 0:
			case r.system.name == ours:
				our = r
			case theirs(r):
				their = append(their, r)
			}
		}
		if our == nil || len(their) == 0 {
			return nil
		}
		perRound := make([]float64, len(our.samples))
		for i, s := range our.samples {
			best := 0.0
			for _, r := range their {
				best = max(best, r.samples[i].perSecond)
			}
			perRound[i] = s.perSecond / best
		}
		m := math.Round(median(perRound)*100) / 100
		return &m
	}
	named := func(name string) func(*run) bool { return func(r *run) bool { return r.system.name == name } }
	redis := func(r *run) bool { return r.system.family == inRedis }
	peersInMemory := func(r *run) bool { return r.system.family == inMemory && r.system.name != ratelimitMemory }
	single := of("single", storeLevel, ratelimitPostgres, named(bareUpsert))
	if single != nil { // times, not rates
		*single = math.Round(100 / *single) / 100
	}
	return ratios{
		HotVsBestRedis:      of("hot", storeLevel, ratelimitPostgres, redis),
		HotVsNaive:          of("hot", storeLevel, ratelimitPostgres, named(oneStatement)),
		SpreadVsBestRedis:   of("spread", storeLevel, ratelimitPostgres, redis),
		SpreadVsNaive:       of("spread", storeLevel, ratelimitPostgres, named(oneStatement)),
		SingleVsBareUpsert:  single,
		RefusedVsBestMemory: of("refused", middlewareLevel, ratelimitPostgres, peersInMemory),
		AdmittedVsHTTPRate:  of("admitted", middlewareLevel, ratelimitMemory, named("httprate")),
	}
}

// writeJSON writes a line for each run and one with the ratios.
func writeJSON(w io.Writer, runs []*run) error {
	e := json.NewEncoder(w)
	for _, r := range runs {
		if err := e.Encode(r.result()); err != nil {
			return err
		}
	}
	return e.Encode(map[string]ratios{"ratios": newRatios(runs)})
}

func writeTable(w io.Writer, runs []*run) error {
	var last *workload
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, r := range runs {
		if r.workload != last {
			if last != nil {
				fmt.Fprintln(t, "\t\t\t\t")
			}
			last = r.workload
			fmt.Fprintf(t, "%s, level of the %s, callers %d, keys %d\tper second\tp50 µs\tp99 µs\t\n", last.name, last.level, last.callers, last.keys)
		}
		res := r.result()
		note := ""
		if res.Error != "" {
			note = fmt.Sprintf("%d errors: %s", res.Errors, res.Error)
		}
		fmt.Fprintf(t, "%s\t%.0f\t%.1f\t%.1f\t%s\n", res.System, res.PerSecond, res.P50, res.P99, note)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nThis limiter against others, medians over the rounds:")
	q := newRatios(runs)
	for _, line := range []struct {
		ratio *float64
		text  string
	}{
		{q.HotVsBestRedis, "%.2f times the best in Redis on a hot key"},
		{q.HotVsNaive, "%.2f times one statement per request on a hot key"},
		{q.SpreadVsBestRedis, "%.2f times the best in Redis on many keys"},
		{q.SpreadVsNaive, "%.2f times one statement per request on many keys"},
		{q.SingleVsBareUpsert, "%.2f times as long as a bare upsert for a lone caller"},
		{q.RefusedVsBestMemory, "%.2f times the best in memory at refusing"},
		{q.AdmittedVsHTTPRate, "%.2f times httprate at admitting, both in memory"},
	} {
		if line.ratio != nil {
			fmt.Fprintf(w, "  "+line.text+"\n", *line.ratio)
		}
	}
	return nil
}
