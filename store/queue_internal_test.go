package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/krow/ratelimit"
)

// What gathering one hit costs, without the statement: on buckets that differ, and on one that is hot.
//
//	go test -run='^$' -bench=Batch ./store
func BenchmarkBatch(b *testing.B) {
	for name, buckets := range map[string]int{"one bucket": 1, "64 buckets": 64} {
		b.Run(name, func(b *testing.B) {
			hits := make([]ratelimit.Hit, 64)
			for i := range hits {
				hits[i] = ratelimit.Hit{Bucket: fmt.Sprintf("bench/1h:ip:%064x", i%buckets), Window: time.Hour, N: 1}
			}
			q := queue{probing: true} // so that nothing is sent
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				var few [4]place
				if _, _, _, err := q.join(hits[i:i+1], few[:0], false); err != nil {
					b.Fatal(err)
				}
				if i++; i == len(hits) {
					q.popLocked()
					i = 0
				}
			}
		})
	}
}

// When a statement has run into its deadline, what has waited for as long as one may take is given up, charges
// included, and what is younger is sent.
func TestQueueGivesUpTheOld(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err    error
		waited time.Duration
		sent   bool
	}{
		"old":                  {context.DeadlineExceeded, time.Second, false},
		"statement_timeout":    {&pgconn.PgError{Code: "57014"}, time.Second, false},
		"younger":              {context.DeadlineExceeded, time.Second - 1, true},
		"behind another error": {io.EOF, time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				answers := make(chan error)
				var lost error
				q := &queue{
					maxWait: time.Second,
					flush:   func(*batch) error { return <-answers },
					lost:    func(err error) { lost = err },
				}
				join := func() *batch {
					b, _, _, err := q.join([]ratelimit.Hit{{Bucket: "a", Window: time.Hour, N: 1}}, nil, false)
					if err != nil {
						t.Fatal(err)
					}
					return b
				}
				join()
				synctest.Wait()
				waiting := join()
				if err := q.giveBack([]charge{{Charge: ratelimit.Charge{Bucket: "a", N: 1}}}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(test.waited)
				answers <- test.err
				synctest.Wait()
				if test.sent {
					answers <- nil
				}
				<-waiting.done
				if sent := waiting.err == nil && lost == nil; sent != test.sent {
					t.Errorf("sent: %v, error %v, lost %v", sent, waiting.err, lost)
				}
				if !test.sent && (!errors.Is(waiting.err, test.err) || !errors.Is(lost, test.err)) {
					t.Errorf("error is %v and that of the charge %v, want %v", waiting.err, lost, test.err)
				}
			})
		})
	}
}

// A batch takes no hits that it could not tell apart in the answer.
func TestBatchTakes(t *testing.T) {
	t.Parallel()
	b := &batch{rows: []row{{bucket: "a", window: time.Hour, n: ratelimit.MaxRequests - 1}}}
	for _, test := range []struct {
		hit   ratelimit.Hit
		share int
		want  bool
	}{
		{ratelimit.Hit{Bucket: "a", Window: time.Hour, N: 1}, 1, true},
		{ratelimit.Hit{Bucket: "a", Window: time.Hour, N: 2}, 1, false},
		{ratelimit.Hit{Bucket: "a", Window: time.Minute, N: 1}, 1, false},
		{ratelimit.Hit{Bucket: "b", Window: time.Minute, N: 2}, 1, false},
		{ratelimit.Hit{Bucket: "b", Window: time.Minute, N: 2}, 2, true},
	} {
		if got := b.fits([]ratelimit.Hit{test.hit}, test.share); got != test.want {
			t.Errorf("%+v in %d rows: %v, want %v", test.hit, test.share, got, test.want)
		}
	}
}
