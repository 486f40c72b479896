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
)

// snippet is the frame that makes a program of a code block that is only part of one: what the README
// says is there already.
const snippet = `package main

import (
	"github.com/krow/ratelimit"
)

func main() {}

func _(counters ratelimit.Store, secret []byte) (any, error) {
	var err error
	%s
	return []any{%s}, err
}
`

// TestReadmeCompiles compiles every Go block of the README: programs as they are, and parts of
// programs in a frame.
func TestReadmeCompiles(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllSubmatch(text, -1)
	if len(blocks) < 5 {
		t.Fatalf("found %d Go blocks in README.md, want at least 5", len(blocks))
	}
	module, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^(\w+)(?:, err)? := `)
	overlay := make(map[string]string)
	var packages []string
	for i, block := range blocks {
		code := string(block[1])
		if !strings.HasPrefix(code, "package ") {
			var names []string
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
		name := fmt.Sprintf("readme%d", i)
		overlay[filepath.Join(module, "examples", name, "main.go")] = file
		packages = append(packages, "./examples/"+name)
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
