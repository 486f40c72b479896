package ratelimit_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
)

// What a dry run would refuse is counted, reported and logged, and served. Clients are told nothing of it.
func TestDryRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sleepUntil(t, "12:00:00")
		var log logbook
		var seen decisions
		next := new(spy)
		handler := newLimiter(t, memoryStore(t), ratelimit.Config{
			Policies:   []ratelimit.Policy{{Name: "trial", Limit: ratelimit.PerMinute(2), DryRun: true}},
			OnDecision: seen.observe,
			Logger:     log.logger(),
		}).Handler(next)
		for range 5 {
			check(t, "a request", served(), serve(handler, request("203.0.113.7:1")))
		}
		time.Sleep(time.Second)
		check(t, "a request a second later", served(), serve(handler, request("203.0.113.7:1")))
		if got := next.takeCalls(); got != 6 {
			t.Errorf("%d requests were served, want 6", got)
		}

		var got []ratelimit.Result
		for _, d := range seen.take() {
			if d.Outcome != ratelimit.Allowed || d.RetryAfter != 0 || d.Err != nil {
				t.Errorf("decision is %+v, want that the request is allowed", d)
			}
			got = append(got, d.Results...)
		}
		var want []ratelimit.Result
		for i, outcome := range []ratelimit.Outcome{"allowed", "allowed", "refused", "refused", "refused", "refused"} {
			want = append(want, ratelimit.Result{
				Policy: "trial", Limit: ratelimit.PerMinute(2), Cost: 1, KeyKind: "ip",
				Outcome: outcome, DryRun: true, Counted: true, Remaining: max(0, 1-i), Reset: time.Minute,
			})
		}
		want[5].Reset = 59 * time.Second
		if diff := cmp.Diff(want, got, equalDecisions); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}

		var records []map[string]any
		for _, record := range log.records(t) {
			delete(record, "time")
			records = append(records, record)
		}
		record := func(leftOut float64) map[string]any {
			return map[string]any{"level": "INFO", "msg": "ratelimit: would have been refused", "policy": "trial", "key_kind": "ip", "left_out": leftOut}
		}
		if diff := cmp.Diff([]map[string]any{record(0), record(2)}, records); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

// Beside a policy that is in force a dry run changes nothing of what clients see, and has its own count
// given back like any other's.
func TestDryRunBesideOthers(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	handler := newLimiter(t, postgresStore(t, pool), ratelimit.Config{
		Policies: []ratelimit.Policy{
			{Name: "trial", Limit: long(1), DryRun: true},
			{Name: "burst", Limit: long(3)},
			{Name: "other.trial", Limit: long(0), DryRun: true},
		},
		Logger: new(logbook).logger(),
	}).Handler(new(spy))
	for i := range 3 {
		got := serve(handler, request("203.0.113.7:1"))
		if want := `"burst";q=3;w=31622400`; got.Status != http.StatusOK || got.Header.Get("RateLimit-Policy") != want {
			t.Errorf("request %d: status %d and policies %q, want 200 and %q", i, got.Status, got.Header.Get("RateLimit-Policy"), want)
		}
	}
	for range 3 { // by the store, and from memory
		got := serve(handler, request("203.0.113.7:1"))
		if got.Status != http.StatusTooManyRequests || !strings.Contains(got.Body, `"violated-policies":["burst"]`) ||
			!strings.HasPrefix(got.Header.Get("RateLimit"), `"burst";r=0;`) || got.Header.Get("RateLimit-Policy") != `"burst";q=3;w=31622400` {
			t.Errorf("the refusal is %+v, want that of burst alone", got)
		}
	}
	statuses(handler, request("203.0.113.8:1"), 1) // what was given back goes before it
	if diff := cmp.Diff([]int64{1, 1, 1, 3, 3, 3}, slices.Sorted(slices.Values(counts(t, pool)))); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

// A dry run refuses nobody while the store is away either, whatever its failure mode.
func TestDryRunFails(t *testing.T) {
	t.Parallel()
	for _, mode := range []ratelimit.FailureMode{ratelimit.FailOpen, ratelimit.FailClosed, ratelimit.FailLocal} {
		handler := newLimiter(t, failing(ratelimit.ErrUnavailable), ratelimit.Config{
			Policies: []ratelimit.Policy{{Name: "trial", Limit: long(1), DryRun: true, OnFailure: mode}},
			Logger:   new(logbook).logger(),
		}).Handler(new(spy))
		for range 3 {
			check(t, mode.String(), served(), serve(handler, request("203.0.113.7:1")))
		}
	}
}
