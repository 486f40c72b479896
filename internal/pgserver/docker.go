package pgserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/ory/dockertest/v3"
	"github.com/ory/dockertest/v3/docker"
)

const (
	defaultImage = "postgres:17.6"

	postgresPort = docker.Port("5432/tcp")

	// label marks the containers of this package.
	label = "com.github.krow.ratelimit.test"

	// lifetime is how long a container lives whose process was killed before it could remove it.
	lifetime = time.Hour

	pullTimeout   = 5 * time.Minute
	engineTimeout = 10 * time.Second
)

// container is a server in a Docker container.
type container struct {
	pool     *dockertest.Pool
	resource *dockertest.Resource
	url      string
	image    string
	password string
}

// startDocker is the docker way. Whatever it fails for passes it over: without a network, say, the
// engine may answer and yet have no image.
func startDocker(ctx context.Context) (*Server, error) {
	pool, err := dockertest.NewPool("")
	if err != nil {
		return nil, passOver{fmt.Errorf("no client of the engine: %w", err)}
	}
	engineCtx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	if err := pool.Client.PingWithContext(engineCtx); err != nil {
		return nil, passOver{fmt.Errorf("the engine does not answer: %w", err)}
	}
	image := pinned(os.Getenv(EnvImage))
	if err := haveImage(ctx, pool, image); err != nil {
		return nil, passOver{fmt.Errorf("no image %s: %w", image, err)}
	}
	removeLeftovers(engineCtx, pool)

	password := newPassword()
	s, err := runContainer(ctx, pool, image, password, dockertest.RunOptions{
		Env: []string{"POSTGRES_PASSWORD=" + password},
		Cmd: []string{"postgres", "-c", maxConnections},
	})
	if err != nil {
		return nil, passOver{err}
	}
	return s, nil
}

// runContainer runs one container and returns when its server answers, at the first port that is free.
func runContainer(ctx context.Context, pool *dockertest.Pool, image, password string, options dockertest.RunOptions) (*Server, error) {
	for attempt := 1; ; attempt++ {
		s, err := tryContainer(ctx, pool, image, password, options)
		if err == nil {
			return s, nil
		}
		if ctx.Err() != nil || attempt == portAttempts || !isPortTaken(err.Error()) {
			return nil, fmt.Errorf("a container of image %s: %w", image, err)
		}
	}
}

// replicaScript copies the data of the server at $1 at the first start, and becomes Postgres.
const replicaScript = `
data=/tmp/replica
[ -s $data/PG_VERSION ] || pg_basebackup --pgdata=$data --write-recovery-conf --checkpoint=fast --host="$1" --username=postgres
exec postgres -D $data -c listen_addresses='*' -c ` + maxConnections

// replica runs a container beside the server's own, which it reaches by its address on Docker's network.
func (c *container) replica(ctx context.Context) (*Server, error) {
	return runContainer(ctx, c.pool, c.image, c.password, dockertest.RunOptions{
		User:       "postgres",
		Env:        []string{"PGPASSWORD=" + c.password},
		Entrypoint: []string{"sh", "-c", replicaScript, "sh"},
		Cmd:        []string{c.resource.Container.NetworkSettings.IPAddress},
	})
}

// tryContainer is runContainer on one port.
//
// The port is chosen here and not by the engine, which would choose another one at every restart.
func tryContainer(ctx context.Context, pool *dockertest.Pool, image, password string, options dockertest.RunOptions) (*Server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	host, bind := engineHost(pool.Client.Endpoint())
	options.Repository, options.Tag = splitImage(image)
	options.Name = "ratelimit-test-" + strings.ToLower(newPassword())
	options.Labels = map[string]string{label: "server"}
	options.PortBindings = map[docker.Port][]docker.PortBinding{postgresPort: {{HostIP: bind, HostPort: port}}}
	resource, err := pool.RunWithOptions(&options)
	if err != nil {
		// A container that was made and not started is not returned.
		return nil, errors.Join(err, pool.RemoveContainerByName(options.Name))
	}
	c := &container{pool, resource, superuserURL(net.JoinHostPort(host, port), password), image, password}
	c.guard()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := awaitAnswer(ctx, c.url); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return &Server{url: c.url, about: "a Docker container of " + image, machine: c}, nil
}

// guard has the engine kill the container when its time is over, whether or not this process still lives.
func (c *container) guard() {
	_ = c.resource.Expire(uint(lifetime / time.Second)) // never fails: it asks in the background
}

func (c *container) pause(context.Context) error {
	return c.pool.Client.PauseContainer(c.resource.Container.ID)
}

func (c *container) resume() error {
	return c.pool.Client.UnpauseContainer(c.resource.Container.ID)
}

func (c *container) kill(ctx context.Context) error {
	id := c.resource.Container.ID
	if err := c.pool.Client.KillContainer(docker.KillContainerOptions{ID: id, Context: ctx}); err != nil {
		return err
	}
	_, err := c.pool.Client.WaitContainerWithContext(id, ctx)
	return err
}

func (c *container) restart(ctx context.Context) error {
	if err := c.pool.Client.StartContainerWithContext(c.resource.Container.ID, nil, ctx); err != nil {
		return err
	}
	c.guard()
	return awaitAnswer(ctx, c.url)
}

func (c *container) stop() error {
	defer c.pool.Client.HTTPClient.CloseIdleConnections()
	err := c.pool.Purge(c.resource)
	if errors.As(err, new(*docker.NoSuchContainer)) {
		return nil // stopped before
	}
	return err
}

func (c *container) release() error { return nil }

// haveImage pulls the image unless the engine has it.
func haveImage(ctx context.Context, pool *dockertest.Pool, image string) error {
	if _, err := pool.Client.InspectImage(image); err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	return pool.Client.PullImage(docker.PullImageOptions{Repository: image, Context: ctx}, docker.AuthConfiguration{})
}

// removeLeftovers removes the containers of processes that were killed. Those that another process
// may be about to restart are too young for it. Failing at it is no reason not to go on.
func removeLeftovers(ctx context.Context, pool *dockertest.Pool) {
	_, _ = pool.Client.PruneContainers(docker.PruneContainersOptions{
		Filters: map[string][]string{"label": {label}, "until": {(2 * lifetime).String()}},
		Context: ctx,
	})
}

// pinned returns the image to run, with a tag or digest.
func pinned(image string) string {
	switch {
	case image == "":
		return defaultImage
	case strings.Contains(image[strings.LastIndex(image, "/")+1:], ":"):
		return image
	}
	return image + ":latest"
}

// splitImage splits a name that has a tag or digest as dockertest wants it, which joins the two with
// a colon: a digest is cut in its middle.
func splitImage(image string) (repository, tag string) {
	i := strings.LastIndex(image, ":")
	return image[:i], image[i+1:]
}

// engineHost returns where the published ports of an engine are reached and which address they are to
// be bound to: nobody but this machine when the engine runs on it.
func engineHost(endpoint string) (host, bind string) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme == "unix" || u.Scheme == "npipe" || u.Hostname() == "" {
		return "127.0.0.1", "127.0.0.1"
	}
	return u.Hostname(), ""
}

// isPortTaken reports whether a start failed because another process has the port.
func isPortTaken(message string) bool {
	return strings.Contains(message, "address already in use") || strings.Contains(message, "port is already allocated") ||
		strings.Contains(message, "Address already in use")
}
