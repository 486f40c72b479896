package ratelimit_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

// limiters are the sessions of the limiters, and none of others.
const limiters = "datname = current_database() AND application_name LIKE 'mode.%'"

func (b *faultBed) exec(t *testing.T, statements ...string) {
	t.Helper()
	conn := b.connect(t)
	defer conn.Close(context.Background())
	for _, sql := range statements {
		_, err := conn.Exec(t.Context(), sql)
		must(t, err)
	}
}

func (b *faultBed) connect(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), b.url)
	must(t, err)
	return conn
}

// terminate ends the sessions of the limiters.
func (b *faultBed) terminate(t *testing.T) {
	t.Helper()
	b.exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "+limiters)
}

// setReadOnly makes all sessions read-only, those included that exist, or writing again.
func (b *faultBed) setReadOnly(t *testing.T, value string) {
	t.Helper()
	b.exec(t, "ALTER SYSTEM SET default_transaction_read_only = "+value, "SELECT pg_reload_conf()")
	conn := b.connect(t)
	defer conn.Close(context.Background())
	eventually(t, "the configuration is read", func() bool {
		return value == one[string](t, conn, "SELECT current_setting('default_transaction_read_only')")
	})
}

// takeAllConnections connects until the server takes no more, and the limiters have none. Whoever is asked for
// a password has a connection already.
func (b *faultBed) takeAllConnections(t *testing.T) {
	t.Helper()
	observer := b.connect(t)
	t.Cleanup(func() { observer.Close(context.Background()) }) // not sooner: there would be room for one
	b.terminate(t)
	config := observer.Config()
	startup := &pgproto3.StartupMessage{
		ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": config.User, "database": config.Database},
	}
	for {
		conn, err := net.Dial("tcp", net.JoinHostPort(config.Host, fmt.Sprint(config.Port)))
		must(t, err)
		b.others = append(b.others, conn)
		frontend := pgproto3.NewFrontend(conn, conn)
		frontend.Send(startup)
		must(t, frontend.Flush())
		answer, err := frontend.Receive()
		must(t, err)
		refusal, ok := answer.(*pgproto3.ErrorResponse)
		if !ok {
			continue
		}
		if refusal.Code != "53300" {
			t.Fatalf("the server refuses a connection by %+v, want too_many_connections", refusal)
		}
		if one[bool](t, observer, "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE "+limiters+")") {
			return
		}
	}
}

// dismissOthers closes the connections of others one after the other: hundreds of processes that end at once would
// take the machine from all other tests for seconds.
func (b *faultBed) dismissOthers() {
	for _, conn := range b.others {
		_ = conn.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, conn) // until its process has ended
		conn.Close()
	}
}

// lendAll has the application hold all connections of the pools that it shares with its limiters.
func (b *faultBed) lendAll(t *testing.T) {
	t.Helper()
	for _, r := range b.replicas {
		for range r.pool.Config().MaxConns {
			conn, err := r.pool.Acquire(t.Context())
			must(t, err)
			r.applications = append(r.applications, conn)
		}
	}
}

func (b *faultBed) takeBack() {
	for _, r := range b.replicas {
		for _, conn := range r.applications {
			conn.Release()
		}
	}
}

// one asks for one value.
func one[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) (value T) {
	t.Helper()
	must(t, conn.QueryRow(t.Context(), sql, args...).Scan(&value))
	return value
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until f is true, which is soon unless something is broken.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	const patience = 30 * time.Second
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		if time.Now().After(deadline) {
			t.Fatalf("still not, after %v: %s", patience, what)
		}
		<-tick.C
	}
}
