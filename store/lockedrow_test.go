package store_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

// A row that somebody has locked costs its own callers their counts, in every process that waits for it,
// but no process its connection, and no other bucket its counts: the database is not left alone.
func TestOneLockedRow(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	release := lock(t, url, "locked")
	const processes = 4
	pools := pools(t, url, processes, maxConns(1))
	together(processes, func(i int) {
		s := newStore(t, pools[i], store.PostgresConfig{Timeout: 1500 * time.Millisecond})
		pid := value[int32](t, pools[i], "SELECT pg_backend_pid()")
		for range 4 {
			_, err := s.Add(t.Context(), hits("locked"))
			wantOnly(t, err, ratelimit.ErrTimeout)
			if pg := new(pgconn.PgError); !errors.As(err, &pg) || pg.Code != "55P03" {
				t.Errorf("error is %v, want that of lock_timeout", err)
			}
		}
		if got := addOne(t, s, hit(fmt.Sprint("other ", i))); got != 1 {
			t.Errorf("total of another bucket is %d, want 1", got)
		}
		if now := value[int32](t, pools[i], "SELECT pg_backend_pid()"); now != pid {
			t.Errorf("the connection was lost: backend %d, before %d", now, pid)
		}
	})
	release()
	if got := addOne(t, newStore(t, pools[0], store.PostgresConfig{}), hit("locked")); got != 1 {
		t.Errorf("total is %d after hits that were not counted, want 1", got)
	}
}
