package ratelimit_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
)

// subjectOf returns a KeyFunc that returns one key, or no key if the subject is empty.
func subjectOf(kind, subject string) ratelimit.KeyFunc {
	return func(*http.Request) ratelimit.Key { return ratelimit.NewKey(kind, subject) }
}

func TestNewKey(t *testing.T) {
	t.Parallel()
	sixtyFour := strings.Repeat("k", 64)
	for _, test := range []struct{ kind, want string }{
		{"account", "account"},
		{"a", "a"},
		{"api-key_2.x", "api-key_2.x"},
		{sixtyFour, sixtyFour},
		// The others' stand-ins are stored, so they must never change.
		{sixtyFour + "k", "~f39cdc2584758c99cf81c1f41d2572f5"},
		{"", "~e3b0c44298fc1c149afbf4c8996fb924"},
		{"Account", "~"},
		{"a:b", "~"},
		{"a+b", "~"},
		{"~a", "~"},
		{"größe", "~"},
		{"a\x00b", "~"},
		{"peer", "~"},
		{"none", "~"},
	} {
		key := ratelimit.NewKey(test.kind, "subject")
		got := key.Kind()
		if got != test.want && (test.want != "~" || !regexp.MustCompile(`^~[0-9a-f]{32}$`).MatchString(got)) {
			t.Errorf("kind %q is %q, want %q", test.kind, got, test.want)
		}
		if key.IsZero() || ratelimit.Subject(key) != "subject" {
			t.Errorf("kind %q: subject %q", test.kind, ratelimit.Subject(key))
		}
		if again := ratelimit.NewKey(test.kind, "subject"); !key.Equal(again) {
			t.Errorf("kind %q: two keys of equal kind and subject differ", test.kind)
		}
		if none := ratelimit.NewKey(test.kind, ""); !none.IsZero() || none.Kind() != "" {
			t.Errorf("kind %q: an empty subject is the key %v", test.kind, none)
		}
	}
}

func TestKeyEqual(t *testing.T) {
	t.Parallel()
	key := ratelimit.NewKey("account", "7")
	for _, test := range []struct {
		name string
		a, b ratelimit.Key
		want bool
	}{
		{"same", key, ratelimit.NewKey("account", "7"), true},
		{"other subject", key, ratelimit.NewKey("account", "8"), false},
		{"other kind", key, ratelimit.NewKey("user", "7"), false},
		{"zero", ratelimit.Key{}, ratelimit.NewKey("account", ""), true},
		{"key and zero", key, ratelimit.Key{}, false},
		{"zero and key", ratelimit.Key{}, key, false},
	} {
		if got := test.a.Equal(test.b); got != test.want {
			t.Errorf("%s: Equal is %t, want %t", test.name, got, test.want)
		}
	}
	if reflect.TypeFor[ratelimit.Key]().Comparable() {
		t.Error("a Key can be compared with ==, which finds equal keys different")
	}
}

// Nothing that a Key is printed, logged or marshaled by shows its subject, not even in an unexported
// field, where package fmt calls no methods.
func TestKeyIsRedacted(t *testing.T) {
	t.Parallel()
	const subject = "203.0.113.7"
	key := ratelimit.NewKey("ip", subject)
	type holder struct {
		Exported   ratelimit.Key
		unexported ratelimit.Key
		nested     struct{ keys []ratelimit.Key }
		pointer    *ratelimit.Key
		any        any
	}
	held := holder{Exported: key, unexported: key, pointer: &key, any: key}
	held.nested.keys = []ratelimit.Key{key}
	for _, v := range []any{key, &key, held, &held, []ratelimit.Key{key}, map[string]ratelimit.Key{"k": key}} {
		for how, text := range everyText(v) {
			assertHidden(t, how, text, subject)
		}
	}
	for _, test := range []struct{ got, want string }{
		{key.String(), "ip:redacted"},
		{marshaled(t, key), `"ip:redacted"`},
		{fmt.Sprint(key), "ip:redacted"},
		{fmt.Sprintf("%#v", key), "ip:redacted"},
		{fmt.Sprintf("%x", key), "ip:redacted"},
		{fmt.Sprint(ratelimit.Key{}), "no key"},
	} {
		if test.got != test.want {
			t.Errorf("printed as %q, want %q", test.got, test.want)
		}
	}
}

func marshaled(t *testing.T, v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

// everyText returns v as all the ways of printing, logging and marshaling show it, by their names.
func everyText(v any) map[string]string {
	texts := make(map[string]string)
	for verb := 'A'; verb <= 'z'; verb++ {
		for _, flags := range []string{"", "+", "#", "-30", "030", " ", ".200"} {
			format := "%" + flags + string(verb)
			texts[format] = fmt.Sprintf(format, v)
		}
	}
	if b, err := json.Marshal(v); err != nil {
		texts["JSON"] = err.Error()
	} else {
		texts["JSON"] = string(b)
	}
	var text, structured bytes.Buffer
	slog.New(slog.NewTextHandler(&text, nil)).Info("m", "k", v)
	slog.New(slog.NewJSONHandler(&structured, nil)).Info("m", slog.Group("g", "k", v))
	texts["slog text"], texts["slog JSON"] = text.String(), structured.String()
	return texts
}

// assertHidden checks that the text, which is shown in a way that how names, does not hold the secret,
// neither as it is nor in hex, in base64 or as a list of bytes.
func assertHidden(t *testing.T, how, text, secret string) {
	t.Helper()
	b := []byte(secret)
	for _, form := range []string{
		secret,
		fmt.Sprintf("%x", b),
		fmt.Sprintf("%X", b),
		fmt.Sprintf("% x", b),
		base64.RawStdEncoding.EncodeToString(b),
		strings.Trim(fmt.Sprint(b), "[]"),
		strings.Trim(fmt.Sprintf("%#v", b), "[]byte{}"),
	} {
		if strings.Contains(text, form) {
			t.Errorf("%s: %.200q holds %q", how, text, form)
		}
	}
}

func TestBearerToken(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		lines []string
		want  string
	}{
		{"BR-01", []string{"Bearer abc.def-123"}, "abc.def-123"},
		{"BR-02", []string{"bearer abc"}, "abc"},
		{"BR-02 upper case", []string{"BEARER abc"}, "abc"},
		{"BR-04", []string{"Bearer   abc"}, "abc"},
		{"BR-05", []string{"Bearer abc== "}, "abc=="},
		{"BR-07", []string{"Bearer "}, ""},
		{"BR-07 trimmed", []string{"Bearer"}, ""},
		{"BR-08", []string{""}, ""},
		{"BR-10", []string{"Bearerabc"}, ""},
		{"BR-11", []string{"Bearer a b"}, ""},
		{"BR-13", []string{"Bearer =abc"}, ""},
		{"BR-14", []string{"Bearer ===="}, ""},
		{"BR-16", []string{"Bearer tok\xe9n"}, ""},
		{"BR-17", []string{"Basic dXNlcjpwYXNz"}, ""},
		{"BR-19", []string{"Bearer a", "Bearer b"}, ""},
		{"BR-19 same token", []string{"Bearer a", "Bearer a"}, ""},
		{"BR-20", []string{"n1 Bearer abc"}, ""},
		{"BR-22", []string{"Bearer ABC"}, "ABC"},
		{"BR-23", []string{"Bearer " + strings.Repeat("a", 8193)}, ""},
		{"BR-23 below", []string{"Bearer " + strings.Repeat("a", 8192)}, strings.Repeat("a", 8192)},
		{"no field", nil, ""},
		{"all characters", []string{"Bearer aZ09-._~+/="}, "aZ09-._~+/="},
		{"tab", []string{"Bearer\tabc"}, ""},
		{"comma", []string{"Bearer abc,"}, ""},
		{"padding in the middle", []string{"Bearer a=b"}, ""},
		{"parameter", []string{`Bearer realm="x"`}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := &http.Request{Header: http.Header{}}
			for _, line := range test.lines {
				r.Header.Add("Authorization", line)
			}
			key := ratelimit.BearerToken(r)
			if got := ratelimit.Subject(key); got != test.want {
				t.Errorf("token %q, want %q", got, test.want)
			}
			if !key.IsZero() && key.Kind() != "bearer" {
				t.Errorf("kind %q, want bearer", key.Kind())
			}
		})
	}
}

// BR-22 and faults 28 and 29: tokens are bytes. They are hashed whole, whatever their length and
// however they are written, and stored as a hash alone.
func TestSubjectsAreBytes(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^p/1m:token:[0-9a-f]{64}$`)
	long := strings.Repeat("x", 900_000)
	buckets := make(map[string]string)
	for _, token := range []string{
		"a", "A", strings.Repeat("x", 255), strings.Repeat("x", 257), strings.Repeat("x", 9000), long + "a", long + "b",
		"\xf1\x61\x3b\x46", "a\x00", "a\\x00", "\x00", "🔑", "caf\u00e9", "cafe\u0301", "\u0430", "ABC", "abc",
	} {
		bucket := ratelimit.Bucket(nil, "p/1m:", ratelimit.NewKey("token", token))
		if !form.MatchString(bucket) {
			t.Errorf("bucket %q", bucket)
		}
		if other, ok := buckets[bucket]; ok {
			t.Errorf("%.20q and %.20q share a bucket", other, token)
		}
		buckets[bucket] = token
	}
	if key := ratelimit.NewKey("token", ""); !key.IsZero() {
		t.Errorf("an empty token is the key %v", key)
	}
}

func TestHeader(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		field string
		lines []string
		kind  string
		want  string
	}{
		{"value", "X-API-Key", []string{"X-Api-Key: k1"}, "header-x-api-key", "k1"},
		{"any case", "x-api-KEY", []string{"X-Api-Key: k1"}, "header-x-api-key", "k1"},
		{"trimmed", "X-API-Key", []string{"X-Api-Key: \t k 1 "}, "header-x-api-key", "k 1"},
		{"absent", "X-API-Key", []string{"X-Other: k1"}, "", ""},
		{"empty", "X-API-Key", []string{"X-Api-Key: "}, "", ""},
		{"white space", "X-API-Key", []string{"X-Api-Key:  \t"}, "", ""},
		{"two lines", "X-API-Key", []string{"X-Api-Key: k1", "X-Api-Key: k1"}, "", ""},
		{"odd name", "X!", []string{"X!: k1"}, "~cb590922ff56137267167aecd106e888", "k1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			key := ratelimit.Header(test.field)(newRequest("", test.lines...))
			if got := ratelimit.Subject(key); got != test.want {
				t.Errorf("subject %q, want %q", got, test.want)
			}
			if key.Kind() != test.kind {
				t.Errorf("kind %q, want %q", key.Kind(), test.kind)
			}
		})
	}
}

func TestConstant(t *testing.T) {
	t.Parallel()
	key := ratelimit.Constant("global")
	a, b := key(newRequest("192.0.2.1:1")), key(newRequest("192.0.2.2:2", "Authorization: Bearer x"))
	if !a.Equal(b) || a.Kind() != "constant" || ratelimit.Subject(a) != "global" {
		t.Errorf("keys %v %q and %v %q, want constant global", a, ratelimit.Subject(a), b, ratelimit.Subject(b))
	}
}

func TestFirstOf(t *testing.T) {
	t.Parallel()
	none := func(*http.Request) ratelimit.Key { return ratelimit.Key{} }
	never := func(*http.Request) ratelimit.Key { panic("asked after a key was found") }
	for _, test := range []struct {
		name string
		keys []ratelimit.KeyFunc
		want ratelimit.Key
	}{
		{"first", []ratelimit.KeyFunc{subjectOf("a", "1"), never}, ratelimit.NewKey("a", "1")},
		{"second", []ratelimit.KeyFunc{none, subjectOf("b", "2"), never}, ratelimit.NewKey("b", "2")},
		{"none", []ratelimit.KeyFunc{none, none}, ratelimit.Key{}},
	} {
		if diff := cmp.Diff(test.want, ratelimit.FirstOf(test.keys...)(nil)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

func TestJoin(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 40)
	for _, test := range []struct {
		name    string
		keys    []ratelimit.KeyFunc
		kind    string
		subject string
	}{
		{"two", []ratelimit.KeyFunc{subjectOf("a", "1"), subjectOf("bb", "2:3")}, "a+bb", "1:a1:12:bb3:2:3"},
		{"three", []ratelimit.KeyFunc{subjectOf("a", "1"), subjectOf("b", "2"), subjectOf("c", "3")}, "a+b+c", "1:a1:11:b1:21:c1:3"},
		{"one", []ratelimit.KeyFunc{subjectOf("a", "1")}, "a", "1"},
		{"first missing", []ratelimit.KeyFunc{subjectOf("a", ""), subjectOf("b", "2")}, "", ""},
		{"last missing", []ratelimit.KeyFunc{subjectOf("a", "1"), subjectOf("b", "")}, "", ""},
		{"nested", []ratelimit.KeyFunc{ratelimit.Join(subjectOf("a", "1"), subjectOf("b", "2")), subjectOf("c", "3")}, "a+b+c", "3:a+b12:1:a1:11:b1:21:c1:3"},
		{
			"long kinds",
			[]ratelimit.KeyFunc{subjectOf(long, "1"), subjectOf(long, "2")},
			"+d1f2bcda86e35a66d62a338d8ba8f7b9",
			"40:" + long + "1:140:" + long + "1:2",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			key := ratelimit.Join(test.keys...)(nil)
			if key.Kind() != test.kind || ratelimit.Subject(key) != test.subject {
				t.Errorf("key %q %q, want %q %q", key.Kind(), ratelimit.Subject(key), test.kind, test.subject)
			}
		})
	}
}

// HK-10 and fault 31: no two lists of parts join to one key.
func TestJoinIsUnambiguous(t *testing.T) {
	t.Parallel()
	keys := make(map[string]int)
	for i, key := range []ratelimit.KeyFunc{
		ratelimit.Join(subjectOf("k", "a:b"), subjectOf("k", "c")),
		ratelimit.Join(subjectOf("k", "a"), subjectOf("k", "b:c")),
		ratelimit.Join(subjectOf("k", "a"), subjectOf("k", "bc")),
		ratelimit.Join(subjectOf("k", "ab"), subjectOf("k", "c")),
		ratelimit.Join(subjectOf("k", "c"), subjectOf("k", "ab")),
		ratelimit.Join(subjectOf("l", "ab"), subjectOf("k", "c")),
		ratelimit.Join(subjectOf("k", "a"), subjectOf("k", "b"), subjectOf("k", "c")),
		ratelimit.Join(ratelimit.Join(subjectOf("k", "a"), subjectOf("k", "b")), subjectOf("k", "c")),
		ratelimit.Join(subjectOf("k", "a"), ratelimit.Join(subjectOf("k", "b"), subjectOf("k", "c"))),
		subjectOf("k+k", "1:k1:a1:k1:b"),
		ratelimit.Join(subjectOf("k", "a"), subjectOf("k", "b")),
	} {
		bucket := ratelimit.Bucket(nil, "", key(nil))
		if other, ok := keys[bucket]; ok {
			t.Errorf("rows %d and %d are one key", other, i)
		}
		keys[bucket] = i
	}
}

// HK-04 and fault 31: policies do not share a bucket by the way their names and keys read together.
func TestBucketsOfPolicies(t *testing.T) {
	t.Parallel()
	buckets := make(map[string]string)
	for _, test := range [][3]string{
		{"a/1m:", "k", "bc"},
		{"ab/1m:", "k", "c"},
		{"up/1m:", "load", "x"},
		{"upl/1m:", "oad", "x"},
		{"up/1h:", "load", "x"},
		{"up/1m:", "load:", "x"},
		{"up/1m:", "loa", "dx"},
	} {
		bucket := ratelimit.Bucket(nil, test[0], ratelimit.NewKey(test[1], test[2]))
		text := strings.Join(test[:], " ")
		if other, ok := buckets[bucket]; ok {
			t.Errorf("%q and %q share a bucket", other, text)
		}
		buckets[bucket] = text
	}
}

// The caller's slice is not kept.
func TestKeyFuncsAreCopied(t *testing.T) {
	t.Parallel()
	keys := []ratelimit.KeyFunc{subjectOf("a", "1"), subjectOf("b", "2")}
	first, join := ratelimit.FirstOf(keys...), ratelimit.Join(keys...)
	keys[0] = subjectOf("c", "3")
	if got := first(nil).Kind(); got != "a" {
		t.Errorf("FirstOf: kind %q, want a", got)
	}
	if got := join(nil).Kind(); got != "a+b" {
		t.Errorf("Join: kind %q, want a+b", got)
	}
}

// Fault 32: the built-in functions do not see how a path is spelled, nor the method.
func TestPathIsNoKey(t *testing.T) {
	t.Parallel()
	const remote, token = "203.0.113.7:1", "Authorization: Bearer t"
	all := ratelimit.Join(ratelimit.ClientIP, ratelimit.BearerToken, ratelimit.Header("Authorization"), ratelimit.Constant("c"))
	want := all(newRequest(remote, token))
	for _, target := range []string{"/a/b", "/a//b", "/a/b/", "/a/%62", "/a/./b"} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			r, err := http.NewRequest(method, "http://example.com"+target, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.RemoteAddr, r.Header = remote, newRequest("", token).Header
			if got := all(r); !got.Equal(want) {
				t.Errorf("%s %s has a key of its own", method, target)
			}
		}
	}
}

func TestKeyFuncPanics(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		want string
		call func()
	}{
		{`ratelimit: Header: name is "", want the name of a header field`, func() { ratelimit.Header("") }},
		{`ratelimit: Header: name is "X Key", want the name of a header field`, func() { ratelimit.Header("X Key") }},
		{`ratelimit: Header: name is "X-Kéy", want the name of a header field`, func() { ratelimit.Header("X-Kéy") }},
		{`ratelimit: Header: name is "host", want a field that net/http leaves in Request.Header`, func() { ratelimit.Header("host") }},
		{`ratelimit: Header: name is "Transfer-Encoding", want a field that net/http leaves in Request.Header`, func() { ratelimit.Header("Transfer-Encoding") }},
		{`ratelimit: Header: name is "Trailer", want a field that net/http leaves in Request.Header`, func() { ratelimit.Header("Trailer") }},
		{"ratelimit: Constant: subject is empty", func() { ratelimit.Constant("") }},
		{"ratelimit: FirstOf: no key functions", func() { ratelimit.FirstOf() }},
		{"ratelimit: FirstOf: key function 1 is nil", func() { ratelimit.FirstOf(ratelimit.ClientIP, nil) }},
		{"ratelimit: Join: no key functions", func() { ratelimit.Join() }},
		{"ratelimit: Join: key function 0 is nil", func() { ratelimit.Join(nil) }},
	} {
		func() {
			defer func() {
				if got := recover(); got != test.want {
					t.Errorf("panic %v, want %s", got, test.want)
				}
			}()
			test.call()
		}()
	}
}

// FuzzBearerToken: the token is what this pattern finds, of at most 8192 bytes, and comes from one line.
func FuzzBearerToken(f *testing.F) {
	for _, seed := range []string{"Bearer abc.def-123", "bEARER   abc==", "Bearer =abc", "Bearer tok\xe9n", "n1 Bearer abc", "Bearer\tabc", "Bearer a b"} {
		f.Add(seed)
	}
	pattern := regexp.MustCompile(`^[ \t]*(?:[Bb][Ee][Aa][Rr][Ee][Rr]) +([A-Za-z0-9._~+/-]+=*)[ \t]*$`)
	f.Fuzz(func(t *testing.T, line string) {
		want := ""
		if match := pattern.FindStringSubmatch(line); match != nil && len(match[1]) <= 8192 {
			want = match[1]
		}
		r := newRequest("", "Authorization: "+line)
		if got := ratelimit.Subject(ratelimit.BearerToken(r)); got != want {
			t.Errorf("%q: token %q, want %q", line, got, want)
		}
		r.Header.Add("Authorization", "Bearer b")
		if key := ratelimit.BearerToken(r); !key.IsZero() {
			t.Errorf("%q and another line: token %q", line, ratelimit.Subject(key))
		}
	})
}

// FuzzJoin: joined keys are the same if and only if their parts are, and no key that is not joined is
// the same as one that is.
func FuzzJoin(f *testing.F) {
	f.Add("k", "a:b", "k", "c", "k", "a", "k", "b:c")
	f.Add("a", "1", "b", "2", "a", "1", "b", "2")
	f.Add("", "1", "b+c", "2", "a+b", "1:a1:1", "peer", "~")
	f.Fuzz(func(t *testing.T, k1, s1, k2, s2, k3, s3, k4, s4 string) {
		a := ratelimit.Join(subjectOf(k1, s1), subjectOf(k2, s2))(nil)
		b := ratelimit.Join(subjectOf(k3, s3), subjectOf(k4, s4))(nil)
		if a.IsZero() != (s1 == "" || s2 == "") {
			t.Errorf("join of %q and %q: zero is %t", s1, s2, a.IsZero())
		}
		if a.IsZero() || b.IsZero() {
			return
		}
		same := k1 == k3 && s1 == s3 && k2 == k4 && s2 == s4
		if a.Equal(b) != same {
			t.Errorf("(%q %q)+(%q %q) and (%q %q)+(%q %q): equal is %t", k1, s1, k2, s2, k3, s3, k4, s4, !same)
		}
		if single := ratelimit.NewKey(a.Kind(), ratelimit.Subject(a)); single.Equal(a) {
			t.Errorf("kind %q is that of a join and of a single key", a.Kind())
		}
		if single := ratelimit.NewKey(k1+"+"+k2, ratelimit.Subject(a)); single.Equal(a) {
			t.Errorf("kind %q is that of a join and of a single key", k1+"+"+k2)
		}
	})
}

func BenchmarkBearerToken(b *testing.B) {
	b.ReportAllocs()
	r := newRequest("", "Authorization: Bearer "+strings.Repeat("abc.", 50))
	for b.Loop() {
		ratelimit.BearerToken(r)
	}
}

func BenchmarkJoin(b *testing.B) {
	b.ReportAllocs()
	r := newRequest("203.0.113.7:51234", "Authorization: Bearer "+strings.Repeat("abc.", 50))
	key := ratelimit.Join(ratelimit.ClientIP, ratelimit.BearerToken)
	for b.Loop() {
		key(r)
	}
}
