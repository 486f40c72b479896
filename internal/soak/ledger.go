package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/krow/ratelimit"
)

const (
	// settled is how long after a window's end everything that was counted in it has been recorded.
	settled = 10 * time.Second
	// maxProblems bounds the words that a summary has for what is broken.
	maxProblems = 10
)

// A ledger charges admissions to windows, and keeps what was found broken. It forgets windows that are
// settled, and is safe for concurrent use.
type ledger struct {
	mu       sync.Mutex
	windows  map[windowKey]*window
	troubled map[int64]struct{} // the seconds since 1970 in which the store failed
	strict   int                // windows that are settled
	others   int
	full     int // those of them that refused somebody, and had to admit their limit in full
	broken   int
	problems []string
}

type windowKey struct {
	policy, key string
	start       int64 // by the database's clock, in nanoseconds since 1970
}

type window struct {
	limit    int
	start    time.Time
	end      time.Time
	strict   bool
	alone    bool // no other policy may have refused what this one did not
	admitted int
	refused  int
}

func newLedger() *ledger {
	return &ledger{windows: make(map[windowKey]*window), troubled: make(map[int64]struct{})}
}

// check notes what is broken unless it holds.
func (l *ledger) check(holds bool, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.checkLocked(holds, format, args...)
}

func (l *ledger) checkLocked(holds bool, format string, args ...any) {
	if holds {
		return
	}
	if l.broken++; l.broken <= maxProblems {
		l.problems = append(l.problems, fmt.Sprintf(format, args...))
	}
}

// answer checks that a response is the one that goes with its decision.
func (l *ledger) answer(r *route, v *visit, w *httptest.ResponseRecorder) {
	want := map[ratelimit.Outcome]int{
		ratelimit.Allowed:     http.StatusOK,
		ratelimit.Refused:     http.StatusTooManyRequests,
		ratelimit.Unavailable: http.StatusServiceUnavailable,
	}[v.decision.Outcome]
	l.check(w.Code == want && v.admitted == (want == http.StatusOK) && (v.admitted || w.Header().Get("Retry-After") != ""),
		"route %s: a request that is %s was answered %d, Retry-After %q, passed on: %t", r.name, v.decision.Outcome, w.Code, w.Header().Get("Retry-After"), v.admitted)
	l.check(!r.strict || !v.admitted || v.counts != nil, "route %s is FailClosed and has admitted a request that was not counted", r.name)
}

// record charges a visit to the windows that it was counted in, or refused for from memory.
func (l *ledger) record(r *route, v *visit, faults *faults) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if v.decision.Err != nil {
		// What nobody waits for any more may still be counted, a moment later.
		for at := v.decided.Add(-v.decision.Elapsed).Unix(); at <= v.decided.Add(time.Second).Unix(); at++ {
			l.troubled[at] = struct{}{}
		}
	}
	for i, result := range v.decision.Results {
		var start time.Time
		switch length := result.Limit.Window; {
		case v.counts != nil:
			start = v.counts[i].Start
		case result.Remembered: // the window that ends then, more or less
			start = v.decided.Add(result.Reset).Round(length).Add(-length)
		default:
			continue
		}
		w := l.windowLocked(r, v, result, start)
		if !v.admitted {
			if result.Outcome == ratelimit.Refused {
				w.refused++
			}
			continue
		}
		w.admitted++
		most := w.limit
		if !w.strict {
			most += w.limit * faults.crashes(w.start, w.end)
		}
		l.checkLocked(w.admitted <= most, "policy %s has admitted %d requests of %q in the window of %v, want at most %d",
			result.Policy, w.admitted, v.key, w.start.UTC(), most)
	}
}

func (l *ledger) windowLocked(r *route, v *visit, result ratelimit.Result, start time.Time) *window {
	key := windowKey{result.Policy, v.key, start.UnixNano()}
	if result.KeyKind == "constant" {
		key.key = ""
	}
	w := l.windows[key]
	if w == nil {
		w = &window{
			limit:  result.Limit.Requests,
			start:  start,
			end:    start.Add(result.Limit.Window),
			strict: r.strict,
			alone:  len(r.policies) == 1,
		}
		l.windows[key] = w
	}
	return w
}

// settle looks at the windows that have ended, and forgets them.
func (l *ledger) settle(now time.Time, faults *faults) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, w := range l.windows {
		if now.Sub(w.end) < settled {
			continue
		}
		delete(l.windows, key)
		if w.strict {
			l.strict++
		} else {
			l.others++
		}
		if w.alone && w.refused > 0 && !l.troubledLocked(w.start, w.end) && faults.crashes(w.start, w.end) == 0 {
			l.full++
			l.checkLocked(w.admitted >= w.limit, "policy %s has refused %q with only %d of %d admitted in the window of %v, in which nothing failed",
				key.policy, key.key, w.admitted, w.limit, w.start.UTC())
		}
	}
	const longest = time.Minute // of the windows
	for at := range l.troubled {
		if now.Sub(time.Unix(at, 0)) > longest+2*settled {
			delete(l.troubled, at)
		}
	}
}

// troubledLocked reports whether the store has failed between two moments, in whole seconds.
func (l *ledger) troubledLocked(from, to time.Time) bool {
	for at := from.Unix(); at < to.Unix(); at++ {
		if _, ok := l.troubled[at]; ok {
			return true
		}
	}
	return false
}
