// Package patience is how long the limiter waits for its store.
package patience

import (
	"context"
	"sync"
	"time"
)

// A Context is what the store is asked with. It lasts as long as the limiter's deadline and the request's own
// allow, and is not ended by a client that leaves. What its request is counted for must be remembered and
// given back like any other's, or whoever hangs up in time could use up a limit that others share.
//
// Unlike that of context.WithDeadline, its timer is started by whoever asks for Done. A store that answers at
// once does not, and a timer for each request costs more than the rest of the decision.
type Context struct {
	context.Context // of the request, for its values
	deadline        time.Time

	mu   sync.Mutex
	done context.Context // ends with the deadline; nil until somebody asks
	stop context.CancelFunc
}

// New returns a context that ends at the deadline, or at that of the request if it is earlier.
func New(request context.Context, deadline time.Time) *Context {
	if own, ok := request.Deadline(); ok && own.Before(deadline) {
		deadline = own
	}
	return &Context{Context: request, deadline: deadline}
}

// Deadline returns when the wait is over. Nothing ends it before.
func (p *Context) Deadline() (time.Time, bool) { return p.deadline, true }

// Value finds what the timer's context finds, once there is one, for package context looks in it for the one whose
// Done it is, and would otherwise start a goroutine for each context derived from this one.
func (p *Context) Value(key any) any {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	if done != nil {
		return done.Value(key)
	}
	return p.Context.Value(key)
}

// Done starts the timer and returns the channel that it closes.
func (p *Context) Done() <-chan struct{} { return p.started().Done() }

// Err returns context.DeadlineExceeded when the wait is over, whether there is a timer or not.
func (p *Context) Err() error {
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

func (p *Context) started() context.Context {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil {
		p.done, p.stop = context.WithDeadline(context.WithoutCancel(p.Context), p.deadline)
	}
	return p.done
}

// End releases the timer, if there is one.
func (p *Context) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop != nil {
		p.stop()
	}
}
