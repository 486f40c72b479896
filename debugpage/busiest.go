package debugpage

import (
	"cmp"
	"slices"
	"time"
)

// maxBusiest is how many buckets are watched. One that has more than a hundredth of the requests is surely among them.
const maxBusiest = 100

// busiest finds the buckets with the most requests in bounded memory: when it is full, a new one takes the place of the
// one with the least, and is taken to have had as many ("Space-Saving", Metwally, Agrawal and El Abbadi, 2005). Counts
// halve every minute, so that what was busy once goes.
type busiest struct {
	places map[string]int // of buckets among all
	all    []watched
	halved time.Time
}

type watched struct {
	bucket, policy    string
	requests, refused float64 // weighted by age
}

func (b *busiest) add(now time.Time, bucket, policy string, refused bool) {
	if b.places == nil {
		b.places, b.halved = make(map[string]int, maxBusiest), now
	}
	b.halve(now)
	i, ok := b.places[bucket]
	switch {
	case ok:
	case len(b.all) < maxBusiest:
		i = len(b.all)
		b.all = append(b.all, watched{bucket: bucket, policy: policy})
		b.places[bucket] = i
	default:
		for k := range b.all {
			if b.all[k].requests < b.all[i].requests {
				i = k
			}
		}
		delete(b.places, b.all[i].bucket)
		b.all[i] = watched{bucket, policy, b.all[i].requests, 0}
		b.places[bucket] = i
	}
	b.all[i].requests++
	if refused {
		b.all[i].refused++
	}
}

func (b *busiest) halve(now time.Time) {
	if now.Sub(b.halved) > time.Hour { // nothing is left of what was then
		b.halved = now.Add(-time.Hour)
	}
	for ; now.Sub(b.halved) >= time.Minute; b.halved = b.halved.Add(time.Minute) {
		for i := range b.all {
			b.all[i].requests /= 2
			b.all[i].refused /= 2
		}
	}
}

// top returns the busiest, up to n.
func (b *busiest) top(now time.Time, n int) []watched {
	b.halve(now)
	top := slices.DeleteFunc(slices.Clone(b.all), func(w watched) bool { return w.requests < 1 })
	slices.SortFunc(top, func(a, b watched) int {
		return cmp.Or(cmp.Compare(b.requests, a.requests), cmp.Compare(a.bucket, b.bucket))
	})
	return top[:min(n, len(top))]
}
