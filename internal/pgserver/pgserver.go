// Package pgserver finds or starts the Postgres server that tests and examples talk to.
//
// It tries three ways, in this order:
//
//  1. url: the server that RATELIMIT_TEST_DATABASE_URL names, a postgres:// URL of a role that may
//     create databases. If the variable is set, no other way is tried.
//  2. docker: a container, if Docker's engine answers and has or can pull the image that
//     RATELIMIT_TEST_POSTGRES_IMAGE names.
//  3. local: the Postgres binaries of this machine, on a temporary directory and a free port of
//     127.0.0.1. They are those of RATELIMIT_TEST_POSTGRES_BIN, or looked for with pg_config, in PATH and where
//     Debian puts them. Postgres
//     refuses to run as root; for root it is started as the user postgres or, without one, nobody.
//
// RATELIMIT_TEST_POSTGRES, set to the name of a way, forces that one.
//
// A server that was started keeps Postgres's defaults, those of durability among them: benchmarks
// and tests that count fsyncs depend on it. Only max_connections is raised. It ends with the process
// that started it, even if that is killed, and its data with it.
package pgserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// The names of the ways to a server, as RATELIMIT_TEST_POSTGRES takes them and [Server.Way] tells them.
const (
	URL    = "url"
	Docker = "docker"
	Local  = "local"
)

// The environment variables that steer [Start].
const (
	EnvWay   = "RATELIMIT_TEST_POSTGRES"
	EnvURL   = "RATELIMIT_TEST_DATABASE_URL"
	EnvImage = "RATELIMIT_TEST_POSTGRES_IMAGE"
	EnvBin   = "RATELIMIT_TEST_POSTGRES_BIN"
)

const (
	// maxConnections is enough for tests that open several full pools at once.
	maxConnections = "max_connections=300"

	// startTimeout bounds the wait for a server that was started, not the pull of an image.
	startTimeout = time.Minute

	// portAttempts is how often a server is started anew because another process was faster to
	// take the port that was found free for it.
	portAttempts = 10
)

// ErrNotOurs is returned, wrapped, by the methods that disturb a server when it is one that
// RATELIMIT_TEST_DATABASE_URL names.
var ErrNotOurs = errors.New("pgserver: the server is not ours to disturb")

// A Server is a Postgres server that answers.
type Server struct {
	url     string
	way     string
	about   string
	passed  []string // the ways that were passed over, and why
	machine machine  // nil for a server that was not started here
}

// machine is what runs a server that was started here.
type machine interface {
	pause(ctx context.Context) error
	resume() error
	kill(ctx context.Context) error
	// restart starts a server that was killed, on the same port and data, and returns when it answers.
	restart(ctx context.Context) error
	stop() error
	release() error
	// replica starts a standby that streams from the server.
	replica(ctx context.Context) (*Server, error)
}

// Start returns a server that answers, the first of the three ways that is open. If none is, the
// error names each and why it failed.
func Start(ctx context.Context) (*Server, error) {
	return start(ctx, []way{{URL, named}, {Docker, startDocker}, {Local, startLocal}})
}

// StartOwn is [Start] without the url way: the server is the caller's alone, to pause, kill and
// restart. RATELIMIT_TEST_POSTGRES=url is taken as not set.
func StartOwn(ctx context.Context) (*Server, error) {
	return start(ctx, []way{{Docker, startDocker}, {Local, startLocal}})
}

type way struct {
	name string
	try  func(context.Context) (*Server, error)
}

// passOver is an error that means that a way is not open and the next may be tried.
type passOver struct{ error }

func (p passOver) Unwrap() error { return p.error }

func start(ctx context.Context, ways []way) (*Server, error) {
	forced := os.Getenv(EnvWay)
	switch forced {
	case "", URL, Docker, Local:
	default:
		return nil, fmt.Errorf("pgserver: %s is %q, want %s, %s or %s", EnvWay, forced, URL, Docker, Local)
	}
	if forced == URL && ways[0].name != URL {
		forced = ""
	}
	var passed []string
	for _, w := range ways {
		if forced != "" && forced != w.name {
			continue
		}
		s, err := w.try(ctx)
		if err == nil {
			s.way, s.passed = w.name, passed
			return s, nil
		}
		if ctx.Err() != nil || !errors.As(err, new(passOver)) {
			return nil, fmt.Errorf("pgserver: %s: %w", w.name, err)
		}
		passed = append(passed, fmt.Sprintf("%s: %v", w.name, err))
	}
	tried := "every way to one failed"
	if forced != "" {
		tried = EnvWay + " asks for one way, which failed"
	}
	return nil, fmt.Errorf("pgserver: no Postgres to be had, %s:\n\t%s", tried, strings.Join(passed, "\n\t"))
}

// named is the url way.
func named(ctx context.Context) (*Server, error) {
	raw := os.Getenv(EnvURL)
	if raw == "" {
		return nil, passOver{fmt.Errorf("%s is not set", EnvURL)}
	}
	// The text is not quoted: it may hold a password, and so may the error of url.Parse.
	u, err := url.Parse(raw)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		return nil, fmt.Errorf("%s is no URL that starts with postgres://", EnvURL)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := ping(ctx, raw); err != nil {
		return nil, err
	}
	return &Server{url: raw, about: "the server that " + EnvURL + " names"}, nil
}

// URL returns the URL of a database on the server that is there for connecting to, by a role that may
// create databases. It holds the password.
func (s *Server) URL() string { return s.url }

// Way returns how the server was found: [URL], [Docker] or [Local].
func (s *Server) Way() string { return s.way }

// String says what the server is and which ways were passed over for it, without the password.
func (s *Server) String() string {
	if len(s.passed) == 0 {
		return s.about
	}
	return s.about + " (" + strings.Join(s.passed, "; ") + ")"
}

// Pause freezes the server with everything it runs: connections stay open and nothing answers.
func (s *Server) Pause(ctx context.Context) error {
	return s.disturb("pause", func(m machine) error { return m.pause(ctx) })
}

// Resume ends a [Server.Pause].
func (s *Server) Resume() error { return s.disturb("resume", machine.resume) }

// Kill ends the server as a crash does: it writes nothing more and says goodbye to nobody.
func (s *Server) Kill(ctx context.Context) error {
	return s.disturb("kill", func(m machine) error { return m.kill(ctx) })
}

// Restart starts the server that was killed, on the same URL and data, and returns when it answers.
func (s *Server) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return s.disturb("restart", func(m machine) error { return m.restart(ctx) })
}

// Replica starts a server that streams from this one and answers queries that only read. This one is told to
// let its superuser replicate for that, and does not stop the replica when it is stopped.
func (s *Server) Replica(ctx context.Context) (replica *Server, err error) {
	err = s.disturb("replica", func(m machine) error {
		if err := letReplicate(ctx, s.url); err != nil {
			return err
		}
		replica, err = m.replica(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	replica.way = s.way
	return replica, nil
}

// letReplicate adds a line to the server's pg_hba.conf, in which "all" databases do not include replication.
func letReplicate(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var file string
	if err := conn.QueryRow(ctx, "SELECT current_setting('hba_file')").Scan(&file); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, fmt.Sprintf(`COPY (SELECT 'host replication all all scram-sha-256') TO PROGRAM 'cat >>"%s"';
		SELECT pg_reload_conf()`, file), pgx.QueryExecModeSimpleProtocol)
	return err
}

// Promote makes a replica a server of its own that can be written to, and returns when it is.
func (s *Server) Promote(ctx context.Context) error {
	return s.disturb("promote", func(machine) error {
		conn, err := pgx.Connect(ctx, s.url)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		var promoted bool
		if err := conn.QueryRow(ctx, "SELECT pg_promote()").Scan(&promoted); err != nil {
			return err
		}
		if !promoted {
			return errors.New("it is still a replica")
		}
		return nil
	})
}

// Stop ends a server that was started, also one that is paused or was killed, and removes its data. It
// may be called again, and does nothing to a server that RATELIMIT_TEST_DATABASE_URL names.
func (s *Server) Stop() error {
	if s.machine == nil {
		return nil
	}
	return s.disturb("stop", machine.stop)
}

// Release leaves a server that was started to itself: it outlives the process, for looking at what
// tests left in it. A container is ended an hour after its start.
func (s *Server) Release() error {
	if s.machine == nil {
		return nil
	}
	return s.disturb("release", machine.release)
}

func (s *Server) disturb(action string, f func(machine) error) error {
	if s.machine == nil {
		return fmt.Errorf("pgserver: %s: %w", action, ErrNotOurs)
	}
	if err := f(s.machine); err != nil {
		return fmt.Errorf("pgserver: %s: %w", action, err)
	}
	return nil
}

// ping connects once.
func ping(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return conn.Ping(ctx)
}

// awaitAnswer returns nil when the server answers, and an error when ctx ends first.
func awaitAnswer(ctx context.Context, url string) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := ping(ctx, url)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the server does not answer: %w", err)
		case <-ticker.C:
		}
	}
}

// superuserURL returns the URL of a server that was started here.
func superuserURL(hostPort, password string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword("postgres", password),
		Host:     hostPort,
		Path:     "/postgres",
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// newPassword returns the password of a server's superuser. Every local account can reach 127.0.0.1,
// and whoever is superuser can run programs as the user that Postgres runs as.
func newPassword() string { return rand.Text() }

// freePort returns a port of 127.0.0.1 that nobody listens on at this moment.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}
