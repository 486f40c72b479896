package ratelimit

import (
	"context"
	"fmt"
	"net/http"
	"testing"
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
		m.remember(fmt.Sprint(i), c, time.Now(), 0)
		m.remember(fmt.Sprint(i), c, time.Now(), 0) // takes no second place
	}
	if got := remembered(m); got != maxRefusals {
		t.Errorf("%d buckets are remembered, want %d", got, maxRefusals)
	}
	if _, _, ok := m.recall(fmt.Sprint(n - 1)); !ok {
		t.Error("the last bucket is forgotten")
	}
	if _, _, ok := m.recall("0"); ok {
		t.Error("the first bucket is remembered")
	}
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
	hits, _ := l.keys(r)
	l.refusals.remember(hits[0].Bucket, Count{Total: 100, Left: time.Hour}, time.Now(), 0) // under a limit of 100
	if d := l.Check(r); d.Outcome != Allowed || d.Results[0].Remaining != 49 || !asked {
		t.Errorf("decision is %+v, want it allowed by the store with 49 remaining", d)
	}
	l.policies[0].Limit = PerHour(40)
	asked = false
	if d := l.Check(r); d.Outcome != Refused || d.Results[0].Remaining != 0 || asked {
		t.Errorf("decision is %+v, want a refusal from memory under a lower limit", d)
	}
}

// An addFunc is a store that returns what a function returns.
type addFunc func(hits []Hit) []Count

func (f addFunc) Add(_ context.Context, hits []Hit) ([]Count, error) { return f(hits), nil }
func (f addFunc) GiveBack([]Charge)                                  {}
