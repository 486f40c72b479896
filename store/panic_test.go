package store_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

// A panic on a store's own goroutine, where net/http does not catch it, is an error of the hits
// concerned, and the next are counted.
func TestPanicInFlush(t *testing.T) {
	t.Parallel()
	for _, leads := range []bool{false, true} {
		t.Run(fmt.Sprintf("the caller leads: %v", leads), func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			if leads {
				ctx = context.Background()
			}
			panics := true
			s := newStore(t, testdb.Pool(t, testdb.New(t)), store.PostgresConfig{OnFlush: func(store.FlushStats) {
				if panics {
					panics = false
					panic("not today")
				}
			}})
			_, err := s.Add(ctx, hits("a"))
			wantOnly(t, err, ratelimit.ErrUnavailable)
			if err == nil || !strings.Contains(err.Error(), "panic: not today") || !strings.Contains(err.Error(), "panic_test.go") {
				t.Errorf("error is %v, want one that tells of the panic and where it came from", err)
			}
			if got := addOne(t, s, hit("a")); got != 2 {
				t.Errorf("total is %d after a hit whose hook panicked, want 2", got)
			}
		})
	}
}

// A panic in a sweep is logged, and the next sweep comes.
func TestPanicInSweep(t *testing.T) {
	t.Parallel()
	logger, text := logged()
	swept := make(chan struct{}, 1)
	panics := true
	s := newStore(t, testdb.Pool(t, testdb.New(t)), store.PostgresConfig{SweepInterval: time.Hour, Logger: logger, OnSweep: func(store.SweepStats) {
		if panics {
			panics = false
			panic("not today")
		}
		swept <- struct{}{}
	}})
	s.DueSweep()
	add(t, s, hit("a"))
	eventually(t, "the panic is logged", func() bool { return strings.Contains(text(), "panic: not today") })
	eventually(t, "another sweep ends", func() bool {
		s.DueSweep()
		add(t, s, hit("a"))
		select {
		case <-swept:
			return true
		default:
			return false
		}
	})
}
