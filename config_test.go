package ratelimit_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/store"
)

// valueStore is a store that is not a pointer.
type valueStore struct{ ratelimit.Store }

// Fault 38 and the HD and HK rows that end in "constructor error": a mistake is an error at
// construction, which names the field, and all mistakes come at once.
func TestNewMistakes(t *testing.T) {
	t.Parallel()
	memory := memoryStore(t)
	limit := ratelimit.PerMinute(5)
	one := func(p ratelimit.Policy) []ratelimit.Policy { return []ratelimit.Policy{p} }
	named := func(name string) ratelimit.Config {
		return ratelimit.Config{Policies: one(ratelimit.Policy{Name: name, Limit: limit})}
	}
	good := one(ratelimit.Policy{Name: "default", Limit: limit})
	secret := ratelimit.Secret(strings.Repeat("s", 32))
	const names = ", want 1 to 64 ASCII letters, digits, '.', '_' and '-'"

	for _, test := range []struct {
		name   string
		store  ratelimit.Store
		config ratelimit.Config
		want   []string // the lines of the error, each without "ratelimit: "; none for no error
	}{
		{"nothing but what is required", memory, named("default"), nil},
		{"store that is not a pointer", valueStore{}, named("default"), nil},
		{"zero", nil, ratelimit.Config{}, []string{
			"New: store is nil",
			"Config.Policies is empty, want at least one",
		}},
		{"nil store", nil, named("default"), []string{"New: store is nil"}},
		{"nil Postgres", (*store.Postgres)(nil), named("default"), []string{"New: store is a nil *store.Postgres"}},
		{"nil Memory", (*store.Memory)(nil), named("default"), []string{"New: store is a nil *store.Memory"}},

		{"name of all that is allowed", memory, named("aZ09._-"), nil},
		{"longest name", memory, named(strings.Repeat("n", 64)), nil},
		{"name too long", memory, named(strings.Repeat("n", 65)), []string{
			`Config.Policies[0].Name is "` + strings.Repeat("n", 65) + `"` + names,
		}},
		{"no name", memory, named(""), []string{`Config.Policies[0].Name is ""` + names}},
		{"HD-22 not ASCII", memory, named("größe"), []string{`Config.Policies[0].Name is "größe"` + names}},
		{"HD-22 newline", memory, named("a\nb"), []string{`Config.Policies[0].Name is "a\nb"` + names}},
		{"name with a quote", memory, named(`a"b`), []string{`Config.Policies[0].Name is "a\"b"` + names}},
		{"name with a slash", memory, named("a/b"), []string{`Config.Policies[0].Name is "a/b"` + names}},
		{"name with a colon", memory, named("a:b"), []string{`Config.Policies[0].Name is "a:b"` + names}},
		{"name with a space", memory, named("a b"), []string{`Config.Policies[0].Name is "a b"` + names}},
		{
			"HD-23 names that differ by case alone", memory,
			ratelimit.Config{Policies: []ratelimit.Policy{{Name: "Daily", Limit: limit}, {Name: "other", Limit: limit}, {Name: "daily", Limit: limit}}},
			[]string{`Config.Policies[2].Name is "daily", like that of policy 0, want names that differ by more than case`},
		},
		{
			"equal names, different windows", memory,
			ratelimit.Config{Policies: []ratelimit.Policy{{Name: "a", Limit: limit}, {Name: "a", Limit: ratelimit.PerHour(1)}}},
			[]string{`Config.Policies[1].Name is "a", like that of policy 0, want names that differ by more than case`},
		},

		{
			"all optional", memory,
			ratelimit.Config{Policies: []ratelimit.Policy{{Name: "a", Limit: limit, Optional: true}, {Name: "b", Limit: limit, Optional: true}}},
			[]string{"Config.Policies are all optional, want one that counts every request"},
		},
		{
			"one of two optional", memory,
			ratelimit.Config{Policies: []ratelimit.Policy{{Name: "a", Limit: limit, Optional: true}, {Name: "b", Limit: limit}}},
			nil,
		},
		{
			"fault 38 unknown failure modes", memory,
			ratelimit.Config{Policies: []ratelimit.Policy{{Name: "a", Limit: limit, OnFailure: 3}, {Name: "b", Limit: limit, OnFailure: -1}}},
			[]string{
				"Config.Policies[0].OnFailure is FailureMode(3), want FailOpen, FailClosed or FailLocal",
				"Config.Policies[1].OnFailure is FailureMode(-1), want FailOpen, FailClosed or FailLocal",
			},
		},

		{"HK-05 secret of 1 byte", memory, ratelimit.Config{Policies: good, Secret: secret[:1]}, []string{"Config.Secret has 1 bytes, want at least 32, or nil"}},
		{"HK-05 secret of 16 bytes", memory, ratelimit.Config{Policies: good, Secret: secret[:16]}, []string{"Config.Secret has 16 bytes, want at least 32, or nil"}},
		{"HK-05 secret of 31 bytes", memory, ratelimit.Config{Policies: good, Secret: secret[:31]}, []string{"Config.Secret has 31 bytes, want at least 32, or nil"}},
		{"HK-05 secret of 32 bytes", memory, ratelimit.Config{Policies: good, Secret: secret}, nil},
		{"HK-05 empty secret", memory, ratelimit.Config{Policies: good, Secret: ratelimit.Secret{}}, []string{"Config.Secret has 0 bytes, want at least 32, or nil"}},

		{"deadline", memory, ratelimit.Config{Policies: good, Deadline: time.Millisecond}, nil},
		{"negative deadline", memory, ratelimit.Config{Policies: good, Deadline: -1}, []string{"Config.Deadline is -1ns, want at least 1ms, or zero for 250ms"}},

		{"HD-29 two syntaxes", memory, ratelimit.Config{Policies: good, Headers: ratelimit.HeadersStructured | ratelimit.HeadersDraft06}, []string{
			"Config.Headers is HeadersStructured|HeadersDraft06, want HeadersStructured or HeadersDraft06: both write RateLimit-Policy, in different syntaxes",
		}},
		{"unknown headers", memory, ratelimit.Config{Policies: good, Headers: 1 << 10}, []string{"Config.Headers is Headers(0x400), want formats of this package"}},
		{"no headers and some", memory, ratelimit.Config{Policies: good, Headers: ratelimit.HeadersNone | ratelimit.HeadersLegacy}, []string{
			"Config.Headers is HeadersLegacy|HeadersNone, want HeadersNone alone or not at all",
		}},

		{"partition key", memory, ratelimit.Config{Policies: good, PartitionKey: true, Secret: secret}, nil},
		{"partition key with structured headers", memory, ratelimit.Config{Policies: good, PartitionKey: true, Secret: secret, Headers: ratelimit.HeadersStructured | ratelimit.HeadersLegacy}, nil},
		{"partition key without a secret", memory, ratelimit.Config{Policies: good, PartitionKey: true}, []string{
			"Config.PartitionKey is set without a Secret: a plain hash would tell the key",
		}},
		{"partition key without structured headers", memory, ratelimit.Config{Policies: good, PartitionKey: true, Secret: secret, Headers: ratelimit.HeadersDraft06}, []string{
			"Config.PartitionKey is set and Headers is HeadersDraft06, want HeadersStructured among them",
		}},
		{"partition key without headers", memory, ratelimit.Config{Policies: good, PartitionKey: true, Secret: secret, Headers: ratelimit.HeadersNone}, []string{
			"Config.PartitionKey is set and Headers is HeadersNone, want HeadersStructured among them",
		}},

		{
			"everything at once", (*store.Memory)(nil),
			ratelimit.Config{
				Policies: []ratelimit.Policy{
					{Optional: true},
					{Name: "a", Limit: ratelimit.Limit{Requests: -1, Window: time.Second}, OnFailure: 9, Optional: true},
					{Name: "A", Limit: ratelimit.Limit{Window: 1500 * time.Microsecond * 1001}, Optional: true},
				},
				Secret:       secret[:7],
				Deadline:     -time.Second,
				Headers:      ratelimit.HeadersNone | ratelimit.HeadersDraft06,
				PartitionKey: true,
			},
			[]string{
				"New: store is a nil *store.Memory",
				`Config.Policies[0].Name is ""` + names,
				"Config.Policies[0].Limit.Window is 0s, want 1s to 366 days",
				"Config.Policies[1].Limit.Requests is -1, want 0 to 1000000000",
				"Config.Policies[1].OnFailure is FailureMode(9), want FailOpen, FailClosed or FailLocal",
				`Config.Policies[2].Name is "A", like that of policy 1, want names that differ by more than case`,
				"Config.Policies[2].Limit.Window is 1.5015s, want whole milliseconds",
				"Config.Policies are all optional, want one that counts every request",
				"Config.Secret has 7 bytes, want at least 32, or nil",
				"Config.Deadline is -1s, want at least 1ms, or zero for 250ms",
				"Config.Headers is HeadersDraft06|HeadersNone, want HeadersNone alone or not at all",
				"Config.PartitionKey is set and Headers is HeadersDraft06|HeadersNone, want HeadersStructured among them",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			limiter, err := ratelimit.New(test.store, test.config)
			var got []string
			if err != nil {
				for line := range strings.SplitSeq(err.Error(), "\n") {
					got = append(got, strings.TrimPrefix(line, "ratelimit: "))
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
			if (limiter == nil) != (err != nil) {
				t.Errorf("New returned %v, %v, want one of the two", limiter, err)
			}
		})
	}
}

// A Limiter never changes, whatever becomes of what it was made of.
func TestNewCopiesConfig(t *testing.T) {
	t.Parallel()
	policies := []ratelimit.Policy{{Name: "default", Limit: long(1)}}
	secret := ratelimit.Secret(strings.Repeat("s", 32))
	counters := memoryStore(t)
	config := ratelimit.Config{Policies: policies, Secret: secret}
	limiter, twin := newLimiter(t, counters, config), newLimiter(t, counters, config)
	if d := limiter.Check(request("203.0.113.7:1")); d.Outcome != ratelimit.Allowed {
		t.Errorf("first request: %s, want allowed", d.Outcome)
	}
	policies[0] = ratelimit.Policy{}
	clear(secret)
	// The twin makes its first hash only now, and has to find the same bucket.
	if d := twin.Check(request("203.0.113.7:1")); d.Outcome != ratelimit.Refused {
		t.Errorf("second request: %s, want refused", d.Outcome)
	}
}

func TestFailureModeString(t *testing.T) {
	t.Parallel()
	for mode, want := range map[ratelimit.FailureMode]string{
		ratelimit.FailOpen:   "open",
		ratelimit.FailClosed: "closed",
		ratelimit.FailLocal:  "local",
		7:                    "FailureMode(7)",
	} {
		if got := mode.String(); got != want {
			t.Errorf("FailureMode(%d).String() = %q, want %q", int(mode), got, want)
		}
	}
}
