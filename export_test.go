package ratelimit

import "net/http"

// What tests in package ratelimit_test see of the inside.

var FallbackKey = fallbackKey

// Subject returns the subject of a key, and "" for the zero Key.
func Subject(k Key) string {
	if k.IsZero() {
		return ""
	}
	return *k.subject
}

// Bucketer returns the function that makes buckets of keys with the secret.
func Bucketer(secret Secret) func(prefix string, k Key) string { return newHasher(secret).bucket }

// Bucket returns the bucket of a key that is not zero.
func Bucket(secret Secret, prefix string, k Key) string { return Bucketer(secret)(prefix, k) }

// Apart reports whether no two buckets of the requests share a shard of l's memory of refusals. Those that do are
// taken for one another's when something is given back, by chance, since shards are.
func (l *Limiter) Apart(requests ...*http.Request) bool {
	buckets := make(map[*refusalShard]string)
	for _, r := range requests {
		hits, _, _ := l.keys(r, nil)
		for _, hit := range hits {
			s := l.refusals.shard(hit.Bucket)
			if other, ok := buckets[s]; ok && other != hit.Bucket {
				return false
			}
			buckets[s] = hit.Bucket
		}
	}
	return true
}
