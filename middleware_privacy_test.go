package ratelimit_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

// HK-11: whatever comes in, and whatever goes wrong, no address, token or secret gets out: not into the
// log at debug level, an answer, an error, the table, or the text of anything that this package makes.
func TestNothingIsGivenAway(t *testing.T) {
	t.Parallel()
	const (
		ip4, ip6 = "203.0.113.77", "2001:db8:77:88:99:aa:bb:cc"
		token    = "tok3n-of-s0mebody"
		apiKey   = "api-k3y-of-s0mebody"
		garbage  = "gar8age-of-s0mebody"
		secret   = "s3cret-that-is-of-32-bytes-0r-m0re"
		otherIP  = "198.51.100.201"
	)
	pool := testdb.Pool(t, testdb.New(t))
	broken := testdb.Pool(t, testdb.Empty(t))
	clientIP, err := ratelimit.NewClientIP(ratelimit.ClientIPConfig{Header: "X-Forwarded-For", TrustedProxies: []string{otherIP}})
	if err != nil {
		t.Fatal(err)
	}

	var out bytes.Buffer // all that gets out
	var log logbook
	var seen decisions
	withLog := func(c *store.PostgresConfig) { c.Logger = log.logger() }
	stores := []ratelimit.Store{postgresStore(t, pool, withLog), postgresStore(t, broken, withLog), failing(ratelimit.ErrInvalidHit)}
	for _, s := range stores {
		for _, mode := range []ratelimit.FailureMode{ratelimit.FailOpen, ratelimit.FailClosed, ratelimit.FailLocal} {
			config := ratelimit.Config{
				Policies: []ratelimit.Policy{
					{Name: "ip." + mode.String(), Limit: long(2), OnFailure: mode, Key: clientIP},
					{Name: "token." + mode.String(), Limit: long(3), OnFailure: mode, Key: ratelimit.BearerToken, Optional: true},
					{Name: "both." + mode.String(), Limit: long(3), OnFailure: mode, Key: ratelimit.Join(ratelimit.ClientIP, ratelimit.Header("X-API-Key"))},
				},
				Secret: ratelimit.Secret(secret), PartitionKey: true, Headers: ratelimit.HeadersStructured | ratelimit.HeadersLegacy,
				OnDecision: seen.observe, Logger: log.logger(),
			}
			limiter := newLimiter(t, s, config)
			handler := limiter.Handler(new(spy))
			for _, r := range []*http.Request{
				request(ip4+":51234", "Authorization", "Bearer "+token),
				request("["+ip6+"]:51234", "X-API-Key", apiKey),
				request(otherIP+":1", "X-Forwarded-For", ip4, "Authorization", "Bearer "+token),
				request(otherIP+":1", "X-Forwarded-For", garbage+", 10.0.0.1", "X-API-Key", apiKey, "X-API-Key", apiKey),
				request(garbage, "Authorization", "Bearer "+garbage+" "+token),
				request("@", "Authorization", "Bearer "+token, "Authorization", "Basic "+token),
			} {
				for range 4 {
					fmt.Fprintf(&out, "%+v\n", serve(handler, r))
				}
				gone, cancel := context.WithCancel(r.Context())
				cancel()
				fmt.Fprintf(&out, "%+v\n", serve(handler, r.WithContext(gone)))
				for _, key := range []ratelimit.Key{clientIP(r), ratelimit.BearerToken(r), ratelimit.ClientIP(r), ratelimit.NewKey("account", apiKey)} {
					holder := struct{ key ratelimit.Key }{key}
					tell(&out, &log, key, &key, holder, []ratelimit.Key{key})
				}
			}
			tell(&out, &log, config, &config, limiter, struct{ l *ratelimit.Limiter }{limiter})
		}
	}
	all := seen.take()
	outcomes := make(map[ratelimit.Outcome]int)
	for _, d := range all {
		outcomes[d.Outcome]++
		tell(&out, &log, d, d.Err)
	}
	for _, outcome := range []ratelimit.Outcome{ratelimit.Allowed, ratelimit.Refused, ratelimit.Unavailable, ratelimit.Canceled} {
		if outcomes[outcome] == 0 {
			t.Errorf("no request was %s, so this test sees too little", outcome)
		}
	}
	for _, config := range []ratelimit.Config{{Secret: ratelimit.Secret(secret[:20])}, {Secret: ratelimit.Secret(secret), Headers: 99}} {
		_, err := ratelimit.New(stores[0], config)
		tell(&out, &log, err)
	}
	rows, err := pool.Query(t.Context(), "SELECT bucket FROM rate_limits")
	if err != nil {
		t.Fatal(err)
	}
	buckets, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(buckets) < 9 {
		t.Errorf("buckets are %q, %v", buckets, err)
	}
	fmt.Fprintln(&out, buckets)

	for place, text := range map[string]string{"the log": log.String(), "what was printed or answered": out.String()} {
		if text == "" {
			t.Errorf("%s is empty", place)
		}
		text = strings.ToLower(text)
		for _, value := range []string{ip4, otherIP, ip6, "2001:db8:77:88", token, apiKey, garbage, secret, secret[:20]} {
			for _, form := range forms(value) {
				if i := strings.Index(text, strings.ToLower(form)); i >= 0 {
					t.Errorf("%s holds %q as %q: …%s…", place, value, form, text[max(0, i-100):min(len(text), i+100)])
				}
			}
		}
	}
}

// tell prints and logs values in all the ways that might show what is in them. A limiter is printed with its
// own verbs alone: for others package fmt follows its pointers, to what is being written to.
func tell(w io.Writer, log *logbook, values ...any) {
	for _, value := range values {
		verbs := []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"}
		if strings.Contains(fmt.Sprintf("%T", value), "Limiter") {
			verbs = verbs[:3]
		}
		for _, verb := range verbs {
			fmt.Fprintf(w, verb+"\n", value)
		}
		log.logger().Debug("told", "value", value)
		slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})).Debug("told", "value", value)
	}
}

// forms returns the ways in which a value may be written: as it is, and as package fmt and others write bytes.
func forms(value string) []string {
	b := []byte(value)
	return []string{
		value,
		hex.EncodeToString(b),
		strings.Trim(fmt.Sprint(b), "[]"),
		strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%#v", b), "[]byte{"), "}"),
		strings.TrimRight(base64.StdEncoding.EncodeToString(b[:len(b)/3*3]), "="),
	}
}
