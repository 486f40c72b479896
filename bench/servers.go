package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/krow/ratelimit/internal/pgserver"
	"github.com/krow/ratelimit/migrations"
)

// An environment is the servers that systems count in, and where on them one run counts.
type environment struct {
	postgresURL string
	schema      string
	redisURL    *redis.Options
}

var schemas atomic.Int64

// fresh returns the environment with a table of its own that has so many live rows. Redis is not emptied, since it may be somebody's: what
// the systems leave there expires within the hour.
func (e environment) fresh(ctx context.Context, rows int) (*environment, error) {
	e.schema = fmt.Sprintf("bench_%d_%d", os.Getpid(), schemas.Add(1))
	conn, err := pgx.Connect(ctx, e.postgresURL)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	if err := migrations.Schema(e.schema).Up(ctx, conn); err != nil {
		return nil, err
	}
	if rows == 0 {
		return &e, nil
	}
	_, err = conn.Exec(ctx, e.sql(`INSERT INTO {table}
		SELECT 'bench/24h:ip:' || encode(sha256(i::text::bytea), 'hex'), date_bin('1d', now(), 'epoch'), 1, date_bin('1d', now(), 'epoch') + '1d'
		FROM generate_series(1, $1::int) i`), rows)
	if err != nil {
		return nil, err
	}
	_, err = conn.Exec(ctx, e.sql(`VACUUM ANALYZE {table}`))
	return &e, err
}

// drop removes the table.
func (e *environment) drop(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, e.postgresURL)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "DROP SCHEMA "+e.schema+" CASCADE")
	return err
}

func (e *environment) pool(configure func(*pgxpool.Config)) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(e.postgresURL)
	if err != nil {
		return nil, err
	}
	if configure != nil {
		configure(config)
	}
	return pgxpool.NewWithConfig(context.Background(), config)
}

func (e *environment) sql(text string) string {
	return strings.ReplaceAll(text, "{table}", e.schema+".rate_limits")
}

func (e *environment) redis() *redis.Client {
	options := *e.redisURL
	return redis.NewClient(&options)
}

// start finds or starts the servers. Both are reached through TCP on this machine.
func start(ctx context.Context, postgresURL, redisURL string) (env environment, stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, f := range stops {
			f()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	if postgresURL == "" {
		server, err := startPostgres(ctx)
		if err != nil {
			return env, nil, err
		}
		stops = append(stops, func() { _ = server.Stop() })
		postgresURL = server.URL()
	}
	env.postgresURL = postgresURL
	if redisURL == "" {
		var stopRedis func()
		redisURL, stopRedis, err = startRedis(ctx)
		if err != nil {
			return env, nil, err
		}
		stops = append(stops, stopRedis)
	}
	env.redisURL, err = redis.ParseURL(redisURL)
	return env, stop, err
}

// startPostgres prefers the machine's own binaries: a container would have to go through Docker's network,
// and redis-server does not.
func startPostgres(ctx context.Context) (*pgserver.Server, error) {
	if os.Getenv(pgserver.EnvWay) == "" {
		os.Setenv(pgserver.EnvWay, pgserver.Local)
		server, err := pgserver.StartOwn(ctx)
		os.Unsetenv(pgserver.EnvWay)
		if err == nil {
			return server, nil
		}
	}
	return pgserver.Start(ctx)
}

// startRedis starts redis-server without persistence, on a port that is free.
func startRedis(ctx context.Context) (url string, stop func(), err error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", nil, fmt.Errorf("redis-server is not to be had (Debian package redis-server), and -redis names no other: %w", err)
	}
	for range 5 {
		port, err := freePort()
		if err != nil {
			return "", nil, err
		}
		ctx, cancel := context.WithCancel(ctx)
		cmd := exec.CommandContext(ctx, path, "--bind", "127.0.0.1", "--port", fmt.Sprint(port), "--save", "", "--appendonly", "no")
		if err := cmd.Start(); err != nil {
			cancel()
			return "", nil, err
		}
		exited := make(chan struct{})
		go func() { _ = cmd.Wait(); close(exited) }()
		stop = func() { cancel(); <-exited }
		url = fmt.Sprintf("redis://127.0.0.1:%d", port)
		if awaitRedis(ctx, url, exited) {
			return url, stop, nil
		}
		stop()
	}
	return "", nil, errors.New("redis-server does not answer")
}

func awaitRedis(ctx context.Context, url string, exited <-chan struct{}) bool {
	options, err := redis.ParseURL(url)
	if err != nil {
		return false
	}
	client := redis.NewClient(options)
	defer client.Close()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(10 * time.Second)
	for {
		if client.Ping(ctx).Err() == nil {
			return true
		}
		select {
		case <-ticker.C:
		case <-exited:
			return false
		case <-deadline:
			return false
		}
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
