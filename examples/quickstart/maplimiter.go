package main

import (
	"net"
	"net/http"
	"sync"
)

// A mapLimiter is what many services have: a count for each client in a map. Each process has its own
// map, so behind N replicas N times the limit passes.
type mapLimiter struct {
	limit  int
	mu     sync.Mutex
	counts map[string]int
}

func newMapLimiter(limit int) *mapLimiter {
	return &mapLimiter{limit: limit, counts: make(map[string]int)}
}

func (l *mapLimiter) allow(client string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[client]++
	return l.counts[client] <= l.limit
}

func (l *mapLimiter) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, _, _ := net.SplitHostPort(r.RemoteAddr)
		if !l.allow(client) {
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	})
}
