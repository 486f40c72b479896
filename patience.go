package ratelimit

import (
	"context"
	"sync"
	"time"
)

// A patience is the context in which the store is asked: as long as the limiter's deadline and the request's
// own allow, but also for a client that has left. What its request is counted for must be remembered and
// given back like any other's, or whoever hangs up in time could use up a limit that others share.
//
// Unlike that of context.WithDeadline, its timer is started by whoever asks for Done. A store that answers at
// once does not, and a timer for each request costs more than the rest of the decision.
type patience struct {
	context.Context // of the request, for its values
	deadline        time.Time

	mu   sync.Mutex
	done context.Context // ends with the deadline; nil until somebody asks
	stop context.CancelFunc
}

// newPatience returns a context that ends at the deadline, or at that of the request if it is earlier.
func newPatience(request context.Context, deadline time.Time) *patience {
	if own, ok := request.Deadline(); ok && own.Before(deadline) {
		deadline = own
	}
	return &patience{Context: request, deadline: deadline}
}

func (p *patience) Deadline() (time.Time, bool) { return p.deadline, true }

// Value finds what the timer's context finds, once there is one, for package context looks in it for the one whose
// Done it is, and would otherwise start a goroutine for each context derived from this one.
func (p *patience) Value(key any) any {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	if done != nil {
		return done.Value(key)
	}
	return p.Context.Value(key)
}

func (p *patience) Done() <-chan struct{} { return p.started().Done() }

func (p *patience) Err() error {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	switch {
	case done != nil:
		return done.Err()
	case !time.Now().Before(p.deadline):
		return context.DeadlineExceeded
	}
	return nil
}

func (p *patience) started() context.Context {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil {
		p.done, p.stop = context.WithDeadline(context.WithoutCancel(p.Context), p.deadline)
	}
	return p.done
}

// end releases the timer, if there is one.
func (p *patience) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop != nil {
		p.stop()
	}
}
