package migrations_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/migrations"
)

// envProcess, set to the URL of a database, makes the test binary a process that does nothing but
// call Up as soon as its standard input ends.
const envProcess = "RATELIMIT_TEST_MIGRATE"

func TestMain(m *testing.M) {
	if url := os.Getenv(envProcess); url != "" {
		if err := migrate(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testdb.Main(m)
}

// migrate connects, waits for the signal, and makes the table in two schemas.
func migrate(url string) error {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := pool.Ping(ctx); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	for _, schema := range []migrations.Schema{migrations.Public, "rl_app"} {
		if err := schema.Up(ctx, pool); err != nil {
			return err
		}
	}
	return nil
}

// Processes that start together all find or make the same table (row 53).
func TestUpFromManyProcesses(t *testing.T) {
	t.Parallel()
	const rounds, processes = 2, 20
	url := testdb.Empty(t)
	pool := testdb.Pool(t, url)
	for range rounds {
		stdin, signal, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmds := make([]*exec.Cmd, processes)
		output := make([]strings.Builder, processes)
		for i := range cmds {
			cmds[i] = exec.CommandContext(t.Context(), os.Args[0])
			cmds[i].Env = append(os.Environ(), envProcess+"="+url)
			cmds[i].Stdin, cmds[i].Stdout, cmds[i].Stderr = stdin, &output[i], &output[i]
			if err := cmds[i].Start(); err != nil {
				t.Fatal(err)
			}
		}
		awaitSessions(t, pool, processes)
		if err := signal.Close(); err != nil {
			t.Fatal(err)
		}
		for i, cmd := range cmds {
			if err := cmd.Wait(); err != nil {
				t.Errorf("process %d: %v\n%s", i, err, output[i].String())
			}
		}
		stdin.Close()
		checkAndDrop(t, pool, "public", "rl_app")
	}
}

// awaitSessions returns when n sessions other than the asking one are connected to the database.
func awaitSessions(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for got := 0; got < n; {
		err := pool.QueryRow(ctx, `
			SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'`).Scan(&got)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// So do goroutines on pools of their own, for schemas that are not there yet (row 53).
func TestUpFromManyGoroutines(t *testing.T) {
	t.Parallel()
	const rounds, pools, goroutines = 20, 5, 10
	url := testdb.Empty(t)
	var all []*pgxpool.Pool
	for range pools {
		all = append(all, testdb.Pool(t, url))
	}
	for range rounds {
		upAtOnce(t, goroutines, "public", all...)
		upAtOnce(t, goroutines, "rl_app", all...)
		checkAndDrop(t, all[0], "public", "rl_app")
	}
}

// checkAndDrop checks that there is one table in each of the schemas and nothing else, and removes
// the tables and all schemas but public.
func checkAndDrop(t *testing.T, pool *pgxpool.Pool, schemas ...string) {
	t.Helper()
	got := query[string](t, pool, `
		SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1`)
	if diff := cmp.Diff(schemas, got); diff != "" {
		t.Fatalf("schemas with a table (-want +got):\n%s", diff)
	}
	if _, err := pool.Exec(t.Context(), "DROP TABLE public.rate_limits; DROP SCHEMA rl_app CASCADE"); err != nil {
		t.Fatal(err)
	}
}
