package store_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/goroutines"
	"github.com/krow/ratelimit/internal/testdb"
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

// A store with a pool of its own connects with the first hit, uses two connections at most, and leaves nothing when
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
		together(64, func(i int) { addOne(t, s, hit(fmt.Sprint(i%8))) })
		if _, err := s.Sweep(t.Context()); err != nil {
			t.Error(err)
		}
		if pids := backends(t, admin); len(pids) == 0 || len(pids) > 2 {
			t.Errorf("there are %d sessions, want one or two", len(pids))
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

// Mistakes are told together, and the password is in none of them.
func TestOpenPostgresRefuses(t *testing.T) {
	t.Parallel()
	for _, connString := range []string{
		"postgres://me:hunter2@host:port/db",
		"postgres://me:hunter2@ho st/db",
		"postgres://me:hunter2@host/db?sslmode=maybe",
		"postgres://me:hunter2@host/db?connect_timeout=soon",
		"postgres://me:hunter2%zz@host/db",
		"host=h password=hunter2 sslmode=maybe",
		"host=h password='hunter2",
		"host=h password=hunter2 pool_max_conns=none",
		"hunter2",
	} {
		_, err := store.OpenPostgres(connString, store.PostgresConfig{Timeout: time.Millisecond})
		if err == nil || !strings.Contains(err.Error(), "ratelimit: OpenPostgres: the connection string: ") ||
			!strings.Contains(err.Error(), "PostgresConfig.Timeout is 1ms") {
			t.Errorf("%q: error is %v, want both mistakes", connString, err)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") && connString != "hunter2" {
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

// A host that swallows connections holds up the others for as long as connecting may take, and no hit for
// longer than its timeout.
func TestHostThatHangs(t *testing.T) {
	t.Parallel()
	hole, err := net.Listen("tcp", "127.0.0.1:0") // it accepts and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hole.Close() })
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
