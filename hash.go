package ratelimit

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"hash/maphash"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
)

// A Secret is the key of the hashes of subjects (HMAC-SHA-256, RFC 2104): at least 32 random bytes,
// such as 32 from crypto/rand kept where the service's other secrets are. See [Config].Secret for what
// nil means.
//
// A Secret prints, logs and marshals as "redacted", whatever it holds. There are two exceptions, where
// package fmt calls no methods and prints the bytes: in an unexported field of a struct, and for the
// verbs %p and %w, which are wrong there.
type Secret []byte

// minSecret is the length of the hash: RFC 2104, section 3, discourages shorter keys.
const minSecret = sha256.Size

const redacted = "redacted"

// String returns "redacted".
func (Secret) String() string { return redacted }

// GoString returns "redacted".
func (Secret) GoString() string { return redacted }

// Format writes "redacted", whatever the verb.
func (Secret) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// LogValue returns "redacted".
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns "redacted", for JSON too.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

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

// memos is how many buckets of addresses each policy keeps: a power of two.
const memos = 4096

// A memo keeps the buckets of addresses that were asked for lately, as hashing one costs as much as all else
// that is done for a refused request. It keeps no other subjects: those may be credentials, which are not to
// stay in memory. It is a table with one place for each hash, so that nothing has to be locked.
type memo struct {
	seed   maphash.Seed
	places [memos]atomic.Pointer[memoEntry]
}

type memoEntry struct{ kind, subject, bucket string }

func newMemo() *memo { return &memo{seed: maphash.MakeSeed()} }

// bucket is hasher.bucket, whose prefix must be the same each time.
func (m *memo) bucket(h *hasher, prefix string, k Key) string {
	if k.kind != kindIP && k.kind != kindPeer || len(*k.subject) > maxAddressText {
		return h.bucket(prefix, k)
	}
	place := &m.places[maphash.String(m.seed, *k.subject)%memos]
	if e := place.Load(); e != nil && e.subject == *k.subject && e.kind == k.kind {
		return e.bucket
	}
	e := &memoEntry{k.kind, *k.subject, h.bucket(prefix, k)}
	place.Store(e)
	return e.bucket
}

// partitionKey returns what tells a client its budgets apart: the start of a hash of the bucket's name. It
// is not the hash in that name, from which a client that may choose a key would learn the hashes of others.
func (h *hasher) partitionKey(bucket string) []byte {
	sum := h.sum("pk:" + bucket)
	return sum[:8:8]
}
