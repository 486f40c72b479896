// Package goroutines counts the goroutines of one test among those of the tests that run beside it.
package goroutines

import (
	"bytes"
	"context"
	"fmt"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
)

// Labelled calls f so that the goroutines that it starts, and those that they start, are the test's to
// [Count]. The goroutine that calls it is counted as long as f runs.
func Labelled(t testing.TB, f func()) {
	pprof.Do(t.Context(), pprof.Labels("test", t.Name()), func(context.Context) { f() })
}

// Count returns how many goroutines there are of those that [Labelled] has started for the test.
func Count(t testing.TB) int {
	t.Helper()
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		t.Fatal(err)
	}
	// Equal goroutines share a paragraph, which begins with their number.
	sum := 0
	for _, paragraph := range strings.Split(profile.String(), "\n\n") {
		if strings.Contains(paragraph, fmt.Sprintf("%q:%q", "test", t.Name())) {
			var n int
			lines := strings.Split(paragraph, "\n")
			i := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, " @ ") })
			if _, err := fmt.Sscan(lines[i], &n); err != nil {
				t.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}
