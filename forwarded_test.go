package ratelimit_test

import (
	"strings"
	"testing"

	"github.com/krow/ratelimit"
)

func TestNewClientIPForwarded(t *testing.T) {
	t.Parallel()
	for _, test := range []clientIPTest{
		{"IP-41", "10.0.0.0/8", "10.0.0.5:1", []string{"FWD: for=192.0.2.43, for=198.51.100.17"}, "198.51.100.17"},
		{"IP-43", "10.0.0.0/8", "10.0.0.5:1", []string{"FWD: for=192.0.2.60;proto=http;by=203.0.113.43"}, "192.0.2.60"},
		{"IP-44", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for="_gazonk"`}, ""},
		{"IP-46", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for="192.0.2.43:_obf"`}, "192.0.2.43"},
		{"IP-47", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: For="1.1.1.1, For=2.2.2.2`}, ""},
		{"IP-49", "10.0.0.0/8", "10.0.0.5:1", []string{"FWD: for=[2001:db8::1]"}, ""},
		{"IP-50", "10.0.0.0/8", "10.0.0.5:1", []string{"FWD: proto=https"}, ""},

		{"absent", "10.0.0.0/8", "10.0.0.5:1", []string{"XFF: 3.3.3.3"}, "10.0.0.5"},
		{"empty", "10.0.0.0/8", "10.0.0.5:1", []string{"FWD: "}, ""},
		{"empty elements", "10.0.0.0/8", "10.0.0.5:1", []string{"FWD: , for=3.3.3.3 ,\t, "}, "3.3.3.3"},
		{"proxies only", "10.0.0.0/8", "10.0.0.5:1", []string{"FWD: for=10.0.0.1, for=10.0.0.2"}, ""},
		{"lines from the right", "10.0.0.0/8", "10.0.0.5:1", []string{"FWD: for=1.1.1.1", "FWD: for=2.2.2.2, for=10.0.0.1", "FWD: for=10.0.0.2"}, "2.2.2.2"},
		{"IPv6", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for="[2001:db8:cafe::17]"`}, "2001:db8:cafe::/64"},
		{"IPv6 and port", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: For="[2001:db8:cafe::17]:4711"`}, "2001:db8:cafe::/64"},
		{"IPv6 and obfuscated port", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: For="[2001:db8:cafe::17]:_a.B-9_"`}, "2001:db8:cafe::/64"},
		{"mapped", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for=3.3.3.3, for="[::ffff:10.0.0.1]"`}, "3.3.3.3"},
		{"quoted IPv4", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for="192.0.2.43"`}, "192.0.2.43"},
		{"IPv4 and port", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for="192.0.2.43:47011"`}, "192.0.2.43"},
		{"quoted pair", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for="19\2.0.2.43"`}, "192.0.2.43"},
		{"empty pairs", "10.0.0.0/8", "10.0.0.5:1", []string{"FWD: ;for=192.0.2.43;;proto=http;"}, "192.0.2.43"},
		{"comma in quotes", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for=192.0.2.43;host="a, for=1.1.1.1"`}, "192.0.2.43"},
		{"escaped quote", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for=192.0.2.43;host="a\", for=1.1.1.1;x=\""`}, "192.0.2.43"},
		{"escaped backslash", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: host="\\", for=192.0.2.43`}, "192.0.2.43"},

		{"unknown", "10.0.0.0/8", "10.0.0.5:1", []string{"FWD: for=1.1.1.1, for=unknown, for=10.0.0.1"}, ""},
		{"IPv6 without brackets", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for="2001:db8::1"`}, ""},
		{"IPv6 with open bracket", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for="[2001:db8::1"`}, ""},
		{"text behind the bracket", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for="[2001:db8::1]80"`}, ""},
		{"IPv4 in brackets", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for="[192.0.2.43]"`}, ""},
		{"zone", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for="[fe80::1%eth0]"`}, ""},
		{"unspecified", "10.0.0.0/8", "10.0.0.5:1", []string{"FWD: for=0.0.0.0"}, ""},
		{"port without quotes", "10.0.0.0/8", "10.0.0.5:1", []string{"FWD: for=192.0.2.43:80"}, ""},
		{"empty port", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for="192.0.2.43:"`}, ""},
		{"six digits", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for="192.0.2.43:123456"`}, ""},
		{"port not a number", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for="192.0.2.43:http"`}, ""},
		{"empty obfuscated port", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for="192.0.2.43:_"`}, ""},
		{"no value", "10.0.0.0/8", "10.0.0.5:1", []string{"FWD: for="}, ""},
		{"empty value", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for=""`}, ""},
		{"no name", "10.0.0.0/8", "10.0.0.5:1", []string{"FWD: =192.0.2.43"}, ""},
		{"no pair", "10.0.0.0/8", "10.0.0.5:1", []string{"FWD: 192.0.2.43"}, ""},
		{"for twice", "10.0.0.0/8", "10.0.0.5:1", []string{"FWD: for=192.0.2.43;For=192.0.2.43"}, ""},
		{"space before the equals sign", "10.0.0.0/8", "10.0.0.5:1", []string{"FWD: for =192.0.2.43"}, ""},
		{"space behind the semicolon", "10.0.0.0/8", "10.0.0.5:1", []string{"FWD: for=192.0.2.43; proto=http"}, ""},
		{"text behind the quotes", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for="192.0.2.43"x`}, ""},
		{"pair behind the quotes", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for="192.0.2.43"proto=http`}, ""},
		{"malformed other pair", "10.0.0.0/8", "10.0.0.5:1", []string{"FWD: for=192.0.2.43;proto"}, ""},
		{"only a quoted string", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: "192.0.2.43"`}, ""},
		{"quote in a token", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for=192.0.2.43;proto=a"b"`}, ""},
		{"backslash at the end", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for="192.0.2.43\`}, ""},
		{"open quote on a line to the left", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for="`, "FWD: for=192.0.2.43"}, "192.0.2.43"},
		{"open quote on a line that is reached", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: for=1.1.1.1, for="`, "FWD: for=10.0.0.1"}, ""},
		{"garbage to the left", "10.0.0.0/8", "10.0.0.5:1", []string{`FWD: a"b"c;;=, for=192.0.2.43`}, "192.0.2.43"},
		// Read from the left, the client's quote ends where the proxy's first string begins, and a
		// quote that the client had the proxy escape opens another: nothing is left open.
		{
			"quotes that would take the proxy's in", "10.0.0.0/8", "10.0.0.5:1",
			[]string{`FWD: a="` + `, for="[2001:db8::1]";host="\",for=9.9.9.9"`},
			"2001:db8::/64",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, "Forwarded")
		})
	}
}

// A line that is long for nothing is read in one pass, not in one per element.
func TestForwardedIsLinear(t *testing.T) {
	t.Parallel()
	key := newClientIP(t, ratelimit.ClientIPConfig{Header: "Forwarded", TrustedProxies: []string{"10.0.0.0/8"}})
	const elements = 50_000 // in one pass per element, these are 30 GB to read
	for _, element := range []string{"for=10.0.0.1,", `for="10.0.0.1",`, `for=10.0.0.1;x="\\\"",`, ","} {
		r := newRequest("10.0.0.5:1", "FWD: for=192.0.2.43,"+strings.Repeat(element, elements))
		if got := ratelimit.Subject(key(r)); got != "192.0.2.43" {
			t.Errorf("%d times %q: subject %q, want 192.0.2.43", elements, element, got)
		}
	}
}

// FuzzForwarded: the key is zero or canonical, and whatever a client writes to the left of what the
// proxy appends, the key is what the proxy says or none. On a line of its own it changes nothing.
func FuzzForwarded(f *testing.F) {
	for _, seed := range []string{
		"for=192.0.2.60;proto=http;by=203.0.113.43", `for="[2001:db8::1]:80"`, `for="_gazonk"`, `for="`, `a="\`, `a="\"`, `"x\\`, `"x"`, `,;=`,
		`for="192.0.2.43:_obf", for=unknown`,
	} {
		f.Add(seed)
	}
	key := newClientIP(f, ratelimit.ClientIPConfig{Header: "Forwarded", TrustedProxies: []string{"10.0.0.0/8"}})
	subject := func(lines ...string) string { return ratelimit.Subject(key(newRequest("10.0.0.5:1", lines...))) }
	f.Fuzz(func(t *testing.T, line string) {
		if got := subject("FWD: " + line); got != "" && !isCanonical(got, 64) {
			t.Errorf("%q: subject %q is not canonical", line, got)
		}
		for appended, want := range map[string]string{
			"for=203.0.113.9":                                 "203.0.113.9",
			`for="[2001:db8::9]:80";by="_x"`:                  "2001:db8::/64",
			`host="a,for=9.9.9.9";for=203.0.113.9`:            "203.0.113.9",
			`for=203.0.113.9;host="\",for=9.9.9.9;\""`:        "203.0.113.9",
			`for=203.0.113.9, for="10.0.0.1";x="y, \\\"z=\""`: "203.0.113.9",
		} {
			if got := subject("FWD: " + line + ", " + appended); got != want && got != "" {
				t.Errorf("%q and %q: subject %q, want %q or none", line, appended, got, want)
			}
			if got := subject("FWD: "+line, "FWD: "+appended); got != want {
				t.Errorf("%q and, on a line of its own, %q: subject %q, want %q", line, appended, got, want)
			}
		}
	})
}
