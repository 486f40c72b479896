package ratelimit

import (
	"hash/maphash"
	"sync/atomic"
)

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
