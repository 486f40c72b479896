package sim

import (
	"container/heap"
	"time"
)

// A clock has a time that goes from event to event.
type clock struct {
	now    time.Duration
	events events
	n      int // of events so far, which orders those of one moment
}

type event struct {
	at time.Duration
	n  int
	do func()
}

func (c *clock) after(d time.Duration, do func()) {
	c.n++
	heap.Push(&c.events, event{c.now + d, c.n, do})
}

func (c *clock) runUntil(end time.Duration) {
	for len(c.events) > 0 && c.events[0].at <= end {
		e := heap.Pop(&c.events).(event)
		c.now = e.at
		e.do()
	}
	c.now = end
}

type events []event

func (h events) Len() int      { return len(h) }
func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *events) Push(x any)   { *h = append(*h, x.(event)) }

func (h events) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].n < h[j].n
}

func (h *events) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	*h = (*h)[:last]
	return e
}
