package ratelimit

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"time"
)

// Config is the configuration of a [Limiter]. Policies is required.
type Config struct {
	// Policies are the limits, at least one. A request passes if all of them admit it. They are
	// counted in one round trip. If there are several, or one has a Cost, a refused request is given back to
	// all of them, a moment later, so that what stays counted is what was admitted.
	Policies []Policy

	// Secret makes the hashes of keys unguessable: with it they are HMAC-SHA-256, of at least 32 bytes
	// of secret. All processes that share a store share the secret; another secret starts all counts
	// anew. Defaults to nil: a plain SHA-256, from which whoever can read the table finds
	// every IPv4 address in minutes.
	Secret Secret

	// Deadline is how long a decision may wait for the store, at least 1 ms. Past it, each policy's
	// OnFailure applies. A store has a timeout of its own for its statements, and raising one of the
	// two alone rarely helps. Defaults to 250 ms.
	Deadline time.Duration

	// Skip, if set, picks requests that are let through without being counted, such as [IsPreflight].
	// Their responses have none of the limiter's fields, and their contexts no decision.
	Skip func(*http.Request) bool

	// Headers is how clients are told about their limits. Defaults to [HeadersStructured].
	Headers Headers

	// PartitionKey adds the parameter pk to the structured fields: a hash, by which a client can tell
	// its budgets apart. Needs Secret and HeadersStructured. Defaults to off.
	PartitionKey bool

	// Refused, if set, answers requests that are over a limit, in place of the 429 with a problem
	// document. Retry-After, Cache-Control and the RateLimit fields are set before it runs, and
	// [FromContext] has the decision.
	Refused http.Handler

	// Unavailable, if set, answers requests that a [FailClosed] policy does not let through while the store
	// fails, and those whose own context has run into its deadline, in place of the 503 with a problem
	// document. Retry-After and Cache-Control are set
	// before it runs, and [FromContext] has the decision.
	Unavailable http.Handler

	// OnDecision, if set, is called with each decision, for metrics, but not for what Skip picks. It runs
	// before the request goes on and must be quick and safe for concurrent use.
	OnDecision func(*http.Request, Decision)

	// Logger gets the store's errors, about one a second at most. Defaults to [slog.Default].
	Logger *slog.Logger
}

// A Policy is a limit on one kind of caller. Name and Limit are required.
type Policy struct {
	// Name is the policy's name in buckets, header fields and logs: 1 to 64 ASCII letters, digits, '.', '_' and
	// '-', such as "oauth.register". Policies of equal name and window that count in one store share
	// their budgets, also across limiters. Within a Limiter, names differ by more than case.
	Name string

	// Limit is how many requests of one caller are admitted per window.
	Limit Limit

	// LimitFor, if set, returns the limit of a request, such as that of the caller's plan, from its context perhaps.
	// The zero Limit means that of the policy, and [Unlimited] that the request is not counted. Limits of equal
	// windows share what a caller has been counted: whoever is given a higher one in mid-window may go
	// on at once, and has spent what was spent. Limits of other windows begin anew. One that is not valid
	// is logged and taken for that of the policy. LimitFor must be safe for concurrent use, and must neither
	// change the request nor read its body. Defaults to the Limit for all.
	LimitFor func(*http.Request) Limit

	// Key says who the caller is. A request for which it finds no key is counted under the address of
	// its TCP peer, in a bucket of its own kind that no client with a key shares. Defaults to
	// [ClientIP], which behind a proxy is the proxy: use [NewClientIP] there.
	Key KeyFunc

	// Cost, if set, says how many of the Limit a request spends, such as the rows that it asks for: from 1 to
	// [MaxRequests], and the nearest of the two if it says anything else. A request that costs more than is left is
	// refused and spends nothing: it is given back a moment later, and a cheaper one may still pass. Cost
	// must be safe for concurrent use, and must neither change the request nor read its body.
	// Defaults to 1 for each request.
	Cost func(*http.Request) int

	// Optional skips the policy for requests for which Key finds no key. At least one other
	// policy of the Limiter must not be optional. A request that another policy refuses may still make
	// a row for its key, which stays until the window ends: give a policy by a key that clients can
	// invent a short window.
	Optional bool

	// Sliding has the limit hold for the length of a window that ends now, and not for fixed windows, in which a
	// caller can spend the limit twice around an end. What the window before has admitted counts for the part of it
	// that has not yet been left behind, as if it had come evenly. Refused requests are given back. It costs
	// the store one look-up more. See [Limiter] for how exact it is. With another mode, counts start anew.
	Sliding bool

	// OnFailure is what happens to a request that the store cannot count. Defaults to [FailOpen].
	OnFailure FailureMode

	// DryRun counts without refusing anybody, to try a limit out. What the policy would have refused is in
	// [Decision].Results and, about once a second, in the log; clients are told nothing of it. Since the
	// refused are counted too and none is refused from memory, a flood costs the store what it costs
	// without a limit.
	DryRun bool
}

// A FailureMode is what a policy does with a request while the store cannot count it.
type FailureMode int

const (
	// FailOpen lets the request pass. Its response has no RateLimit fields for the policy. Whoever can
	// make the store slow can so turn the limit off: where that matters, as for log-ins, use FailLocal.
	FailOpen FailureMode = iota
	// FailClosed answers 503 with Retry-After.
	FailClosed
	// FailLocal counts in this process by the same limit until the store is back, in windows of this
	// machine's clock and without what the store has counted. Behind N processes up to N times the
	// limit passes in a window, besides what the store admits in it. It remembers some 65,000 buckets; when there are more, some count anew.
	FailLocal
)

// String returns "open", "closed" or "local".
func (m FailureMode) String() string {
	switch m {
	case FailOpen:
		return "open"
	case FailClosed:
		return "closed"
	case FailLocal:
		return "local"
	}
	return fmt.Sprintf("FailureMode(%d)", int(m))
}

// validate returns all that is wrong with the configuration.
func (c Config) validate() error {
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("ratelimit: Config."+format, args...))
	}
	errs = append(errs, validatePolicies("ratelimit: Config.Policies", c.Policies)...)
	// An empty secret is not none: it comes from an environment variable that was not set.
	if n := len(c.Secret); c.Secret != nil && n < minSecret {
		wrong("Secret has %d bytes, want at least %d, or nil", n, minSecret)
	}
	if c.Deadline != 0 && c.Deadline < time.Millisecond {
		wrong("Deadline is %v, want at least 1ms, or zero for 250ms", c.Deadline)
	}
	if err := c.Headers.validate(); err != nil {
		wrong("Headers %w", err)
	}
	if c.PartitionKey && c.Secret == nil {
		wrong("PartitionKey is set without a Secret: a plain hash would tell the key")
	}
	if c.PartitionKey && c.Headers != 0 && c.Headers&HeadersStructured == 0 {
		wrong("PartitionKey is set and Headers is %v, want HeadersStructured among them", c.Headers)
	}
	return errors.Join(errs...)
}

// validatePolicies returns all that is wrong with policies, in errors that begin with where they are.
func validatePolicies(where string, policies []Policy) []error {
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(where+format, args...))
	}
	if len(policies) == 0 {
		wrong(" is empty, want at least one")
	}
	names := make(map[string]int)
	optional := 0
	for i, p := range policies {
		if err := validateName(p.Name); err != nil {
			wrong("[%d].Name %w", i, err)
		} else if j, ok := names[strings.ToLower(p.Name)]; ok {
			wrong("[%d].Name is %q, like that of policy %d, want names that differ by more than case", i, p.Name, j)
		} else {
			names[strings.ToLower(p.Name)] = i
		}
		if mistake := p.Limit.mistake(); mistake != "" {
			wrong("[%d].Limit.%s", i, mistake)
		}
		if p.OnFailure < FailOpen || p.OnFailure > FailLocal {
			wrong("[%d].OnFailure is %v, want FailOpen, FailClosed or FailLocal", i, p.OnFailure)
		}
		if p.Optional {
			optional++
		}
	}
	if optional > 0 && optional == len(policies) {
		wrong(" are all optional, want one that counts every request")
	}
	return errs
}

// validateName returns what is wrong with a policy's name, in words that follow the name of a field.
// Without '/' and ':' a bucket can be read in one way only, and printable ASCII is all that a String in
// a structured field can hold (RFC 9651, section 3.3.3).
func validateName(name string) error {
	valid := name != "" && len(name) <= 64
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			valid = false
		}
	}
	if !valid {
		return fmt.Errorf("is %.80q, want 1 to 64 ASCII letters, digits, '.', '_' and '-'", name)
	}
	return nil
}

func checkStore(s Store) error {
	if s == nil {
		return errors.New("ratelimit: New: store is nil")
	}
	if v := reflect.ValueOf(s); v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("ratelimit: New: store is a nil %T", s)
	}
	return nil
}
