package krow_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const page = "../../docs/migrating-from-a-map.md"

// The servers differ in ratelimit.go, and in the lines of main.go that the page shows.
func TestOnlyLimitsDiffer(t *testing.T) {
	t.Parallel()
	diffs := blocks(t, "diff")
	if len(diffs) != 2 {
		t.Fatalf("%s has %d diffs, want one of during and one of after", page, len(diffs))
	}
	want := files(t, "before")
	for i, server := range []string{"during", "after"} {
		got := files(t, server)
		for _, name := range names(want, got) {
			switch name {
			case "httpserver/ratelimit.go":
			case "main.go":
				if diff := cmp.Diff(diffs[i], changed(want[name], got[name])); diff != "" {
					t.Errorf("main.go of before and of %s (-shown +real):\n%s", server, diff)
				}
			default:
				if diff := cmp.Diff(want[name], got[name]); diff != "" {
					t.Errorf("%s (-before +%s):\n%s", name, server, diff)
				}
			}
		}
	}
}

// What the page shows of the servers is in them, word for word, and so is compiled.
func TestPageShowsTheServers(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for _, server := range []string{"before", "during", "after"} {
		for _, text := range files(t, server) {
			all.WriteString(text)
		}
	}
	shown := blocks(t, "go")
	if len(shown) < 4 {
		t.Fatalf("%s has %d blocks of Go, want at least 4", page, len(shown))
	}
	for _, block := range shown {
		if !strings.Contains(all.String(), "\n"+block) {
			t.Errorf("this is in no file of examples/krow:\n%s", block)
		}
	}
}

// files returns the texts of the files of a server, by their paths in it.
func files(t *testing.T, server string) map[string]string {
	t.Helper()
	texts := make(map[string]string)
	err := filepath.WalkDir(server, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(server, path)
		texts[filepath.ToSlash(name)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

func names(a, b map[string]string) []string {
	all := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(all)
	return slices.Compact(all)
}

// changed returns the lines that make b of a, from the first that differs to the last, in the manner of diff.
// Imports of this module are left out: those of the servers have to differ.
func changed(a, b string) string {
	imports := regexp.MustCompile(`(?m)^\t"github\.com/krow/ratelimit.*\n`)
	before := strings.SplitAfter(imports.ReplaceAllString(a, ""), "\n")
	after := strings.SplitAfter(imports.ReplaceAllString(b, ""), "\n")
	for len(before) > 0 && len(after) > 0 && before[0] == after[0] {
		before, after = before[1:], after[1:]
	}
	for len(before) > 0 && len(after) > 0 && before[len(before)-1] == after[len(after)-1] {
		before, after = before[:len(before)-1], after[:len(after)-1]
	}
	var diff strings.Builder
	for _, line := range before {
		diff.WriteString("-" + line)
	}
	for _, line := range after {
		diff.WriteString("+" + line)
	}
	return diff.String()
}

// blocks returns the code blocks of the page in a language.
func blocks(t *testing.T, language string) []string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllSubmatch(text, -1) {
		found = append(found, string(m[1]))
	}
	return found
}
