package ratelimit

import (
	"math"
	"math/bits"
	"time"
)

// carried is what the window before still counts for: as much as it admitted, by the part of it that is not yet a
// whole window ago. It is rounded up, since the limit is a whole number: so nothing is admitted that a comparison of
// the fraction would refuse, and nothing else is refused.
func carried(c Count, l Limit) int64 {
	quotient, rest := portion(min(c.Previous, int64(l.Requests)), min(c.Left, l.Window), int64(l.Window))
	if rest > 0 {
		quotient++
	}
	return quotient
}

// untilFree returns how long it takes until n more are admitted, if nothing else is until then. Where the limit is
// less than n, that is never; a client that is told the time until both windows are over finds out.
func untilFree(c Count, l Limit, n int64) time.Duration {
	limit := int64(l.Requests)
	if n > limit {
		return c.Left + l.Window
	}
	// Others that are refused are counted too, until they are given back. What was admitted has left room for
	// all that is carried.
	total := max(0, min(c.Total, limit-carried(c, l)))
	if before, room := min(c.Previous, limit), limit-total-n; room > 0 && before > 0 {
		// When so much is left of this window, the part of the window before is no more than the room.
		left, _ := portion(room, l.Window, before)
		return max(0, c.Left-time.Duration(left))
	}
	if total == 0 {
		return c.Left
	}
	// In the next window, this one is the window before.
	left, _ := portion(limit-n, l.Window, total)
	return c.Left + l.Window - min(time.Duration(left), l.Window)
}

// portion returns n * d / of and the rest, or the largest number if that is less. What is negative is taken for
// zero; of must be positive.
func portion(n int64, d time.Duration, of int64) (quotient, rest int64) {
	hi, lo := bits.Mul64(uint64(max(n, 0)), uint64(max(d, 0)))
	if hi >= uint64(of) {
		return math.MaxInt64, 0
	}
	q, r := bits.Div64(hi, lo, uint64(of))
	if q > math.MaxInt64 {
		return math.MaxInt64, 0
	}
	return int64(q), int64(r)
}
