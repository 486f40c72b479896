package ratelimit_test

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"pgregory.net/rapid"

	"github.com/krow/ratelimit"
)

// A meeting is a request of several at once.
type meeting struct{ Process, Caller int }

var drawMeeting = rapid.Custom(func(t *rapid.T) meeting {
	return meeting{rapid.IntRange(0, 1).Draw(t, "process"), rapid.IntRange(0, len(callers)-1).Draw(t, "caller")}
})

// atOnce makes requests that meet in the database and in batches on the way there, in an order that nobody knows.
func (c *cluster) atOnce(t *rapid.T) {
	meetings := rapid.SliceOfN(drawMeeting, 2, 12).Draw(t, "requests")
	if rapid.Bool().Draw(t, "all alike") {
		for i := range meetings {
			meetings[i] = meetings[0]
		}
	}
	for i, s := range c.processes {
		if s.lost {
			_ = s.countAnother(t)
			s.lost = false
		}
		// After a reset nobody can tell how many are refused from memory.
		for b, k := range s.known {
			if now := (span{b, k.number}); k.least > c.model.counts[now] || k.previous > c.model.counts[now.before()] {
				c.start(t, i, s.rules)
				break
			}
		}
	}

	var settled [2]bool
	got := make([]ratelimit.Decision, len(meetings))
	var wg sync.WaitGroup
	for i, m := range meetings {
		r := callers[m.Caller].request()
		wg.Go(func() { got[i] = c.processes[m.Process].limiter.Check(r) })
	}
	wg.Wait()
	for i, d := range got {
		if d.Err != nil {
			t.Fatalf("request %d: %v", i, d.Err)
		}
	}
	hits := c.hits(meetings)
	for i, m := range meetings {
		if givesBack(hits[i]) && !settled[m.Process] {
			c.processes[m.Process].settle(t)
			settled[m.Process] = true
		}
	}
	c.model.settled(t, hits, got)
	c.learn(t, meetings)
}

func (c *cluster) hits(meetings []meeting) [][]charged {
	var all [][]charged
	for _, m := range meetings {
		hits := c.processes[m.Process].hits(callers[m.Caller])
		for i := range hits {
			h := &hits[i]
			h.number, h.left = c.model.window(h.window)
			h.previous = c.model.counts[h.before()]
		}
		all = append(all, hits)
	}
	return all
}

// settled checks what was decided on requests that met, and counts them.
//
// Who comes first is admitted, and nobody knows who did, but it is known how many: where all that meet in a bucket
// are alike, as many as the tightest limit leaves, and each is told another number of what remains. Where they are
// not, a request that one bucket refuses may keep another out of a bucket that they share, for the moment until it
// is given back. Then it is only known that no more are admitted than the limits say, and that all are if there is
// room for all. Counted are in any case those that are admitted, and those that the store has refused to callers
// with one policy, to whom nothing is given back.
func (m *model) settled(t *rapid.T, all [][]charged, got []ratelimit.Decision) {
	alike := make(map[string][]int) // requests by what they are counted in
	users := make(map[span]map[string]bool)
	room := true
	coming := make(map[span]int)
	for i, hits := range all {
		key := ""
		for _, h := range hits {
			key += fmt.Sprint(h.span, h.Limit, h.n)
		}
		alike[key] = append(alike[key], i)
		for _, h := range hits {
			if users[h.span] == nil {
				users[h.span] = make(map[string]bool)
			}
			users[h.span][key] = true
			coming[h.span] += h.n
		}
	}
	for _, hits := range all {
		for _, h := range hits {
			room = room && (h.DryRun || m.room(h) >= coming[h.span])
		}
	}
	for key, requests := range alike {
		hits := all[requests[0]]
		alone, admitted := true, len(requests)
		for _, h := range hits {
			alone = alone && len(users[h.span]) == 1
			if !h.DryRun {
				admitted = min(admitted, m.room(h)/h.n)
			}
		}
		if !alone && !room {
			continue
		}
		for i, h := range hits {
			if h.DryRun && h.givesBack() {
				continue // what it refuses is given back, and so may make room for others or not
			}
			var want, remaining []int
			for k := range admitted {
				want = append(want, max(0, m.room(h)-(k+1)*h.n))
			}
			for _, r := range requests {
				if got[r].Outcome == ratelimit.Allowed {
					remaining = append(remaining, got[r].Results[i].Remaining)
				}
			}
			slices.SortFunc(remaining, func(a, b int) int { return b - a })
			if alone && !slices.Equal(want, remaining) || len(want) != len(remaining) {
				t.Logf("of %d requests of %s those were admitted to which %v remain, want %v", len(requests), key, remaining, want)
				t.Error("too many or too few of the requests at once were admitted")
			}
		}
	}
	for i, hits := range all {
		d := got[i]
		if slices.ContainsFunc(d.Results, func(r ratelimit.Result) bool { return r.Remembered }) {
			continue
		}
		for k, h := range hits {
			m.counts[h.span] += 0 // there is a row, even if all is given back
			kept := d.Outcome == ratelimit.Allowed || !givesBack(hits)
			if kept && (!h.givesBack() || d.Results[k].Outcome == ratelimit.Allowed) {
				m.counts[h.span] += h.n
			}
		}
		m.admit(t, hits, d)
	}
}

// room is how much of the limit is left.
func (m *model) room(h charged) int {
	return max(0, h.Limit.Requests-h.spent(m.counts[h.span], h.previous, h.left))
}

// learn notes what the limiters may have learned from requests that met: what is counted now. Of several policies
// another process may have seen hits that were given back since, which it believes in for half a second.
func (c *cluster) learn(t *rapid.T, meetings []meeting) {
	var met [2]bool
	several := false
	for i, hits := range c.hits(meetings) {
		met[meetings[i].Process] = true
		several = several || givesBack(hits)
		for _, h := range hits {
			if h.DryRun {
				continue
			}
			c.processes[meetings[i].Process].known[h.bucket] = knowledge{
				number: h.number, least: c.model.counts[h.span], previous: c.model.counts[h.before()],
				first: time.Now().Add(h.left), last: time.Now().Add(h.left),
			}
		}
	}
	if several && met[0] && met[1] {
		for i, s := range c.processes {
			c.start(t, i, s.rules)
		}
	}
}
