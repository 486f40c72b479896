package logevery_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/krow/ratelimit/internal/logevery"
)

// newLogger returns a Logger of one record a second and the lines that it has written.
func newLogger() (*logevery.Logger, func() []string) {
	var out bytes.Buffer // the handler locks while it writes
	handler := slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	return logevery.New(slog.New(handler), time.Second), func() []string {
		defer out.Reset()
		return strings.FieldsFunc(out.String(), func(r rune) bool { return r == '\n' })
	}
}

// The first error is written at once, further ones of the same second are counted, and the next
// record says how many they were.
func TestAtMostOncePerInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, lines := newLogger()
		err := errors.New("no route")
		for _, step := range []struct {
			wait time.Duration
			want []string
		}{
			{0, []string{`level=ERROR msg=away error="no route" left_out=0`}},
			{0, nil},
			{500 * time.Millisecond, nil},
			{500*time.Millisecond - 1, nil},
			{1, []string{`level=ERROR msg=away error="no route" left_out=3`}},
			{time.Hour, []string{`level=ERROR msg=away error="no route" left_out=0`}},
			{time.Second - 1, nil},
			{time.Hour, []string{`level=ERROR msg=away error="no route" left_out=1`}},
		} {
			time.Sleep(step.wait)
			l.Error("away", err)
			if diff := cmp.Diff(step.want, lines(), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("written after another %v (-want +got):\n%s", step.wait, diff)
			}
		}
	})
}

// Of many at once, one is written and the others are counted.
func TestUsedByMany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, lines := newLogger()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { l.Error("away", errors.New("no route")) })
		}
		wg.Wait()
		time.Sleep(time.Second)
		l.Error("back", errors.New("last"))
		want := []string{
			`level=ERROR msg=away error="no route" left_out=0`,
			`level=ERROR msg=back error=last left_out=99`,
		}
		if diff := cmp.Diff(want, lines()); diff != "" {
			t.Errorf("written (-want +got):\n%s", diff)
		}
	})
}
