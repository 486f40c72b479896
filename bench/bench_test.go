package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMain(m *testing.M) {
	if instance() {
		return
	}
	os.Exit(m.Run())
}

// servers starts the servers for one test.
func servers(t *testing.T) environment {
	t.Helper()
	env, stop, err := start(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return env
}

// Every workload has this limiter and its peers, each of which decides rightly: no line has an error but those of
// throttled, which gives up on a key that many ask for at once.
func TestEverySystemInEveryWorkload(t *testing.T) {
	t.Parallel()
	env := servers(t)
	var runs []*run
	loads := workloads(4, 50)
	for i := range loads {
		more, err := loads[i].measure(t.Context(), env, 2, 20*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, more...)
	}
	var text bytes.Buffer
	if err := writeJSON(&text, runs); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	got := make(map[string][]string)
	for _, line := range lines[:len(lines)-1] {
		var r result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r.PerSecond <= 0 || r.P50 <= 0 || r.P99 < r.P50 {
			t.Errorf("figures are %+v", r)
		}
		if r.Error != "" && !strings.HasPrefix(r.System, "throttled") {
			t.Errorf("%s, %s, %s: %s", r.Workload, r.Level, r.System, r.Error)
		}
		name := fmt.Sprint(r.Workload, " ", r.Level)
		got[name] = append(got[name], r.System)
	}
	limiters := []string{
		ratelimitPostgres, ratelimitMemory, oneStatement, oneStatementAsync, "redis_rate", "ulule, Redis", "throttled, Redis",
		"INCR and EXPIRE, Redis", "httprate", "go-limiter", "ulule, memory", "throttled, memory",
	}
	want := map[string][]string{
		"hot store":    limiters,
		"spread store": limiters,
		"single store": {
			ratelimitPostgres, oneStatement, oneStatementAsync, bareUpsert, "redis_rate", "ulule, Redis", "throttled, Redis", "INCR and EXPIRE, Redis",
		},
		"refused middleware": {
			ratelimitPostgres, ratelimitMemory, "ulule, Redis", "throttled, Redis", "httprate", "go-limiter", "ulule, memory", "throttled, memory",
		},
		"admitted middleware": {ratelimitMemory, "httprate", "go-limiter", "ulule, memory", "throttled, memory"},
		"hot middleware":      {ratelimitPostgres, "ulule, Redis", "throttled, Redis"},
		"spread middleware":   {ratelimitPostgres, "ulule, Redis", "throttled, Redis"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("systems (-want +got):\n%s", diff)
	}
	var last struct{ Ratios map[string]float64 }
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"hot_vs_best_redis", "hot_vs_naive", "spread_vs_best_redis", "spread_vs_naive", "single_vs_bare_upsert",
		"refused_vs_best_memory", "admitted_vs_httprate",
	} {
		if last.Ratios[name] <= 0 {
			t.Errorf("%s is %v, want a ratio", name, last.Ratios[name])
		}
	}
	if err := writeTable(&text, runs); err != nil || !strings.Contains(text.String(), "times httprate at admitting") {
		t.Errorf("table (%v):\n%s", err, text.String())
	}
}

// A ratio is the median of what each round gives against the best of that round.
func TestRatios(t *testing.T) {
	t.Parallel()
	w := &workload{name: "hot", level: storeLevel}
	with := func(name string, f family, rates ...float64) *run {
		r := &run{workload: w, system: &system{name: name, family: f}}
		for _, rate := range rates {
			r.samples = append(r.samples, sample{perSecond: rate})
		}
		return r
	}
	got := newRatios([]*run{
		with(ratelimitPostgres, inPostgres, 100, 300, 100),
		with("one", inRedis, 50, 10, 10),
		with("other", inRedis, 10, 100, 20),
		with(oneStatement, inPostgres, 10, 10, 10),
	})
	if got.HotVsBestRedis == nil || *got.HotVsBestRedis != 3 || got.HotVsNaive == nil || *got.HotVsNaive != 10 || got.SpreadVsNaive != nil {
		t.Errorf("ratios are %+v", got)
	}
	single := &workload{name: "single", level: storeLevel}
	ours, bare := with(ratelimitPostgres, inPostgres, 80), with(bareUpsert, inPostgres, 100)
	ours.workload, bare.workload = single, single
	if got := newRatios([]*run{ours, bare}).SingleVsBareUpsert; got == nil || math.Abs(*got-1.25) > 1e-9 {
		t.Errorf("a lone caller takes %v times as long, want 1.25", got)
	}
}

// Instances are processes that share a table, and a chart is drawn of what they do.
func TestInstancesAndChart(t *testing.T) {
	t.Parallel()
	env := servers(t)
	c := curves()[slices.IndexFunc(curves(), func(c curve) bool { return c.name == "instances" })]
	points, err := c.at(t.Context(), env, 2)
	if err != nil {
		t.Fatal(err)
	}
	if len(points) != 2 || points[0].PerSecond <= 0 || points[1].PerSecond <= 0 {
		t.Errorf("points are %+v", points)
	}
	name := filepath.Join(t.TempDir(), "chart.svg")
	if err := drawCurve(name, c, points); err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(name)
	if err != nil || !bytes.Contains(svg, []byte("10,000 keys")) {
		t.Errorf("chart: %v\n%s", err, svg)
	}
}
