// Package sim is a model of many instances of the limiter on one Postgres. It follows each hit through the batches of
// its instance, the processors and the row locks, event by event, in a time of its own. The same seed gives the same
// result.
package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// A Model says what is simulated. Each instance has Callers that ask one after another, or, if there are none, requests
// that come at a Rate.
type Model struct {
	Instances int
	Callers   int     // of each instance
	Rate      float64 // requests a second of each instance, at random
	Keys      int
	Zipf      float64 // how uneven the keys are: 0 for even, or more than 1

	Costs
	RTT         time.Duration // between an instance and the database, there and back
	Cores       int           // of the database
	ClientCores int           // of each instance, or 0 if all share those of the database
	Settle      time.Duration // what goes before, to become steady
	Duration    time.Duration // of what is counted
	Seed        uint64
}

// Costs are what things take of a core, on average: from half to one and a half times as long, at random.
type Costs struct {
	Statement, Row             time.Duration // of the database: for each statement, and for each row of it
	ClientStatement, ClientRow time.Duration // of an instance: the same
	Several, ClientSeveral     time.Duration // of both: besides for a statement of more than one row
	ClientHit                  time.Duration // of an instance: for each request
	// Aside is which part of ClientStatement and ClientSeveral is spent while the statement is on its way, and not before it goes.
	Aside float64
	// Late is which part of the callers of a statement is not back in time for the next one, for each caller that it has
	// had: the more there are, the more unevenly the cores share them. More than half of them are like half.
	Late float64
	// Blocked is what a statement takes besides of the database each time that it waits for another's row: its process
	// sleeps, is woken and looks again.
	Blocked time.Duration
	// Neighbours is what is added to ClientStatement and ClientHit, as a part of them, for each further instance per core, if
	// they have no cores of their own: runtimes look for work and take turns. NeighboursRows is the same for
	// ClientSeveral and ClientRow.
	Neighbours, NeighboursRows float64
	// Crowded is how much longer a thing takes, as a part of that, by the square of how many others wait for each core
	// when it begins: caches have to be filled again. 0.02 makes it half as long again if five wait. More than eight are
	// like eight.
	Crowded float64
}

// A Result is what came of it.
type Result struct {
	PerSecond  float64       // decisions
	Arrived    float64       // requests a second: if they are more, they wait for longer and longer
	P50, P99   time.Duration // of a decision
	Statements float64       // a second
	Rows       float64       // of a statement
	Busy       float64       // how much of the database's cores is used, from 0 to 1, and by instances without cores of their own
	Waited     float64       // the part of statements that has waited for a row of another's
}

// Validate returns what is wrong with the model, or nil.
func (m Model) Validate() error {
	switch {
	case m.Instances < 1:
		return fmt.Errorf("sim: Instances is %d, want at least 1", m.Instances)
	case m.Callers < 0 || m.Callers == 0 && m.Rate <= 0:
		return fmt.Errorf("sim: Callers is %d and Rate %v, want one of the two", m.Callers, m.Rate)
	case m.Keys < 1:
		return fmt.Errorf("sim: Keys is %d, want at least 1", m.Keys)
	case m.Zipf != 0 && m.Zipf <= 1:
		return fmt.Errorf("sim: Zipf is %v, want 0 or more than 1", m.Zipf)
	case m.Cores < 1 || m.ClientCores < 0:
		return fmt.Errorf("sim: Cores is %d and ClientCores %d, want at least 1 and 0", m.Cores, m.ClientCores)
	case min(m.Statement, m.Row, m.ClientStatement, m.ClientRow, m.Several, m.ClientSeveral, m.ClientHit, m.Blocked, m.RTT) < 0:
		return fmt.Errorf("sim: Costs are %+v and RTT is %v, want at least 0 of each", m.Costs, m.RTT)
	case m.Aside < 0 || m.Aside > 1:
		return fmt.Errorf("sim: Aside is %v, want 0 to 1", m.Aside)
	case min(m.Late, m.Neighbours, m.NeighboursRows, m.Crowded) < 0:
		return fmt.Errorf("sim: Late is %v, Neighbours %v, NeighboursRows %v and Crowded %v, want at least 0", m.Late, m.Neighbours, m.NeighboursRows, m.Crowded)
	case m.Settle < 0 || m.Duration <= 0:
		return fmt.Errorf("sim: Settle is %v and Duration %v, want at least 0 and more than 0", m.Settle, m.Duration)
	case m.Statement+m.Row+m.ClientStatement+m.ClientRow+m.ClientHit+m.RTT < time.Microsecond:
		return fmt.Errorf("sim: Costs are %+v and RTT is %v, want a microsecond at least for a decision", m.Costs, m.RTT)
	}
	return nil
}

// Run simulates the model.
func Run(m Model) (Result, error) {
	if err := m.Validate(); err != nil {
		return Result{}, err
	}
	w := newWorld(m)
	w.runUntil(m.Settle)
	w.counted = counted{}
	for _, cpu := range w.cpus() {
		cpu.busy = 0
	}
	w.runUntil(m.Settle + m.Duration)

	seconds := m.Duration.Seconds()
	r := Result{
		PerSecond:  float64(w.decisions) / seconds,
		Arrived:    float64(w.arrivals) / seconds,
		Statements: float64(w.statements) / seconds,
		Busy:       w.database.busy.Seconds() / seconds / float64(m.Cores),
	}
	if w.statements > 0 {
		r.Rows = float64(w.rows) / float64(w.statements)
		r.Waited = float64(w.waits) / float64(w.statements)
	}
	if n := len(w.latencies); n > 0 {
		slices.Sort(w.latencies)
		r.P50, r.P99 = w.latencies[n/2], w.latencies[n*99/100]
	}
	return r, nil
}

// A world is a run of a model.
type world struct {
	Model
	clock
	rng       *rand.Rand
	zipf      *rand.Zipf
	place     []int // of a key in the order of locks, if some are hotter: buckets are hashes
	database  *cpu
	instances []*instance
	locks     map[int][]*batch // of buckets: who has it, and behind it who waits
	counted
}

type counted struct {
	arrivals, decisions, statements, rows, waits int
	latencies                                    []time.Duration
}

func newWorld(m Model) *world {
	if m.ClientCores == 0 {
		further := float64(m.Instances-1) / float64(m.Cores)
		longer := func(d *time.Duration, part float64) { *d = time.Duration(float64(*d) * (1 + part*further)) }
		longer(&m.ClientStatement, m.Neighbours)
		longer(&m.ClientHit, m.Neighbours)
		longer(&m.ClientRow, m.NeighboursRows)
		longer(&m.ClientSeveral, m.NeighboursRows)
	}
	w := &world{Model: m, rng: rand.New(rand.NewPCG(m.Seed, 0)), locks: make(map[int][]*batch)}
	if m.Zipf > 1 {
		w.zipf = rand.NewZipf(w.rng, m.Zipf, 1, uint64(m.Keys-1))
		w.place = w.rng.Perm(m.Keys)
	}
	w.database = &cpu{world: w, cores: m.Cores}
	for range m.Instances {
		i := &instance{world: w, cpu: w.database}
		if m.ClientCores > 0 {
			i.cpu = &cpu{world: w, cores: m.ClientCores}
		}
		w.instances = append(w.instances, i)
		if m.Callers > 0 {
			w.after(time.Duration(w.rng.Int64N(int64(time.Millisecond))), func() {
				for range m.Callers {
					i.arrive()
				}
				i.flush()
			})
		} else {
			i.arriveAtRandom()
		}
	}
	return w
}

func (w *world) cpus() []*cpu {
	all := []*cpu{w.database}
	for _, i := range w.instances {
		if i.cpu != w.database {
			all = append(all, i.cpu)
		}
	}
	return all
}

func (w *world) key() int {
	if w.zipf != nil {
		return w.place[w.zipf.Uint64()]
	}
	return w.rng.IntN(w.Keys)
}
