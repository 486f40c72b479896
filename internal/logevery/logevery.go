// Package logevery keeps what recurs with every request from filling the log.
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
	l.write(slog.LevelError, message, append(attrs, slog.Any("error", err)))
}

// Info is Error of level info, without an error.
func (l *Logger) Info(message string, attrs ...slog.Attr) { l.write(slog.LevelInfo, message, attrs) }

func (l *Logger) write(level slog.Level, message string, attrs []slog.Attr) {
	if leftOut, ok := l.turn(); ok {
		l.logger.LogAttrs(context.Background(), level, message, append(attrs, slog.Int("left_out", leftOut))...)
	}
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
