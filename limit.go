package ratelimit

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

const (
	MaxRequests = 1_000_000_000        // the most of a Limit: below the largest value of the counter's column
	MinWindow   = time.Second          // of a Limit, since the header fields speak in whole seconds
	MaxWindow   = 366 * 24 * time.Hour // a leap year
)

// A Limit allows a number of requests per window. Windows start at whole multiples of their length since 1970-01-01 00:00
// UTC, by the clock of the store. The zero value is not valid; zero Requests with a Window refuse everything.
type Limit struct {
	Requests int           // from 0 to MaxRequests
	Window   time.Duration // from MinWindow to MaxWindow, in whole milliseconds
}

// PerSecond returns a limit of n requests a second.
func PerSecond(n int) Limit { return Limit{n, time.Second} }

// PerMinute returns a limit of n requests a minute.
func PerMinute(n int) Limit { return Limit{n, time.Minute} }

// PerHour returns a limit of n requests an hour.
func PerHour(n int) Limit { return Limit{n, time.Hour} }

// PerDay returns a limit of n requests in 24 hours.
func PerDay(n int) Limit { return Limit{n, 24 * time.Hour} }

// Unlimited returns the limit of callers who have none, and are not counted.
func Unlimited() Limit { return Limit{Requests: -1} }

const unlimitedText = "unlimited"

// String returns a text such as "5/1m", "100/1h30m" or "unlimited".
func (l Limit) String() string {
	if l == Unlimited() {
		return unlimitedText
	}
	return fmt.Sprintf("%d/%s", l.Requests, windowText(l.Window))
}

// ParseLimit reads a limit such as "100/1m", "5 per hour", "1000 per 15 minutes", "50/day" or "unlimited". A window is a
// duration of Go's, or a unit from second to week. The error quotes the text.
func ParseLimit(s string) (Limit, error) {
	if strings.TrimSpace(s) == unlimitedText {
		return Unlimited(), nil
	}
	requests, window, ok := strings.Cut(s, "/")
	if !ok {
		requests, window, ok = strings.Cut(s, " per ")
	}
	requests, window = strings.TrimSpace(requests), strings.TrimSpace(window)
	if !ok || !isNumber(requests) || window == "" {
		return Limit{}, fmt.Errorf(`ratelimit: limit %.80q: want requests and a window, such as "100/1m" or "5 per hour"`, s)
	}
	n, err := strconv.Atoi(requests)
	if err != nil { // more than an int holds
		return Limit{}, fmt.Errorf("ratelimit: limit %.80q: Requests is %.80s, want 0 to %d", s, requests, MaxRequests)
	}
	l := Limit{Requests: n}
	if l.Window, ok = parseWindow(window); !ok {
		return Limit{}, fmt.Errorf(`ratelimit: limit %.80q: %.80q is no window, want one such as "1m", "hour" or "15 minutes"`, s, window)
	}
	if mistake := l.mistake(); mistake != "" {
		return Limit{}, fmt.Errorf("ratelimit: limit %.80q: %s", s, mistake)
	}
	return l, nil
}

// parseWindow reads a duration of Go's, or a unit that may have a number before it.
func parseWindow(s string) (time.Duration, bool) {
	unit := strings.TrimLeft(s, "0123456789")
	number := s[:len(s)-len(unit)]
	var size time.Duration
	switch strings.TrimSpace(unit) {
	case "s", "sec", "second", "seconds":
		size = time.Second
	case "m", "min", "minute", "minutes":
		size = time.Minute
	case "h", "hour", "hours":
		size = time.Hour
	case "d", "day", "days":
		size = 24 * time.Hour
	case "w", "week", "weeks":
		size = 7 * 24 * time.Hour
	default:
		d, err := time.ParseDuration(s)
		return d, err == nil
	}
	if number == "" {
		return size, true
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n > math.MaxInt64/int64(size) {
		return math.MaxInt64, true // too long, like all that are near it
	}
	return time.Duration(n) * size, true
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// MarshalText returns what String returns.
func (l Limit) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText is [ParseLimit], for JSON, YAML and environment variables.
func (l *Limit) UnmarshalText(text []byte) error {
	parsed, err := ParseLimit(string(text))
	if err != nil {
		return err
	}
	*l = parsed
	return nil
}

// mistake returns what is wrong with the limit, in words that follow the name of a field and a dot, or
// nothing.
func (l Limit) mistake() string {
	switch {
	case l == Unlimited():
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
