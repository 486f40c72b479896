package debugpage

import (
	"fmt"
	"testing"
	"time"
)

func TestRing(t *testing.T) {
	t.Parallel()
	var r ring
	at := time.Unix(1_800_000_000, 0)
	r.add(at, 3)
	r.add(at.Add(999*time.Millisecond), 2)
	r.add(at.Add(2*time.Second), 7)
	values := r.values(at.Add(3 * time.Second))
	if len(values) != ringSeconds-1 || fmt.Sprint(values[len(values)-3:]) != "[5 0 7]" {
		t.Errorf("values end with %v, want 5 0 7", values[len(values)-3:])
	}
	if got := rate(values); got != 1.2 {
		t.Errorf("rate is %v, want 1.2", got)
	}
	if got := r.values(at); got[len(got)-1] != 7 { // a clock that was set back
		t.Errorf("values end with %v, want 7", got[len(got)-1])
	}
	sum := uint32(0)
	for _, v := range r.values(at.Add((ringSeconds + 1) * time.Second)) {
		sum += v
	}
	if sum != 7 {
		t.Errorf("after three minutes and a second %d are left, want the last 7", sum)
	}
	for _, v := range r.values(at.Add(24 * time.Hour)) {
		if v != 0 {
			t.Fatal("something is left after a day")
		}
	}
}

// Of a stream with a busy bucket in it, that is found, whatever comes with it, and it goes when it is busy no more.
func TestBusiest(t *testing.T) {
	t.Parallel()
	var b busiest
	now := time.Unix(1_800_000_000, 0)
	for i := range 100_000 {
		b.add(now, fmt.Sprint("one of many ", i), "p", false)
		if i%50 == 0 {
			b.add(now, "busy", "p", true)
		}
	}
	top := b.top(now, 1)
	if len(b.all) != maxBusiest || len(b.places) != maxBusiest || len(top) != 1 {
		t.Fatalf("%d and %d are watched, want %d; top is %v", len(b.all), len(b.places), maxBusiest, top)
	}
	if top := b.top(now, maxBusiest); len(top) != maxBusiest || !contains(top, "busy") {
		t.Errorf("busy is not among %d", len(top))
	}
	if top := b.top(now.Add(2*time.Hour), 10); len(top) != 0 {
		t.Errorf("after two hours %v are left", top)
	}
	b.add(now.Add(2*time.Hour), "new", "p", false)
	if top := b.top(now.Add(2*time.Hour), 10); !contains(top, "new") {
		t.Errorf("new is not among %v", top)
	}
}

func contains(all []watched, bucket string) bool {
	for _, w := range all {
		if w.bucket == bucket {
			return true
		}
	}
	return false
}
