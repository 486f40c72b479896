package clienttest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestNode runs the clients of testdata/node.
func TestNode(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is missing: install Debian's packages nodejs and npm, or Node 18 or later", program)
		}
	}
	dir := install(t)
	node := func(name string) client {
		return func(t *testing.T, url string) []string {
			return lines(output(t, "node", filepath.Join(dir, "clients.mjs"), name, url))
		}
	}
	run(t, []journey{
		{"ky GET", short, node("ky GET"), waited, both, false},
		{"ky POST", long, node("ky POST"), gaveUp, refused, false},
		{"ky POST configured", short, node("ky POST configured"), waited, both, false},
		// The timeout is one for each request, without the wait.
		{"ky timeout", short, node("ky timeout"), waited, both, false},
		// A longer wait is cut to this, and not given up.
		{"ky maxRetryAfter", long, node("ky maxRetryAfter"), hammered, refused, true},
		{"ky shouldRetry", long, node("ky shouldRetry"), gaveUp, refused, false},

		{"got GET", short, node("got GET"), waited, both, false},
		{"got POST", long, node("got POST"), gaveUp, refused, false},
		{"got POST configured", short, node("got POST configured"), waited, both, false},
		{"got timeout", long, node("got timeout"), gaveUp, refused, false},
		{"got maxRetryAfter", long, node("got maxRetryAfter"), gaveUp, refused, false},
		// A timer of Node's that is set for longer than 24.8 days ends at once.
		{"got long wait", long, node("got GET"), hammered, refused, true},

		{"axios-retry GET", short, node("axios-retry GET"), waited, both, false},
		{"axios-retry POST", long, node("axios-retry POST"), gaveUp, refused, false},
		{"axios-retry POST configured", short, node("axios-retry POST configured"), waited, both, false},
		{"axios-retry exponentialDelay", short, node("axios-retry exponentialDelay"), waited, both, false},
		// The time that axios has for a request is also for the wait, unless it is reset.
		{"axios-retry timeout", short, node("axios-retry timeout"), gaveUp, refused, false},
		{"axios-retry shouldResetTimeout", short, node("axios-retry shouldResetTimeout"), waited, both, false},
		// As with got, and it retries three times.
		{"axios-retry long wait", long, node("axios-retry GET"), append(hammered, 429), refused, true},
	})
}

// install puts the script and what it needs into a directory, which is removed when the test ends.
func install(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/node")); err != nil {
		t.Fatal(err)
	}
	npm := exec.CommandContext(t.Context(), "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	npm.Dir = dir
	out, err := npm.CombinedOutput()
	if err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	return dir
}
