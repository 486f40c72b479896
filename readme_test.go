package ratelimit_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/krow/ratelimit/internal/testdb"
)

// snippet is the frame that makes a program of a code block that is only part of one: what its page says is there
// already, and what it imports.
const snippet = `package main

import (
	"errors"
	"log"
	"net/http"
	"os"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/debugpage"
	"github.com/krow/ratelimit/store"
)

var _ = []any{errors.Is, log.Print, http.Error, os.Getenv, strconv.Atoi, pgx.QueryExecModeExec, store.NewMemory, debugpage.New}

func main() {}

func _(pool *pgxpool.Pool, counters ratelimit.Store, secret []byte, config ratelimit.Config, page, metrics *debugpage.Page, err error) (any, error) {
	{
		%s
		return []any{%s}, err
	}
}
`

// pages returns the texts of the README and of all pages of docs, by their names.
func pages(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	texts := make(map[string]string)
	for _, name := range append(names, "README.md") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = string(text)
	}
	return texts
}

// blocks returns the code blocks of a page in a language.
func blocks(text, language string) (all []string) {
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// TestGoOfPages compiles every Go block of the README and of docs: programs as they are, and parts of programs in a
// frame.
func TestGoOfPages(t *testing.T) {
	t.Parallel()
	module, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^(\w+)(?:, err)? := `)
	overlay := make(map[string]string)
	var packages []string
	for page, text := range pages(t) {
		if page == "docs/migrating-from-a-map.md" || page == "docs/clients.md" {
			continue // their blocks are parts of examples/krow and clienttest, where tests compare them
		}
		for i, code := range blocks(text, "go") {
			if !strings.HasPrefix(code, "package ") {
				names := []string{"pool"}
				for _, m := range declared.FindAllStringSubmatch(code, -1) {
					names = append(names, m[1])
				}
				code = fmt.Sprintf(snippet, code, strings.Join(names, ", "))
			}
			file := filepath.Join(t.TempDir(), "main.go")
			if err := os.WriteFile(file, []byte(code), 0o600); err != nil {
				t.Fatal(err)
			}
			// The overlay puts the program into a folder of the module that is not there.
			name := fmt.Sprintf("%s-%d", strings.TrimSuffix(filepath.Base(page), ".md"), i)
			overlay[filepath.Join(module, "examples", name, "main.go")] = file
			packages = append(packages, "./examples/"+name)
		}
	}
	if len(packages) < 15 {
		t.Fatalf("found %d Go blocks, want at least 15", len(packages))
	}
	list, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	overlayFile := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(overlayFile, list, 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"build", "-o", os.DevNull, "-overlay", overlayFile}, packages...)
	if out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
		t.Errorf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestSQLOfPages runs every SQL block of the README and of docs, and takes back what it has done.
func TestSQLOfPages(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	n := 0
	for page, text := range pages(t) {
		for _, sql := range blocks(text, "sql") {
			n++
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				t.Errorf("%s: %v in\n%s", page, err, sql)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	if n < 5 {
		t.Errorf("found %d SQL blocks, want at least 5", n)
	}
}

// TestLinksOfPages looks for what the README and the pages of docs link to in the repository, headings included.
func TestLinksOfPages(t *testing.T) {
	t.Parallel()
	texts := pages(t)
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for page, text := range texts {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target, fragment, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
				continue
			}
			if fragment != "" && !hasHeading(t, file, fragment) {
				t.Errorf("%s links to %s, where there is no such heading", page, m[1])
			}
		}
	}
}

// hasHeading reports whether a page has a heading that is linked to by the fragment, as GitHub makes it.
func hasHeading(t *testing.T, file, fragment string) bool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(text), -1) {
		id := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(m[1]), "")
		if strings.ReplaceAll(id, " ", "-") == fragment {
			return true
		}
	}
	return false
}
