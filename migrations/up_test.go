package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/migrations"
)

var (
	_ migrations.DB = (*pgxpool.Pool)(nil)
	_ migrations.DB = (*pgx.Conn)(nil)
)

// lockKey repeats the unexported constant: processes of different releases must agree on it.
const lockKey int64 = -3776493926962328776

// patience is how long a test waits for what should happen at once.
const patience = 20 * time.Second

func TestUpMakesTheTable(t *testing.T) {
	t.Parallel()
	for _, schema := range []migrations.Schema{
		"", "public", "rl_app", "App", "app.rate_limits", `a "b" c`, "select", "größe", "PG_catalog",
		migrations.Schema(strings.Repeat("x", 63)),
	} {
		t.Run(string(schema), func(t *testing.T) {
			t.Parallel()
			pool := testdb.Pool(t, testdb.Empty(t))
			mustUp(t, schema, pool)

			name := string(schema)
			if name == "" {
				name = "public"
			}
			want := []string{
				"schema " + name,
				`column bucket text "C" not null`,
				"column window_start timestamp with time zone not null",
				"column count integer not null",
				"column expires_at timestamp with time zone not null",
				"constraint rate_limits_pkey PRIMARY KEY (bucket, window_start)",
				"constraint rate_limits_count_non_negative CHECK ((count >= 0))",
				"constraint rate_limits_expires_after_window CHECK ((expires_at > window_start))",
				"index rate_limits_expires_idx (expires_at)",
				"index rate_limits_pkey (bucket, window_start)",
			}
			if diff := cmp.Diff(want, describe(t, pool)); diff != "" {
				t.Errorf("tables (-want +got):\n%s", diff)
			}
		})
	}
}

// describe lists what is in the database's own schemas.
func describe(t *testing.T, db *pgxpool.Pool) []string {
	t.Helper()
	return query[string](t, db, `
		WITH tables AS (
			SELECT c.oid, n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')
		)
		SELECT line FROM (
			SELECT oid, 1, 0, 'schema ' || nspname FROM tables
			UNION ALL
			SELECT t.oid, 2, attnum, concat_ws(' ', 'column', attname, format_type(atttypid, atttypmod),
				(SELECT quote_ident(collname) FROM pg_collation WHERE oid = attcollation),
				CASE WHEN attnotnull THEN 'not null' END)
			FROM tables t JOIN pg_attribute a ON a.attrelid = t.oid WHERE attnum > 0
			UNION ALL
			SELECT t.oid, 3, row_number() OVER (ORDER BY contype DESC, conname),
				concat_ws(' ', 'constraint', conname, pg_get_constraintdef(c.oid))
			FROM tables t JOIN pg_constraint c ON c.conrelid = t.oid WHERE contype <> 'n'
			UNION ALL
			SELECT t.oid, 4, row_number() OVER (ORDER BY relname),
				concat_ws(' ', 'index', relname, substring(pg_get_indexdef(c.oid) FROM '[(].*'))
			FROM tables t JOIN pg_index i ON i.indrelid = t.oid JOIN pg_class c ON c.oid = i.indexrelid
		) AS lines (table_oid, part, place, line)
		ORDER BY table_oid, part, place`)
}

func TestUpDocumentsTheTable(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	undocumented := query[string](t, pool, `
		SELECT attname FROM pg_attribute
		WHERE attrelid = 'public.rate_limits'::regclass AND attnum > 0 AND col_description(attrelid, attnum) IS NULL`)
	if len(undocumented) > 0 {
		t.Errorf("columns without a comment: %q", undocumented)
	}
	comment := query[string](t, pool, `SELECT coalesce(obj_description('public.rate_limits'::regclass, 'pg_class'), '')`)[0]
	if want := fmt.Sprintf("(github.com/krow/ratelimit, migration %d)", migrations.Version); !strings.HasSuffix(comment, want) {
		t.Errorf("the table's comment is %q, want it to end with %q", comment, want)
	}
}

func TestUpMakesUpdatesHOT(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) // nothing of it is wanted
	exec := func(sql string) {
		t.Helper()
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	hot := func() (n int) {
		t.Helper()
		err := tx.QueryRow(t.Context(), "SELECT pg_stat_get_xact_tuples_hot_updated('rate_limits'::regclass)").Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	// More rows than a page holds: every page is filled as far as the table's parameters let it be.
	exec("INSERT INTO rate_limits SELECT repeat('x', 80) || n, now(), 1, now() + interval '1 minute' FROM generate_series(1, 200) n")
	exec("UPDATE rate_limits SET count = count + 1 WHERE bucket LIKE '%7'")
	if got, want := hot(), 20; got != want {
		t.Errorf("of %d updates of count, %d were HOT, want all", want, got)
	}
	// What the parameters cannot make HOT, which shows that the count above means something.
	before := hot()
	exec("UPDATE rate_limits SET expires_at = expires_at + interval '1 second' WHERE bucket LIKE '%7'")
	if got := hot() - before; got != 0 {
		t.Errorf("%d updates of expires_at were HOT, want none", got)
	}
}

func TestUpOnCurrentTableChangesNothing(t *testing.T) {
	t.Parallel()
	for _, schema := range []migrations.Schema{"public", "Other"} {
		t.Run(string(schema), func(t *testing.T) {
			t.Parallel()
			queries := new(counter)
			pool := testdb.Pool(t, testdb.Empty(t), func(c *pgxpool.Config) { c.ConnConfig.Tracer = queries })
			mustUp(t, schema, pool)
			before := catalog(t, pool)

			queries.reset()
			mustUp(t, schema, pool)
			if got := queries.count(); got != 1 {
				t.Errorf("the second run sent %d queries, want 1", got)
			}
			if diff := cmp.Diff(before, catalog(t, pool)); diff != "" {
				t.Errorf("catalog (-before +after):\n%s", diff)
			}
		})
	}
}

// catalog returns every row that Postgres keeps about what is not its own, with the transaction that
// wrote it.
func catalog(t *testing.T, db *pgxpool.Pool) []string {
	t.Helper()
	return query[string](t, db, `
		SELECT concat_ws(' ', 'namespace', n.xmin, n) AS line FROM pg_namespace n WHERE oid >= 16384
		UNION ALL SELECT concat_ws(' ', 'class', c.xmin, c) FROM pg_class c WHERE oid >= 16384
		UNION ALL SELECT concat_ws(' ', 'attribute', a.xmin, a) FROM pg_attribute a WHERE attrelid >= 16384
		UNION ALL SELECT concat_ws(' ', 'index', i.xmin, i) FROM pg_index i WHERE indexrelid >= 16384
		UNION ALL SELECT concat_ws(' ', 'constraint', c.xmin, c) FROM pg_constraint c WHERE oid >= 16384
		UNION ALL SELECT concat_ws(' ', 'description', d.xmin, d) FROM pg_description d WHERE objoid >= 16384
		UNION ALL SELECT concat_ws(' ', 'type', y.xmin, y) FROM pg_type y WHERE oid >= 16384
		ORDER BY line`)
}

func TestUpOnCurrentTableTakesNoLock(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) // it has only taken locks
	if _, err := tx.Exec(t.Context(), "LOCK TABLE rate_limits IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1)", lockKey); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := migrations.Up(ctx, pool); err != nil {
		t.Error(err)
	}
}

func TestUpWaitsForOtherMigrations(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.Empty(t))
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) // it has only taken a lock
	if _, err := tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1)", lockKey); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- migrations.Up(ctx, pool) }()
	awaitWaiter(t, tx)
	cancel()
	err = <-result
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Up = %v, want it to wait until its context is canceled", err)
	}
}

// awaitWaiter returns when a session of the database waits for an advisory lock.
func awaitWaiter(t *testing.T, tx pgx.Tx) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for waits := false; !waits; {
		err := tx.QueryRow(ctx, `
			SELECT EXISTS (
				SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
				WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted)`).Scan(&waits)
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestUpInEveryQueryMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool := testdb.Pool(t, testdb.Empty(t), func(c *pgxpool.Config) {
				c.ConnConfig.DefaultQueryExecMode = mode
			})
			mustUp(t, "rl_app", pool)
			mustUp(t, "rl_app", pool)
		})
	}
}

func TestUpOnOneConnection(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), testdb.Empty(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	mustUp(t, migrations.Public, conn)
	mustUp(t, migrations.Public, conn)
}

func TestUpRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		sql  string
		want error
		text string
	}{
		{
			"newer", "COMMENT ON TABLE rate_limits IS 'Made later. (github.com/krow/ratelimit, migration 999)'",
			migrations.ErrNewer,
			`migrations: schema "public": the table is newer than this program: ` +
				`public.rate_limits is at migration 999, this program knows up to 1`,
		},
		{"no comment", "COMMENT ON TABLE rate_limits IS NULL", migrations.ErrUnversioned, "public.rate_limits"},
		{
			"stamp not at the end", "COMMENT ON TABLE rate_limits IS '(github.com/krow/ratelimit, migration 1) of old'",
			migrations.ErrUnversioned, "public.rate_limits",
		},
		{
			"migration 0", "COMMENT ON TABLE rate_limits IS '(github.com/krow/ratelimit, migration 0)'",
			migrations.ErrUnversioned, "public.rate_limits",
		},
		{
			"somebody else's table", "DROP TABLE rate_limits; CREATE TABLE rate_limits (id bigint)",
			migrations.ErrUnversioned, "public.rate_limits",
		},
		{
			"a view", "DROP TABLE rate_limits; CREATE VIEW rate_limits AS SELECT 1",
			migrations.ErrUnversioned, "public.rate_limits",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pool := testdb.Pool(t, testdb.New(t))
			if _, err := pool.Exec(t.Context(), tt.sql); err != nil {
				t.Fatal(err)
			}
			before := catalog(t, pool)
			err := migrations.Up(t.Context(), pool)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("Up = %v, want an error that is %q and says %q", err, tt.want, tt.text)
			}
			if diff := cmp.Diff(before, catalog(t, pool)); diff != "" {
				t.Errorf("catalog (-before +after):\n%s", diff)
			}
		})
	}
}

// A role's settings are a service's to choose. Under repeatable read, what is read after the wait for
// the lock would be what was there before it.
func TestUpWhateverTheRoleSets(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			pool := testdb.Pool(t, testdb.Empty(t), func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams["default_transaction_isolation"] = isolation
				c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
				c.ConnConfig.RuntimeParams["search_path"] = ""
			})
			upAtOnce(t, 4, "rl_app", pool)
		})
	}
}

// A role that may not create schemas can still use one that is there.
func TestUpInSchemaOfSomebodyElse(t *testing.T) {
	t.Parallel()
	url := testdb.Empty(t)
	admin := testdb.Pool(t, url)
	role := pgx.Identifier{"role_of_" + admin.Config().ConnConfig.Database[:40]}.Sanitize()
	setUp := "CREATE ROLE " + role + "; CREATE SCHEMA given; GRANT USAGE, CREATE ON SCHEMA given TO " + role
	if _, err := admin.Exec(t.Context(), setUp); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := admin.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	pool := testdb.Pool(t, url, func(c *pgxpool.Config) {
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "SET ROLE "+role)
			return err
		}
	})
	mustUp(t, "given", pool)
	err := migrations.Schema("other").Up(t.Context(), pool)
	const want = `migrations: schema "other": create the schema: ERROR: permission denied for database`
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("Up = %v, want %s…", err, want)
	}
	pool.Close() // before the role is dropped
}

func mustUp(t *testing.T, schema migrations.Schema, db migrations.DB) {
	t.Helper()
	if err := schema.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
}

// upAtOnce calls Up from n goroutines on each of the pools.
func upAtOnce(t *testing.T, n int, schema migrations.Schema, pools ...*pgxpool.Pool) {
	t.Helper()
	var wg sync.WaitGroup
	gate := make(chan struct{})
	for _, pool := range pools {
		for range n {
			wg.Go(func() {
				<-gate
				if err := schema.Up(t.Context(), pool); err != nil {
					t.Error(err)
				}
			})
		}
	}
	close(gate)
	wg.Wait()
}

// query returns the values of a query of one column.
func query[T any](t *testing.T, db *pgxpool.Pool, sql string) []T {
	t.Helper()
	rows, err := db.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatal(err)
	}
	return values
}

// counter counts queries.
type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *counter) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n = 0
}

func (c *counter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

func TestUpRefusesNil(t *testing.T) {
	t.Parallel()
	for name, db := range map[string]migrations.DB{"nil": nil, "nil pool": (*pgxpool.Pool)(nil), "nil connection": (*pgx.Conn)(nil)} {
		if err := migrations.Up(t.Context(), db); err == nil || !strings.Contains(err.Error(), "db is nil") {
			t.Errorf("%s: error is %v, want one that says that db is nil", name, err)
		}
	}
}
