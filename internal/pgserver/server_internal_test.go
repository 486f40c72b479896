//go:build unix

package pgserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// envChild makes the test binary a process that starts a server, prints its URL and its directory,
// and waits for its end.
const envChild = "RATELIMIT_TEST_SERVER_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(envChild) == "" {
		os.Exit(m.Run())
	}
	s, err := startLocal(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(s.URL())
	fmt.Println(s.machine.(*process).dir)
	select {}
}

// ways returns the ways that are to be tested here: the one that is forced, or those that are open.
func ways(t *testing.T) []way {
	t.Helper()
	docker, local := way{Docker, startDocker}, way{Local, startLocal}
	switch os.Getenv(EnvWay) {
	case Docker:
		return []way{docker}
	case Local:
		return []way{local}
	}
	s, err := startDocker(t.Context())
	if err != nil {
		t.Logf("the way docker is not open here: %v", err)
		return []way{local}
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	return []way{docker, local}
}

// started returns a server of the way. A way that is not open on this machine is none to test.
func started(t *testing.T, name string, start func(context.Context) (*Server, error)) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("-short leaves out the tests that start Postgres")
	}
	s, err := start(t.Context())
	if err != nil {
		t.Skipf("this machine has no way %s: %v", name, err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestServer(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short leaves out the tests that start Postgres")
	}
	for _, w := range ways(t) {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			s := started(t, w.name, w.try)
			conn := connect(t, s.URL())
			for name, want := range map[string]string{
				"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "max_connections": "300",
			} {
				if got := ask(t, conn, "SELECT current_setting('"+name+"')"); got != want {
					t.Errorf("%s is %s, want %s", name, got, want)
				}
			}
			ask(t, conn, "CREATE TABLE kept AS SELECT 'still here' AS what; SELECT ''")

			if err := s.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if err := conn.Ping(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a query to the paused server: error %v, want no answer", err)
			}
			if err := s.Resume(); err != nil {
				t.Fatal(err)
			}
			conn = connect(t, s.URL())

			if err := s.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := conn.Ping(t.Context()); err == nil {
				t.Error("the killed server answers")
			}
			if err := s.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			conn = connect(t, s.URL())
			if got, want := ask(t, conn, "SELECT what FROM kept"), "still here"; got != want {
				t.Errorf("after the restart the table holds %q, want %q", got, want)
			}

			if err := s.Stop(); err != nil {
				t.Fatal(err)
			}
			if err := ping(t.Context(), s.URL()); err == nil {
				t.Error("the stopped server answers")
			}
		})
	}
}

// A replica has what its server has, can only be read, and can be written to when it is promoted, which it
// remains after a crash.
func TestReplica(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short leaves out the tests that start Postgres")
	}
	for _, w := range ways(t) {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			s := started(t, w.name, w.try)
			ask(t, connect(t, s.URL()), "CREATE TABLE kept AS SELECT 'here too' AS what; SELECT ''")
			r, err := s.Replica(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := r.Stop(); err != nil {
					t.Error(err)
				}
			})
			conn := connect(t, r.URL())
			if got := ask(t, conn, "SELECT what || ' ' || current_setting('transaction_read_only') FROM kept"); got != "here too on" {
				t.Errorf("the replica says %q", got)
			}
			if err := s.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := r.Promote(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := ask(t, connect(t, r.URL()), "INSERT INTO kept VALUES ('mine') RETURNING what"); got != "mine" {
				t.Errorf("the promoted replica says %q", got)
			}
			if err := r.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := r.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := ask(t, connect(t, r.URL()), "SELECT what FROM kept WHERE what = 'mine'"); got != "mine" {
				t.Errorf("the promoted replica says %q after a restart", got)
			}
		})
	}
}

func TestLocalServerCleansUp(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		before func(context.Context, *Server) error
	}{
		{"running", func(context.Context, *Server) error { return nil }},
		{"paused", func(ctx context.Context, s *Server) error { return s.Pause(ctx) }},
		{"killed", func(ctx context.Context, s *Server) error { return s.Kill(ctx) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := started(t, Local, startLocal)
			if err := tt.before(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if err := s.Stop(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(s.machine.(*process).dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the server's directory: error %v, want it to be gone", err)
			}
		})
	}
}

// Postgres refuses to run as root, so that the test proves itself where it is run by root.
func TestLocalServerIsNotRoots(t *testing.T) {
	t.Parallel()
	s := started(t, Local, startLocal)
	info, err := os.Stat(ask(t, connect(t, s.URL()), "SELECT current_setting('data_directory')"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Sys().(*syscall.Stat_t).Uid == 0 {
		t.Error("the data belongs to root")
	}
}

func TestLocalServerWantsAPassword(t *testing.T) {
	t.Parallel()
	s := started(t, Local, startLocal)
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("postgres", "guess")
	if err := ping(t.Context(), u.String()); err == nil || !strings.Contains(err.Error(), "28P01") {
		t.Errorf("a guessed password: error %v, want SQLSTATE 28P01", err)
	}
}

// occupied returns a port that another has taken, and how to free it.
func occupied(t *testing.T, port string) (string, func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port, func() { l.Close() }
}

func TestLocalServerTakesAnotherPort(t *testing.T) {
	t.Parallel()
	taken, _ := occupied(t, "0")
	tries := 0
	s := started(t, Local, func(ctx context.Context) (*Server, error) {
		return startBinaries(ctx, debianBinaries, func() (string, error) {
			if tries++; tries == 1 {
				return taken, nil
			}
			return freePort()
		})
	})
	if tries != 2 {
		t.Errorf("%d ports were tried, want 2", tries)
	}
	if port := s.machine.(*process).port; port == taken {
		t.Errorf("the server is on port %s, which another has", port)
	}
}

func TestLocalServerWaitsForItsPort(t *testing.T) {
	t.Parallel()
	s := started(t, Local, startLocal)
	if err := s.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := s.machine.(*process)
	_, free := occupied(t, p.port)
	restarted := make(chan error)
	go func() { restarted <- s.Restart(t.Context()) }()
	for !isPortTaken(p.logTail()) { // until the first try has failed
	}
	free()
	if err := <-restarted; err != nil {
		t.Error(err)
	}
}

func TestNamedServerIsNotDisturbed(t *testing.T) {
	t.Parallel()
	s := &Server{way: URL}
	for name, f := range map[string]func() error{
		"Pause":   func() error { return s.Pause(t.Context()) },
		"Resume":  s.Resume,
		"Kill":    func() error { return s.Kill(t.Context()) },
		"Restart": func() error { return s.Restart(t.Context()) },
	} {
		if err := f(); !errors.Is(err, ErrNotOurs) {
			t.Errorf("%s: error %v, want %v", name, err, ErrNotOurs)
		}
	}
	if err := s.Stop(); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if err := s.Release(); err != nil {
		t.Errorf("Release: %v", err)
	}
}

func TestLocalServerEndsWithItsProcess(t *testing.T) {
	t.Parallel()
	started(t, Local, startLocal) // to know that there is such a way
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), envChild+"=1")
	child.Stderr = os.Stderr
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	lines.Scan()
	server := lines.Text()
	lines.Scan()
	dir := lines.Text()
	conn := connect(t, server)
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // it was killed, as it says

	// The connection's end is the server's; the guard then removes the directory.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := conn.WaitForNotification(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("the server of a killed process lives: error %v", err)
	}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s is still there", dir)
		case <-ticker.C:
		}
	}
}

func TestReleasedServerOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	s := started(t, Local, startLocal)
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	if s.machine.(*process).guard != nil {
		t.Error("the guard is still on duty")
	}
	if err := ping(t.Context(), s.URL()); err != nil {
		t.Error(err)
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// ask runs statements and returns the one value of the last.
func ask(t *testing.T, conn *pgx.Conn, sql string) string {
	t.Helper()
	results, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return string(results[len(results)-1].Rows[0][0])
}
