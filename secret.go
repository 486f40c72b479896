package ratelimit

import (
	"crypto/sha256"
	"fmt"
	"io"
)

// A Secret is the key of HMAC-SHA-256 (RFC 2104): at least 32 random bytes. It prints and marshals as "redacted", but for
// an unexported field and the verbs %p and %w, where package fmt calls no methods.
type Secret []byte

// minSecret is the length of the hash: RFC 2104, section 3, discourages shorter keys.
const minSecret = sha256.Size

const redacted = "redacted"

// String returns "redacted".
func (Secret) String() string { return redacted }

// Format writes "redacted", whatever the verb.
func (Secret) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// MarshalText returns "redacted", for JSON too.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// UnmarshalText takes the bytes as they are, as in an environment variable.
func (s *Secret) UnmarshalText(text []byte) error {
	*s = append(Secret{}, text...)
	return nil
}
