package ratelimit

import (
	"fmt"
	"strings"
	"time"
)

const (
	// MaxRequests is the largest number of requests a [Limit] may allow. It leaves room below the
	// largest value of the counter column, so that a count that has stopped growing is still refused.
	MaxRequests = 1_000_000_000

	// MinWindow is the shortest window of a [Limit]: Retry-After and the RateLimit fields speak in
	// whole seconds, and a shorter window could not be told to a client.
	MinWindow = time.Second

	// MaxWindow is the longest window of a [Limit]: a leap year.
	MaxWindow = 366 * 24 * time.Hour
)

// A Limit allows a number of requests per window of time.
//
// Windows are fixed: they start at whole multiples of their length since 1970-01-01 00:00 UTC, by
// the clock of the store. A window of 24 hours is always exactly that long and starts at midnight
// UTC, whatever the time zone of any machine.
//
// The zero value is not a valid limit. Requests of zero, with a window, refuses every request.
type Limit struct {
	// Requests is how many requests a window admits, from 0 to [MaxRequests].
	Requests int
	// Window is the length of a window, from [MinWindow] to [MaxWindow], in whole milliseconds.
	Window time.Duration
}

// PerSecond returns a limit of n requests a second.
func PerSecond(n int) Limit { return Limit{n, time.Second} }

// PerMinute returns a limit of n requests a minute.
func PerMinute(n int) Limit { return Limit{n, time.Minute} }

// PerHour returns a limit of n requests an hour.
func PerHour(n int) Limit { return Limit{n, time.Hour} }

// PerDay returns a limit of n requests in 24 hours.
func PerDay(n int) Limit { return Limit{n, 24 * time.Hour} }

// String returns the limit as requests per window, such as "5/1m" or "100/1h30m".
func (l Limit) String() string { return fmt.Sprintf("%d/%s", l.Requests, windowText(l.Window)) }

// mistake returns what is wrong with the limit, in words that follow the name of a field and a dot, or
// nothing.
func (l Limit) mistake() string {
	switch {
	case l.Requests < 0 || l.Requests > MaxRequests:
		return fmt.Sprintf("Requests is %d, want 0 to %d", l.Requests, MaxRequests)
	case l.Window < MinWindow || l.Window > MaxWindow:
		return fmt.Sprintf("Window is %v, want %v to 366 days", l.Window, MinWindow)
	case l.Window%time.Millisecond != 0:
		return fmt.Sprintf("Window is %v, want whole milliseconds", l.Window)
	}
	return ""
}

// windowText is the length of a window as it stands in a bucket: time.Duration's own text without
// its trailing zero units, so that a minute is "1m" and not "1m0s".
func windowText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
