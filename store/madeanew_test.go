package store_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/migrations"
)

// A table that is made anew fails nothing, though pgx and Postgres keep the statements that they prepared for
// the old one. For one of another type, and in a session that has lost what was prepared in it, counting in both texts
// and giving back fail once at most. That holds in every query mode, on the same connection.
func TestStatementsOutliveTheTable(t *testing.T) {
	t.Parallel()
	for name, config := range configs() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testdb.New(t)
			pool := testdb.Pool(t, url, maxConns(1))
			observer := testdb.Pool(t, url)
			config.Logger, _ = logged()
			s := newStore(t, pool, config)
			// use counts in both texts, and gives a hit back between them.
			use := func() (errs []error) {
				counts, err := s.Add(t.Context(), hits("a"))
				if err != nil {
					errs = append(errs, err)
				} else {
					s.GiveBack([]ratelimit.Charge{{Bucket: "a", Start: counts[0].Start, N: 1}})
				}
				if _, err := s.Add(t.Context(), hits("b", "c")); err != nil {
					errs = append(errs, err)
				}
				return errs
			}
			works := func(when string, want map[string]int64) {
				t.Helper()
				for range 10 { // after five times, Postgres may keep a generic plan
					for _, err := range use() {
						t.Errorf("%s: %v", when, err)
					}
				}
				got := make(map[string]int64)
				for bucket := range want {
					got[bucket] = count(t, observer, bucket)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s: counts (-want +got):\n%s", when, diff)
				}
			}
			up := func() {
				t.Helper()
				if err := migrations.Up(t.Context(), pool); err != nil {
					t.Fatal(err)
				}
			}
			works("in the beginning", map[string]int64{"a": 0, "b": 10, "c": 10})
			pid := value[int32](t, pool, "SELECT pg_backend_pid()", pgx.QueryExecModeSimpleProtocol)

			exec(t, pool, "DROP TABLE rate_limits")
			up()
			works("with a table made anew", map[string]int64{"a": 0, "b": 10, "c": 10})

			exec(t, pool, "DROP TABLE rate_limits")
			for _, err := range use() {
				wantOnly(t, err, ratelimit.ErrNoTable)
			}
			up()
			works("with a table made anew after failures", map[string]int64{"a": 0, "b": 10, "c": 10})

			for when, sql := range map[string]string{
				"with another type":     "ALTER TABLE rate_limits ALTER bucket TYPE varchar(600), ADD more text",
				"with nothing prepared": "DEALLOCATE ALL",
			} {
				exec(t, pool, sql)
				use()
				use() // sends what was given back before
				exec(t, pool, "TRUNCATE rate_limits", pgx.QueryExecModeSimpleProtocol)
				works(when, map[string]int64{"a": 0, "b": 10, "c": 10})
			}

			if now := value[int32](t, pool, "SELECT pg_backend_pid()", pgx.QueryExecModeSimpleProtocol); now != pid {
				t.Errorf("the connection was lost: backend %d, before %d", now, pid)
			}
		})
	}
}
