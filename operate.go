package ratelimit

import "context"

// Peek returns what the policies would say to a request under the keys, as [Limiter.Allow] takes them, and spends
// nothing. It asks the store alone, and returns its errors.
func (l *Limiter) Peek(ctx context.Context, keys ...Key) ([]Result, error) {
	hits, results, _ := l.keys(requestOf(ctx), given(keys))
	if len(hits) == 0 {
		return results, nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.config.Deadline)
	defer cancel()
	counts, err := l.store.Get(ctx, hits)
	if err == nil {
		err = checkNumber(counts, hits)
	}
	if err != nil {
		return nil, l.late(err)
	}
	for i := range results {
		r := &results[i]
		r.peek(counts[i])
	}
	return results, nil
}

// Reset forgets what was counted under the keys, as [Limiter.Allow] takes them. Other processes may go on refusing for
// five seconds. After an error it is not known what was forgotten.
func (l *Limiter) Reset(ctx context.Context, keys ...Key) error {
	hits, _, _ := l.keys(requestOf(ctx), given(keys))
	buckets := make([]string, len(hits))
	for i, hit := range hits {
		buckets[i] = hit.Bucket
	}
	if len(buckets) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.config.Deadline)
	defer cancel()
	if err := l.store.Reset(ctx, buckets); err != nil {
		return l.late(err)
	}
	for _, bucket := range buckets {
		l.refusals.forget(bucket)
		l.local.Reset(bucket)
	}
	return nil
}
