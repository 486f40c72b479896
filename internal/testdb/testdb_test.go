package testdb_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/migrations"
)

// envChild makes the test binary one that another test looks at from outside: "fail" has TestChild
// fail, and "check" a check of Main.
const envChild = "RATELIMIT_TEST_CHILD"

func TestMain(m *testing.M) {
	testdb.Main(m, func() error {
		if os.Getenv(envChild) == "check" {
			return errors.New("something was left over")
		}
		return nil
	})
}

// TestChild is what the processes run that other tests start.
func TestChild(t *testing.T) {
	t.Parallel()
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			pool := testdb.Pool(t, testdb.New(t))
			t.Logf("database %s", database(pool))
			if os.Getenv(envChild) == "fail" && i == 2 {
				t.Error("failed as it was told to")
			}
		})
	}
}

// child runs TestChild in another process, on the server of url if that is not empty.
func child(t *testing.T, url, what string, args ...string) (output string, failed bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append(args, "-test.v", "-test.run=^TestChild$")...)
	cmd.Env = append(os.Environ(), envChild+"="+what)
	if url != "" {
		cmd.Env = append(cmd.Env, "RATELIMIT_TEST_POSTGRES=url", "RATELIMIT_TEST_DATABASE_URL="+url)
	}
	out, err := cmd.CombinedOutput()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return string(out), err != nil
}

func database(pool *pgxpool.Pool) string { return pool.Config().ConnConfig.Database }

func TestNewIsMigratedAndEmptyIsNot(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		make func(testing.TB) string
		want bool
	}{{"New", testdb.New, true}, {"Empty", testdb.Empty, false}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pool := testdb.Pool(t, tt.make(t))
			var got bool
			err := pool.QueryRow(t.Context(), "SELECT to_regclass('public.rate_limits') IS NOT NULL").Scan(&got)
			if err != nil || got != tt.want {
				t.Errorf("has the table: %t, error %v, want %t", got, err, tt.want)
			}
			if !strings.Contains(database(pool), strings.ToLower("_TestNewIsMigrated")) {
				t.Errorf("the database is %s, want the test's name in it", database(pool))
			}
		})
	}
}

func TestDatabasesAreApart(t *testing.T) {
	t.Parallel()
	url := testdb.Empty(t)
	var mu sync.Mutex
	names := make(map[string]bool)
	t.Run("clones", func(t *testing.T) {
		for range 20 {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				pool := testdb.Pool(t, testdb.New(t))
				if _, err := pool.Exec(t.Context(), "INSERT INTO rate_limits VALUES ('one', now(), 1, now() + interval '1 s')"); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				names[database(pool)] = true
			})
		}
	})
	if len(names) != 20 {
		t.Errorf("20 tests had %d databases", len(names))
	}
	for name := range names {
		if exists(t, url, name) {
			t.Errorf("%s is still there", name)
		}
	}
}

// exists reports whether the server of the URL has a database.
func exists(t *testing.T, url, name string) (found bool) {
	t.Helper()
	err := testdb.Pool(t, url).QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&found)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

var databaseLine = regexp.MustCompile(`(?m)database (ratelimit_test_\S+)$`)

func TestFailedTestsKeepTheirDatabase(t *testing.T) {
	t.Parallel()
	url := testdb.Empty(t)
	output, failed := child(t, url, "fail")
	if !failed {
		t.Fatalf("the child has passed:\n%s", output)
	}
	var kept []string
	for _, match := range databaseLine.FindAllStringSubmatch(output, -1) {
		if exists(t, url, match[1]) {
			kept = append(kept, match[1])
		}
	}
	if len(kept) != 1 || !strings.HasSuffix(kept[0], "_testchild_2") {
		t.Fatalf("kept %q, want the database of TestChild/2 alone\n%s", kept, output)
	}
	if !strings.Contains(output, "/"+kept[0]) || !strings.Contains(output, "psql 'postgres://") {
		t.Errorf("the URL of %s is not logged:\n%s", kept[0], output)
	}
	drop(t, url, kept[0])
}

func drop(t *testing.T, url, name string) {
	t.Helper()
	if _, err := testdb.Pool(t, url).Exec(t.Context(), "DROP DATABASE "+pgx.Identifier{name}.Sanitize()); err != nil {
		t.Error(err)
	}
}

// Test binaries that share a server, as those of several packages do, leave nothing of theirs on it.
func TestProcessesShareAServer(t *testing.T) {
	t.Parallel()
	url := testdb.Empty(t)
	var wg sync.WaitGroup
	outputs := make([]string, 4)
	for i := range outputs {
		wg.Go(func() {
			output, failed := child(t, url, "pass")
			if failed {
				t.Errorf("the child has failed:\n%s", output)
			}
			outputs[i] = output
		})
	}
	wg.Wait()
	for _, output := range outputs {
		match := databaseLine.FindStringSubmatch(output)
		if match == nil {
			t.Fatalf("the child has no database:\n%s", output)
		}
		prefix := match[1][:len("ratelimit_test_")+10]
		rows, err := testdb.Pool(t, url).Query(t.Context(), "SELECT datname FROM pg_database WHERE starts_with(datname, $1)", prefix)
		if err != nil {
			t.Fatal(err)
		}
		left, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		if len(left) > 0 {
			t.Errorf("databases %q are left", left)
		}
	}
}

func TestFailedCheckFailsTheRun(t *testing.T) {
	t.Parallel()
	output, failed := child(t, testdb.Empty(t), "check")
	if !failed || !strings.Contains(output, "something was left over") {
		t.Errorf("failed: %t, want the run to fail with the check's error\n%s", failed, output)
	}
}

func TestShortSkips(t *testing.T) {
	t.Parallel()
	testdb.Empty(t) // this test is one of those that -short leaves out
	output, failed := child(t, "", "pass", "-test.short")
	if failed || strings.Count(output, "--- SKIP: TestChild/") != 4 ||
		!strings.Contains(output, "-short leaves out the tests that need Postgres") {
		t.Errorf("failed: %t, want four tests to be skipped\n%s", failed, output)
	}
}

// Postgres clones no database that somebody is connected to.
func TestNobodyConnectsToTheTemplate(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	config := pool.Config().ConnConfig.Copy()
	config.Database = config.Database[:len("ratelimit_test_")+10] + "_template"
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err == nil {
		conn.Close(context.Background())
	}
	if err == nil || !strings.Contains(err.Error(), "not currently accepting connections") {
		t.Errorf("connecting to the template: error %v, want Postgres to refuse", err)
	}
}

func TestServerIsTheTestsOwn(t *testing.T) {
	t.Parallel()
	server := testdb.Server(t)
	pool := testdb.Pool(t, server.URL())
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if err := server.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	pool.Reset()
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Error(err)
	}
}
