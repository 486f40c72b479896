package main

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// summary prints what has happened, and what is broken.
func (s *soak) summary(lasted time.Duration) {
	t, l, f := &s.tally, s.ledger, s.faults
	line := func(name, format string, args ...any) { s.out.Printf("%-12s"+format, append([]any{name}, args...)...) }
	s.out.Printf("\nafter %v:", lasted.Round(time.Second))
	line("decisions", "%d, %.0f a second; p50 %v, p99 %v of those that asked Postgres", t.decisions(), float64(t.decisions())/lasted.Seconds(), t.asked.percentile(50), t.asked.percentile(99))
	line("admitted", "%d, of them %d without a count and %d by a local one", t.admitted.Load(), t.uncounted.Load(), t.local.Load())
	line("refused", "%d, of them %d from memory", t.refused.Load(), t.remembered.Load())
	line("unavailable", "%d", t.unavailable.Load())
	line("failed", "%d, of them %d while there was no fault", t.failed.Load(), t.failedInPeace.Load())
	line("windows", "%d strict and %d others, none of them to be exceeded; %d that refused somebody and had to be full", l.strict, l.others, l.full)
	for _, name := range slices.Sorted(maps.Keys(f.kinds)) {
		line("fault", "%s: %d times, counting resumed in %.2f s or less", name, f.kinds[name].times, f.kinds[name].longest.Seconds())
	}
	line("sweeps", "%d, which deleted %d rows; %d ended early", t.sweeps.Load(), t.swept.Load(), t.sweepsFailed.Load())
	for _, level := range levels {
		if first, last, ok := quarters(s.samples, level.of); ok {
			largest := first
			for _, sample := range s.samples {
				largest = max(largest, level.of(sample))
			}
			line("level", "%s: %s after the warm-up, %s at the end, %s at most", level.name, level.text(first), level.text(last), level.text(largest))
		} else {
			line("level", "%s: not compared, there are %d samples only", level.name, len(s.samples))
		}
	}
	if l.broken == 0 {
		s.out.Print("\nEverything held.")
		return
	}
	s.out.Printf("\nBROKEN, %d times:", l.broken)
	for _, problem := range l.problems {
		s.out.Print("  " + problem)
	}
	if l.broken > len(l.problems) {
		s.out.Printf("  and %d more", l.broken-len(l.problems))
	}
}

func megabytes(n int64) string     { return fmt.Sprintf("%.1f MB", float64(n)/(1<<20)) }
func asMegabytes(n float64) string { return megabytes(int64(n)) }
func asNumber(n float64) string    { return fmt.Sprintf("%.0f", n) }
