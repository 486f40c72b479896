package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
)

// One request too many in a window, in whatever order the windows mix, is found, and named with its policy.
// A crash excuses those who do not wait for the disk, once each, and nobody else.
func TestLedgerFindsExcess(t *testing.T) {
	t.Parallel()
	start := time.Now().Truncate(time.Second).Add(-time.Second)
	for _, test := range []struct {
		name             string
		strict           bool
		crashes, another time.Duration // when, since the start of the window; zero is never
		admitted, broken int
	}{
		{name: "at the limit", strict: true, admitted: 5},
		{name: "above", strict: true, admitted: 6, broken: 1},
		{name: "above, a crash", strict: true, crashes: time.Second / 2, admitted: 6, broken: 1},
		{name: "lax, above", admitted: 6, broken: 1},
		{name: "lax, a crash", crashes: time.Second / 2, admitted: 10},
		{name: "lax, a crash, above", crashes: time.Second / 2, admitted: 11, broken: 1},
		{name: "lax, two crashes", crashes: time.Second / 2, another: time.Second * 3 / 4, admitted: 15},
		{name: "lax, a crash after the window", crashes: 2 * time.Second, admitted: 6, broken: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l, f := newLedger(), newFaults(nil, 0)
			for _, after := range []time.Duration{test.crashes, test.another} {
				if after > 0 {
					f.spans = append(f.spans, span{began: start.Add(after), ended: start.Add(after), crash: true})
				}
			}
			r := &route{name: "r", policies: make([]ratelimit.Policy, 1), strict: test.strict}
			for range test.admitted {
				l.record(r, counted(start, true), f)
				l.record(r, counted(start.Add(-time.Hour), false), f)
			}
			if l.broken != test.broken {
				t.Errorf("%d of 5 admitted: found broken %d times, want %d: %q", test.admitted, l.broken, test.broken, l.problems)
			}
			for _, problem := range l.problems {
				if !strings.Contains(problem, "policy p ") {
					t.Errorf("the problem does not name the policy: %s", problem)
				}
			}
		})
	}
}

// A window that refuses somebody has admitted its limit in full, unless something failed in it. What was
// refused from memory belongs to the window that ends as the decision says.
func TestLedgerFindsRefusalBelowLimit(t *testing.T) {
	t.Parallel()
	start := time.Now().Truncate(time.Second).Add(-time.Minute)
	remembered := &visit{
		decided: start.Add(600 * time.Millisecond),
		decision: ratelimit.Decision{Outcome: ratelimit.Refused, Results: []ratelimit.Result{{
			Policy: "p", Limit: ratelimit.PerSecond(5), Outcome: ratelimit.Refused, Remembered: true, Reset: 401 * time.Millisecond,
		}}},
	}
	failed := &visit{decided: start.Add(700 * time.Millisecond), decision: ratelimit.Decision{Err: ratelimit.ErrTimeout}}
	for _, test := range []struct {
		name     string
		admitted int
		more     []*visit
		broken   int
	}{
		{"nobody was refused", 4, nil, 0},
		{"refused when full", 5, []*visit{counted(start, false)}, 0},
		{"refused before", 4, []*visit{counted(start, false)}, 1},
		{"refused from memory when full", 5, []*visit{remembered}, 0},
		{"refused from memory before", 4, []*visit{remembered}, 1},
		{"refused before, and a failure", 4, []*visit{counted(start, false), failed}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l, f := newLedger(), newFaults(nil, 0)
			r := &route{name: "r", policies: make([]ratelimit.Policy, 1), strict: true}
			for range test.admitted {
				l.record(r, counted(start, true), f)
			}
			for _, v := range test.more {
				l.record(r, v, f)
			}
			l.settle(start.Add(time.Second+settled-1), f)
			if len(l.windows) != 1 {
				t.Errorf("%d windows are remembered before they are settled, want 1", len(l.windows))
			}
			l.settle(start.Add(time.Second+settled), f)
			if l.broken != test.broken || len(l.windows) != 0 || l.strict != 1 {
				t.Errorf("found broken %d times, want %d: %q; %d windows are left of %d", l.broken, test.broken, l.problems, len(l.windows), l.strict)
			}
		})
	}
}

// counted is a visit that the store has counted in a window.
func counted(start time.Time, admitted bool) *visit {
	outcome := ratelimit.Refused
	if admitted {
		outcome = ratelimit.Allowed
	}
	return &visit{
		counts:   []ratelimit.Count{{Start: start}},
		decided:  start,
		admitted: admitted,
		decision: ratelimit.Decision{Outcome: outcome, Results: []ratelimit.Result{{
			Policy: "p", Limit: ratelimit.PerSecond(5), Outcome: outcome, Counted: true,
		}}},
	}
}

func TestLedgerFindsWrongAnswers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		outcome  ratelimit.Outcome
		admitted bool
		code     int
		retry    string
		counted  bool
		broken   int
	}{
		{"allowed", ratelimit.Allowed, true, http.StatusOK, "", true, 0},
		{"allowed without a count", ratelimit.Allowed, true, http.StatusOK, "", false, 1},
		{"allowed and not passed on", ratelimit.Allowed, false, http.StatusOK, "1", true, 1},
		{"refused", ratelimit.Refused, false, http.StatusTooManyRequests, "1", true, 0},
		{"refused and passed on", ratelimit.Refused, true, http.StatusTooManyRequests, "1", true, 1},
		{"refused without Retry-After", ratelimit.Refused, false, http.StatusTooManyRequests, "", true, 1},
		{"unavailable", ratelimit.Unavailable, false, http.StatusServiceUnavailable, "1", false, 0},
		{"unavailable with another status", ratelimit.Unavailable, false, http.StatusTooManyRequests, "1", false, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := newLedger()
			v := &visit{admitted: test.admitted, decision: ratelimit.Decision{Outcome: test.outcome}}
			if test.counted {
				v.counts = []ratelimit.Count{{}}
			}
			w := httptest.NewRecorder()
			if test.retry != "" {
				w.Header().Set("Retry-After", test.retry)
			}
			w.WriteHeader(test.code)
			l.answer(&route{strict: true}, v, w)
			if l.broken != test.broken {
				t.Errorf("found broken %d times, want %d: %q", l.broken, test.broken, l.problems)
			}
		})
	}
}

// Only the first few problems are kept in words.
func TestLedgerIsBounded(t *testing.T) {
	t.Parallel()
	l := newLedger()
	for range 3 * maxProblems {
		l.check(false, "broken")
	}
	if l.broken != 3*maxProblems || len(l.problems) != maxProblems {
		t.Errorf("%d problems are counted and %d kept, want %d and %d", l.broken, len(l.problems), 3*maxProblems, maxProblems)
	}
}

func TestQuarters(t *testing.T) {
	t.Parallel()
	type result struct {
		First, Last float64
		OK          bool
	}
	for _, test := range []struct {
		rows []int
		want result
	}{
		{nil, result{}},
		{[]int{1, 2, 3, 4, 5, 6, 7}, result{}},
		{[]int{1, 2, 3, 4, 5, 6, 7, 8}, result{2, 8, true}},
		{[]int{5, 900, 5, 0, 0, 0, 0, 0, 0, 900, 7, 7}, result{5, 7, true}}, // one that is odd does not matter
	} {
		var samples []sample
		for _, n := range test.rows {
			samples = append(samples, sample{observed: observed{Rows: n}})
		}
		var got result
		got.First, got.Last, got.OK = quarters(samples, func(s sample) float64 { return float64(s.Rows) })
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", test.rows, diff)
		}
	}
}

func TestHistogram(t *testing.T) {
	t.Parallel()
	var h histogram
	if got := h.percentile(50); got != 0 {
		t.Errorf("the median of nothing is %v, want 0", got)
	}
	for n := range 1000 {
		h.add(time.Duration(n+1) * time.Millisecond)
	}
	h.add(0)
	h.add(365 * 24 * time.Hour)
	for p, want := range map[float64]time.Duration{50: 500 * time.Millisecond, 99: 990 * time.Millisecond} {
		if got := h.percentile(p); got < want || got > want*12/10 {
			t.Errorf("p%g is %v, want %v or up to a fifth more", p, got, want)
		}
	}
}
