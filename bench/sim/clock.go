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

// A cpu is cores with one queue, in which jobs go in the order they came.
type cpu struct {
	clock   *clock
	cores   int
	running int
	queue   []job
	busy    time.Duration // of all cores together
	crowded float64
}

type job struct {
	takes time.Duration
	done  func()
}

// run does a job of one core.
func (c *cpu) run(takes time.Duration, done func()) {
	if c.running == c.cores {
		c.queue = append(c.queue, job{takes, done})
		return
	}
	c.running++
	c.start(job{takes, done})
}

func (c *cpu) start(j job) {
	if others := c.running - 1; others > 0 && c.crowded > 1 {
		j.takes = time.Duration(float64(j.takes) * (1 + (c.crowded-1)*float64(others)/float64(c.cores-1)))
	}
	c.clock.after(j.takes, func() {
		c.busy += j.takes
		if len(c.queue) > 0 {
			next := c.queue[0]
			c.queue = c.queue[1:]
			c.start(next)
		} else {
			c.running--
		}
		j.done()
	})
}
