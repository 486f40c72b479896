// Package testdb gives each test a database of its own, on the server of [pgserver].
//
// One server is found or started per test binary, when the first test asks for a database. The
// databases are clones of one that was migrated once.
package testdb

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit/internal/pgserver"
	"github.com/krow/ratelimit/migrations"
)

// envKeep, when set, leaves the server running if a test failed.
const envKeep = "RATELIMIT_TEST_KEEP"

// timeout bounds each thing that is done to the server, which may have to wait for the disk.
const timeout = time.Minute

// databases is what a test binary has on its server.
type databases struct {
	server *pgserver.Server
	prefix string // of the names of all databases, different for each test binary
	made   atomic.Int64
}

var (
	started atomic.Pointer[databases]

	// shared and template remember a failure: one test after another is told the same, at once.
	shared = sync.OnceValues(func() (*databases, error) {
		server, err := pgserver.Start(context.Background())
		if err != nil {
			return nil, err
		}
		d := &databases{server: server, prefix: "ratelimit_test_" + strings.ToLower(rand.Text()[:10])}
		started.Store(d)
		return d, nil
	})

	template = sync.OnceValues(func() (string, error) {
		d, err := shared()
		if err != nil {
			return "", err
		}
		return d.newTemplate()
	})
)

// Main runs the tests of a package and exits. It is called by TestMain, and needed by every package
// whose tests use this one, to stop the server.
//
// The checks run when the tests have passed and the server has stopped, to look for what was left
// over, such as goroutines. An error of one fails the run.
func Main(m *testing.M, checks ...func() error) {
	code := m.Run()
	if d := started.Load(); d != nil {
		if err := d.close(code != 0); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	if code == 0 {
		for _, check := range checks {
			if err := check(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
	}
	os.Exit(code)
}

// New returns the URL of a new database that is migrated. It is dropped when the test ends, or kept
// and its URL logged if the test fails. With -short, the test is skipped.
func New(t testing.TB) string {
	t.Helper()
	return newDatabase(t, template)
}

// Empty is [New] without the migration.
func Empty(t testing.TB) string {
	t.Helper()
	return newDatabase(t, func() (string, error) { return "template0", nil })
}

// Pool returns a pool on a database, after it was configured by each of the functions. It is closed
// when the test ends.
func Pool(t testing.TB, url string, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range configure {
		f(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Server returns a server that is the test's alone, to be paused, killed and restarted. It is stopped
// when the test ends. With -short, the test is skipped.
func Server(t testing.TB) *pgserver.Server {
	t.Helper()
	skipShort(t)
	server, err := pgserver.StartOwn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return server
}

func skipShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("testdb: -short leaves out the tests that need Postgres")
	}
}

func newDatabase(t testing.TB, from func() (string, error)) string {
	t.Helper()
	skipShort(t)
	d, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	source, err := from()
	if err != nil {
		t.Fatal(err)
	}
	name := d.name(t.Name())
	if err := d.create(name, source); err != nil {
		t.Fatal(err)
	}
	url := d.url(name)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("testdb: the database is kept for a look: psql '%s'", d.shown(url))
			if d.server.Way() != pgserver.URL && os.Getenv(envKeep) == "" {
				t.Logf("testdb: its server ends with the run unless %s=1 is set", envKeep)
			}
			return
		}
		if err := d.drop(name); err != nil {
			t.Error(err)
		}
	})
	return url
}

// close removes what the test binary has put on the server, and the server if it was started.
func (d *databases) close(failed bool) error {
	if failed && os.Getenv(envKeep) != "" {
		return d.server.Release()
	}
	if d.server.Way() != pgserver.URL {
		return d.server.Stop()
	}
	return d.drop(d.templateName())
}

func (d *databases) templateName() string { return d.prefix + "_template" }

// name returns a new name for a database that shows which test it belongs to.
func (d *databases) name(test string) string {
	test = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '_'
	}, test)
	name := fmt.Sprintf("%s_%d_%s", d.prefix, d.made.Add(1), test)
	return name[:min(len(name), 63)]
}

// shown is a URL as it may stand in a log: the password of a server that was named is somebody's.
func (d *databases) shown(raw string) string {
	if u, err := url.Parse(raw); err == nil && d.server.Way() == pgserver.URL {
		return u.Redacted()
	}
	return raw
}

func (d *databases) url(name string) string {
	u, err := url.Parse(d.server.URL())
	if err != nil {
		panic(err) // pgserver has parsed or made it
	}
	u.Path = "/" + name
	return u.String()
}

// newTemplate makes the migrated database that others are cloned of. The name is this test binary's
// own, so that no two of them on one server wait for each other.
func (d *databases) newTemplate() (string, error) {
	name := d.templateName()
	if err := d.create(name, "template0"); err != nil {
		return "", err
	}
	err := d.on(d.url(name), func(ctx context.Context, conn *pgx.Conn) error {
		return migrations.Up(ctx, conn)
	})
	if err != nil {
		return "", err
	}
	// Postgres clones no database that somebody is connected to; this keeps everybody off.
	return name, d.exec("ALTER DATABASE " + quote(name) + " ALLOW_CONNECTIONS false")
}

// create makes a database. Postgres itself waits some seconds for a source that is still in use, by
// a connection that is closing or an autovacuum worker; a busy machine may need more.
func (d *databases) create(name, source string) error {
	const attempts = 5
	for attempt := 1; ; attempt++ {
		err := d.exec("CREATE DATABASE " + quote(name) + " TEMPLATE " + quote(source))
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && pgErr.Code == "55006" && attempt < attempts { // object_in_use
			continue
		}
		return err
	}
}

func (d *databases) drop(name string) error {
	return d.exec("DROP DATABASE IF EXISTS " + quote(name) + " WITH (FORCE)")
}

func (d *databases) exec(sql string) error {
	return d.on(d.server.URL(), func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql)
		return err
	})
}

// on connects to a database of the server for f alone.
func (d *databases) on(url string, f func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("testdb: %w", err)
	}
	err = f(ctx, conn)
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return fmt.Errorf("testdb: %w", err)
	}
	return nil
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
