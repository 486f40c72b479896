package ratelimit

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// HK-01. The secret is shorter than Config accepts.
func TestHMAC(t *testing.T) {
	t.Parallel()
	h := newHasher(Secret("Jefe"))
	const want = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
	for range 2 { // the second time with a state that has been used
		sum := h.sum("what do ya want for nothing?")
		if diff := cmp.Diff(want, hex.EncodeToString(sum[:])); diff != "" {
			t.Errorf("RFC 4231, case 2 (-want +got):\n%s", diff)
		}
	}
}

// The caller may wipe its secret: a state that is made later must still have it.
func TestHasherCopiesSecret(t *testing.T) {
	t.Parallel()
	secret := Secret("Jefe")
	h := newHasher(secret)
	clear(secret)
	if h.sum("x") != newHasher(Secret("Jefe")).sum("x") {
		t.Error("the hash has changed with the caller's slice")
	}
}

// The key that clients see is not the hash in the bucket: a client that may choose its key would learn
// the hashes of others. It was computed apart, with Python's hmac.
func TestPartitionKeyIsNoHashOfAKey(t *testing.T) {
	t.Parallel()
	h := newHasher(Secret("Jefe"))
	bucket := h.bucket("p/1m:", NewKey("k", "what do ya want for nothing?"))
	got := []string{bucket, hex.EncodeToString(h.partitionKey(bucket))}
	want := []string{"p/1m:k:5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843", "2d5900105409ecbf"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("bucket and partition key (-want +got):\n%s", diff)
	}
}

// The memo returns what the hasher would, whatever shares its places, and keeps nothing but addresses.
func TestMemo(t *testing.T) {
	t.Parallel()
	const prefix = "p/1m:"
	h, m := newHasher(nil), newMemo()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 3 * memos {
				subject := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String()
				for _, k := range []Key{makeKey(kindIP, subject), makeKey(kindPeer, subject), makeKey("token", subject)} {
					for range 2 {
						if got, want := m.bucket(h, prefix, k), h.bucket(prefix, k); got != want {
							t.Errorf("%s of %s is %s, want %s", k.kind, subject, got, want)
							return
						}
					}
				}
			}
		})
	}
	wg.Wait()
	m.bucket(h, prefix, makeKey("token", "secret"))
	m.bucket(h, prefix, makeKey(kindIP, strings.Repeat("a", maxAddressText+1)))
	kept := 0
	for i := range m.places {
		e := m.places[i].Load()
		if e == nil {
			continue
		}
		kept++
		if _, err := netip.ParseAddr(e.subject); err != nil || e.kind == "token" {
			t.Errorf("the memo keeps %s %q", e.kind, e.subject)
		}
	}
	if kept == 0 {
		t.Error("the memo keeps nothing")
	}
}
