package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/store"
)

// A subject is whose buckets are looked for.
type subject struct {
	ip, kind, policy string
	ipv6Prefix       int
}

func defineSubject(f *flag.FlagSet) *subject {
	s := new(subject)
	f.StringVar(&s.ip, "ip", "", "the client of that `address`")
	f.IntVar(&s.ipv6Prefix, "ipv6-prefix", 64, "how many `bits` of an IPv6 address count, as in ClientIPConfig")
	f.StringVar(&s.kind, "kind", "", "the subject on the first line of standard input, a key of that `kind`: bearer for a token,\n"+
		"header-x-api-key for a field, or the kind of a key of your own")
	f.StringVar(&s.policy, "policy", "", "only the policy of that `name`")
	return s
}

// key returns the key of the subject, as the policies make it.
func (p *program) key(s *subject) (ratelimit.Key, error) {
	switch {
	case (s.ip == "") == (s.kind == ""):
		return ratelimit.Key{}, usageError{errors.New("want either -ip or -kind")}
	case s.ip != "":
		addr, err := netip.ParseAddr(s.ip)
		if err != nil {
			return ratelimit.Key{}, usageError{errors.New("-ip is no address, want one such as 203.0.113.7 or 2001:db8::1")}
		}
		clientIP, err := ratelimit.NewClientIP(ratelimit.ClientIPConfig{IPv6Prefix: s.ipv6Prefix})
		if err != nil {
			return ratelimit.Key{}, usageError{fmt.Errorf("-ipv6-prefix is %d, want 32 to 128", s.ipv6Prefix)}
		}
		key := clientIP(&http.Request{RemoteAddr: netip.AddrPortFrom(addr, 1).String()})
		if key.IsZero() {
			return key, usageError{errors.New("-ip is an address that no client has")}
		}
		return key, nil
	}
	if f, ok := p.stdin.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			fmt.Fprint(p.stderr, "Subject: ")
		}
	}
	text, err := firstLine(p.stdin)
	if err != nil {
		return ratelimit.Key{}, err
	}
	key := ratelimit.NewKey(s.kind, text)
	switch {
	case key.IsZero():
		return key, usageError{errors.New("standard input is empty, want the subject on its first line")}
	case key.Kind() != s.kind:
		return key, usageError{fmt.Errorf("-kind is %.80q, want 1 to 64 of a-z, 0-9, '.', '_' and '-', and neither peer nor none", s.kind)}
	}
	return key, nil
}

// buckets returns the names that the buckets of the key have in the policies that the table knows.
func (p *program) buckets(ctx context.Context, pool *pgxpool.Pool, s *subject, key ratelimit.Key) ([]string, error) {
	hash, err := p.hash(ctx, key)
	if err != nil {
		return nil, err
	}
	prefixes, err := p.prefixes(ctx, pool)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, prefix := range prefixes {
		// Requests without the policy's own key are counted by the address of their peer.
		kind := prefix.kind == key.Kind() || s.ip != "" && prefix.kind == "peer"
		if kind && (s.policy == "" || s.policy == prefix.policy) {
			names = append(names, prefix.text+":"+hash)
		}
	}
	return names, nil
}

// hash returns what stands for the key's subject in buckets: what a limiter says, on a store that is thrown away.
func (p *program) hash(ctx context.Context, key ratelimit.Key) (string, error) {
	var secret ratelimit.Secret
	if text := p.getenv("RATELIMIT_SECRET"); text != "" {
		secret = ratelimit.Secret(text)
	}
	nothing, err := store.NewMemory(store.MemoryConfig{})
	if err != nil {
		return "", err
	}
	limiter, err := ratelimit.New(nothing, ratelimit.Config{Secret: secret, Policies: []ratelimit.Policy{{Name: "any", Limit: ratelimit.PerDay(1)}}})
	if err != nil {
		return "", usageError{fmt.Errorf("RATELIMIT_SECRET: %w", err)}
	}
	results, err := limiter.Peek(ctx, key)
	if err != nil {
		return "", err
	}
	return results[0].Bucket[strings.LastIndexByte(results[0].Bucket, ':')+1:], nil
}

// counts reads the rows of buckets that have not expired.
func (p *program) counts(ctx context.Context, pool *pgxpool.Pool, names []string) ([]bucket, error) {
	rows, err := pool.Query(ctx, fmt.Sprintf(`
		SELECT %s FROM %s AS r
		WHERE r.bucket = ANY ($1) AND r.expires_at > clock_timestamp()
		ORDER BY split_part(r.bucket, '/', 1) COLLATE "C", r.bucket, r.window_start`, columns, p.table()), names)
	if err != nil {
		return nil, err
	}
	return readBuckets(rows)
}

// find returns the rows of a subject.
func (p *program) find(ctx context.Context, pool *pgxpool.Pool, s *subject) ([]bucket, error) {
	key, err := p.key(s)
	if err != nil {
		return nil, err
	}
	names, err := p.buckets(ctx, pool, s, key)
	if err != nil {
		return nil, err
	}
	return p.counts(ctx, pool, names)
}

const nothingCounted = "Nothing is counted of it at the moment. With another RATELIMIT_SECRET than the service's, nothing is ever found.\n"

func show(p *program, f *flag.FlagSet) func(context.Context) error {
	s := defineSubject(f)
	return func(ctx context.Context) error {
		pool, err := p.open(ctx)
		if err != nil {
			return err
		}
		defer pool.Close()
		found, err := p.find(ctx, pool, s)
		if err != nil {
			return err
		}
		if len(found) == 0 && !p.json {
			_, err := fmt.Fprint(p.stdout, nothingCounted)
			return err
		}
		return printTable(p, found, head, func(b bucket) string { return b.line(true) })
	}
}

func reset(p *program, f *flag.FlagSet) func(context.Context) error {
	s := defineSubject(f)
	yes := f.Bool("yes", false, "do it, and not only show it")
	return func(ctx context.Context) error {
		pool, err := p.open(ctx)
		if err != nil {
			return err
		}
		defer pool.Close()
		found, err := p.find(ctx, pool, s)
		if err != nil {
			return err
		}
		if *yes && len(found) > 0 {
			counters, err := p.store(pool)
			if err != nil {
				return err
			}
			var names []string
			for _, b := range found {
				names = append(names, b.Bucket)
			}
			if err := counters.Reset(ctx, names); err != nil {
				return err
			}
		}
		switch {
		case p.json:
			return printTable(p, found, "", nil)
		case len(found) == 0:
			_, err := fmt.Fprint(p.stdout, nothingCounted)
			return err
		}
		if err := printTable(p, found, head, func(b bucket) string { return b.line(true) }); err != nil {
			return err
		}
		if *yes {
			_, err = fmt.Fprintln(p.stdout, "\nThese were deleted. Processes that remember a refusal go on refusing for up to five seconds.")
		} else {
			_, err = fmt.Fprintln(p.stdout, "\nThese would be deleted. Call it with -yes to do so.")
		}
		return err
	}
}
