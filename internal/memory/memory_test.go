package memory_test

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit/internal/memory"
)

// Windows begin at whole multiples of their length since 1970, also where counting from the year 1
// would lead elsewhere, and each bucket has its own.
func TestWindows(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, test := range []struct {
		now    int64 // Unix, in milliseconds
		window time.Duration
		start  int64
		left   time.Duration
	}{
		{1_800_000_001_000, 7 * time.Second, 1_799_999_999_000, 5 * time.Second},
		{1_800_000_001_000, 13 * time.Second, 1_799_999_994_000, 6 * time.Second},
		{1_800_000_001_000, 2500 * time.Millisecond, 1_800_000_000_000, 1500 * time.Millisecond},
		{1_800_000_001_000, day, 1_799_971_200_000, 15*time.Hour + 59*time.Minute + 59*time.Second},
		{1_800_000_001_000, 7 * day, 1_799_884_800_000, 6*day - 8*time.Hour - time.Second},
		{1_800_000_001_234, time.Millisecond, 1_800_000_001_234, time.Millisecond},
		{60_000, time.Minute, 60_000, time.Minute},
		{59_999, time.Minute, 0, time.Millisecond},
	} {
		c := memory.New(100)
		c.Now = func() time.Time { return time.UnixMilli(test.now) }
		type answer struct {
			Total int64
			Left  time.Duration
			Start int64
		}
		got := c.Add("a", test.window, 1, false)
		if diff := cmp.Diff(answer{1, test.left, test.start}, answer{got.Total, got.Left, got.Start.UnixMilli()}); diff != "" {
			t.Errorf("at %d, window of %v (-want +got):\n%s", test.now, test.window, diff)
		}
	}
}

// The clock of a new Counter runs, and no goroutine runs with it: synctest would wait for its end.
func TestOwnClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := memory.New(100)
		var got []int64
		for range 4 {
			got = append(got, c.Add("a", time.Minute, 1, false).Total)
			time.Sleep(20 * time.Second)
		}
		if diff := cmp.Diff([]int64{1, 2, 3, 1}, got); diff != "" {
			t.Errorf("totals, 20 s apart in windows of a minute (-want +got):\n%s", diff)
		}
	})
}

// What has ended goes when something new comes, however much room there is.
func TestExpiredRowsMakeRoom(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(0)
	c := memory.New(1_000_000)
	c.Now = func() time.Time { return now }
	const n = 5_000
	for i := range n {
		c.Add(fmt.Sprint("old ", i), time.Second, 1, false)
	}
	now = now.Add(time.Second)
	for i := range n {
		c.Add(fmt.Sprint("new ", i), time.Second, 1, false)
	}
	if got := c.Len(); got != n {
		t.Errorf("%d rows are held, want the %d that have not ended", got, n)
	}
}

// A full Counter forgets what ends first, be it old or new.
func TestSoonestEndingIsForgotten(t *testing.T) {
	t.Parallel()
	c := memory.New(640)
	c.Now = func() time.Time { return time.Unix(1_800_000_000, 0) }
	c.Add("an hour", time.Hour, 1, false)
	c.Add("a minute", time.Minute, 1, false)
	c.Add("a day", 24*time.Hour, 1, false)
	for i := range 20_000 {
		c.Add(fmt.Sprint("flood ", i), time.Hour-time.Minute, 1, false) // ends before the hour's end
		if got := c.Len(); got > 640 {
			t.Fatalf("%d rows are held, want at most 640", got)
		}
	}
	got := make(map[string]int64)
	for bucket, window := range map[string]time.Duration{"a minute": time.Minute, "an hour": time.Hour, "a day": 24 * time.Hour} {
		got[bucket] = c.Add(bucket, window, 1, false).Total
	}
	if diff := cmp.Diff(map[string]int64{"a minute": 1, "an hour": 2, "a day": 2}, got); diff != "" {
		t.Errorf("totals after the flood (-want +got):\n%s", diff)
	}
}

// A sliding window is known until the next one ends, and is forgotten then.
func TestSlidingWindows(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	c := memory.New(100)
	c.Now = func() time.Time { return now }
	type pair struct{ Total, Previous int64 }
	var got []pair
	for range 3 {
		c.Add("a", time.Minute, 2, true)
		count := c.Add("a", time.Minute, 1, true)
		got = append(got, pair{count.Total, count.Previous})
		now = now.Add(time.Minute)
	}
	count := c.Get("a", time.Minute, true)
	got = append(got, pair{count.Total, count.Previous})
	now = now.Add(time.Minute)
	count = c.Get("a", time.Minute, true)
	got = append(got, pair{count.Total, count.Previous})
	if diff := cmp.Diff([]pair{{3, 0}, {3, 3}, {3, 3}, {0, 3}, {0, 0}}, got); diff != "" {
		t.Errorf("totals, this window's and the one before (-want +got):\n%s", diff)
	}
	c.Add("a", time.Minute, 1, true)
	if n := c.Len(); n != 1 {
		t.Errorf("%d rows are held, want 1: the others have expired", n)
	}
}

func TestLeastRoom(t *testing.T) {
	t.Parallel()
	c := memory.New(1)
	for i := range 10_000 {
		if total := c.Add(fmt.Sprint(i), time.Hour, 1, false).Total; total != 1 {
			t.Fatalf("total of bucket %d is %d, want 1", i, total)
		}
	}
	if got := c.Len(); got > 64 {
		t.Errorf("%d rows are held, want at most one per shard", got)
	}
}

func TestGiveBack(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	c := memory.New(100)
	c.Now = func() time.Time { return now }
	first := c.Add("a", time.Minute, 3, false).Start
	c.GiveBack("a", first, 1)
	c.GiveBack("a", first.Add(-time.Minute), 1)
	c.GiveBack("b", first, 1)
	if total := c.Add("a", time.Minute, 1, false).Total; total != 3 {
		t.Errorf("total is %d, want 3", total)
	}
	c.GiveBack("a", first, 1000)
	if total := c.Add("a", time.Minute, 1, false).Total; total != 1 {
		t.Errorf("total is %d after all was given back, want 1", total)
	}
	now = now.Add(time.Minute)
	c.Add("a", time.Minute, 1, false)
	c.GiveBack("a", first, 1) // its window is over
	if total := c.Add("a", time.Minute, 1, false).Total; total != 2 {
		t.Errorf("total of the next window is %d, want 2", total)
	}
	if n := c.Len(); n != 1 {
		t.Errorf("%d rows are held, want 1: giving back makes none", n)
	}
}

func TestCountStopsGrowing(t *testing.T) {
	t.Parallel()
	c := memory.New(100)
	for range 5 {
		c.Add("a", 24*time.Hour, math.MaxInt32, false)
	}
	if total := c.Add("a", 24*time.Hour, 1, false).Total; total != math.MaxInt32 && total != 1 { // a day may end meanwhile
		t.Errorf("total is %d, want %d", total, math.MaxInt32)
	}
}

func TestUsedByMany(t *testing.T) {
	t.Parallel()
	c := memory.New(1000)
	c.Now = func() time.Time { return time.Unix(1_800_000_000, 0) }
	const callers, calls = 64, 200
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for call := range calls {
				start := c.Add("hot", time.Hour, 2, false).Start
				c.GiveBack("hot", start, 1)
				c.Add(fmt.Sprint(i, call), time.Minute, 1, false)
				c.Len()
			}
		})
	}
	wg.Wait()
	if total := c.Add("hot", time.Hour, 1, false).Total; total != callers*calls+1 {
		t.Errorf("total is %d, want %d", total, callers*calls+1)
	}
}
