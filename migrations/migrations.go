// Package migrations holds the SQL that makes the table of the Postgres store.
//
// Those who have no migration tool call [Up], or [Schema.Up] for a schema other than public. The
// files suit the tools as well: goose and tern read [FS], or the view of it that [Schema.FS] gives,
// and golang-migrate reads that of [Schema.Split].
//
// The version of the table is recorded in its own comment, whichever way the files were run. So one
// may begin with a tool and go on with Up or the other way round, as long as the tool's own record
// is kept in step: a tool that does not know of a migration tries to run it again.
package migrations

import (
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// Version is the latest migration: the one that [Up] brings a table to.
const Version = 1

// FS holds the migrations, numbered SQL files for the schema public. Each is one file for both ways,
// up and down, as goose and tern read it.
//
//go:embed *.sql
var FS embed.FS

// The lines that divide a file. goose takes tern's for a comment, and tern goose's.
const (
	gooseUp   = "-- +goose Up\n"
	gooseDown = "-- +goose Down\n"
	ternDown  = "---- create above / drop below ----\n"
)

// migration is one file, its lines for tools cut off.
type migration struct {
	version  int
	name     string // without .sql
	up, down string
}

// all returns the migrations in order, for the schema public.
func all() []migration {
	entries, err := FS.ReadDir(".") // sorted by name
	if err != nil {
		panic(err) // the files are part of the program
	}
	var ms []migration
	for _, entry := range entries {
		text, err := FS.ReadFile(entry.Name())
		if err != nil {
			panic(err)
		}
		m, err := parse(entry.Name(), string(text))
		if err != nil {
			panic(err)
		}
		ms = append(ms, m)
	}
	return ms
}

func parse(file, text string) (migration, error) {
	name := strings.TrimSuffix(file, ".sql")
	number, _, _ := strings.Cut(name, "_")
	version, err := strconv.Atoi(number)
	if err != nil {
		return migration{}, fmt.Errorf("migrations: %s does not begin with a number", file)
	}
	up, down, ok := strings.Cut(text, gooseDown+ternDown)
	if !ok || !strings.HasPrefix(up, gooseUp) {
		return migration{}, fmt.Errorf("migrations: %s is not divided as goose and tern want it", file)
	}
	return migration{version, name, strings.TrimPrefix(up, gooseUp), down}, nil
}

// in returns the migration for another schema.
func (m migration) in(s Schema) migration {
	to := s.table()
	m.up = strings.ReplaceAll(m.up, "public.rate_limits", to)
	m.down = strings.ReplaceAll(m.down, "public.rate_limits", to)
	return m
}

// FS returns a view of [FS] whose SQL makes the table in the schema, for goose and tern. Unless the
// schema is public, the first file makes the schema too if it is missing, which takes the right
// to create schemas. The way down leaves the schema. FS fails if the name is not one that [Schema]
// allows.
func (s Schema) FS() (fs.FS, error) {
	ms, err := s.migrations()
	if err != nil {
		return nil, err
	}
	files := make(files)
	for _, m := range ms {
		files[m.name+".sql"] = gooseUp + m.up + gooseDown + ternDown + m.down
	}
	return files, nil
}

// Split is [Schema.FS] with two files for each migration, named .up.sql and .down.sql, as
// golang-migrate reads them.
func (s Schema) Split() (fs.FS, error) {
	ms, err := s.migrations()
	if err != nil {
		return nil, err
	}
	files := make(files)
	for _, m := range ms {
		files[m.name+".up.sql"] = m.up
		files[m.name+".down.sql"] = m.down
	}
	return files, nil
}

// migrations returns all migrations for the schema, which the first of them makes.
func (s Schema) migrations() ([]migration, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	ms := all()
	for i := range ms {
		ms[i] = ms[i].in(s)
	}
	if s.name() != Public {
		ms[0].up = "CREATE SCHEMA IF NOT EXISTS " + s.quoted() + ";\n\n" + ms[0].up
	}
	return ms, nil
}
