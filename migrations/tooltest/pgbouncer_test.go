package tooltest_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/migrations"
	"github.com/krow/ratelimit/store"
	"github.com/krow/ratelimit/store/storetest"
)

func TestUpThroughPgBouncer(t *testing.T) {
	t.Parallel()
	direct := testdb.Empty(t)
	pooled := pgBouncer(t, direct)
	pool := testdb.Pool(t, pooled, func(c *pgxpool.Config) {
		// What a service must do behind an old PgBouncer anyway: it knows no statement by name.
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	})
	for _, schema := range []migrations.Schema{migrations.Public, "rl_app"} {
		done := make(chan error)
		for range 20 {
			go func() { done <- schema.Up(t.Context(), pool) }()
		}
		for range 20 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	// It finds the table current even where statements are prepared by default.
	if err := migrations.Up(t.Context(), testdb.Pool(t, pooled)); err != nil {
		t.Error(err)
	}
}

// The store counts as exactly as without it, in the modes that prepare nothing.
func TestStoreThroughPgBouncer(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]store.PostgresConfig{
		"exec":            {QueryExecMode: pgx.QueryExecModeExec},
		"simple protocol": {QueryExecMode: pgx.QueryExecModeSimpleProtocol},
		"routed":          {Routed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testdb.Empty(t)
			direct, pooled := testdb.Pool(t, url), testdb.Pool(t, pgBouncer(t, url), func(c *pgxpool.Config) {
				if config.Routed {
					c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
				}
			})
			storetest.Run(t, func(t *testing.T) storetest.Subject {
				schema := "s" + strings.ToLower(rand.Text()[:8])
				if err := migrations.Schema(schema).Up(t.Context(), direct); err != nil {
					t.Fatal(err)
				}
				config := config
				config.Schema, config.Timeout, config.Logger = schema, time.Minute, slog.New(slog.DiscardHandler)
				s, err := store.NewPostgres(pooled, config)
				if err != nil {
					t.Fatal(err)
				}
				return storetest.Subject{Store: s, Elapse: func(d time.Duration) {
					_, err := direct.Exec(t.Context(), fmt.Sprintf(`UPDATE %s.rate_limits
						SET window_start = window_start - $1::interval, expires_at = expires_at - $1::interval`, schema), d)
					if err != nil {
						t.Fatal(err)
					}
				}}
			})
		})
	}
}

// The command works through it, and tells that it is there.
func TestDoctorThroughPgBouncer(t *testing.T) {
	t.Parallel()
	pooled := pgBouncer(t, testdb.New(t))
	cmd := exec.CommandContext(t.Context(), "go", "run", "github.com/krow/ratelimit/cmd/ratelimit", "doctor")
	cmd.Env = append(os.Environ(), "DATABASE_URL="+pooled)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "note  there is one between") {
		t.Errorf("doctor ends with %v and says\n%s", err, out)
	}
}

// A store with a pool of its own sees through a PgBouncer that the database can only be read, and counts again
// when it can be written to.
func TestOpenPostgresThroughPgBouncer(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	direct := testdb.Pool(t, url)
	exec := func(sql string) {
		t.Helper()
		if _, err := direct.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	database := pgx.Identifier{direct.Config().ConnConfig.Database}.Sanitize()
	// Sessions that PgBouncer makes from now on are read-only.
	exec("ALTER DATABASE " + database + " SET default_transaction_read_only = on")
	s, err := store.OpenPostgres(pgBouncer(t, url), store.PostgresConfig{
		QueryExecMode: pgx.QueryExecModeExec, Timeout: time.Minute, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	hits := []ratelimit.Hit{{Bucket: "a", Window: ratelimit.MaxWindow, N: 1}}
	if _, err := s.Add(t.Context(), hits); !errors.Is(err, ratelimit.ErrReadOnly) {
		t.Errorf("error is %v, want %v", err, ratelimit.ErrReadOnly)
	}
	exec("SET default_transaction_read_only = off; ALTER DATABASE " + database + " RESET default_transaction_read_only")
	exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
	deadline := time.Now().Add(30 * time.Second)
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		counts, err := s.Add(t.Context(), hits)
		if err == nil {
			if counts[0].Total != 1 {
				t.Errorf("total is %d, want 1", counts[0].Total)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still not counted: %v", err)
		}
		<-ticker.C
	}
}

// Six limiters with different limits share two pools, as two processes have them, and two connections of a
// PgBouncer, which others reset between their queries. Each counts for itself, exactly, and no
// statement is missing or there already (G19, P3).
func TestLimitersThroughPgBouncer(t *testing.T) {
	t.Parallel()
	const requests = 1_000
	direct := testdb.New(t)
	for name, url := range map[string]string{"direct": direct, "pooled": pgBouncer(t, direct)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mode := pgx.QueryExecModeCacheStatement
			if name == "pooled" {
				mode = pgx.QueryExecModeExec
			}
			pools := []*pgxpool.Pool{testdb.Pool(t, url), testdb.Pool(t, url)}
			limiters := make([]*ratelimit.Limiter, 6)
			for i := range limiters {
				s, err := store.NewPostgres(pools[i%2], store.PostgresConfig{QueryExecMode: mode, Timeout: time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				limiters[i], err = ratelimit.New(s, ratelimit.Config{
					Policies: []ratelimit.Policy{{
						Name:  fmt.Sprintf("%s.%d", name, i/2), // two processes have three limiters each
						Limit: ratelimit.Limit{Requests: 10 * (i/2 + 1), Window: ratelimit.MaxWindow},
					}},
					Deadline: time.Minute,
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			var admitted [3]atomic.Int64
			var wg sync.WaitGroup
			for i := range requests {
				wg.Go(func() {
					if name == "pooled" && i%10 == 0 {
						if _, err := pools[i%2].Exec(t.Context(), "DISCARD ALL", pgx.QueryExecModeSimpleProtocol); err != nil {
							t.Error(err)
						}
					}
					d := limiters[i%6].Check(&http.Request{RemoteAddr: "203.0.113.7:1"})
					if d.Err != nil {
						t.Error(d.Err)
					}
					if d.Outcome == ratelimit.Allowed {
						admitted[i%6/2].Add(1)
					}
				})
			}
			wg.Wait()
			for i := range admitted {
				if got := admitted[i].Load(); got != int64(10*(i+1)) {
					t.Errorf("limit %d admitted %d requests, want %d", i, got, 10*(i+1))
				}
			}
		})
	}
}

// pgBouncer starts a PgBouncer in transaction mode before a server and returns the URL through it.
func pgBouncer(t *testing.T, server string) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Fatalf("the test needs the package pgbouncer: %v", err)
	}
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	config := fmt.Sprintf(`[databases]
* = host=%s port=%s user=%s password=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
`, u.Hostname(), u.Port(), u.User.Username(), password, port)
	file := filepath.Join(t.TempDir(), "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}

	args := []string{"-q", file}
	if os.Geteuid() == 0 { // as whom it will not run; it reads its file before it becomes another
		args = append(args, "-u", "nobody")
	}
	// The shell ends it when its input does: when the test is over, or this process is gone, however that went.
	cmd := exec.Command("sh", append([]string{"-c", `"$@" & read line; kill $!`, "sh", program}, args...)...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		_ = cmd.Wait() // it was told to end
	})

	u.Host = fmt.Sprintf("127.0.0.1:%d", port)
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		conn, err := pgx.Connect(t.Context(), u.String())
		if err == nil {
			conn.Close(t.Context())
			return u.String()
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("PgBouncer does not answer: %v", err)
		case <-ticker.C:
		}
	}
}
