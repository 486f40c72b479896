package ratelimit

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
