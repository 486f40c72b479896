package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

func TestMain(m *testing.M) { testdb.Main(m) }

const secret, token = "0123456789abcdef0123456789abcdef", "s3cr3t-t0ken"

// A result is what a call of the program came to.
type result struct {
	code           int
	stdout, stderr string
}

// call calls the program as from a shell. What it prints never holds the token or the secret.
func call(t *testing.T, database, stdin string, args ...string) result {
	t.Helper()
	var stdout, stderr strings.Builder
	env := map[string]string{"DATABASE_URL": database, "RATELIMIT_SECRET": secret}
	p := &program{stdin: strings.NewReader(stdin), stdout: &stdout, stderr: &stderr, getenv: func(name string) string { return env[name] }}
	r := result{p.run(t.Context(), args), stdout.String(), stderr.String()}
	for _, hidden := range []string{token, secret} {
		if strings.Contains(r.stdout+r.stderr, hidden) {
			t.Errorf("%q prints %s:\n%s%s", args, hidden, r.stdout, r.stderr)
		}
	}
	return r
}

// objects returns the lines of JSON that a call has printed, with the fields that are named.
func objects(t *testing.T, r result, fields ...string) []string {
	t.Helper()
	if r.code != exitOK || r.stderr != "" {
		t.Fatalf("it exited with %d and said %q", r.code, r.stderr)
	}
	var all []string
	for lines := bufio.NewScanner(strings.NewReader(r.stdout)); lines.Scan(); {
		var object map[string]any
		if err := json.Unmarshal(lines.Bytes(), &object); err != nil {
			t.Fatalf("%v in %s", err, lines.Text())
		}
		var words []string
		for _, f := range fields {
			words = append(words, fmt.Sprint(object[f]))
		}
		all = append(all, strings.Join(words, " "))
	}
	return all
}

func exec(t *testing.T, database, sql string, args ...any) {
	t.Helper()
	if _, err := testdb.Pool(t, database).Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// service is a limiter as a service has it, on a database, with fixed and sliding policies.
func service(t *testing.T, database string) *ratelimit.Limiter {
	t.Helper()
	pool := testdb.Pool(t, database, func(*pgxpool.Config) {})
	counters, err := store.NewPostgres(pool, store.PostgresConfig{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	long := func(n int) ratelimit.Limit { return ratelimit.Limit{Requests: n, Window: ratelimit.MaxWindow} }
	limiter, err := ratelimit.New(counters, ratelimit.Config{Secret: ratelimit.Secret(secret), Deadline: time.Minute, Policies: []ratelimit.Policy{
		{Name: "ip", Limit: long(3)},
		{Name: "ip.day", Limit: long(100), Sliding: true},
		{Name: "token", Limit: long(100), Key: ratelimit.BearerToken},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

func request(peer string, withToken bool) *http.Request {
	r := &http.Request{RemoteAddr: peer, Header: make(http.Header)}
	if withToken {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r
}

// counted makes a database with the counts of a service in it.
func counted(t *testing.T) string {
	t.Helper()
	database := testdb.New(t)
	limiter := service(t, database)
	for _, r := range []*http.Request{
		request("203.0.113.7:1", true), request("203.0.113.7:1", true), request("203.0.113.7:1", false),
		request("203.0.113.8:1", true), request("[2001:db8::1]:1", false),
	} {
		if d := limiter.Check(r); d.Outcome != ratelimit.Allowed {
			t.Fatalf("a request was not allowed: %+v", d)
		}
	}
	return database
}

func TestShow(t *testing.T) {
	t.Parallel()
	database := counted(t)
	for _, test := range []struct {
		stdin string
		args  []string
		want  []string
	}{
		{"", []string{"-ip", "203.0.113.7"}, []string{"ip 8784h false ip 3", "ip.day 8784h true ip 3", "token 8784h false peer 1"}},
		{"", []string{"-ip", "::ffff:203.0.113.8"}, []string{"ip 8784h false ip 1", "ip.day 8784h true ip 1"}},
		{"", []string{"-ip", "2001:db8::2"}, []string{"ip 8784h false ip 1", "ip.day 8784h true ip 1", "token 8784h false peer 1"}},
		{"", []string{"-ip", "203.0.113.7", "-policy", "ip"}, []string{"ip 8784h false ip 3"}},
		{"", []string{"-ip", "203.0.113.9"}, nil},
		{"", []string{"-ip", "2001:db8::2", "-ipv6-prefix", "56"}, nil},
		{token + "\r\nsecond line", []string{"-kind", "bearer"}, []string{"token 8784h false bearer 3"}},
		{"another", []string{"-kind", "bearer"}, nil},
	} {
		got := objects(t, call(t, database, test.stdin, append([]string{"show", "-json"}, test.args...)...), "policy", "window", "sliding", "key_kind", "count")
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", test.args, diff)
		}
	}
	r := call(t, database, token, "show", "-kind", "bearer")
	if lines := strings.Split(r.stdout, "\n"); len(lines) != 3 || !strings.HasPrefix(lines[0], "POLICY") || !strings.Contains(lines[1], "8784h   bearer:") {
		t.Errorf("the table is\n%s", r.stdout)
	}
	if r := call(t, database, "", "show", "-ip", "203.0.113.99"); r.code != exitOK || !strings.HasPrefix(r.stdout, "Nothing is counted") {
		t.Errorf("of nobody it shows %+v", r)
	}
}

// Of a sliding policy the window before is shown too, which still counts, and of others it is not.
func TestShowTheWindowBefore(t *testing.T) {
	t.Parallel()
	database := counted(t)
	exec(t, database, `UPDATE rate_limits SET window_start = window_start - $1 * interval '1 second', expires_at = expires_at - $1 * interval '1 second'`,
		ratelimit.MaxWindow.Seconds())
	got := objects(t, call(t, database, "", "show", "-json", "-ip", "203.0.113.7"), "policy", "count")
	if diff := cmp.Diff([]string{"ip.day 3"}, got); diff != "" {
		t.Errorf("shown (-want +got):\n%s", diff)
	}
	if r := call(t, database, "", "show", "-ip", "203.0.113.7"); !strings.Contains(r.stdout, "8784h sliding") || !strings.Contains(r.stdout, "over\n") {
		t.Errorf("the table is\n%s", r.stdout)
	}
	if r := call(t, database, "", "top"); r.stdout != "Nothing is counted at the moment.\n" {
		t.Errorf("top shows\n%s", r.stdout)
	}
}

func TestReset(t *testing.T) {
	t.Parallel()
	database := counted(t)
	shows := func(args ...string) int {
		return len(objects(t, call(t, database, token, append([]string{"show", "-json"}, args...)...)))
	}
	r := call(t, database, "", "reset", "-ip", "203.0.113.7")
	if r.code != exitOK || !strings.Contains(r.stdout, "would be deleted") || shows("-ip", "203.0.113.7") != 3 {
		t.Errorf("without -yes: %+v, and %d rows are left, want 3", r, shows("-ip", "203.0.113.7"))
	}
	r = call(t, database, "", "reset", "-ip", "203.0.113.7", "-yes")
	if r.code != exitOK || !strings.Contains(r.stdout, "These were deleted") || shows("-ip", "203.0.113.7") != 0 {
		t.Errorf("with -yes: %+v, and %d rows are left, want none", r, shows("-ip", "203.0.113.7"))
	}
	if shows("-ip", "203.0.113.8") != 2 || shows("-kind", "bearer") != 1 {
		t.Error("others were reset, too")
	}
	if got := objects(t, call(t, database, token, "reset", "-kind", "bearer", "-yes", "-json"), "policy", "count"); !cmp.Equal(got, []string{"token 3"}) {
		t.Errorf("reset says %q, want the row of the token", got)
	}
	limiter := service(t, database) // the other one remembers that the limit was reached
	for range 3 {
		if d := limiter.Check(request("203.0.113.7:1", true)); d.Err != nil || d.Results[2].Remaining < 97 {
			t.Errorf("after the reset: %+v", d)
		}
	}
}

func TestTop(t *testing.T) {
	t.Parallel()
	database := counted(t)
	got := objects(t, call(t, database, "", "top", "-json"), "policy", "key_kind", "count")
	want := []string{"ip ip 3", "ip ip 1", "ip ip 1", "ip.day ip 3", "ip.day ip 1", "ip.day ip 1", "token bearer 3", "token peer 1", "token peer 1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("top (-want +got):\n%s", diff)
	}
	got = objects(t, call(t, database, "", "top", "-json", "-n", "1", "-policy", "ip"), "policy", "count")
	if diff := cmp.Diff([]string{"ip 3"}, got); diff != "" {
		t.Errorf("top of one policy (-want +got):\n%s", diff)
	}
	short, full := call(t, database, "", "top"), call(t, database, "", "top", "-full")
	if len(short.stdout) >= len(full.stdout) || strings.Count(short.stdout, "…") != 9 || strings.Contains(full.stdout, "…") {
		t.Errorf("top shows\n%s, and in full\n%s", short.stdout, full.stdout)
	}
}

func TestMigrateAndSweep(t *testing.T) {
	t.Parallel()
	database := testdb.Empty(t)
	for range 2 {
		if r := call(t, database, "", "migrate", "-schema", "my limits"); r.code != exitOK || r.stdout != "\"my limits\".\"rate_limits\" is at version 1.\n" {
			t.Errorf("migrate: %+v", r)
		}
	}
	printed := call(t, "no database at all", "", "migrate", "-print")
	if printed.code != exitOK || strings.Contains(printed.stdout, "DROP") {
		t.Errorf("migrate -print: %+v", printed)
	}
	exec(t, database, printed.stdout)
	if got := objects(t, call(t, database, "", "migrate", "-json"), "table", "version"); !cmp.Equal(got, []string{`"public"."rate_limits" 1`}) {
		t.Errorf("migrate says %q of what was printed", got)
	}
	exec(t, database, `INSERT INTO rate_limits SELECT n::text, 'epoch', 1, now() - interval '1 day' FROM generate_series(1, 1200) AS n`)
	if r := call(t, database, "", "doctor"); r.code != exitFailed || !strings.Contains(r.stdout, "1200 rows expired") {
		t.Errorf("doctor on unswept rows: %+v", r)
	}
	if got := objects(t, call(t, database, "", "sweep", "-json"), "deleted"); !cmp.Equal(got, []string{"1200"}) {
		t.Errorf("sweep deleted %q, want 1200", got)
	}
	if r := call(t, database, "", "sweep"); r.stdout != "0 rows were deleted.\n" {
		t.Errorf("sweep says %q", r.stdout)
	}
}

// What is called in a wrong way says so, without what may be a token, and exits with 2.
func TestUsage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "Usage:"},
		{[]string{"shwo"}, `there is no command "shwo"`},
		{[]string{"show", token}, "standard input"},
		{[]string{"show"}, "either -ip or -kind"},
		{[]string{"show", "-ip", "1.2.3.4", "-kind", "bearer"}, "either -ip or -kind"},
		{[]string{"show", "-ip", "1.2.3"}, "-ip is no address"},
		{[]string{"show", "-ip", "0.0.0.0"}, "no client has"},
		{[]string{"show", "-ip", "::1", "-ipv6-prefix", "8"}, "-ipv6-prefix is 8, want 32 to 128"},
		{[]string{"show", "-kind", "bearer"}, "standard input is empty"},
		{[]string{"show", "-kind", "Bearer"}, `-kind is "Bearer"`},
		{[]string{"top", "-n", "0"}, "-n is 0"},
		{[]string{"top", "-wrong"}, "not defined: -wrong"},
		{[]string{"top", "-timeout", "-1s"}, "-timeout is -1s"},
		{[]string{"top", "-schema", "pg_catalog"}, "-schema"},
		{[]string{"migrate", "-print", "-schema", "pg_catalog"}, "-schema"},
		{[]string{"top", "-database", "postgres://u:" + token + "@h:port/"}, "cannot be parsed"},
	} {
		stdin := ""
		if len(test.args) > 2 && test.args[2] == "Bearer" {
			stdin = token
		}
		if r := call(t, testdb.Empty(t), stdin, test.args...); r.code != exitUsage || !strings.Contains(r.stderr, test.want) || r.stdout != "" {
			t.Errorf("%q: %+v, want exit 2 and %q", test.args, r, test.want)
		}
	}
	for _, args := range [][]string{{"help"}, {"-h"}, {"doctor", "-h"}, {"show", "-help"}} {
		if r := call(t, "", "", args...); r.code != exitOK || r.stderr != "" || !strings.Contains(r.stdout, "database") {
			t.Errorf("%q: %+v", args, r)
		}
	}
}

// A database that does not do what it is asked to is an error, with what the server says and not the password.
func TestFailures(t *testing.T) {
	t.Parallel()
	database := testdb.Empty(t)
	for _, args := range [][]string{{"top"}, {"show", "-ip", "203.0.113.7"}, {"reset", "-ip", "203.0.113.7", "-yes"}, {"sweep"}} {
		if r := call(t, database, "", args...); r.code != exitFailed || !strings.Contains(r.stderr, "does not exist") {
			t.Errorf("%q without the table: %+v", args, r)
		}
	}
	wrong, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	wrong.User = url.UserPassword("nobody-like-that", token)
	for _, args := range [][]string{{"top"}, {"migrate"}, {"sweep"}} {
		if r := call(t, wrong.String(), "", args...); r.code != exitFailed || r.stderr == "" {
			t.Errorf("%q with a wrong password: %+v", args, r)
		}
	}
	if r := call(t, wrong.String(), "", "doctor"); r.code != exitFailed || !strings.Contains(r.stdout, "problem") {
		t.Errorf("doctor with a wrong password: %+v", r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stderr strings.Builder
	p := &program{stdin: strings.NewReader(""), stdout: &strings.Builder{}, stderr: &stderr, getenv: func(string) string { return database }}
	if code := p.run(ctx, []string{"top"}); code != exitFailed || !strings.Contains(stderr.String(), "canceled") {
		t.Errorf("interrupted: exit %d and %q", code, stderr.String())
	}
}
