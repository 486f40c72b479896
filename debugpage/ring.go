package debugpage

import "time"

// ringSeconds is how far back the charts go.
const ringSeconds = 180

// A ring counts events by the second, for the last three minutes.
type ring struct {
	counts [ringSeconds]uint32
	last   int64 // the second that was counted in last, in Unix time
}

// forward clears the seconds that have begun since the last event.
func (r *ring) forward(now time.Time) {
	second := now.Unix()
	if second-r.last > ringSeconds {
		r.last = second - ringSeconds
	}
	for ; r.last < second; r.last++ {
		r.counts[(r.last+1)%ringSeconds] = 0
	}
}

func (r *ring) add(now time.Time, n uint32) {
	r.forward(now)
	r.counts[r.last%ringSeconds] += n
}

// values returns the counts of the seconds that are over, the oldest first.
func (r *ring) values(now time.Time) []uint32 {
	r.forward(now)
	values := make([]uint32, 0, ringSeconds-1)
	for s := r.last - ringSeconds + 1; s < r.last; s++ {
		values = append(values, r.counts[s%ringSeconds])
	}
	return values
}

// rate returns how many came in a second, of the last ten that are over.
func rate(values []uint32) float64 {
	const over = 10
	sum := 0.0
	for _, v := range values[len(values)-over:] {
		sum += float64(v)
	}
	return sum / over
}
