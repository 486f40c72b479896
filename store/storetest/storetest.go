// Package storetest is the conformance suite for implementations of [ratelimit.Store]. A store that
// passes it keeps the promises that the limiter relies on.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
)

// A Subject is a store under test.
type Subject struct {
	// Store is the store: empty, and used by nobody else.
	Store ratelimit.Store
	// Elapse makes all that was counted so far d older, so that no test has to wait: by turning
	// a clock on, or by moving what is stored back. It is called while nothing is being counted.
	Elapse func(d time.Duration)
}

// Run runs the suite as parallel subtests. It calls open once for each, with the subtest's own t.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Subject)
	}{
		{"counts one by one", countsOneByOne},
		{"counts the hits of a call apart", countsHitsApart},
		{"counts equal buckets of a call in turn", countsEqualBucketsInTurn},
		{"counts more than one at a time", countsMore},
		{"counts nothing for no hits", countsNothing},
		{"gives concurrent hits a place each", givesEachItsPlace},
		{"counts concurrent calls with buckets in any order", countsInAnyOrder},
		{"keeps buckets with different windows apart", keepsWindowsApart},
		{"aligns windows to the Unix epoch", alignsWindows},
		{"starts anew in a new window", startsAnew},
		{"tells sliding windows of the window before", tellsOfThePrevious},
		{"counts fixed and sliding windows together", countsBothModes},
		{"gives back to a sliding window", givesBackToSliding},
		{"resets sliding windows", resetsSliding},
		{"stops counting before it overflows", stopsCounting},
		{"accepts the largest hits", acceptsLargest},
		{"refuses invalid hits and counts none of their call", refusesInvalid},
		{"does not let invalid hits harm others", harmsNobody},
		{"counts the hits of a caller that left", countsForThoseWhoLeft},
		{"gives back", givesBack},
		{"gives back to the charged window only", givesBackToItsWindow},
		{"gives back no more than was counted", givesBackNoMore},
		{"does not make a window by giving back", makesNoWindow},
		{"adds up charges to one window", addsUpCharges},
		{"ignores invalid charges", ignoresInvalidCharges},
		{"reads without counting", readsWithoutCounting},
		{"reads nothing of a window that has ended", readsNoOldWindow},
		{"resets buckets and no others", resets},
		{"reads and resets nothing invalid", readsNothingInvalid},
		{"can be used by many at once", usedByMany},
	} {
		t.Run(strings.ReplaceAll(test.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			test.run(t, open(t))
		})
	}
}

// long is a window that does not end while a test runs, unless that happens to be in one of the
// few seconds a year in which it does.
const long = ratelimit.MaxWindow

func hit(bucket string) ratelimit.Hit {
	return ratelimit.Hit{Bucket: bucket, Window: long, N: 1}
}

// add counts hits and fails the test if that is not possible.
func add(t *testing.T, s ratelimit.Store, hits ...ratelimit.Hit) []ratelimit.Count {
	t.Helper()
	counts, err := s.Add(t.Context(), hits)
	if err != nil {
		t.Fatalf("Add(%v): %v", hits, err)
	}
	if len(counts) != len(hits) {
		t.Fatalf("Add(%v) returned %d counts, want %d", hits, len(counts), len(hits))
	}
	for i, c := range counts {
		if c.Left < 0 || c.Left > hits[i].Window {
			t.Errorf("Add(%v): Left is %v, want 0 to %v", hits[i], c.Left, hits[i].Window)
		}
	}
	return counts
}

// want fails the test unless counts have these totals.
func want(t *testing.T, counts []ratelimit.Count, totals ...int64) {
	t.Helper()
	var got []int64
	for _, c := range counts {
		got = append(got, c.Total)
	}
	if diff := cmp.Diff(totals, got); diff != "" {
		t.Errorf("totals (-want +got):\n%s", diff)
	}
}

func charge(h ratelimit.Hit, c ratelimit.Count) ratelimit.Charge {
	return ratelimit.Charge{Bucket: h.Bucket, Start: c.Start, N: h.N}
}

func countsOneByOne(t *testing.T, s Subject) {
	first := add(t, s.Store, hit("a"))
	want(t, first, 1)
	for i := int64(2); i <= 10; i++ {
		c := add(t, s.Store, hit("a"))
		want(t, c, i)
		if !c[0].Start.Equal(first[0].Start) {
			t.Errorf("hit %d: Start is %v, want that of the first, %v", i, c[0].Start, first[0].Start)
		}
	}
	want(t, add(t, s.Store, hit("b")), 1)
}

func countsHitsApart(t *testing.T, s Subject) {
	want(t, add(t, s.Store, hit("b")), 1)
	want(t, add(t, s.Store, hit("c"), hit("b"), hit("a")), 1, 2, 1)
	want(t, add(t, s.Store, hit("a"), hit("b"), hit("c")), 2, 3, 2)
}

func countsEqualBucketsInTurn(t *testing.T, s Subject) {
	want(t, add(t, s.Store, hit("a"), hit("b"), hit("a")), 1, 1, 2)
	want(t, add(t, s.Store, hit("a")), 3)
}

func countsMore(t *testing.T, s Subject) {
	five, two := hit("a"), hit("a")
	five.N, two.N = 5, 2
	want(t, add(t, s.Store, five), 5)
	want(t, add(t, s.Store, two, five), 7, 12)
}

func countsNothing(t *testing.T, s Subject) {
	want(t, add(t, s.Store))
}

func givesEachItsPlace(t *testing.T, s Subject) {
	const n = 500
	totals := make([]int64, n)
	together(n, func(i int) {
		if c, err := s.Store.Add(t.Context(), []ratelimit.Hit{hit("a")}); err != nil {
			t.Error(err)
		} else {
			totals[i] = c[0].Total
		}
	})
	slices.Sort(totals)
	for i, total := range totals {
		if total != int64(i+1) {
			t.Fatalf("the %d. of %d hits has count %d, want each of 1 to %d once", i+1, n, total, n)
		}
	}
}

func countsInAnyOrder(t *testing.T, s Subject) {
	const callers, rounds, keys = 32, 10, 8
	together(callers, func(i int) {
		for round := range rounds {
			var hits []ratelimit.Hit
			for k := range keys {
				hits = append(hits, hit(fmt.Sprint("key", k)))
			}
			if i%2 == 0 {
				slices.Reverse(hits)
			}
			if _, err := s.Store.Add(t.Context(), hits[round%keys:]); err != nil {
				t.Error(err)
			}
		}
	})
	// Hits go to keys round%8 and up in one order and to keys 7-round%8 and down in the other.
	for k := range keys {
		sum := int64(0)
		for round := range rounds {
			if k >= round%keys {
				sum += callers / 2
			}
			if k < keys-round%keys {
				sum += callers / 2
			}
		}
		want(t, add(t, s.Store, hit(fmt.Sprint("key", k))), sum+1)
	}
}

func keepsWindowsApart(t *testing.T, s Subject) {
	day := ratelimit.Hit{Bucket: "a/24h", Window: 24 * time.Hour, N: 1}
	year := ratelimit.Hit{Bucket: "a/year", Window: long, N: 1}
	for i := int64(1); i <= 5; i++ {
		c := add(t, s.Store, year, day)
		want(t, c[:1], i)
		if c[1].Total > i {
			t.Errorf("total of the shorter window is %d after %d hits", c[1].Total, i)
		}
	}
}

func alignsWindows(t *testing.T, s Subject) {
	// Seven seconds, thirteen seconds and a week are where counting from the year 1, as
	// time.Truncate does, leads to other windows than counting from 1970.
	for _, window := range []time.Duration{
		time.Millisecond, time.Second, 2500 * time.Millisecond, 7 * time.Second, 13 * time.Second,
		time.Minute, time.Hour, 24 * time.Hour, 7 * 24 * time.Hour, long,
	} {
		c := add(t, s.Store, ratelimit.Hit{Bucket: window.String(), Window: window, N: 1})
		if over := c[0].Start.UnixMicro() % window.Microseconds(); over != 0 {
			t.Errorf("a window of %v starts at %v, %d µs off a multiple of it since 1970", window, c[0].Start.UTC(), over)
		}
	}
}

func startsAnew(t *testing.T, s Subject) {
	want(t, add(t, s.Store, hit("a"), hit("a"), hit("a")), 1, 2, 3)
	s.Elapse(long)
	want(t, add(t, s.Store, hit("a")), 1)
	want(t, add(t, s.Store, hit("a")), 2)
}

func slide(bucket string) ratelimit.Hit {
	h := hit(bucket)
	h.Sliding = true
	return h
}

// wantPairs fails the test unless counts have these totals, and these of the windows before.
func wantPairs(t *testing.T, counts []ratelimit.Count, want ...[2]int64) {
	t.Helper()
	var got [][2]int64
	for _, c := range counts {
		got = append(got, [2]int64{c.Total, c.Previous})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("totals, and those of the windows before (-want +got):\n%s", diff)
	}
}

func tellsOfThePrevious(t *testing.T, s Subject) {
	wantPairs(t, get(t, s.Store, slide("a")), [2]int64{0, 0})
	wantPairs(t, add(t, s.Store, slide("a"), slide("a"), slide("a")), [2]int64{1, 0}, [2]int64{2, 0}, [2]int64{3, 0})
	s.Elapse(long)
	wantPairs(t, get(t, s.Store, slide("a"), slide("b")), [2]int64{0, 3}, [2]int64{0, 0})
	wantPairs(t, add(t, s.Store, slide("a"), slide("b")), [2]int64{1, 3}, [2]int64{1, 0})
	wantPairs(t, add(t, s.Store, slide("a")), [2]int64{2, 3})
	s.Elapse(long)
	wantPairs(t, add(t, s.Store, slide("b"), slide("a")), [2]int64{1, 1}, [2]int64{1, 2})
	s.Elapse(2 * long)
	wantPairs(t, add(t, s.Store, slide("a")), [2]int64{1, 0})
	wantPairs(t, get(t, s.Store, slide("a"), slide("b")), [2]int64{1, 0}, [2]int64{0, 0})
}

func countsBothModes(t *testing.T, s Subject) {
	for i := range int64(2) {
		before := [...]int64{0, 4}[i]
		wantPairs(t, add(t, s.Store, hit("fixed"), slide("sliding"), hit("other")), [2]int64{1, 0}, [2]int64{1, before}, [2]int64{1, 0})
		wantPairs(t, add(t, s.Store, slide("sliding"), hit("fixed")), [2]int64{2, before}, [2]int64{2, 0})
		wantPairs(t, add(t, s.Store, slide("sliding")), [2]int64{3, before})
		wantPairs(t, add(t, s.Store, hit("fixed")), [2]int64{3, 0})
		wantPairs(t, get(t, s.Store, hit("fixed"), slide("sliding")), [2]int64{3, 0}, [2]int64{3, before})
		wantPairs(t, add(t, s.Store, slide("sliding")), [2]int64{4, before})
		s.Elapse(long)
	}
	if c, err := s.Store.Add(t.Context(), []ratelimit.Hit{hit("one"), slide("one")}); !errors.Is(err, ratelimit.ErrInvalidHit) {
		t.Errorf("one bucket in both modes: Add returned %v and error %v, want an error that wraps ErrInvalidHit", c, err)
	}
}

func givesBackToSliding(t *testing.T, s Subject) {
	add(t, s.Store, slide("a"), slide("a"), slide("a"))
	s.Elapse(long)
	second := add(t, s.Store, slide("a"), slide("a"))
	s.Store.GiveBack([]ratelimit.Charge{charge(slide("a"), second[0])})
	wantPairs(t, add(t, s.Store, slide("a")), [2]int64{2, 3})
	before := ratelimit.Charge{Bucket: "a", Start: second[0].Start.Add(-long), N: 2}
	s.Store.GiveBack([]ratelimit.Charge{before})
	wantPairs(t, add(t, s.Store, slide("a")), [2]int64{3, 1})
}

func resetsSliding(t *testing.T, s Subject) {
	add(t, s.Store, slide("a"), slide("b"))
	s.Elapse(long)
	add(t, s.Store, slide("a"), slide("b"))
	if err := s.Store.Reset(t.Context(), []string{"a"}); err != nil {
		t.Fatal(err)
	}
	wantPairs(t, get(t, s.Store, slide("a"), slide("b")), [2]int64{0, 0}, [2]int64{1, 1})
}

func stopsCounting(t *testing.T, s Subject) {
	h := hit("a")
	h.N = ratelimit.MaxRequests
	for range 4 {
		if c := add(t, s.Store, h); c[0].Total < ratelimit.MaxRequests {
			t.Errorf("total is %d after a hit of %d", c[0].Total, h.N)
		}
	}
	h.N = 1
	if c := add(t, s.Store, h, hit("b")); c[0].Total <= ratelimit.MaxRequests || c[1].Total != 1 {
		t.Errorf("totals are %d and %d, want more than %d and 1", c[0].Total, c[1].Total, ratelimit.MaxRequests)
	}
}

func acceptsLargest(t *testing.T, s Subject) {
	a, b := strings.Repeat("é", 256), strings.Repeat("é", 255)+"è"
	want(t, add(t, s.Store, hit(a), hit(a), hit(b)), 1, 2, 1)
	many := make([]ratelimit.Hit, 1000)
	for i := range many {
		many[i] = hit(fmt.Sprint("many", i))
	}
	for i, c := range add(t, s.Store, many...) {
		if c.Total != 1 {
			t.Errorf("total of bucket %d of %d is %d, want 1", i, len(many), c.Total)
		}
	}
}

// invalid are hits that break the rules, each in one way.
func invalid() map[string]ratelimit.Hit {
	return map[string]ratelimit.Hit{
		"empty bucket":        {Bucket: "", Window: long, N: 1},
		"long bucket":         {Bucket: strings.Repeat("a", 513), Window: long, N: 1},
		"huge bucket":         {Bucket: strings.Repeat("a", 900_000), Window: long, N: 1},
		"bucket with NUL":     {Bucket: "a\x00b", Window: long, N: 1},
		"bucket not UTF-8":    {Bucket: "\xf1\x61\x3b\x46", Window: long, N: 1},
		"no window":           {Bucket: "a", N: 1},
		"negative window":     {Bucket: "a", Window: -time.Second, N: 1},
		"window too short":    {Bucket: "a", Window: time.Microsecond, N: 1},
		"window too long":     {Bucket: "a", Window: long + time.Second, N: 1},
		"fraction of a milli": {Bucket: "a", Window: time.Second + 1, N: 1},
	}
}

// invalidNumbers returns hits whose number is nothing that could be counted.
func invalidNumbers() map[string]ratelimit.Hit {
	return map[string]ratelimit.Hit{
		"nothing":  {Bucket: "a", Window: long, N: 0},
		"negative": {Bucket: "a", Window: long, N: -1},
		"too much": {Bucket: "a", Window: long, N: ratelimit.MaxRequests + 1},
	}
}

func refusesInvalid(t *testing.T, s Subject) {
	all := invalid()
	maps.Copy(all, invalidNumbers())
	for name, bad := range all {
		if c, err := s.Store.Add(t.Context(), []ratelimit.Hit{hit("good"), bad}); !errors.Is(err, ratelimit.ErrInvalidHit) {
			t.Errorf("%s: Add returned %v and error %v, want an error that wraps ErrInvalidHit", name, c, err)
		}
	}
	other := hit("two windows")
	other.Window = time.Hour
	if _, err := s.Store.Add(t.Context(), []ratelimit.Hit{hit("good"), hit("two windows"), other}); !errors.Is(err, ratelimit.ErrInvalidHit) {
		t.Errorf("two windows: error is %v, want one that wraps ErrInvalidHit", err)
	}
	want(t, add(t, s.Store, hit("good"), hit("a"), hit("two windows")), 1, 1, 1)
}

// get reads counts and fails the test if that is not possible.
func get(t *testing.T, s ratelimit.Store, hits ...ratelimit.Hit) []ratelimit.Count {
	t.Helper()
	counts, err := s.Get(t.Context(), hits)
	if err != nil {
		t.Fatalf("Get(%v): %v", hits, err)
	}
	return counts
}

func readsWithoutCounting(t *testing.T, s Subject) {
	counted := add(t, s.Store, hit("b"), hit("b"), hit("a"))
	other := ratelimit.Hit{Bucket: "c", Window: 7 * time.Second, N: 5}
	for range 2 {
		got := get(t, s.Store, hit("a"), other, hit("b"), hit("a"), hit("d"))
		want(t, got, 1, 0, 2, 1, 0)
		for i, window := range []time.Duration{long, other.Window, long, long, long} {
			if got[i].Left < 0 || got[i].Left > window {
				t.Errorf("%v are left of a window of %v", got[i].Left, window)
			}
			if over := got[i].Start.UnixMicro() % window.Microseconds(); over != 0 {
				t.Errorf("a window of %v starts at %v, %d µs off a multiple of it since 1970", window, got[i].Start.UTC(), over)
			}
		}
		if !got[0].Start.Equal(counted[2].Start) || got[0].Left > counted[2].Left {
			t.Errorf("the window is %+v when read and %+v when counted", got[0], counted[2])
		}
	}
	want(t, get(t, s.Store))
	want(t, add(t, s.Store, hit("a"), hit("d")), 2, 1)
}

// A row that has expired and is not swept yet is not read (P5).
func readsNoOldWindow(t *testing.T, s Subject) {
	add(t, s.Store, hit("a"))
	s.Elapse(long)
	want(t, get(t, s.Store, hit("a")), 0)
}

func resets(t *testing.T, s Subject) {
	counts := add(t, s.Store, hit("a"), hit("a"), hit("b"), hit("c"))
	s.Elapse(long)
	add(t, s.Store, hit("a"), hit("b"), hit("c"))
	if err := s.Store.Reset(t.Context(), []string{"a", "c", "a", "d"}); err != nil {
		t.Fatal(err)
	}
	want(t, get(t, s.Store, hit("a"), hit("b"), hit("c"), hit("d")), 0, 1, 0, 0)
	s.Store.GiveBack([]ratelimit.Charge{charge(hit("a"), counts[0])}) // to a window that is gone
	want(t, add(t, s.Store, hit("a"), hit("b"), hit("c")), 1, 2, 1)
	if err := s.Store.Reset(t.Context(), nil); err != nil {
		t.Errorf("resetting nothing: %v", err)
	}
	want(t, add(t, s.Store, hit("a")), 2)
}

func readsNothingInvalid(t *testing.T, s Subject) {
	add(t, s.Store, hit("good"))
	for name, bad := range invalid() {
		if c, err := s.Store.Get(t.Context(), []ratelimit.Hit{hit("good"), bad}); !errors.Is(err, ratelimit.ErrInvalidHit) {
			t.Errorf("%s: Get returned %v and error %v, want an error that wraps ErrInvalidHit", name, c, err)
		}
	}
	for name, bad := range invalidNumbers() {
		if _, err := s.Store.Get(t.Context(), []ratelimit.Hit{bad}); err != nil {
			t.Errorf("%s: Get returned error %v, want none", name, err)
		}
	}
	for _, bad := range []string{"", "nul \x00", "no UTF-8 \xff", strings.Repeat("a", 513)} {
		if err := s.Store.Reset(t.Context(), []string{"good", bad}); !errors.Is(err, ratelimit.ErrInvalidHit) {
			t.Errorf("%q: Reset returned error %v, want one that wraps ErrInvalidHit", bad, err)
		}
	}
	want(t, get(t, s.Store, hit("good")), 1)
}

func harmsNobody(t *testing.T, s Subject) {
	const rounds = 20
	bad := invalid()
	names := slices.Collect(maps.Keys(bad))
	together(2*len(names), func(i int) {
		for range rounds {
			if i%2 == 0 {
				_, _ = s.Store.Add(t.Context(), []ratelimit.Hit{bad[names[i/2]]})
			} else if _, err := s.Store.Add(t.Context(), []ratelimit.Hit{hit("good")}); err != nil {
				t.Error(err)
			}
		}
	})
	want(t, add(t, s.Store, hit("good")), int64(rounds*len(names)+1))
}

func countsForThoseWhoLeft(t *testing.T, s Subject) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 10 {
		if _, err := s.Store.Add(ctx, []ratelimit.Hit{hit("a")}); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("error is %v, want none or one that wraps context.Canceled", err)
		}
	}
	want(t, add(t, s.Store, hit("a")), 11)
}

func givesBack(t *testing.T, s Subject) {
	a, b := hit("a"), hit("b")
	a.N = 5
	c := add(t, s.Store, a, b)
	s.Store.GiveBack([]ratelimit.Charge{charge(a, c[0]), charge(b, c[1])})
	want(t, add(t, s.Store, hit("a"), hit("b")), 1, 1)
}

func givesBackToItsWindow(t *testing.T, s Subject) {
	add(t, s.Store, hit("a"), hit("a"))
	s.Elapse(long)
	c := add(t, s.Store, hit("a"), hit("a"))
	before := charge(hit("a"), c[0])
	before.Start = before.Start.Add(-long)
	s.Store.GiveBack([]ratelimit.Charge{before})
	want(t, add(t, s.Store, hit("a")), 3)
}

func givesBackNoMore(t *testing.T, s Subject) {
	h := hit("a")
	c := add(t, s.Store, h)
	more := charge(h, c[0])
	more.N = 1000
	s.Store.GiveBack([]ratelimit.Charge{more})
	s.Store.GiveBack([]ratelimit.Charge{more})
	want(t, add(t, s.Store, h), 1)
}

func makesNoWindow(t *testing.T, s Subject) {
	c := add(t, s.Store, hit("a"))
	s.Store.GiveBack([]ratelimit.Charge{{Bucket: "never counted", Start: c[0].Start, N: 1}})
	want(t, add(t, s.Store, hit("never counted")), 1)
}

func addsUpCharges(t *testing.T, s Subject) {
	h := hit("a")
	c := add(t, s.Store, h, h, h, h)
	s.Store.GiveBack([]ratelimit.Charge{charge(h, c[0]), charge(h, c[1]), charge(h, c[2])})
	want(t, add(t, s.Store, h), 2)
}

func ignoresInvalidCharges(t *testing.T, s Subject) {
	h := hit("a")
	c := add(t, s.Store, h, h)
	s.Store.GiveBack(nil)
	s.Store.GiveBack([]ratelimit.Charge{
		{Bucket: "", Start: c[0].Start, N: 1},
		{Bucket: strings.Repeat("a", 513), Start: c[0].Start, N: 1},
		{Bucket: "\xff", Start: c[0].Start, N: 1},
		{Bucket: "a", Start: c[0].Start, N: 0},
		{Bucket: "a", Start: c[0].Start, N: -1},
		{Bucket: "a", N: 1},
		{Bucket: "a", Start: time.Unix(1<<60, 0), N: 1},
		charge(h, c[0]),
	})
	want(t, add(t, s.Store, h), 2)
}

// usedByMany is for the race detector.
func usedByMany(t *testing.T, s Subject) {
	together(64, func(i int) {
		for range 5 {
			a, b := hit("a"), hit(fmt.Sprint("b", i))
			c, err := s.Store.Add(t.Context(), []ratelimit.Hit{a, b})
			if err != nil {
				t.Error(err)
				return
			}
			s.Store.GiveBack([]ratelimit.Charge{charge(a, c[0]), charge(b, c[1])})
		}
	})
	want(t, add(t, s.Store, hit("a")), 1)
}

// together calls f(0) to f(n-1) at the same moment, each in a goroutine, and waits for all.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}
