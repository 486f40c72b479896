package store_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/migrations"
	"github.com/krow/ratelimit/store"
)

// A database that keeps failing is asked a few times and then once a second, whatever comes in. The
// error stays the one that it failed with. Counting goes on by itself when the fault has ended.
func TestDatabaseThatKeepsFailing(t *testing.T) {
	t.Parallel()
	r := newRecorder()
	pool := testdb.Pool(t, testdb.Empty(t), r.trace)
	logger, _ := logged()
	var told []bool
	s := newStore(t, pool, store.PostgresConfig{Logger: logger, OnBreaker: func(open bool) {
		told = append(told, open)
		panic("in a hook")
	}})
	for range 1000 {
		_, err := s.Add(t.Context(), hits("a"))
		wantOnly(t, err, ratelimit.ErrNoTable)
	}
	if n := r.sent("INSERT"); n < 3 || n > 10 {
		t.Errorf("1000 hits on a missing table took %d statements, want 3 and one a second", n)
	}
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the store counts again", func() bool {
		_, err := s.Add(t.Context(), hits("a"))
		return err == nil
	})
	if want := []bool{true, false}; !slices.Equal(told, want) {
		t.Errorf("OnBreaker was told %v, want %v", told, want)
	}
}

// A try of a database that was failing holds up nobody else for long if it hangs, and if the database is
// back, lets nobody fail who has waited for it.
func TestHitsBehindATry(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		timeout time.Duration
		hangs   bool
	}{
		"hangs": {5 * time.Second, true}, // others then wait for a second
		"back":  {time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := testdb.Pool(t, testdb.Empty(t))
			g := newGate(pool)
			logger, _ := logged()
			s := newStore(t, g, store.PostgresConfig{Timeout: test.timeout, Logger: logger})
			ask := func() <-chan error {
				answered := make(chan error, 1)
				go func() {
					_, err := s.Add(t.Context(), hits("a"))
					answered <- err
				}()
				return answered
			}
			for range 3 {
				answered := ask()
				g.next(t)
				g.open <- struct{}{}
				wantOnly(t, receive(t, "the hit is answered", answered), ratelimit.ErrNoTable)
			}
			var try <-chan error
			eventually(t, "the database is tried again", func() bool {
				try = ask()
				select {
				case err := <-try:
					wantOnly(t, err, ratelimit.ErrNoTable)
					return false
				case <-g.arrived:
					return true
				}
			})

			behind := ask()
			if test.hangs {
				for range 100 {
					err := receive(t, "a hit is answered while the try hangs", behind)
					wantOnly(t, err, ratelimit.ErrNoTable)
					if err == nil || !strings.Contains(err.Error(), "not asked again yet") {
						t.Fatalf("error is %v, want that of a database left alone", err)
					}
					behind = ask()
				}
				receive(t, "the last hit is answered", behind)
			} else {
				eventually(t, "a hit waits for the try", func() bool { return s.Queued() == 1 })
			}
			if err := migrations.Up(t.Context(), pool); err != nil {
				t.Fatal(err)
			}
			g.open <- struct{}{}
			if err := receive(t, "the try is answered", try); err != nil {
				t.Errorf("the try failed: %v", err)
			}
			if test.hangs {
				behind = ask()
			}
			g.next(t)
			g.open <- struct{}{}
			if err := receive(t, "the next hit is answered", behind); err != nil {
				t.Errorf("a hit failed behind a try that has succeeded: %v", err)
			}
		})
	}
}
