package ratelimit

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"strings"
	"sync"
)

// A hasher makes buckets of keys. It is safe for concurrent use.
type hasher struct {
	states sync.Pool // of *hashState
}

// A hashState is a hash that is ready to be written to. Setting up an HMAC costs as much as using it, and
// its key is prepared once for as long as the state lives.
type hashState struct {
	hash.Hash
	buf [128]byte // where subjects become bytes and the sum is put: on the stack it would escape
}

// newHasher returns a hasher that uses HMAC-SHA-256 with the secret, or SHA-256 if there is none. It
// takes a secret of any length: Config has been validated.
func newHasher(secret Secret) *hasher {
	newHash := sha256.New
	if len(secret) > 0 {
		secret = append(Secret(nil), secret...) // the caller may wipe its own
		newHash = func() hash.Hash { return hmac.New(sha256.New, secret) }
	}
	h := new(hasher)
	h.states.New = func() any { return &hashState{Hash: newHash()} }
	return h
}

// sum returns the hash of the bytes of s.
func (h *hasher) sum(s string) [sha256.Size]byte {
	state := h.states.Get().(*hashState)
	defer h.states.Put(state)
	state.Reset()
	for len(s) > 0 {
		n := copy(state.buf[:], s)
		state.Write(state.buf[:n])
		s = s[n:]
	}
	return [sha256.Size]byte(state.Sum(state.buf[:0]))
}

// bucket returns the bucket of a key, which is not zero: the prefix, which names the policy and the
// window, the kind, ':' and the hash of the subject in hex. Kinds hold no ':' and the hash has a fixed
// length, so a bucket can be read from its end in one way only.
func (h *hasher) bucket(prefix string, k Key) string {
	sum := h.sum(*k.subject)
	var digits [2 * sha256.Size]byte
	hex.Encode(digits[:], sum[:])
	var b strings.Builder
	b.Grow(len(prefix) + len(k.kind) + 1 + len(digits))
	b.WriteString(prefix)
	b.WriteString(k.kind)
	b.WriteByte(':')
	b.Write(digits[:])
	return b.String()
}

// partitionKey returns what tells a client its budgets apart: the start of a hash of the bucket's name. It
// is not the hash in that name, from which a client that may choose a key would learn the hashes of others.
func (h *hasher) partitionKey(bucket string) []byte {
	sum := h.sum("pk:" + bucket)
	return sum[:8:8]
}
