package store_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/goroutines"
	"github.com/krow/ratelimit/store"
)

// A Memory holds a bounded number of buckets: what new ones crowd out counts from one again. It
// starts no goroutine, neither when it is made nor when it counts.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	goroutines.Labelled(t, func() {
		m, err := store.NewMemory(store.MemoryConfig{MaxBuckets: 1000})
		if err != nil {
			t.Fatal(err)
		}
		add(t, m, hit("lasts"))
		const flood = 20_000
		minute := func(i int) ratelimit.Hit {
			return ratelimit.Hit{Bucket: fmt.Sprint("minute ", i), Window: time.Minute, N: 1}
		}
		for i := range flood {
			add(t, m, minute(i))
		}
		if got := addOne(t, m, hit("lasts")); got != 2 {
			t.Errorf("total of the bucket with the longest window is %d, want 2: others end first and make room", got)
		}
		// From the last to the first: asking for one that is forgotten crowds out another.
		held := 0
		for i := flood - 1; i >= 0; i-- {
			if addOne(t, m, minute(i)) == 2 {
				held++
			}
		}
		if held > 1100 {
			t.Errorf("%d buckets are held, want about 1000", held)
		}
		if n := goroutines.Count(t); n != 1 { // this one
			t.Errorf("there are %d goroutines more than before", n-1)
		}
	})
}

// Whatever the clock does, the time left is never negative and never more than the window, and each
// hit falls in the window that the clock is in (rows 4 and G21). The store's own clock never goes
// back: it is the monotonic one.
func TestMemoryClockSteps(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	now := noon
	m := store.NewMemoryAt(func() time.Time { return now })
	type answer struct {
		Start time.Duration // since noon
		Left  time.Duration
	}
	var want, got []answer
	for _, step := range []struct {
		at   time.Duration // since noon
		want answer
	}{
		{10 * time.Second, answer{0, 50 * time.Second}},
		{59*time.Second + 999999*time.Microsecond, answer{0, time.Microsecond}},
		{59*time.Second + 999999999, answer{0, 1}},
		{time.Minute, answer{time.Minute, time.Minute}},
		{59 * time.Second, answer{0, time.Second}},
		{30 * time.Second, answer{0, 30 * time.Second}},
		{-time.Second, answer{-time.Minute, time.Second}},
		{0, answer{0, time.Minute}},
		{90 * time.Second, answer{time.Minute, 30 * time.Second}},
	} {
		now = noon.Add(step.at)
		counts, err := m.Add(t.Context(), []ratelimit.Hit{{Bucket: "a", Window: time.Minute, N: 1}})
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, step.want)
		got = append(got, answer{counts[0].Start.Sub(noon), counts[0].Left})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
}

func TestNewMemoryRefuses(t *testing.T) {
	t.Parallel()
	m, err := store.NewMemory(store.MemoryConfig{MaxBuckets: -1})
	if m != nil || err == nil || !strings.Contains(err.Error(), "MemoryConfig.MaxBuckets is -1") {
		t.Errorf("NewMemory returned %v and error %v, want an error that names the field", m, err)
	}
}
