package ratelimit_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Who imports this package gets the standard library and nothing else: all that it depends on, directly
// or not, is this module's own and listed here.
func TestImportsStandardLibraryOnly(t *testing.T) {
	t.Parallel()
	const others = "{{if not .Standard}}{{.ImportPath}}{{end}}"
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", others, ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"github.com/krow/ratelimit/internal/logevery",
		"github.com/krow/ratelimit/internal/memory",
		"github.com/krow/ratelimit/internal/patience",
		"github.com/krow/ratelimit",
	}
	if diff := cmp.Diff(want, strings.Fields(string(out))); diff != "" {
		t.Errorf("dependencies beside the standard library (-want +got):\n%s", diff)
	}
}
