package store_test

import (
	"testing"
	"time"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
)

// Whoever may create in a schema of the search_path, as everybody may in public up to Postgres 14, can
// overload operators and functions there. A statement that needed an implicit cast would take them, and
// run them with the rights of the limiter's role.
func TestHostileOverloads(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	exec(t, pool, "CREATE SCHEMA trap; CREATE TABLE trap.sprung (what text)")
	// For each operator and function of the statements, one for every pair of types that might fit.
	const overloads = `
		DO $do$
		DECLARE
			types text[] := ARRAY['smallint', 'integer', 'bigint', 'numeric', 'real', 'double precision', 'text',
				'varchar', 'interval', 'timestamptz', 'timestamp', 'date'];
			a text; b text; op text;
		BEGIN
			FOREACH a IN ARRAY types LOOP
				FOREACH b IN ARRAY types LOOP
					EXECUTE format($f$CREATE FUNCTION trap.op(%s, %s) RETURNS interval LANGUAGE plpgsql AS
						$$ BEGIN INSERT INTO trap.sprung VALUES ('operator'); RETURN NULL; END $$ $f$, a, b);
					FOREACH op IN ARRAY ARRAY['*', '+', '-', '<=', '=', '||'] LOOP
						EXECUTE format('CREATE OPERATOR trap.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = trap.op)', op, a, b);
					END LOOP;
					EXECUTE format($f$CREATE FUNCTION trap.date_bin(interval, %s, %s) RETURNS timestamptz LANGUAGE plpgsql AS
						$$ BEGIN INSERT INTO trap.sprung VALUES ('date_bin'); RETURN NULL; END $$ $f$, a, b);
					EXECUTE format($f$CREATE FUNCTION trap.date_part(%s, %s) RETURNS double precision LANGUAGE plpgsql AS
						$$ BEGIN INSERT INTO trap.sprung VALUES ('date_part'); RETURN NULL; END $$ $f$, a, b);
					EXECUTE format($f$CREATE FUNCTION trap.set_config(%s, %s, boolean) RETURNS text LANGUAGE plpgsql AS
						$$ BEGIN INSERT INTO trap.sprung VALUES ('set_config'); RETURN NULL; END $$ $f$, a, b);
				END LOOP;
			END LOOP;
		END $do$`
	exec(t, pool, overloads)
	for name, config := range configs() {
		t.Run(name, func(t *testing.T) {
			victim := testdb.Pool(t, pool.Config().ConnString(), set("search_path", "trap, public"))
			s := newStore(t, victim, config)
			add(t, s, hit("a"))
			add(t, s, ratelimit.Hit{Bucket: "sliding", Window: time.Hour, N: 1, Sliding: true})
			counts, err := s.Add(t.Context(), hits("a", "b"))
			if err != nil {
				t.Fatal(err)
			}
			s.GiveBack([]ratelimit.Charge{{Bucket: "a", Start: counts[0].Start, N: 1}})
			add(t, s, hit("a"))
			if _, err := s.Get(t.Context(), hits("a", "b")); err != nil {
				t.Error(err)
			}
			if err := s.Reset(t.Context(), []string{"a", "b"}); err != nil {
				t.Error(err)
			}
			if _, err := s.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	if n := value[int64](t, pool, "SELECT count(*) FROM trap.sprung"); n != 0 {
		t.Errorf("%d calls went to functions of another schema: %s", n, value[string](t, pool, "SELECT string_agg(DISTINCT what, ', ') FROM trap.sprung"))
	}
}
