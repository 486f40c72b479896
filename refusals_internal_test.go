package ratelimit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func remembered(m *refusals) int {
	n := 0
	for i := range m.shards {
		n += len(m.shards[i].entries)
	}
	return n
}

// The memory is bounded, and what came first is forgotten first.
func TestRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	m := newRefusals()
	c := Count{Total: 1, Left: time.Hour}
	const n = 3 * maxRefusals
	for i := range n {
		m.remember(fmt.Sprint(i), c, time.Now(), 0, false)
		m.remember(fmt.Sprint(i), c, time.Now(), 0, false) // takes no second place
	}
	if got := remembered(m); got != maxRefusals {
		t.Errorf("%d buckets are remembered, want %d", got, maxRefusals)
	}
	if _, _, ok := m.recall(fmt.Sprint(n-1), time.Now()); !ok {
		t.Error("the last bucket is forgotten")
	}
	if _, _, ok := m.recall("0", time.Now()); ok {
		t.Error("the first bucket is remembered")
	}
}

// Of a burst that shared one statement, each request was told another count, and all but those within the limit
// are given back, in whatever order they come to it. What is remembered then is what is left.
func TestRefusalsOfABurst(t *testing.T) {
	t.Parallel()
	const limit, burst = 10, 64
	for range 20 {
		m := newRefusals()
		start := time.Now()
		for _, i := range rand.Perm(burst) {
			total := int64(i + 1)
			if total > limit {
				m.lower(Charge{Bucket: "b", Start: start, N: 1})
			}
			if total >= limit {
				m.remember("b", Count{Total: total, Left: time.Hour, Start: start}, start, 0, true)
			}
		}
		if c, _, ok := m.recall("b", time.Now()); c.Total != limit || !ok {
			t.Fatalf("recalled %+v, %v, want %d", c, ok, limit)
		}
	}
}

// A count that was taken off while the store was asked is not a bound.
func TestRefusalsLoweredMeanwhile(t *testing.T) {
	t.Parallel()
	m := newRefusals()
	before := m.lowered("b")
	m.lower(Charge{Bucket: "b", N: 3})
	m.remember("b", Count{Total: 12, Left: time.Hour}, time.Now(), before, false)
	if c, _, ok := m.recall("b", time.Now()); c.Total != 9 || !ok {
		t.Errorf("recalled %+v, %v, want 9", c, ok)
	}
	m.lower(Charge{Bucket: "b", N: 2})
	if c, _, ok := m.recall("b", time.Now()); c.Total != 7 || !ok {
		t.Errorf("recalled %+v, %v after lowering, want 7", c, ok)
	}
}

// What is given back to the window before lowers what that still counts for, and to the present one does not.
func TestRefusalsOfTheWindowBefore(t *testing.T) {
	t.Parallel()
	m := newRefusals()
	before, start := time.Unix(60, 0), time.Unix(120, 0)
	m.remember("b", Count{Total: 7, Previous: 5, Left: time.Hour, Start: start}, time.Now(), 0, true)
	m.lower(Charge{Bucket: "b", Start: start, N: 2})
	if c, _, ok := m.recall("b", time.Now()); c.Total != 5 || c.Previous != 5 || !ok {
		t.Errorf("recalled %+v, %v, want 5 and 5 before", c, ok)
	}
	m.lower(Charge{Bucket: "b", Start: before, N: 1})
	if c, _, ok := m.recall("b", time.Now()); c.Total > 5 || c.Previous != 4 || !ok {
		t.Errorf("recalled %+v, %v, want 5 at most and 4 before", c, ok)
	}
	m.remember("b", Count{Total: 6, Previous: 3, Left: time.Hour, Start: start}, time.Now().Add(-time.Minute), 3, true) // an old answer
	if c, _, _ := m.recall("b", time.Now()); c.Total != 6 || c.Previous != 3 {
		t.Errorf("recalled %+v, want the larger bound, 6 and 3 before", c)
	}
	m.forget("b")
	if c, _, _ := m.recall("b", time.Now()); c.Total+c.Previous > 0 {
		t.Errorf("recalled %+v after it was forgotten, want nothing", c)
	}
}

// What a request with several policies has seen once may be given back by another process: it is believed for
// half a second, and for five if it is seen again, in each window anew.
func TestRefusalsAreConfirmed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newRefusals()
		first, second := time.Now(), time.Now().Add(time.Hour)
		for _, step := range []struct {
			start   time.Time
			several bool
			want    time.Duration
		}{
			{first, true, unconfirmedMemory},
			{first, true, refusalMemory},
			{first, true, refusalMemory},
			{second, true, unconfirmedMemory},
			{second, true, refusalMemory},
			{first, false, refusalMemory},
		} {
			m.remember("b", Count{Total: 9, Left: time.Hour, Start: step.start}, time.Now(), 0, step.several)
			time.Sleep(step.want - 1)
			if _, _, ok := m.recall("b", time.Now()); !ok {
				t.Errorf("%+v: forgotten before its time", step)
			}
			time.Sleep(time.Nanosecond)
			if _, _, ok := m.recall("b", time.Now()); ok {
				t.Errorf("%+v: remembered after its time", step)
			}
		}
	})
}

// What is remembered is a count, not a verdict: a limit that was raised refuses nobody it should not.
func TestRefusalsUnderARaisedLimit(t *testing.T) {
	t.Parallel()
	asked := false
	store := addFunc(func(hits []Hit) []Count {
		asked = true
		return []Count{{Total: 101, Left: time.Hour}}
	})
	l, err := New(store, Config{Policies: []Policy{{Name: "default", Limit: PerHour(150)}}})
	if err != nil {
		t.Fatal(err)
	}
	r := &http.Request{RemoteAddr: "203.0.113.7:1"}
	hits, _, _ := l.keys(r, nil)
	l.refusals.remember(hits[0].Bucket, Count{Total: 100, Left: time.Hour}, time.Now(), 0, false) // under a limit of 100
	if d := l.Check(r); d.Outcome != Allowed || d.Results[0].Remaining != 49 || !asked {
		t.Errorf("decision is %+v, want it allowed by the store with 49 remaining", d)
	}
	(*l.policies.Load())[0].Limit = PerHour(40)
	asked = false
	if d := l.Check(r); d.Outcome != Refused || d.Results[0].Remaining != 0 || asked {
		t.Errorf("decision is %+v, want a refusal from memory under a lower limit", d)
	}
}

// An addFunc is a store that returns what a function returns.
type addFunc func(hits []Hit) []Count

func (f addFunc) Get(_ context.Context, hits []Hit) ([]Count, error) { return f(hits), nil }

func (f addFunc) Reset(context.Context, []string) error { return nil }

func (f addFunc) Add(_ context.Context, hits []Hit) ([]Count, error) { return f(hits), nil }
func (f addFunc) GiveBack([]Charge)                                  {}

// A seesStore is a store that refuses everybody and sees what the memory knows while it gives back.
type seesStore struct {
	Store
	limiter *Limiter
	lowered []int64
}

func (s *seesStore) Add(_ context.Context, hits []Hit) ([]Count, error) {
	counts := make([]Count, len(hits))
	for i := range counts {
		counts[i] = Count{Total: 101, Left: time.Hour}
	}
	return counts, nil
}

func (s *seesStore) GiveBack(charges []Charge) {
	for _, c := range charges {
		s.lowered = append(s.lowered, s.limiter.refusals.lowered(c.Bucket))
	}
}

// The memory is lowered after the store was told: whoever asks in between has a count that holds what is given back,
// and must not take it for a bound.
func TestMemoryIsLoweredAfterTheStore(t *testing.T) {
	t.Parallel()
	s := new(seesStore)
	l, err := New(s, Config{Policies: []Policy{{Name: "a", Limit: PerHour(100)}, {Name: "b", Limit: PerHour(100)}}})
	if err != nil {
		t.Fatal(err)
	}
	s.limiter = l
	r := &http.Request{RemoteAddr: "203.0.113.7:1"}
	l.Check(r)
	if !slices.Equal(s.lowered, []int64{0, 0}) {
		t.Errorf("while the store gives back, %v are taken off in memory, want nothing", s.lowered)
	}
	hits, _, _ := l.keys(r, nil)
	for _, hit := range hits {
		if l.refusals.lowered(hit.Bucket) == 0 {
			t.Errorf("nothing is taken off in memory after the store has given back")
		}
	}
}
