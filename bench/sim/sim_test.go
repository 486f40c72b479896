package sim_test

import (
	"math"
	"testing"
	"time"

	"github.com/krow/ratelimit/bench/sim"
)

func run(t *testing.T, m sim.Model) sim.Result {
	t.Helper()
	r, err := sim.Run(m)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance*want {
		t.Errorf("%s is %v, want %v within %v %%", what, got, want, 100*tolerance)
	}
}

var costs = sim.Costs{Statement: 100 * time.Microsecond, Row: 10 * time.Microsecond, ClientStatement: 20 * time.Microsecond, ClientRow: time.Microsecond, ClientHit: 2 * time.Microsecond}

// One caller waits for each thing in turn.
func TestOneCaller(t *testing.T) {
	t.Parallel()
	r := run(t, sim.Model{Instances: 1, Callers: 1, Keys: 1, Costs: costs, RTT: 67 * time.Microsecond, Cores: 1, ClientCores: 1, Duration: time.Second})
	near(t, "the rate", r.PerSecond, 1e6/200, 0.001)
	if r.P50 != 200*time.Microsecond || r.P99 != r.P50 || r.Rows != 1 || r.Waited != 0 {
		t.Errorf("result is %+v, want 200 µs for each decision", r)
	}
	near(t, "the load", r.Busy, 110.0/200, 0.001)
}

// Callers on one key share statements: as many decisions as callers come back with each.
func TestHotKey(t *testing.T) {
	t.Parallel()
	r := run(t, sim.Model{Instances: 1, Callers: 100, Keys: 1, Costs: costs, Cores: 1, ClientCores: 1, Duration: time.Second})
	near(t, "decisions of a statement", r.PerSecond/r.Statements, 100, 0.01)
	near(t, "the rate", r.PerSecond, 100*1e6/(131+200), 0.02)
}

// Instances take turns at a hot row, and none of them alone is slower than that.
func TestHotRowOfMany(t *testing.T) {
	t.Parallel()
	r := run(t, sim.Model{Instances: 10, Callers: 100, Keys: 1, Costs: costs, Cores: 4, ClientCores: 4, Duration: time.Second})
	near(t, "statements", r.Statements, 1e6/110, 0.02)
	near(t, "the rate", r.PerSecond, 100*1e6/110, 0.02)
	if r.Waited < 0.8 {
		t.Errorf("%v of the statements have waited, want nearly all", r.Waited)
	}
}

// With even keys the database's cores are what bounds the rate, and two statements keep them busy.
func TestSpread(t *testing.T) {
	t.Parallel()
	r := run(t, sim.Model{Instances: 4, Callers: 200, Keys: 1_000_000, Costs: costs, Cores: 2, ClientCores: 8, Duration: 2 * time.Second})
	if r.Busy < 0.9 || r.Busy > 1.001 {
		t.Errorf("the database is busy for %v, want nearly 1", r.Busy)
	}
	near(t, "the rate", r.PerSecond, 2*1e6/(100/r.Rows+10)*r.Busy, 0.03)
}

// What comes at random is all answered, as fast as it comes, if there is room.
func TestOpenArrivals(t *testing.T) {
	t.Parallel()
	m := sim.Model{Instances: 3, Rate: 1000, Keys: 10_000, Zipf: 1.1, Costs: costs, RTT: time.Millisecond, Cores: 2, ClientCores: 1, Duration: 10 * time.Second}
	r := run(t, m)
	near(t, "the rate", r.PerSecond, 3000, 0.03)
	if r.P50 < time.Millisecond || r.P99 > 10*time.Millisecond {
		t.Errorf("decisions take %v and %v, want some milliseconds", r.P50, r.P99)
	}
	if again := run(t, m); again != r {
		t.Errorf("the same seed gives %+v and %+v", r, again)
	}
	m.Seed++
	if other := run(t, m); other == r {
		t.Error("another seed gives the same")
	}
}

// Statements are bounded by instances and the time of one, whatever comes in.
func TestStatementsAreBounded(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{1_000, 10_000, 50_000} {
		r := run(t, sim.Model{Instances: 2, Rate: rate, Keys: 1, Costs: costs, RTT: 5 * time.Millisecond, Cores: 8, ClientCores: 8, Duration: time.Second})
		if most := 2 * 1.0 / 0.005; r.Statements > most {
			t.Errorf("%v requests a second take %v statements, want at most %v", rate, r.Statements, most)
		}
	}
}

// Two cores that are threads of one do not do twice as much.
func TestCrowded(t *testing.T) {
	t.Parallel()
	m := sim.Model{Instances: 2, Callers: 200, Keys: 1_000_000, Costs: costs, Cores: 2, ClientCores: 8, Duration: time.Second}
	alone := run(t, m)
	m.Crowded = 1.5
	crowded := run(t, m)
	near(t, "the rate", crowded.PerSecond, alone.PerSecond/1.5, 0.1)
}

func TestValidate(t *testing.T) {
	t.Parallel()
	good := sim.Model{Instances: 1, Callers: 1, Keys: 1, Cores: 1, Duration: time.Second}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*sim.Model){
		"Instances": func(m *sim.Model) { m.Instances = 0 },
		"Callers":   func(m *sim.Model) { m.Callers = 0 },
		"Keys":      func(m *sim.Model) { m.Keys = 0 },
		"Zipf":      func(m *sim.Model) { m.Zipf = 0.5 },
		"Cores":     func(m *sim.Model) { m.Cores = 0 },
		"Crowded":   func(m *sim.Model) { m.Crowded = 0.9 },
		"Duration":  func(m *sim.Model) { m.Duration = 0 },
	} {
		m := good
		change(&m)
		if _, err := sim.Run(m); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
