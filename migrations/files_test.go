package migrations_test

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/migrations"
)

// A number is given once, in order, and each file stamps the table with its own.
func TestFilesAreNumbered(t *testing.T) {
	t.Parallel()
	texts := read(t, migrations.FS)
	if len(texts) != migrations.Version {
		t.Errorf("there are %d files, and Version is %d", len(texts), migrations.Version)
	}
	for n := 1; n <= migrations.Version; n++ {
		names, err := fs.Glob(migrations.FS, fmt.Sprintf("%03d_*.sql", n))
		if err != nil || len(names) != 1 {
			t.Fatalf("migration %d: files %q, error %v, want one file", n, names, err)
		}
		up, _, _ := strings.Cut(texts[names[0]], "-- +goose Down")
		if !strings.Contains(up, fmt.Sprintf("(github.com/krow/ratelimit, migration %d)';\n", n)) {
			t.Errorf("%s does not stamp the table", names[0])
		}
	}
}

func TestViewOfPublicIsTheFilesThemselves(t *testing.T) {
	t.Parallel()
	for _, schema := range []migrations.Schema{"", migrations.Public} {
		view, err := schema.FS()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(read(t, migrations.FS), read(t, view)); diff != "" {
			t.Errorf("files of schema %q (-want +got):\n%s", schema, diff)
		}
	}
}

func TestViewOfAnotherSchema(t *testing.T) {
	t.Parallel()
	view, err := migrations.Schema(`App "1"`).FS()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range read(t, view) {
		if strings.Contains(text, "public.") {
			t.Errorf("%s names the schema public:\n%s", name, text)
		}
	}
	text := read(t, view)["001_create_rate_limits.sql"]
	for _, want := range []string{
		"-- +goose Up\nCREATE SCHEMA IF NOT EXISTS \"App \"\"1\"\"\";\n",
		"CREATE TABLE \"App \"\"1\"\"\".rate_limits (",
		"---- create above / drop below ----\nDROP TABLE \"App \"\"1\"\"\".rate_limits;\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the first file lacks %q:\n%s", want, text)
		}
	}
}

func TestViewsAreFileSystems(t *testing.T) {
	t.Parallel()
	files, err := migrations.Schema("rl_app").FS()
	if err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(files, "001_create_rate_limits.sql"); err != nil {
		t.Error(err)
	}
	split, err := migrations.Schema("rl_app").Split()
	if err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(split, "001_create_rate_limits.up.sql", "001_create_rate_limits.down.sql"); err != nil {
		t.Error(err)
	}
}

// The tools' own runs are tested in the module tooltest, which has them for dependencies.
func TestSplitFilesRun(t *testing.T) {
	t.Parallel()
	for _, schema := range []migrations.Schema{"public", "rl_app"} {
		t.Run(string(schema), func(t *testing.T) {
			t.Parallel()
			split, err := schema.Split()
			if err != nil {
				t.Fatal(err)
			}
			pool := testdb.Pool(t, testdb.Empty(t))
			texts := read(t, split)
			for range 2 {
				if _, err := pool.Exec(t.Context(), texts["001_create_rate_limits.up.sql"]); err != nil {
					t.Fatal(err)
				}
				before := catalog(t, pool)
				mustUp(t, schema, pool)
				if diff := cmp.Diff(before, catalog(t, pool)); diff != "" {
					t.Errorf("Up changed the table that the file made (-before +after):\n%s", diff)
				}
				if _, err := pool.Exec(t.Context(), texts["001_create_rate_limits.down.sql"]); err != nil {
					t.Fatal(err)
				}
				if left := describe(t, pool); len(left) > 0 {
					t.Errorf("the way down left %q", left)
				}
			}
		})
	}
}

// read returns the text of each file.
func read(t *testing.T, fsys fs.FS) map[string]string {
	t.Helper()
	names, err := fs.Glob(fsys, "*")
	if err != nil {
		t.Fatal(err)
	}
	texts := make(map[string]string)
	for _, name := range names {
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = string(text)
	}
	return texts
}
