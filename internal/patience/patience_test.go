package patience_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/krow/ratelimit/internal/patience"
)

// The store's context has the earlier deadline and the request's values, ends when it is over, and not with
// a client that leaves.
func TestPatience(t *testing.T) {
	t.Parallel()
	type key struct{}
	for name, test := range map[string]struct{ own, limiter, want time.Duration }{
		"the limiter's deadline": {time.Hour, time.Second, time.Second},
		"the request's own":      {time.Second, time.Hour, time.Second},
		"over before it began":   {-time.Second, time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				request, leave := context.WithDeadline(context.WithValue(t.Context(), key{}, "value"), began.Add(test.own))
				p := patience.New(request, began.Add(test.limiter))
				defer p.End()
				leave()
				if got := p.Value(key{}); got != "value" {
					t.Errorf("value before the timer is %v", got)
				}
				if err := p.Err(); (err != nil) != (test.want == 0) {
					t.Errorf("Err at once is %v", err)
				}
				derived, cancel := context.WithCancelCause(p)
				defer cancel(nil)
				if deadline, ok := derived.Deadline(); !ok || !deadline.Equal(began.Add(min(test.own, test.limiter))) {
					t.Errorf("deadline is %v, %v", deadline, ok)
				}
				if got := derived.Value(key{}); got != "value" {
					t.Errorf("value is %v", got)
				}
				<-derived.Done()
				if got := time.Since(began); got != test.want {
					t.Errorf("ended after %v, want %v", got, test.want)
				}
				if err := p.Err(); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(derived.Err(), err) {
					t.Errorf("Err is %v, of a derived context %v, want the deadline", err, derived.Err())
				}
			})
		})
	}
	t.Run("without a timer", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			p := patience.New(t.Context(), time.Now().Add(time.Second))
			defer p.End()
			time.Sleep(time.Second - 1)
			if err := p.Err(); err != nil {
				t.Errorf("Err before the deadline is %v", err)
			}
			time.Sleep(time.Nanosecond)
			if err := p.Err(); err != context.DeadlineExceeded {
				t.Errorf("Err at the deadline is %v", err)
			}
		})
	})
}
