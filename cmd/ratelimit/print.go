package main

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"text/tabwriter"
	"time"

	"github.com/krow/ratelimit/migrations"
)

// print prints a value as JSON, or the text.
func (p *program) print(value any, text string) error {
	if p.json {
		return json.NewEncoder(p.stdout).Encode(value)
	}
	_, err := io.WriteString(p.stdout, text)
	return err
}

// printTable prints rows as JSON, an object on each line, or as a table under a head.
func printTable[R any](p *program, rows []R, head string, line func(R) string) error {
	if p.json {
		encoder := json.NewEncoder(p.stdout)
		for _, r := range rows {
			if err := encoder.Encode(r); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, head)
	for _, r := range rows {
		fmt.Fprintln(w, line(r))
	}
	return w.Flush()
}

// printSQL prints what makes the table, and not what drops it.
func (p *program) printSQL(schema migrations.Schema) error {
	files, err := schema.Split()
	if err != nil {
		return usageError{fmt.Errorf("-schema: %w", err)}
	}
	names, err := fs.Glob(files, "*.up.sql")
	if err != nil {
		return err
	}
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		if _, err := p.stdout.Write(text); err != nil {
			return err
		}
	}
	return nil
}

// seconds is a time as a person wants it.
func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}
