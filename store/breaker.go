package store

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

const (
	// breakerFailures is how many statements in a row must fail before the database is left alone.
	breakerFailures = 3
	// breakerPause is how long it is left alone before one statement tries it again.
	breakerPause = time.Second
)

// A breaker keeps a store from asking a database that keeps failing: a decision then does not wait for
// the timeout, and a database in trouble is not made worse. It has no goroutine.
type breaker struct {
	circuit *gobreaker.CircuitBreaker[struct{}]
	last    atomic.Pointer[error] // why the database was given up
}

func newBreaker(logger *slog.Logger, onChange func(open bool)) *breaker {
	b := new(breaker)
	b.circuit = gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:     breakerPause,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= breakerFailures },
		// A database that ends the wait for a row which somebody has locked is in good order.
		IsSuccessful: func(err error) bool { return err == nil || hasCode(err, "55P03") },
		// Giving back has little time, and says nothing when that was too little.
		IsExcluded: func(err error) bool { return errors.Is(err, errNotCounting) },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			if from != gobreaker.StateClosed && to != gobreaker.StateClosed {
				return // a try
			}
			_ = recovered(func() error { // gobreaker would be left in between
				open := to != gobreaker.StateClosed
				if open {
					logger.Warn("ratelimit: the database keeps failing and is asked once a second", "error", *b.last.Load())
				} else {
					logger.Info("ratelimit: the database is back")
				}
				if onChange != nil {
					onChange(open)
				}
				return nil
			})
		},
	})
	return b
}

// errNotCounting marks the failure of a batch that had nothing to count.
var errNotCounting = errors.New("ratelimit: nothing was to be counted")

// run calls f, or returns the error that it last returned if the database is left alone. A panic of f is
// such an error. If f tries whether the database is back, leftAlone is that error too, and nil otherwise.
func (b *breaker) run(f func(leftAlone error) error) error {
	_, err := b.circuit.Execute(func() (struct{}, error) {
		err := recovered(func() error { // gobreaker would pass the panic on, and last would not be set
			if b.circuit.State() == gobreaker.StateHalfOpen {
				return f(b.leftAlone())
			}
			return f(nil)
		})
		if err != nil {
			b.last.Store(&err)
		}
		return struct{}{}, err
	})
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
		return b.leftAlone()
	}
	return err
}

// leftAlone is the error of what the database is not asked.
func (b *breaker) leftAlone() error {
	return fmt.Errorf("%w (and not asked again yet)", *b.last.Load())
}
