package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/krow/ratelimit"
)

// judge compares the answers that each replica gave with what it promises, up to the first that differs.
func (b *faultBed) judge(t *testing.T, f fault, answers [][]answer) {
	t.Helper()
	for i, r := range b.replicas {
		for _, a := range answers[i] {
			if r.judge(t, f, a); t.Failed() {
				t.Fatalf("%s: reply %+v, served: %t, decision %+v", r.name, a.reply, a.served, a.decision)
			}
		}
	}
}

func (r *faultReplica) judge(t *testing.T, f fault, a answer) {
	t.Helper()
	d, result := a.decision, a.decision.Results[0]
	if d.Elapsed > faultDeadline+time.Second {
		t.Errorf("the decision took %v, want %v at most", d.Elapsed, faultDeadline)
	}
	if a.served != (d.Outcome == ratelimit.Allowed) {
		t.Error("the outcome and what was done differ")
	}
	if d.Err != nil {
		r.failed++
		r.kinds[r.kind(t, f, d.Err)]++
		if result.Remembered || result.Local != (r.mode == ratelimit.FailLocal) || result.Counted != result.Local {
			t.Error("the result is not that of the failure mode")
		}
		switch r.mode {
		case ratelimit.FailOpen:
			check(t, "the reply", served(), a.reply)
			return
		case ratelimit.FailClosed:
			check(t, "the reply", unavailable(), a.reply)
			return
		}
		if a.served && a.client == greedyClient {
			r.local++
		}
	} else {
		if !result.Counted || result.Local {
			t.Error("without an error, the request was not counted by the store")
		}
		if !result.Remembered {
			r.acknowledged++
		}
		if place := fmt.Sprint(a.client, result.Remaining); result.Remaining > 0 {
			if r.places[place] {
				t.Error("two requests got one place")
			}
			r.places[place] = true
		}
	}
	want := map[ratelimit.Outcome]int{ratelimit.Allowed: http.StatusOK, ratelimit.Refused: http.StatusTooManyRequests}[d.Outcome]
	if a.reply.Status != want || a.reply.Header.Get("RateLimit") == "" {
		t.Errorf("want status %d and the limit's fields", want)
	}
}

// kind returns the one kind that an error is.
func (r *faultReplica) kind(t *testing.T, f fault, err error) error {
	t.Helper()
	var kinds []error
	for _, kind := range []error{ratelimit.ErrUnavailable, ratelimit.ErrTimeout, ratelimit.ErrReadOnly, ratelimit.ErrNoTable, ratelimit.ErrInvalidHit} {
		if errors.Is(err, kind) {
			kinds = append(kinds, kind)
		}
	}
	if len(kinds) != 1 || kinds[0] != f.want && kinds[0] != ratelimit.ErrTimeout {
		t.Fatalf("%s: the error is %q: %v, want %q", r.name, kinds, err, f.want)
	}
	return kinds[0]
}

// verify compares what is stored with what was acknowledged, and connections with what was promised.
func (b *faultBed) verify(t *testing.T, f fault) {
	t.Helper()
	conn := b.connect(t)
	defer conn.Close(context.Background())
	eventually(t, "no statement of a limiter runs", func() bool {
		return one[bool](t, conn, "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE "+limiters+" AND state <> 'idle')")
	})
	for _, r := range b.replicas {
		stored := one[int](t, conn, "SELECT coalesce(sum(count), 0)::int FROM rate_limits WHERE starts_with(bucket, $1)", r.name+"/")
		if stored < r.acknowledged || stored > r.acknowledged+r.failed {
			t.Errorf("%s: %d hits are stored, want the %d that were acknowledged and at most %d more", r.name, stored, r.acknowledged, r.failed)
		}
		n := one[int](t, conn, "SELECT count(*)::int FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database()", r.name)
		if n -= len(r.applications); n > mostConns && !f.hangs {
			t.Errorf("%s: the server has %d connections of the limiter, want %d at most", r.name, n, mostConns)
		}
	}
}

// checkLogs compares what each process has logged since it began with one line a second.
func (b *faultBed) checkLogs(t *testing.T) {
	t.Helper()
	for _, r := range b.replicas {
		lasted := time.Since(r.since)
		if n := len(r.log.records(t)); n == 0 && !r.unharmed || n > 1+int(lasted.Seconds()) {
			t.Errorf("%s: %d lines in %v, want some and about one a second:\n%s", r.name, n, lasted, r.log.String())
		}
		// The breaker says that the database is left alone, and that it is back.
		if n := len(r.storeLog.records(t)); n > 2*(1+int(lasted.Seconds())) {
			t.Errorf("%s: the store logged %d lines in %v:\n%s", r.name, n, lasted, r.storeLog.String())
		}
	}
}

// checkModes reports whether the fault was felt, and FailLocal was the limit of the process by itself.
func (b *faultBed) checkModes(t *testing.T, f fault) {
	t.Helper()
	for _, r := range b.replicas {
		if !r.felt(f) {
			t.Errorf("%s: errors are %v, want some %q", r.name, r.kinds, f.want)
		}
		if r.local > faultLimit || f.countsNothing && r.mode == ratelimit.FailLocal && r.local != faultLimit {
			t.Errorf("%s: %d requests were admitted by the process itself, want %d", r.name, r.local, faultLimit)
		}
	}
}

// felt reports whether all replicas have felt the fault.
func (b *faultBed) felt(f fault) bool {
	return !slices.ContainsFunc(b.replicas, func(r *faultReplica) bool { return !r.felt(f) })
}

func (r *faultReplica) felt(f fault) bool { return r.kinds[f.want] > 0 || r.unharmed }
