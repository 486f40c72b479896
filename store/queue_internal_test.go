package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/krow/ratelimit"
)

// What gathering one hit costs, without the statement: on buckets that differ, and on one that is hot.
//
//	go test -run='^$' -bench=Batch ./store
func BenchmarkBatch(b *testing.B) {
	for name, buckets := range map[string]int{"one bucket": 1, "64 buckets": 64} {
		b.Run(name, func(b *testing.B) {
			hits := make([]ratelimit.Hit, 64)
			for i := range hits {
				hits[i] = ratelimit.Hit{Bucket: fmt.Sprintf("bench/1h:ip:%064x", i%buckets), Window: time.Hour, N: 1}
			}
			q := queue{trying: true} // so that nothing is sent
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				var few [4]place
				if _, _, _, err := q.join(hits[i:i+1], few[:0], false); err != nil {
					b.Fatal(err)
				}
				if i++; i == len(hits) {
					q.popLocked()
					i = 0
				}
			}
		})
	}
}
