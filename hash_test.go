package ratelimit_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/krow/ratelimit"
)

// testSecret is one that New accepts.
var testSecret = ratelimit.Secret("0123456789abcdef0123456789abcdef")

func TestBucket(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		secret ratelimit.Secret
		key    ratelimit.Key
		want   string
	}{
		{
			"SHA-256", nil, ratelimit.ClientIP(newRequest("203.0.113.7:1")),
			"oauth.register/1m:ip:fec52565aa0cf18f57d7cf5b3ac728503b8992d2d6f7d46da1d1201090902b02",
		},
		{"HMAC", testSecret, ratelimit.ClientIP(newRequest("203.0.113.7:1")), "oauth.register/1m:ip:" + mac("203.0.113.7")},
		{"long subject", testSecret, ratelimit.NewKey("k", strings.Repeat("x", 1000)), "oauth.register/1m:k:" + mac(strings.Repeat("x", 1000))},
		{"block", testSecret, ratelimit.NewKey("k", strings.Repeat("x", 128)), "oauth.register/1m:k:" + mac(strings.Repeat("x", 128))},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for range 2 { // the second time with a state that has been used
				if got := ratelimit.Bucket(test.secret, "oauth.register/1m:", test.key); got != test.want {
					t.Errorf("bucket %q, want %q", got, test.want)
				}
			}
		})
	}
}

// mac returns the HMAC-SHA-256 of s with testSecret in hex.
func mac(s string) string {
	h := hmac.New(sha256.New, testSecret)
	h.Write([]byte(s))
	return hex.EncodeToString(h.Sum(nil))
}

// HK-02: with a secret, the table does not tell the address to whoever hashes all addresses.
func TestSecretHidesAddress(t *testing.T) {
	t.Parallel()
	const plain = "fec52565aa0cf18f57d7cf5b3ac728503b8992d2d6f7d46da1d1201090902b02"
	key := ratelimit.ClientIP(newRequest("203.0.113.7:1"))
	if bucket := ratelimit.Bucket(testSecret, "p/1m:", key); strings.Contains(bucket, plain[:8]) {
		t.Errorf("bucket %q has the start of the plain hash", bucket)
	}
	other := ratelimit.Secret(strings.Repeat("s", 32))
	if ratelimit.Bucket(testSecret, "", key) == ratelimit.Bucket(other, "", key) {
		t.Error("two secrets make the same bucket")
	}
}

// HK-05.
func TestSecretLength(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		length int
		want   string
	}{
		{0, ""},
		{1, "ratelimit: Config.Secret has 1 bytes"},
		{16, "ratelimit: Config.Secret has 16 bytes"},
		{31, "ratelimit: Config.Secret has 31 bytes"},
		{32, ""},
		{100, ""},
	} {
		var secret ratelimit.Secret
		if test.length > 0 {
			secret = ratelimit.Secret(strings.Repeat("q", test.length))
		}
		store := struct{ ratelimit.Store }{}
		_, err := ratelimit.New(store, ratelimit.Config{
			Policies: []ratelimit.Policy{{Name: "p", Limit: ratelimit.Limit{Requests: 1, Window: time.Minute}}},
			Secret:   secret,
		})
		if test.want == "" && err != nil {
			t.Errorf("%d bytes: %v", test.length, err)
		}
		if test.want != "" && (err == nil || !strings.HasPrefix(err.Error(), test.want) || strings.Contains(err.Error(), "q")) {
			t.Errorf("%d bytes: error %v, want %s and not the secret", test.length, err, test.want)
		}
	}
}

// No way of printing, logging or marshaling a Secret or a Config shows it. For %p and %w package fmt
// calls no methods, as is documented.
func TestSecretIsRedacted(t *testing.T) {
	t.Parallel()
	config := ratelimit.Config{Secret: testSecret}
	for _, v := range []any{testSecret, &testSecret, []ratelimit.Secret{testSecret}, map[string]ratelimit.Secret{"k": testSecret}, config, &config} {
		for how, text := range everyText(v) {
			if verb := how[len(how)-1]; how[0] != '%' || verb != 'p' && verb != 'w' {
				assertHidden(t, how, text, string(testSecret))
			}
		}
	}
	for _, secret := range []ratelimit.Secret{nil, {}, testSecret} {
		for _, got := range []string{secret.String(), fmt.Sprintf("%x", secret), fmt.Sprintf("%#v", secret)} {
			if got != "redacted" {
				t.Errorf("printed as %q, want redacted", got)
			}
		}
		if got, err := json.Marshal(secret); err != nil || string(got) != `"redacted"` {
			t.Errorf("marshaled as %s, %v, want redacted", got, err)
		}
	}
}

// A secret in a configuration file is the same as in an environment variable.
func TestSecretFromJSON(t *testing.T) {
	t.Parallel()
	var config struct{ Secret ratelimit.Secret }
	text := `0123456789abcdef0123456789abcdef+/=é`
	if err := json.Unmarshal([]byte(`{"Secret": "`+text+`"}`), &config); err != nil || string(config.Secret) != text {
		t.Errorf("read as %q (error %v), want %q", []byte(config.Secret), err, text)
	}
}

func TestBucketIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	bucket := ratelimit.Bucketer(testSecret)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			subject := strings.Repeat("s", 100*i+1)
			want := "p:k:" + mac(subject)
			for range 1000 {
				if got := bucket("p:", ratelimit.NewKey("k", subject)); got != want {
					t.Errorf("bucket %q, want %q", got, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

// FuzzBucket: two keys share a bucket if and only if kind and subject are equal, and a bucket is the
// prefix, a kind of known form and the right hash: nothing else of the key is in it.
func FuzzBucket(f *testing.F) {
	f.Add("ip", "203.0.113.7", "ip", "203.0.113.8")
	f.Add("a:b", "c", "a", "b:c")
	f.Add("peer", "x", "none", "x")
	f.Add("", "\x00", "~e3b0c44298fc1c149afbf4c8996fb924", "\x00")
	f.Add(strings.Repeat("k", 65), "\xff", "A", "a")
	form := regexp.MustCompile(`^p/1m:([a-z0-9._-]{1,64}|~[0-9a-f]{32}):([0-9a-f]{64})$`)
	keyed, plain := ratelimit.Bucketer(testSecret), ratelimit.Bucketer(nil)
	f.Fuzz(func(t *testing.T, kind1, subject1, kind2, subject2 string) {
		key1, key2 := ratelimit.NewKey(kind1, subject1), ratelimit.NewKey(kind2, subject2)
		if key1.IsZero() != (subject1 == "") {
			t.Fatalf("subject %q: zero is %t", subject1, key1.IsZero())
		}
		if key1.IsZero() || key2.IsZero() {
			return
		}
		same := kind1 == kind2 && subject1 == subject2
		bucket := keyed("p/1m:", key1)
		match := form.FindStringSubmatch(bucket)
		if match == nil || match[2] != mac(subject1) {
			t.Errorf("bucket %q of %q %q", bucket, kind1, subject1)
		}
		if (bucket == keyed("p/1m:", key2)) != same || (plain("", key1) == plain("", key2)) != same || key1.Equal(key2) != same {
			t.Errorf("(%q %q) and (%q %q): want equal %t", kind1, subject1, kind2, subject2, same)
		}
	})
}

func BenchmarkBucket(b *testing.B) {
	key := ratelimit.ClientIP(newRequest("203.0.113.7:51234"))
	for _, bench := range []struct {
		name   string
		secret ratelimit.Secret
	}{{"SHA-256", nil}, {"HMAC", testSecret}} {
		bucket := ratelimit.Bucketer(bench.secret)
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				bucket("oauth.register/1m:", key)
			}
		})
		b.Run(bench.name+"/parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					bucket("oauth.register/1m:", key)
				}
			})
		})
	}
}
