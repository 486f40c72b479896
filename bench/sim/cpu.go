package sim

import "time"

// A cpu is cores with one queue, in which jobs go in the order they came.
type cpu struct {
	world   *world
	cores   int
	running int
	queue   []job
	busy    time.Duration // of all cores together
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
	waiting := min(float64(len(c.queue))/float64(c.cores), 8)
	takes := time.Duration(float64(j.takes) * (0.5 + c.world.rng.Float64()) * (1 + c.world.Crowded*waiting*waiting))
	c.world.after(takes, func() {
		c.busy += takes
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
