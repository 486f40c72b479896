package ratelimit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// A Key says who is calling: a kind, such as "ip", and a subject, such as an address. The zero Key is no key.
// It prints and marshals without the subject.
type Key struct {
	_    [0]func() // not comparable: == would compare pointers
	kind string
	// subject is behind a pointer because package fmt reads the unexported fields of a struct by
	// reflection, where it calls no methods: a string there would be printed, a pointer is not followed.
	// That costs an allocation of 16 bytes for each key.
	subject *string
}

// kindIP is the kind of clients' addresses.
const kindIP = "ip"

// Kinds that the limiter itself uses for requests without a key. See fallbackKey.
const (
	kindPeer = "peer"
	kindNone = "none"
)

// NewKey returns the key of a subject, or none if that is empty. The kind is 1 to 64 of a-z, 0-9, '.', '_' and '-', and
// neither "peer" nor "none"; any other is replaced by its hash.
func NewKey(kind, subject string) Key {
	if subject == "" {
		return Key{}
	}
	return makeKey(kindText(kind), subject)
}

// makeKey returns a key whose kind is known to be fit for a bucket.
func makeKey(kind, subject string) Key { return Key{kind: kind, subject: &subject} }

// Kind returns the kind as it stands in buckets, and "" for the zero Key.
func (k Key) Kind() string { return k.kind }

// IsZero reports whether k is the zero Key, which is no key.
func (k Key) IsZero() bool { return k.subject == nil }

// Equal reports whether both are of equal kind and subject, or zero.
func (k Key) Equal(other Key) bool {
	if k.IsZero() || other.IsZero() {
		return k.IsZero() && other.IsZero()
	}
	return k.kind == other.kind && *k.subject == *other.subject
}

// String returns a text without the subject: "ip:redacted", or "no key".
func (k Key) String() string {
	if k.IsZero() {
		return "no key"
	}
	return k.kind + ":redacted"
}

// Format writes the same as String, whatever the verb.
func (k Key) Format(f fmt.State, _ rune) { io.WriteString(f, k.String()) }

// MarshalText returns the same as String.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// A KeyFunc finds out who is calling, or returns the zero [Key]. It must be safe for concurrent use, and must neither
// change the request nor read its body. A path is no key, as it can be spelled in many ways.
type KeyFunc func(r *http.Request) Key

// maxToken is the longest bearer token that is a key. No real one is near it, and what a stranger may
// have hashed needs some end.
const maxToken = 8192

// BearerToken is a [KeyFunc] for the bearer token (RFC 6750, section 2.1), of kind "bearer". It verifies nothing, and
// every invented token is a fresh budget: before authentication, limit by [ClientIP] beside it.
func BearerToken(r *http.Request) Key {
	const scheme = "Bearer"
	value, ok := singleLine(r, "Authorization")
	if !ok || len(value) <= len(scheme) || !strings.EqualFold(value[:len(scheme)], scheme) {
		return Key{}
	}
	credentials := value[len(scheme):]
	token := strings.TrimLeft(credentials, " ")
	if len(token) == len(credentials) || len(token) > maxToken || !isToken68(token) {
		return Key{}
	}
	return makeKey("bearer", token)
}

// Header returns a [KeyFunc] for a field that names the caller, there once and not empty, of kind "header-" and the name.
// It panics if no request can have it. For addresses use [NewClientIP].
func Header(name string) KeyFunc {
	if err := checkFieldName(name); err != nil {
		panic(fmt.Sprintf("ratelimit: Header: name is %q, %v", name, err))
	}
	kind := kindText("header-" + strings.ToLower(name))
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request) Key {
		value, ok := singleLine(r, name)
		if !ok || value == "" {
			return Key{}
		}
		return makeKey(kind, value)
	}
}

// Constant returns a [KeyFunc] with one key for all, of kind "constant". It panics if subject is empty.
func Constant(subject string) KeyFunc {
	if subject == "" {
		panic("ratelimit: Constant: subject is empty")
	}
	key := makeKey("constant", subject)
	return func(*http.Request) Key { return key }
}

// FirstOf returns a [KeyFunc] for the first key that is found; clients choose which that is. It panics without
// functions, or if one is nil.
func FirstOf(keys ...KeyFunc) KeyFunc {
	keys = checkKeyFuncs("FirstOf", keys)
	return func(r *http.Request) Key {
		for _, key := range keys {
			if k := key(r); !k.IsZero() {
				return k
			}
		}
		return Key{}
	}
}

// Join returns a [KeyFunc] for a budget for each combination of keys, of kinds joined with '+'. If one is missing there
// is none. It panics without functions, or if one is nil.
func Join(keys ...KeyFunc) KeyFunc {
	keys = checkKeyFuncs("Join", keys)
	if len(keys) == 1 {
		return keys[0]
	}
	return func(r *http.Request) Key {
		kind, subject := make([]byte, 0, maxKind), make([]byte, 0, 256) // on the stack, unless they grow
		for i, key := range keys {
			k := key(r)
			if k.IsZero() {
				return Key{}
			}
			if i > 0 {
				kind = append(kind, '+')
			}
			kind = append(kind, k.kind...)
			// Lengths and not separators, which could occur in the parts: ("a:b", "c") and ("a", "b:c")
			// are different callers.
			subject = appendPrefixed(subject, k.kind)
			subject = appendPrefixed(subject, *k.subject)
		}
		return makeKey(joinedKindText(string(kind)), string(subject))
	}
}

// appendPrefixed appends s behind its length.
func appendPrefixed(b []byte, s string) []byte {
	b = strconv.AppendInt(b, int64(len(s)), 10)
	b = append(b, ':')
	return append(b, s...)
}

// checkKeyFuncs returns a copy of keys, which the caller of the function named may change later.
func checkKeyFuncs(function string, keys []KeyFunc) []KeyFunc {
	if len(keys) == 0 {
		panic("ratelimit: " + function + ": no key functions")
	}
	for i, key := range keys {
		if key == nil {
			panic(fmt.Sprintf("ratelimit: %s: key function %d is nil", function, i))
		}
	}
	return append([]KeyFunc(nil), keys...)
}

// maxKind is the longest kind that stands in a bucket as it is. It leaves the bucket well below the
// limit of [Hit].
const maxKind = 64

// kindText returns the kind as it stands in buckets. It has no '+', so it is never the kind of a join,
// and a stand-in has a '~', so it is never another plain kind.
func kindText(kind string) string {
	plain := kind != "" && len(kind) <= maxKind && kind != kindPeer && kind != kindNone
	for i := 0; plain && i < len(kind); i++ {
		c := kind[i]
		plain = 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-'
	}
	if plain {
		return kind
	}
	return "~" + shortHash(kind)
}

// joinedKindText is kindText for the kinds of a join. Only their length can be wrong. The stand-in
// begins with '+', as no other kind does, for its text may have been given to NewKey as well.
func joinedKindText(kinds string) string {
	if len(kinds) <= maxKind {
		return kinds
	}
	return "+" + shortHash(kinds)
}

// shortHash returns 128 bits of the SHA-256 of s in hex: enough that nobody finds two that are equal.
func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:16])
}

// singleLine returns the value of a field that must be there exactly once, without the white space
// around it. The name is in canonical form. Of two lines, a proxy may have checked the other one.
func singleLine(r *http.Request, name string) (value string, ok bool) {
	lines := r.Header[name]
	if len(lines) != 1 {
		return "", false
	}
	return trimOWS(lines[0]), true
}

// trimOWS trims optional white space (RFC 9110, section 5.6.3).
func trimOWS(s string) string { return strings.Trim(s, " \t") }

// checkFieldName returns why name cannot be that of a field in http.Request.Header, in words that
// follow the name.
func checkFieldName(name string) error {
	if name == "" || tokenLen(name) < len(name) {
		return errors.New("want the name of a header field")
	}
	switch http.CanonicalHeaderKey(name) {
	case "Host", "Transfer-Encoding", "Trailer":
		return errors.New("want a field that net/http leaves in Request.Header")
	}
	return nil
}

// isToken68 reports whether s is a token68 (RFC 9110, section 11.2).
func isToken68(s string) bool {
	s = strings.TrimRight(s, "=")
	for i := range len(s) {
		switch c := s[i]; {
		case isAlphanumeric(c):
		case c == '-', c == '.', c == '_', c == '~', c == '+', c == '/':
		default:
			return false
		}
	}
	return s != ""
}

// tokenLen returns the length of the token (RFC 9110, section 5.6.2) that s begins with.
func tokenLen(s string) int {
	for i := range len(s) {
		if c := s[i]; !isAlphanumeric(c) && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return i
		}
	}
	return len(s)
}

func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
