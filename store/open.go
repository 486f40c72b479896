package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// ownConns is how many connections a pool of a store's own has at most: the three that a store uses, and
	// two that a database which hangs keeps pgx from closing.
	ownConns = 5
	// ownConnectTimeout is how long connecting to one host may take. Statements do not wait for it: pgx goes
	// on connecting without them, with the next host too.
	ownConnectTimeout = 2 * time.Second
	// resetPause is how long the pool is left alone after it was reset.
	resetPause = 3 * time.Second
)

// OpenPostgres is [NewPostgres] with a pool of the store's own, which [Postgres.Close] closes. It has five
// connections at most, and does not connect until the first hit.
//
// The connection string is a URL or a list of key=value pairs, as pgxpool takes it, with the variables of
// libpq for what it leaves out. Name all hosts of a cluster in it (Postgres manual, "Specifying Multiple
// Hosts"): unless target_session_attrs asks for more than "any", the store uses the one that can be written to,
// and goes on counting by itself when that becomes another. It makes connections anew when one has turned out
// to be broken or read-only, at most every three seconds; with a pool that was lent by [NewPostgres] it
// never does. Unless connect_timeout says otherwise, a host has two seconds to answer.
//
// A fail-over loses the counts that the new primary has not received, which lets as many requests more pass.
// It loses none that was answered if [PostgresConfig].SynchronousCommit is set and the database replicates to
// the new primary synchronously; see "Synchronous Replication" in the Postgres manual.
//
// Every mistake in the connection string and in the configuration is reported at once. The error does not
// repeat the connection string, which may hold a password.
func OpenPostgres(connString string, config PostgresConfig) (*Postgres, error) {
	pool, err := pgxpool.ParseConfig(connString)
	if err != nil {
		err = fmt.Errorf("ratelimit: OpenPostgres: the connection string: %s", mistake(err))
	}
	if err := errors.Join(err, config.validate()); err != nil {
		return nil, err
	}
	pool.MaxConns = min(pool.MaxConns, ownConns)
	pool.MinConns, pool.MinIdleConns = 0, 0 // they would be made at once
	if pool.ConnConfig.ConnectTimeout == 0 {
		pool.ConnConfig.ConnectTimeout = ownConnectTimeout
	}
	if pool.ConnConfig.ValidateConnect == nil {
		pool.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	severed, sever := context.WithCancel(context.Background())
	pool.ConnConfig.DialFunc = dialUntil(severed, pool.ConnConfig.DialFunc)
	own, err := pgxpool.NewWithConfig(context.Background(), pool)
	if err != nil {
		sever()
		return nil, fmt.Errorf("ratelimit: OpenPostgres: %w", err)
	}
	p, err := NewPostgres(own, config)
	if err != nil {
		own.Close()
		sever()
		return nil, err
	}
	p.own, p.sever = own, sever
	return p, nil
}

// mistake is what pgx has to say of a connection string without the string itself, which it repeats, and
// without the parts that it quotes. It hides passwords there, but not all: it overlooks password = secret, and
// it cannot know where the password is in a string that it does not understand.
func mistake(err error) string {
	const end = "`: " // of the string
	text := err.Error()
	i := strings.LastIndex(text, end)
	if i < 0 {
		return "it cannot be parsed"
	}
	text = text[i+len(end):]
	if first, last := strings.IndexByte(text, '"'), strings.LastIndexByte(text, '"'); first < last {
		text = text[:first+1] + "..." + text[last:]
	}
	return text
}

// dialUntil is dial with connections that end with a context, whatever pgx is still waiting for: to end a
// statement in good order it gives a server that does not answer 15 seconds.
func dialUntil(severed context.Context, dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(severed, cancel)()
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &severable{conn, context.AfterFunc(severed, func() { _ = conn.Close() })}, nil
	}
}

// A severable is a connection that a context closes unless it is closed before.
type severable struct {
	net.Conn
	forget func() bool // has the context forget the connection
}

func (c *severable) Close() error {
	c.forget()
	return c.Conn.Close()
}

// Close closes the pool that [OpenPostgres] has made. It ends a sweep that the store has begun, and waits for a
// call of Sweep and for the statement in flight, but for [PostgresConfig].Timeout at most: whatever has not
// ended by then fails. Hits fail from then on, with [ratelimit.ErrUnavailable]. A pool that was lent is not
// closed, and a store that has one has nothing to close. Close may be called again, and at any time.
func (p *Postgres) Close() {
	if p.own == nil {
		return
	}
	p.endSweeps()
	defer time.AfterFunc(p.config.Timeout, p.sever).Stop()
	p.own.Close()
}

// resetAfter makes the pool's connections anew, if it is the store's own and the error says that the others are
// no better than the one that has just failed.
func (p *Postgres) resetAfter(err error) {
	if p.own == nil || !isStale(err) {
		return
	}
	now, last := time.Since(p.started), p.resetAt.Load()
	if last != 0 && now-time.Duration(last) < resetPause || !p.resetAt.CompareAndSwap(last, int64(now)) {
		return
	}
	p.own.Reset()
}

// isStale reports whether an error comes from a server that is not the one to ask any more: that is read-only,
// going down, or gone.
func isStale(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		class := pg.Code[:min(2, len(pg.Code))]
		return pg.Code == "25006" || class == "08" || class == "57" && pg.Code != "57014" // query_canceled
	}
	// The statement's own deadline has closed its connection and says nothing of the others.
	return err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}
