package store

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/krow/ratelimit"
)

// After three failures in a row the database is left alone for a second; then one statement tries it.
func TestBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		b := newBreaker(slog.New(slog.NewTextHandler(&log, nil)), nil)
		var fails, leftAlone error
		calls := 0
		run := func() error {
			return b.run(func(err error) error {
				calls++
				leftAlone = err
				return fails
			})
		}
		expect := func(when string, wantCalls int, wantErr error) {
			t.Helper()
			calls, leftAlone = 0, nil
			if err := run(); !errors.Is(err, wantErr) || calls != wantCalls {
				t.Errorf("%s: %d calls and error %v, want %d and %v", when, calls, err, wantCalls, wantErr)
			}
			if tries := strings.HasPrefix(when, "tried"); tries != (leftAlone != nil) {
				t.Errorf("%s: told to be a try: %v", when, leftAlone)
			}
		}
		first, second := errors.New("first"), errors.New("second")

		expect("in good order", 1, nil)
		fails = first
		expect("1st failure", 1, first)
		expect("2nd failure", 1, first)
		fails = nil
		expect("a success between", 1, nil)
		fails = first
		expect("1st failure", 1, first)
		expect("2nd failure", 1, first)
		fails = second
		expect("3rd failure", 1, second)
		expect("left alone", 0, second)
		if !strings.Contains(log.String(), "keeps failing") || !strings.Contains(log.String(), "error=second") {
			t.Errorf("logged:\n%s\nwant the last error", log.String())
		}
		time.Sleep(time.Second - 1)
		expect("still left alone", 0, second)
		time.Sleep(2 * time.Nanosecond)
		expect("tried again", 1, second)
		if !errors.Is(leftAlone, second) {
			t.Errorf("the try is told %v, want the error before", leftAlone)
		}
		expect("left alone again", 0, second)
		time.Sleep(time.Second + 1)
		fails = nil
		expect("tried with success", 1, nil)
		fails = first
		expect("1st failure after it", 1, first)
		fails = nil
		expect("in good order again", 1, nil)

		for range breakerFailures {
			if err := b.run(func(error) error { panic("not today") }); !errors.Is(err, ratelimit.ErrUnavailable) {
				t.Errorf("error of a panic is %v, want one that wraps ErrUnavailable", err)
			}
		}
		expect("left alone after panics", 0, ratelimit.ErrUnavailable)
		time.Sleep(time.Second + 1)
		expect("tried after panics", 1, nil)

		fails = errNotCounting
		for range 2 * breakerFailures {
			expect("what was given back", 1, errNotCounting)
		}

		lockedRow := &pgconn.PgError{Code: "55P03"}
		fails = lockedRow
		for range 2 * breakerFailures {
			expect("a locked row", 1, fails)
		}
		fails = first
		for range breakerFailures {
			expect("a failure", 1, first)
		}
		expect("left alone", 0, first)
		time.Sleep(time.Second + 1)
		fails = lockedRow
		expect("tried on a locked row", 1, lockedRow)
		expect("asked again, for it answers", 1, lockedRow)
	})
}
