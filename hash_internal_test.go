package ratelimit

import (
	"encoding/hex"
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

func TestPartitionKey(t *testing.T) {
	t.Parallel()
	h := newHasher(Secret("Jefe"))
	got := h.partitionKey(NewKey("k", "what do ya want for nothing?"))
	if diff := cmp.Diff("5bdcc146bf60754e", hex.EncodeToString(got)); diff != "" {
		t.Errorf("partition key (-want +got):\n%s", diff)
	}
}
