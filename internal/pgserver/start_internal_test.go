//go:build unix

package pgserver

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// nowhere makes sure that no way to a server is open but those that a test opens.
func nowhere(t *testing.T) {
	t.Helper()
	t.Setenv(EnvWay, "")
	t.Setenv(EnvURL, "")
	t.Setenv("PATH", "")
	t.Setenv("DOCKER_HOST", "unix:///nonexistent.sock")
	t.Setenv("DOCKER_MACHINE_NAME", "")
	t.Setenv("DOCKER_CERT_PATH", "")
	t.Setenv(EnvBin, "")
}

var waysOfNowhere = []way{{URL, named}, {Docker, startDocker}, {Local, func(ctx context.Context) (*Server, error) {
	return startBinaries(ctx, "/nonexistent/*/bin", freePort)
}}}

func TestFailureNamesEveryWay(t *testing.T) {
	nowhere(t)
	_, err := start(t.Context(), waysOfNowhere)
	if err == nil {
		t.Fatal("there is a server, want an error")
	}
	lines := strings.Split(err.Error(), "\n")
	want := []string{
		"pgserver: no Postgres to be had, every way to one failed:",
		"\turl: RATELIMIT_TEST_DATABASE_URL is not set",
		"\tdocker: the engine does not answer: ",
		"\tlocal: no binaries: neither pg_config, PATH nor /nonexistent/*/bin leads to initdb and postgres",
	}
	if len(lines) != len(want) {
		t.Fatalf("the error is %q, want %q", lines, want)
	}
	for i := range want {
		if !strings.HasPrefix(lines[i], want[i]) {
			t.Errorf("line %d of the error is %q, want %q", i, lines[i], want[i])
		}
	}
}

func TestForcedWayIsTheOnlyOne(t *testing.T) {
	for _, forced := range []string{URL, Docker, Local} {
		t.Run(forced, func(t *testing.T) {
			nowhere(t)
			t.Setenv(EnvWay, forced)
			var tried []string
			var ways []way
			for _, name := range []string{URL, Docker, Local} {
				ways = append(ways, way{name, func(context.Context) (*Server, error) {
					tried = append(tried, name)
					return nil, passOver{errors.New("closed")}
				}})
			}
			_, err := start(t.Context(), ways)
			want := "pgserver: no Postgres to be had, RATELIMIT_TEST_POSTGRES asks for one way, which failed:\n\t" + forced + ": closed"
			if err == nil || err.Error() != want {
				t.Errorf("error %v, want %s", err, want)
			}
			if diff := cmp.Diff([]string{forced}, tried); diff != "" {
				t.Errorf("ways tried (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFirstOpenWayIsTaken(t *testing.T) {
	nowhere(t)
	open := func(context.Context) (*Server, error) { return &Server{about: "a server"}, nil }
	closed := func(context.Context) (*Server, error) { return nil, passOver{errors.New("closed")} }
	s, err := start(t.Context(), []way{{URL, closed}, {Docker, open}, {Local, open}})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.Way(), Docker; got != want {
		t.Errorf("Way = %s, want %s", got, want)
	}
	if got, want := s.String(), "a server (url: closed)"; got != want {
		t.Errorf("String = %q, want %q", got, want)
	}
}

func TestMistakesInTheEnvironment(t *testing.T) {
	const secret = "hunter2"
	tests := []struct{ name, way, url, want string }{
		{"unknown way", "podman", "", `pgserver: RATELIMIT_TEST_POSTGRES is "podman", want url, docker or local`},
		{"no URL", "", "host=localhost password=" + secret, "pgserver: url: RATELIMIT_TEST_DATABASE_URL is no URL that starts with postgres://"},
		{"broken URL", "", "postgres://u:" + secret + "@h:port/db", "pgserver: url: RATELIMIT_TEST_DATABASE_URL is no URL that starts with postgres://"},
		{"nobody there", "", "postgres://u:" + secret + "@127.0.0.1:1/db", "pgserver: url: failed to connect to "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			nowhere(t)
			t.Setenv(EnvWay, tt.way)
			t.Setenv(EnvURL, tt.url)
			// What somebody asks for by name is not replaced by something else.
			_, err := Start(t.Context())
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("error %v, want %s", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("the error tells the password: %v", err)
			}
		})
	}
}

func TestCanceledStartEndsAtOnce(t *testing.T) {
	nowhere(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := start(ctx, waysOfNowhere[1:]); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}

func TestImageNames(t *testing.T) {
	t.Parallel()
	tests := []struct{ image, pinned, repository, tag string }{
		{"", defaultImage, "postgres", strings.TrimPrefix(defaultImage, "postgres:")},
		{"postgres", "postgres:latest", "postgres", "latest"},
		{"postgres:16", "postgres:16", "postgres", "16"},
		{"registry:5000/postgres", "registry:5000/postgres:latest", "registry:5000/postgres", "latest"},
		{"registry:5000/team/postgres:16.1", "registry:5000/team/postgres:16.1", "registry:5000/team/postgres", "16.1"},
		{"postgres@sha256:0abc", "postgres@sha256:0abc", "postgres@sha256", "0abc"},
	}
	for _, tt := range tests {
		got := pinned(tt.image)
		if got != tt.pinned {
			t.Errorf("pinned(%q) = %q, want %q", tt.image, got, tt.pinned)
		}
		if repository, tag := splitImage(got); repository != tt.repository || tag != tt.tag {
			t.Errorf("splitImage(%q) = %q, %q, want %q, %q", got, repository, tag, tt.repository, tt.tag)
		}
	}
}

func TestEngineHost(t *testing.T) {
	t.Parallel()
	tests := []struct{ endpoint, host, bind string }{
		{"unix:///var/run/docker.sock", "127.0.0.1", "127.0.0.1"},
		{"npipe:////./pipe/docker_engine", "127.0.0.1", "127.0.0.1"},
		{"tcp://engine.test:2376", "engine.test", ""},
	}
	for _, tt := range tests {
		if host, bind := engineHost(tt.endpoint); host != tt.host || bind != tt.bind {
			t.Errorf("engineHost(%q) = %q, %q, want %q, %q", tt.endpoint, host, bind, tt.host, tt.bind)
		}
	}
}
