package store_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/goroutines"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/migrations"
	"github.com/krow/ratelimit/store"
)

// open returns a store with a pool of its own.
func open(t *testing.T, connString string, config store.PostgresConfig) *store.Postgres {
	t.Helper()
	if config.Timeout == 0 {
		config.Timeout = time.Minute
	}
	s, err := store.OpenPostgres(connString, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// backends returns the sessions of a database that have used the table last, but for the caller's own.
func backends(t *testing.T, db store.DB) []int32 {
	t.Helper()
	pids := value[[]int32](t, db, `SELECT coalesce(array_agg(pid ORDER BY pid), '{}') FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%rate_limits%'`)
	return pids
}

// A store with a pool of its own connects with the first hit, uses three connections at most, and leaves nothing when
// it is closed, which may happen at any time and more than once.
func TestOpenPostgres(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	admin := testdb.Pool(t, url)
	goroutines.Labelled(t, func() {
		before := goroutines.Count(t)
		s, err := store.OpenPostgres(url, store.PostgresConfig{Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if pids := backends(t, admin); len(pids) != 0 {
			t.Errorf("%d sessions before the first hit", len(pids))
		}
		together(64, func(i int) { addOne(t, s, hit(fmt.Sprint(i))) })
		if _, err := s.Sweep(t.Context()); err != nil {
			t.Error(err)
		}
		if pids := backends(t, admin); len(pids) == 0 || len(pids) > 3 {
			t.Errorf("there are %d sessions, want one to three", len(pids))
		}
		together(3, func(i int) {
			if i == 0 {
				_, _ = s.Add(context.Background(), hits("a")) // counted or not
				return
			}
			s.Close()
		})
		_, err = s.Add(t.Context(), hits("a"))
		wantOnly(t, err, ratelimit.ErrUnavailable)
		eventually(t, "no session is left", func() bool { return len(backends(t, admin)) == 0 })
		eventually(t, "no goroutine is left", func() bool { return goroutines.Count(t) == before })
	})
}

// A store whose pool was lent has nothing to close.
func TestCloseLeavesALentPool(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	s := newStore(t, pool, store.PostgresConfig{})
	s.Close()
	if total := addOne(t, s, hit("a")); total != 1 {
		t.Errorf("total after Close is %d, want 1", total)
	}
}

// Close does not wait until a sweep has deleted all there is.
func TestCloseEndsASweep(t *testing.T) {
	t.Parallel()
	const expired = 100_000
	url := testdb.New(t)
	admin := testdb.Pool(t, url)
	exec(t, admin, `INSERT INTO rate_limits SELECT 'old ' || i, '2020-01-01', 1, '2020-01-02' FROM generate_series(1, $1::int) i`, expired)
	logger, text := logged()
	s := open(t, url, store.PostgresConfig{SweepInterval: time.Hour, Logger: logger})
	s.DueSweep()
	addOne(t, s, hit("a"))
	eventually(t, "a batch is deleted", func() bool { return rows(t, admin) < expired })
	s.Close()
	if n := rows(t, admin); n <= 1 {
		t.Error("the sweep went on to its end")
	}
	if got := text(); got != "" {
		t.Errorf("log is\n%s", got)
	}
}

// Close returns soon after the timeout, and leaves nothing, when the server does not answer or keeps a sweep
// waiting that has no time limit of its own.
func TestCloseDoesNotWaitForLong(t *testing.T) {
	t.Parallel()
	const timeout = time.Second
	closeInTime := func(t *testing.T, s *store.Postgres) {
		t.Helper()
		began := time.Now()
		closed := make(chan struct{})
		go func() {
			s.Close()
			close(closed)
		}()
		receive(t, "Close returns", closed)
		// pgx alone waits for 15 s.
		if took := time.Since(began); took > patience/3 {
			t.Errorf("Close took %v, want about %v", took, timeout)
		}
	}
	t.Run("server that hangs", func(t *testing.T) {
		t.Parallel()
		server := testdb.Server(t)
		if err := migrations.Up(t.Context(), testdb.Pool(t, server.URL())); err != nil {
			t.Fatal(err)
		}
		goroutines.Labelled(t, func() {
			before := goroutines.Count(t)
			logger, _ := logged()
			s := open(t, server.URL(), store.PostgresConfig{Timeout: timeout, Logger: logger})
			addOne(t, s, hit("a"))
			if err := server.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			_, err := s.Add(t.Context(), hits("a"))
			wantOnly(t, err, ratelimit.ErrTimeout)
			closeInTime(t, s)
			eventually(t, "no goroutine is left", func() bool { return goroutines.Count(t) == before })
		})
	})
	t.Run("locked table", func(t *testing.T) {
		t.Parallel()
		url := testdb.New(t)
		admin, locker := testdb.Pool(t, url), connect(t, url)
		s := open(t, url, store.PostgresConfig{Timeout: timeout})
		exec(t, locker, "BEGIN")
		exec(t, locker, "LOCK TABLE rate_limits")
		swept := make(chan error)
		go func() {
			_, err := s.Sweep(context.Background())
			swept <- err
		}()
		awaitBlocked(t, admin, 1)
		closeInTime(t, s)
		wantOnly(t, receive(t, "Sweep returns", swept), ratelimit.ErrUnavailable)
		exec(t, locker, "ROLLBACK")
	})
}

// Not even a connection string that asks for connections makes them before the first hit.
func TestOpenPostgresDoesNotDial(t *testing.T) {
	t.Parallel()
	l := listen(t)
	dialled := make(chan struct{})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
			dialled <- struct{}{}
		}
	}()
	logger, _ := logged()
	s := open(t, urlOf(l)+"&pool_min_conns=2&pool_min_idle_conns=2", store.PostgresConfig{Logger: logger})
	pool := s.Pool().(*pgxpool.Pool)
	if c := pool.Config(); c.MinConns != 0 || c.MinIdleConns != 0 {
		t.Errorf("the pool is to have %d connections, and %d idle ones, before they are needed", c.MinConns, c.MinIdleConns)
	}
	select {
	case <-dialled:
		t.Error("the server was dialled before the first hit")
	default:
	}
	added := make(chan error)
	go func() {
		_, err := s.Add(t.Context(), hits("a"))
		added <- err
	}()
	receive(t, "the first hit dials", dialled)
	wantOnly(t, receive(t, "Add returns", added), ratelimit.ErrUnavailable)
	if n := pool.Stat().NewConnsCount(); n != 1 {
		t.Errorf("%d connections were tried for one hit", n)
	}
}

// What the connection string leaves out comes from the variables of libpq.
func TestOpenPostgresFromTheEnvironment(t *testing.T) {
	conn := testdb.Pool(t, testdb.New(t)).Config().ConnConfig
	for name, value := range map[string]string{
		"PGHOST": conn.Host, "PGPORT": fmt.Sprint(conn.Port), "PGUSER": conn.User,
		"PGPASSWORD": conn.Password, "PGDATABASE": conn.Database,
	} {
		t.Setenv(name, value)
	}
	if total := addOne(t, open(t, "", store.PostgresConfig{}), hit("a")); total != 1 {
		t.Errorf("total is %d, want 1", total)
	}
}

// Mistakes are told together, with what is wrong, and the password is in none of them.
func TestOpenPostgresRefuses(t *testing.T) {
	t.Parallel()
	for connString, why := range map[string]string{
		"postgres://me:hunter2@host:port/db":                   "invalid port",
		"postgres://me:hunter2@ho st/db":                       "spaces",
		"postgres://me:hun/hunter2 x@host/db":                  "spaces",
		"postgres://me:hunter2@host/db?sslmode=maybe":          "sslmode",
		"postgres://me:hunter2@host/db?connect_timeout=soon":   "connect_timeout",
		"postgres://me:hunter2@host/db?target_session_attrs=x": "target_session_attrs",
		"postgres://me@host/db?sslmode=maybe&password=hunter2": "sslmode",
		"postgres://me:hunter2%zz@host/db":                     "percent-encoded",
		"postgres://me:hunter2/x@host/db":                      "invalid port",
		"postgres://me:x@hunter2@host:port/db":                 "invalid port",
		"host=h password=hunter2 sslmode=maybe":                "sslmode",
		"host=h password = hunter2 sslmode=maybe":              "sslmode",
		`host=h password='it\'s hunter2' sslmode=maybe`:        "sslmode",
		`host=h password=a\ hunter2 sslmode=maybe`:             "sslmode",
		"host=h password='x`: hunter2' sslmode=maybe":          "sslmode",
		"host=h password='hunter2":                             "keyword/value",
		"host=h password=x hunter2":                            "keyword/value",
		"host=h password=hunter2 pool_max_conns=none":          "pool_max_conns",
		"hunter2": "keyword/value",
	} {
		_, err := store.OpenPostgres(connString, store.PostgresConfig{Timeout: time.Millisecond})
		for _, words := range []string{"ratelimit: OpenPostgres: the connection string: ", why, "PostgresConfig.Timeout is 1ms"} {
			if text := fmt.Sprint(err); !strings.Contains(text, words) {
				t.Errorf("%q: error is %q, want it to say %q", connString, text, words)
			}
		}
		if strings.Contains(fmt.Sprint(err), "hunter2") {
			t.Errorf("the error tells the password: %v", err)
		}
	}
}

// Fault 50: the database becomes read-only under connections that are open, and cannot be written to by new ones. A
// store tells so, and counts again when it can, with new connections if the pool is its own. A pool that was
// lent keeps those it has.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	for _, lent := range []bool{false, true} {
		t.Run(fmt.Sprintf("lent: %v", lent), func(t *testing.T) {
			t.Parallel()
			url := testdb.New(t)
			admin := testdb.Pool(t, url)
			logger, _ := logged()
			config := store.PostgresConfig{ManualSweep: true, Logger: logger}
			var s *store.Postgres
			if lent {
				s = newStore(t, testdb.Pool(t, url), config)
			} else {
				s = open(t, url, config)
			}
			addOne(t, s, hit("a"))
			before := backends(t, admin)

			// As after a fail-over that closed no session: the default of the database, and of those that are open.
			database := admin.Config().ConnConfig.Database
			exec(t, admin, `ALTER DATABASE "`+database+`" SET default_transaction_read_only = on`)
			inSession(t, s, "SET default_transaction_read_only = on")
			for range 5 {
				_, err := s.Add(t.Context(), hits("a"))
				wantOnly(t, err, ratelimit.ErrReadOnly)
			}
			exec(t, admin, `SET default_transaction_read_only = off; ALTER DATABASE "`+database+`" RESET default_transaction_read_only`)
			if lent {
				if now := backends(t, admin); !slices.Equal(now, before) {
					t.Errorf("the lent pool has sessions %v, want %v as before", now, before)
				}
				inSession(t, s, "SET default_transaction_read_only = off")
			}
			eventually(t, "hits are counted again", func() bool {
				_, err := s.Add(t.Context(), hits("a"))
				return err == nil
			})
			if now := backends(t, admin); slices.Equal(now, before) != lent {
				t.Errorf("sessions are %v, and were %v", now, before)
			}

			exec(t, admin, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
			eventually(t, "hits are counted after all sessions were ended", func() bool {
				_, err := s.Add(t.Context(), hits("a"))
				return err == nil
			})
		})
	}
}

// inSession runs a statement in the store's own session, which it has one of.
func inSession(t *testing.T, s *store.Postgres, sql string) {
	t.Helper()
	pool := s.Pool()
	if _, err := pool.(*pgxpool.Pool).Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

// Whatever goes wrong, the pool is made anew once in three seconds: a session that becomes read-only soon after
// the one before it is kept until they are over.
func TestResetsAreApart(t *testing.T) {
	t.Parallel()
	const pause = 3 * time.Second
	logger, _ := logged()
	s := open(t, testdb.New(t), store.PostgresConfig{ManualSweep: true, Logger: logger})
	addOne(t, s, hit("a"))
	began := time.Now()
	for range 2 {
		inSession(t, s, "SET default_transaction_read_only = on")
		_, err := s.Add(t.Context(), hits("a"))
		wantOnly(t, err, ratelimit.ErrReadOnly)
	}
	eventually(t, "hits are counted again", func() bool {
		_, err := s.Add(t.Context(), hits("a"))
		return err == nil
	})
	if took := time.Since(began); took < pause {
		t.Errorf("the pool was made anew twice within %v, want %v between", took, pause)
	}
}

// A host that swallows connections holds up the others for as long as connecting may take, and no hit for
// longer than its timeout.
func TestHostThatHangs(t *testing.T) {
	t.Parallel()
	hole := listen(t) // it accepts and says nothing
	u, err := url.Parse(testdb.New(t))
	if err != nil {
		t.Fatal(err)
	}
	u.Host = hole.Addr().String() + "," + u.Host
	logger, _ := logged()
	s := open(t, u.String(), store.PostgresConfig{Timeout: 200 * time.Millisecond, Logger: logger})
	_, err = s.Add(t.Context(), hits("a"))
	wantOnly(t, err, ratelimit.ErrTimeout)
	eventually(t, "the host that answers is found", func() bool {
		_, err := s.Add(t.Context(), hits("a"))
		if err != nil && !errors.Is(err, ratelimit.ErrTimeout) {
			t.Errorf("error is %v, want a timeout", err)
		}
		return err == nil
	})
}
