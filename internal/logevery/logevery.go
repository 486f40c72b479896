// Package logevery keeps an error that recurs with every request from filling the log.
package logevery

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// A Logger writes at most one record per interval and says how many it left out.
// It is safe for concurrent use.
type Logger struct {
	logger   *slog.Logger
	interval time.Duration

	mu      sync.Mutex
	next    time.Time
	leftOut int
}

// New returns a Logger that writes to logger.
func New(logger *slog.Logger, interval time.Duration) *Logger {
	return &Logger{logger: logger, interval: interval}
}

// Error writes a record of level error, unless the last was written less than an interval ago. The
// record says how many were left out since then.
func (l *Logger) Error(message string, err error, attrs ...slog.Attr) {
	leftOut, ok := l.turn()
	if !ok {
		return
	}
	attrs = append(attrs, slog.Any("error", err), slog.Int("left_out", leftOut))
	l.logger.LogAttrs(context.Background(), slog.LevelError, message, attrs...)
}

func (l *Logger) turn() (leftOut int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Before(l.next) {
		l.leftOut++
		return 0, false
	}
	leftOut, l.leftOut, l.next = l.leftOut, 0, now.Add(l.interval)
	return leftOut, true
}
