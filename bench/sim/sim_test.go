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
	near(t, "the rate", r.PerSecond, 1e6/200, 0.01)
	near(t, "the median", r.P50.Seconds(), 200e-6, 0.02)
	near(t, "the slow one", r.P99.Seconds(), 256e-6, 0.03) // the statement takes up to 165 µs of the database
	near(t, "the load", r.Busy, 110.0/200, 0.01)
	if r.Rows != 1 || r.Waited != 0 {
		t.Errorf("result is %+v, want a row in each statement that waits for none", r)
	}
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

// A thing takes longer by the square of how many others wait for each core when it begins, up to eight.
func TestCrowded(t *testing.T) {
	t.Parallel()
	m := sim.Model{Callers: 1, Keys: 1_000_000, Costs: costs, Cores: 1, Duration: time.Second}
	for _, c := range []struct {
		instances int
		longer    float64
	}{
		{6, 1 + 16.0/64}, // one has just ended and one begins
		{50, 2},
	} {
		m.Instances, m.Crowded = c.instances, 0
		plain := run(t, m)
		m.Crowded = 1.0 / 64
		near(t, "the rate", run(t, m).PerSecond, plain.PerSecond/c.longer, 0.02)
	}
	m.Instances = 1
	crowded := run(t, m)
	m.Crowded = 0
	if plain := run(t, m); plain != crowded {
		t.Errorf("a single instance gives %+v crowded and %+v otherwise", crowded, plain)
	}
}

// Further instances cost each other time of the client's work, and not if they have cores of their own.
func TestNeighbours(t *testing.T) {
	t.Parallel()
	m := sim.Model{Instances: 3, Callers: 1, Keys: 1_000_000, Costs: costs, Cores: 1, Duration: time.Second}
	near(t, "the rate", run(t, m).PerSecond, 1e6/(110+23), 0.01)
	m.Neighbours = 0.5
	near(t, "the rate", run(t, m).PerSecond, 1e6/(110+2*22+1), 0.01)
	m.NeighboursRows = 10
	near(t, "the rate", run(t, m).PerSecond, 1e6/(110+2*22+21), 0.01)
	m.ClientCores = 1
	apart := run(t, m)
	m.Neighbours, m.NeighboursRows = 0, 0
	if plain := run(t, m); plain != apart {
		t.Errorf("instances with cores of their own give %+v with neighbours and %+v otherwise", apart, plain)
	}
}

// Statements of more than one row have costs of their own on both sides.
func TestSeveral(t *testing.T) {
	t.Parallel()
	m := sim.Model{Instances: 1, Callers: 10, Keys: 1, Costs: costs, Cores: 1, ClientCores: 1, Duration: time.Second}
	one := run(t, m)
	m.Several, m.ClientSeveral = time.Millisecond, time.Millisecond
	if again := run(t, m); again != one {
		t.Errorf("statements of one row give %+v, and %+v if those of several cost more", one, again)
	}
	m.Keys = 1_000_000
	near(t, "statements", run(t, m).Statements, 1e6/(100+10*10+20+10*1+10*2+2000), 0.02)
}

// A hot key among others makes statements go one after another, each with all of its rows.
func TestSkewed(t *testing.T) {
	t.Parallel()
	m := sim.Model{Instances: 8, Callers: 100, Keys: 1000, Zipf: 1.5, Costs: costs, Cores: 8, ClientCores: 8, Duration: time.Second}
	r := run(t, m)
	if r.Waited < 0.8 {
		t.Errorf("%v of the statements have waited, want nearly all", r.Waited)
	}
	near(t, "statements", r.Statements, 1e6/(100+10*r.Rows), 0.05)
	m.Zipf = 0
	even := run(t, m)
	if even.Statements*even.Rows < 1.5*r.Statements*r.Rows {
		t.Errorf("even keys take %.0f rows a second, want half as many again as the %.0f of uneven ones", even.Statements*even.Rows, r.Statements*r.Rows)
	}
}

// Whoever waits for a row takes more of the database.
func TestBlocked(t *testing.T) {
	t.Parallel()
	m := sim.Model{
		Instances: 2, Callers: 1, Keys: 1, Cores: 2, ClientCores: 1, Duration: time.Second,
		Costs: sim.Costs{Statement: 100 * time.Microsecond, Blocked: 50 * time.Microsecond},
	}
	r := run(t, m)
	near(t, "statements", r.Statements, 1e6/150, 0.01)
	near(t, "the load", r.Busy, 0.5, 0.01)
	near(t, "the part that waits", r.Waited, 1, 0.01)
	m.Keys = 1_000_000
	near(t, "statements on other rows", run(t, m).Statements, 2*1e6/100, 0.01)
}

// What an instance does while its statement is on its way takes no time of the statement, but of the cores.
func TestAside(t *testing.T) {
	t.Parallel()
	m := sim.Model{Instances: 1, Callers: 1, Keys: 1, Costs: costs, Cores: 2, Duration: time.Second}
	m.Aside = 0.5
	r := run(t, m)
	near(t, "the rate", r.PerSecond, 1e6/(10+1+110+2), 0.01)
	near(t, "the load", r.Busy, r.Statements*133e-6/2, 0.01)
}

// Callers that are late share the statement after the next.
func TestLate(t *testing.T) {
	t.Parallel()
	m := sim.Model{Instances: 1, Callers: 100, Keys: 1, Costs: costs, Cores: 8, Duration: time.Second}
	m.Late = 0.002
	// Of n hits 0.002 n² are late, and those of the last statement are missing: n + 0.002 n² = 100.
	r := run(t, m)
	near(t, "hits of a statement", r.PerSecond/r.Statements, 85.4, 0.02)
	m.Late = 1 // half of them: n + n/2 = 100
	r = run(t, m)
	near(t, "hits of a statement", r.PerSecond/r.Statements, 200.0/3, 0.02)
	m.Callers = 1 // has nobody to be late for
	near(t, "the rate", run(t, m).PerSecond, 1e6/133, 0.01)
}

func TestValidate(t *testing.T) {
	t.Parallel()
	good := sim.Model{Instances: 1, Callers: 1, Keys: 1, Cores: 1, Duration: time.Second}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*sim.Model){
		"Instances":      func(m *sim.Model) { m.Instances = 0 },
		"Callers":        func(m *sim.Model) { m.Callers = 0 },
		"Keys":           func(m *sim.Model) { m.Keys = 0 },
		"Zipf":           func(m *sim.Model) { m.Zipf = 0.5 },
		"Cores":          func(m *sim.Model) { m.Cores = 0 },
		"Crowded":        func(m *sim.Model) { m.Crowded = -0.1 },
		"Blocked":        func(m *sim.Model) { m.Blocked = -1 },
		"RTT":            func(m *sim.Model) { m.RTT = -1 },
		"Neighbours":     func(m *sim.Model) { m.Neighbours = -1 },
		"NeighboursRows": func(m *sim.Model) { m.NeighboursRows = -1 },
		"ClientSeveral":  func(m *sim.Model) { m.ClientSeveral = -1 },
		"Aside":          func(m *sim.Model) { m.Aside = 1.5 },
		"Late":           func(m *sim.Model) { m.Late = -1 },
		"Duration":       func(m *sim.Model) { m.Duration = 0 },
	} {
		m := good
		change(&m)
		if _, err := sim.Run(m); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
