package ratelimit

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// drawWindows returns the state of two windows in which nothing was admitted that did not fit, and its limit.
func drawWindows(t *rapid.T) (Count, Limit) {
	l := Limit{
		Requests: rapid.OneOf(rapid.IntRange(0, 12), rapid.IntRange(0, MaxRequests)).Draw(t, "limit"),
		Window:   time.Duration(rapid.OneOf(rapid.Int64Range(1, 50), rapid.Int64Range(int64(MinWindow), int64(MaxWindow))).Draw(t, "window")),
	}
	c := Count{
		Previous: rapid.Int64Range(0, 2*int64(l.Requests)).Draw(t, "previous"),
		Left:     time.Duration(rapid.Int64Range(1, int64(l.Window)).Draw(t, "left")),
	}
	c.Total = rapid.Int64Range(0, int64(l.Requests)-carried(c, l)).Draw(t, "total")
	return c, l
}

// after returns the state at a later time, if nothing is counted until then.
func after(c Count, l Limit, d time.Duration) Count {
	switch {
	case d < c.Left:
		c.Left -= d
		return c
	case d < c.Left+l.Window:
		return Count{Previous: c.Total, Left: c.Left + l.Window - d}
	}
	return Count{Left: l.Window}
}

// fits compares n more with the limit, in fractions.
func fits(c Count, l Limit, n int64) bool {
	share := big.NewRat(int64(c.Left), int64(l.Window))
	estimate := share.Mul(share, new(big.Rat).SetInt64(min(c.Previous, int64(l.Requests))))
	estimate.Add(estimate, new(big.Rat).SetInt64(c.Total+n))
	return estimate.Cmp(new(big.Rat).SetInt64(int64(l.Requests))) <= 0
}

// What is compared with the limit decides as the fraction would, and no differently for being a whole number.
func TestCarried(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c, l := drawWindows(t)
		n := rapid.Int64Range(1, int64(l.Requests)+1).Draw(t, "n")
		if got, want := c.Total+carried(c, l)+n <= int64(l.Requests), fits(c, l, n); got != want {
			t.Errorf("%d more fit: %v, want %v", n, got, want)
		}
	})
}

// What is refused fits when the time is over, and not a nanosecond before.
func TestUntilFree(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c, l := drawWindows(t)
		n := rapid.Int64Range(1, int64(l.Requests)+1).Draw(t, "n")
		if fits(c, l, n) {
			t.Skip("nothing is refused")
		}
		seen := c
		seen.Total += rapid.Int64Range(0, 5).Draw(t, "not yet given back")
		if n > 1 {
			seen.Total = c.Total // what fits of a larger cost may be anything
		}
		d := untilFree(seen, l, n)
		if n > int64(l.Requests) {
			if d != c.Left+l.Window {
				t.Errorf("%d of %v never fit, and the wait is %v", n, l, d)
			}
			return
		}
		if !fits(after(c, l, d), l, n) || fits(after(c, l, d-1), l, n) {
			t.Errorf("the wait is %v; %d fit then: %v, and before: %v", d, n, fits(after(c, l, d), l, n), fits(after(c, l, d-1), l, n))
		}
	})
}

// Counts of a store that make no sense lead to no panic, and to no time that is none.
func TestSlidingNonsense(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		any := rapid.Int64()
		c := Count{Total: any.Draw(t, "total"), Previous: any.Draw(t, "previous"), Left: time.Duration(any.Draw(t, "left"))}
		l := Limit{rapid.IntRange(0, MaxRequests).Draw(t, "limit"), time.Duration(rapid.Int64Range(int64(MinWindow), int64(MaxWindow)).Draw(t, "window"))}
		if n := carried(c, l); n < 0 || n > int64(l.Requests) {
			t.Errorf("%d are carried, of %d", n, l.Requests)
		}
		c.Left = min(max(c.Left, 0), l.Window) // as stores see to it
		if d := untilFree(c, l, rapid.Int64Range(1, MaxRequests).Draw(t, "n")); d < 0 || d > 2*l.Window {
			t.Errorf("the wait is %v, of windows of %v", d, l.Window)
		}
	})
}
