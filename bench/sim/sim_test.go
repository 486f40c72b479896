package sim_test

import (
	"math"
	"strings"
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

// With even keys the database's cores are what bounds the rate.
func TestSpread(t *testing.T) {
	t.Parallel()
	r := run(t, sim.Model{Instances: 4, Callers: 200, Keys: 1_000_000, Costs: costs, Cores: 2, ClientCores: 8, Duration: 2 * time.Second})
	near(t, "the load", r.Busy, 1, 0.1)
	near(t, "rows of a statement", r.Rows, 200.0/3, 0.05) // two are on their way, and a third gathers
	near(t, "the rate", r.PerSecond, 2*1e6/(100/r.Rows+10)*r.Busy, 0.03)
}

// How many statements an instance has on their way follows from the rows of the second. With a round trip that takes
// nearly all the time, each is worth 100 statements a second.
func TestInFlight(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		callers, keys int
		zipf          float64
		want          float64
	}{
		{"two large ones", 60, 1_000_000, 0, 2},
		{"a small one waits", 30, 1_000_000, 0, 1},
		{"a row in common", 400, 10_000, 1.5, 1},
	} {
		r := run(t, sim.Model{
			Instances: 1, Callers: c.callers, Keys: c.keys, Zipf: c.zipf, Costs: sim.Costs{Statement: time.Microsecond},
			RTT: 10 * time.Millisecond, Cores: 8, ClientCores: 8, Settle: 100 * time.Millisecond, Duration: 2 * time.Second,
		})
		near(t, c.name+": statements on their way", r.Statements/100, c.want, 0.05)
	}
}

// Who comes while answers are handed out shares the next statement with those who are answered.
func TestGathering(t *testing.T) {
	t.Parallel()
	r := run(t, sim.Model{
		Instances: 1, Rate: 10_000, Keys: 1, Costs: sim.Costs{ClientHit: 50 * time.Microsecond}, RTT: time.Millisecond, Cores: 1, ClientCores: 1,
		Settle: time.Second, Duration: 10 * time.Second,
	})
	// Of a turn of t, 10 t have come, which take half of it to answer: t = 1 ms + t/2.
	near(t, "statements", r.Statements, 500, 0.02)
	near(t, "the median", r.P50.Seconds(), 0.003, 0.02) // half a turn until it goes, and then 1 ms twice
}

// What comes at random is all answered, as fast as it comes, if there is room.
func TestOpenArrivals(t *testing.T) {
	t.Parallel()
	m := sim.Model{
		Instances: 3, Rate: 1000, Keys: 10_000, Zipf: 1.1, Costs: costs, RTT: time.Millisecond, Cores: 2, ClientCores: 1,
		Settle: time.Second, Duration: 10 * time.Second,
	}
	r := run(t, m)
	near(t, "what comes", r.Arrived, 3000, 0.03)
	near(t, "the rate", r.PerSecond, r.Arrived, 0.001)
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

// What comes faster than it can be answered waits.
func TestOverload(t *testing.T) {
	t.Parallel()
	r := run(t, sim.Model{
		Instances: 1, Rate: 200_000, Keys: 1_000_000_000, Costs: costs, Cores: 1, ClientCores: 1, Settle: time.Second, Duration: time.Second,
	})
	near(t, "what comes", r.Arrived, 200_000, 0.03)
	near(t, "the rate", r.PerSecond, 1e6/(10+100.0/512), 0.03)
	near(t, "the wait of the last", r.P99.Seconds(), 1, 0.05) // half of what has come is left
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
	good := sim.Model{Instances: 1, Callers: 1, Keys: 1, Cores: 1, RTT: time.Millisecond, Duration: time.Second}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*sim.Model){
		"Instances is 0":        func(m *sim.Model) { m.Instances = 0 },
		"Callers is 0":          func(m *sim.Model) { m.Callers = 0 },
		"Callers is -1":         func(m *sim.Model) { m.Callers = -1 },
		"Keys is 0":             func(m *sim.Model) { m.Keys = 0 },
		"Zipf is 0.5":           func(m *sim.Model) { m.Zipf = 0.5 },
		"Cores is 0":            func(m *sim.Model) { m.Cores = 0 },
		"ClientCores -1":        func(m *sim.Model) { m.ClientCores = -1 },
		"Crowded -0.1":          func(m *sim.Model) { m.Crowded = -0.1 },
		"Blocked:-1ns":          func(m *sim.Model) { m.Blocked = -1 },
		"RTT is -1ms":           func(m *sim.Model) { m.RTT = -time.Millisecond },
		"RTT is 0s":             func(m *sim.Model) { m.RTT = 0 },
		"Neighbours -1":         func(m *sim.Model) { m.Neighbours = -1 },
		"NeighboursRows -1":     func(m *sim.Model) { m.NeighboursRows = -1 },
		"ClientSeveral:-1ns":    func(m *sim.Model) { m.ClientSeveral = -1 },
		"Aside is 1.5":          func(m *sim.Model) { m.Aside = 1.5 },
		"Late is -1":            func(m *sim.Model) { m.Late = -1 },
		"Duration 0s":           func(m *sim.Model) { m.Duration = 0 },
		"Settle is -1ns":        func(m *sim.Model) { m.Settle = -1 },
		"Callers is 0 and Rate": func(m *sim.Model) { m.Callers, m.Rate = 0, -1 },
	} {
		m := good
		change(&m)
		if err := m.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one of %q", err, want)
		}
	}
	if r, err := sim.Run(sim.Model{}); err == nil {
		t.Errorf("a model of nothing gives %+v", r)
	}
}
