package ratelimit

import "context"

// Peek returns what the policies would say to a request under the keys given, as [Limiter.Allow] takes them, and spends
// nothing. A result is Allowed if anything remains. It asks the store, and neither the memory of refusals nor, if
// the store fails, this process's own counts: the error is then one of the store's, such as [ErrUnavailable].
// It waits for the store at most for [Config].Deadline and until ctx ends.
func (l *Limiter) Peek(ctx context.Context, keys ...Key) ([]Result, error) {
	hits, results := l.keys(requestOf(ctx), given(keys))
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

// Reset forgets what was counted under the keys given, as [Limiter.Allow] takes them, in all policies and for all
// windows of the limits that they have now. This limiter admits the caller again at once. Another process that
// remembers a refusal goes on refusing for up to five seconds. Reset waits for the store as Peek does, and if it
// fails, the error is one of the store's and it is not known what was forgotten.
func (l *Limiter) Reset(ctx context.Context, keys ...Key) error {
	hits, _ := l.keys(requestOf(ctx), given(keys))
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
