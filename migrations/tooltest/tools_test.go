package tooltest_test

import (
	"context"
	"database/sql"
	"io/fs"
	"testing"

	"github.com/golang-migrate/migrate/v4"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	tern "github.com/jackc/tern/v2/migrate"
	"github.com/pressly/goose/v3"

	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/migrations"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// A tool can run all migrations up or down.
type tool interface {
	up(t *testing.T)
	down(t *testing.T)
}

func TestTools(t *testing.T) {
	t.Parallel()
	asTheyAre := func(migrations.Schema) (fs.FS, error) { return migrations.FS, nil }
	public := []migrations.Schema{migrations.Public}
	schemas := []migrations.Schema{migrations.Public, "rl_app", `Our "Limits".v1`}
	tools := []struct {
		name    string
		open    func(t *testing.T, url string, files fs.FS) tool
		view    func(migrations.Schema) (fs.FS, error)
		schemas []migrations.Schema
	}{
		{"goose on FS", openGoose, asTheyAre, public},
		{"tern on FS", openTern, asTheyAre, public},
		{"goose", openGoose, migrations.Schema.FS, schemas},
		{"tern", openTern, migrations.Schema.FS, schemas},
		{"golang-migrate", openMigrate, migrations.Schema.Split, schemas},
	}
	for _, tt := range tools {
		for _, schema := range tt.schemas {
			t.Run(tt.name+"/"+string(schema), func(t *testing.T) {
				t.Parallel()
				view, err := tt.view(schema)
				if err != nil {
					t.Fatal(err)
				}
				url := testdb.Empty(t)
				tool := tt.open(t, url, view)
				for range 2 {
					tool.up(t)
					checkCurrent(t, url, schema)
					tool.down(t)
					if got := schemasWithTable(t, url); len(got) > 0 {
						t.Errorf("the way down left a table in %q", got)
					}
				}
			})
		}
	}
}

// checkCurrent checks that the table is where it should be and that Up has nothing to do to it.
func checkCurrent(t *testing.T, url string, schema migrations.Schema) {
	t.Helper()
	if diff := cmp.Diff([]string{string(schema)}, schemasWithTable(t, url)); diff != "" {
		t.Errorf("schemas with the table (-want +got):\n%s", diff)
	}
	queries := new(counter)
	pool := testdb.Pool(t, url, func(c *pgxpool.Config) { c.ConnConfig.Tracer = queries })
	if err := schema.Up(t.Context(), pool); err != nil {
		t.Error(err)
	}
	if queries.n != 1 {
		t.Errorf("Up sent %d queries, want the 1 that finds the table current", queries.n)
	}
}

func schemasWithTable(t *testing.T, url string) []string {
	t.Helper()
	rows, err := testdb.Pool(t, url).Query(t.Context(), "SELECT schemaname FROM pg_tables WHERE tablename = 'rate_limits'")
	if err != nil {
		t.Fatal(err)
	}
	schemas, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return schemas
}

// counter counts the queries of one goroutine.
type counter struct{ n int }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n++
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func openSQL(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

type gooseTool struct{ *goose.Provider }

func openGoose(t *testing.T, url string, files fs.FS) tool {
	provider, err := goose.NewProvider(goose.DialectPostgres, openSQL(t, url), files)
	if err != nil {
		t.Fatal(err)
	}
	return gooseTool{provider}
}

func (g gooseTool) up(t *testing.T) {
	t.Helper()
	results, err := g.Up(t.Context())
	if err != nil || len(results) != migrations.Version {
		t.Fatalf("goose has run %v, error %v, want %d migrations", results, err, migrations.Version)
	}
}

func (g gooseTool) down(t *testing.T) {
	t.Helper()
	if _, err := g.DownTo(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
}

type ternTool struct{ *tern.Migrator }

func openTern(t *testing.T, url string, files fs.FS) tool {
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	migrator, err := tern.NewMigrator(t.Context(), conn, "schema_version")
	if err != nil {
		t.Fatal(err)
	}
	if err := migrator.LoadMigrations(files); err != nil {
		t.Fatal(err)
	}
	return ternTool{migrator}
}

func (m ternTool) up(t *testing.T) {
	t.Helper()
	if err := m.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (m ternTool) down(t *testing.T) {
	t.Helper()
	if err := m.MigrateTo(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
}

type migrateTool struct{ *migrate.Migrate }

func openMigrate(t *testing.T, url string, files fs.FS) tool {
	source, err := iofs.New(files, ".")
	if err != nil {
		t.Fatal(err)
	}
	driver, err := migratepgx.WithInstance(openSQL(t, url), &migratepgx.Config{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := migrate.NewWithInstance("iofs", source, "pgx5", driver)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if sourceErr, databaseErr := m.Close(); sourceErr != nil || databaseErr != nil {
			t.Error(sourceErr, databaseErr)
		}
	})
	return migrateTool{m}
}

func (m migrateTool) up(t *testing.T) {
	t.Helper()
	if err := m.Up(); err != nil {
		t.Fatal(err)
	}
}

func (m migrateTool) down(t *testing.T) {
	t.Helper()
	if err := m.Down(); err != nil {
		t.Fatal(err)
	}
}
