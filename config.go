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
	// Policies are the limits, counted in one round trip. A request passes if all of them admit it. If there are several,
	// what a refused request has spent is given back to all, a moment later.
	Policies []Policy
	// Secret makes the hashes of keys HMAC-SHA-256. All processes that share a store share it; with another, counts start
	// anew. Defaults to none: from plain SHA-256 whoever can read the table finds every IPv4 address in minutes.
	Secret Secret
	// Deadline is how long a decision may wait for the store, at least 1 ms. Defaults to 250 ms.
	Deadline time.Duration
	// Skip, if set, picks requests that pass uncounted, without fields and decision, such as [IsPreflight].
	Skip func(*http.Request) bool
	// Headers is how clients are told about their limits. Defaults to [HeadersStructured].
	Headers Headers
	// PartitionKey adds pk to the structured fields: a hash that tells a client's budgets apart. It needs a Secret.
	PartitionKey bool
	// Refused and Unavailable, if set, answer in place of the 429 and the 503. The header fields are set before.
	Refused, Unavailable http.Handler
	// OnDecision, if set, is called with each decision, before the request goes on. It must be quick.
	OnDecision func(*http.Request, Decision)
	// Logger gets the store's errors, about one a second. Defaults to [slog.Default].
	Logger *slog.Logger
}

// A Policy is a limit on one kind of caller. Name and Limit are required. Its functions must be safe for concurrent
// use, and must neither change the request nor read its body.
type Policy struct {
	// Name stands in buckets, header fields and logs: 1 to 64 ASCII letters, digits, '.', '_' and '-'. Policies of equal
	// name, window and mode in one store share their budgets. Names in a Limiter differ by more than case.
	Name string
	// Limit is how many requests of one caller are admitted per window.
	Limit Limit
	// LimitFor, if set, returns a request's own limit, such as that of the caller's plan. The zero Limit means that of the
	// policy, as does one that is not valid, which is logged. Limits of equal windows share what is counted.
	LimitFor func(*http.Request) Limit
	// Key says who the caller is. A request without a key is counted under its TCP peer, apart from keys of that address.
	// Defaults to [ClientIP], which behind a proxy is the proxy.
	Key KeyFunc
	// Cost, if set, is how much of the limit a request spends, from 1 to [MaxRequests]; anything else is taken for the
	// nearer of the two. What costs more than is left is refused and spends nothing. Defaults to 1.
	Cost func(*http.Request) int
	// Sliding has the limit hold for a window's length that ends now: what the window before has admitted still counts, by
	// the part of it that is not yet so long ago. Otherwise twice the limit can pass around the end of a window.
	Sliding bool
	// Optional skips the policy for requests without a key. At least one policy must not be optional.
	Optional bool
	// OnFailure is what happens to a request that the store cannot count. Defaults to [FailOpen].
	OnFailure FailureMode
	// DryRun counts and refuses nobody. What it would refuse is in [Decision].Results and, once a second, in the log.
	DryRun bool
}

// A FailureMode is what a policy does with a request while the store cannot count it.
type FailureMode int

const (
	FailOpen   FailureMode = iota // the request passes: whoever can make the store slow can so turn the limit off
	FailClosed                    // it is answered 503 with Retry-After
	FailLocal                     // it is counted in this process until then: N processes admit N times the limit
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
		wrong("Deadline is %v, want at least 1ms, or zero for %v", c.Deadline, defaultDeadline)
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
