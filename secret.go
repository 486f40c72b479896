package ratelimit

import (
	"crypto/sha256"
	"fmt"
	"io"
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

// Format writes "redacted", whatever the verb.
func (Secret) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// MarshalText returns "redacted", for JSON too.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// UnmarshalText takes the text's bytes as they are, so that a secret in JSON or YAML is the same as in an
// environment variable.
func (s *Secret) UnmarshalText(text []byte) error {
	*s = append(Secret{}, text...)
	return nil
}
