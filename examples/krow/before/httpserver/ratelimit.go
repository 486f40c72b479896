package httpserver

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// RateLimits are the limits of the server. Each process counts for itself.
type RateLimits struct {
	register, call *rateLimiter
}

// NewRateLimits returns limits that nothing has been counted for. Close ends their clean-up.
func NewRateLimits() *RateLimits {
	return &RateLimits{
		register: newRateLimiter(5, time.Minute),
		call:     newRateLimiter(60, time.Minute),
	}
}

// Close ends the clean-up.
func (l *RateLimits) Close() {
	l.register.Close()
	l.call.Close()
}

// Register limits registrations by the client's address.
func (l *RateLimits) Register(next http.Handler) http.Handler {
	return limit(l.register, clientIP, next)
}

// Call limits calls of tools by the token, which has been verified.
func (l *RateLimits) Call(next http.Handler) http.Handler {
	return limit(l.call, bearerToken, next)
}

func limit(l *rateLimiter, key func(*http.Request) string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !l.Allow(key(r)) {
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func clientIP(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// A rateLimiter admits so many requests of each key per window, which begins with the first of them.
type rateLimiter struct {
	limit  int
	window time.Duration
	done   chan struct{}

	mu      sync.Mutex
	entries map[string]*entry
}

type entry struct {
	count int
	end   time.Time
}

func newRateLimiter(limit int, window time.Duration) *rateLimiter {
	l := &rateLimiter{limit: limit, window: window, done: make(chan struct{}), entries: make(map[string]*entry)}
	go l.cleanUp()
	return l
}

// Allow counts a request and reports whether it is within the limit.
func (l *rateLimiter) Allow(key string) bool {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[key]
	if e == nil || !now.Before(e.end) {
		e = &entry{end: now.Add(l.window)}
		l.entries[key] = e
	}
	e.count++
	return e.count <= l.limit
}

func (l *rateLimiter) cleanUp() {
	ticker := time.NewTicker(l.window)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			l.mu.Lock()
			for key, e := range l.entries {
				if !now.Before(e.end) {
					delete(l.entries, key)
				}
			}
			l.mu.Unlock()
		case <-l.done:
			return
		}
	}
}

func (l *rateLimiter) Close() { close(l.done) }
