package pgserver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// debianBinaries is where Debian and its descendants put the binaries, outside of PATH.
const debianBinaries = "/usr/lib/postgresql/*/bin"

// binaries returns the directory of initdb and postgres: that of EnvBin, or the first that holds both of the one that
// pg_config names, those in PATH, and those that match the pattern, the newest release first.
func binaries(ctx context.Context, pattern string) (string, error) {
	if dir := os.Getenv(EnvBin); dir != "" {
		if !isFile(filepath.Join(dir, "initdb")) || !isFile(filepath.Join(dir, "postgres")) {
			return "", fmt.Errorf("%s is %q, where initdb and postgres are not", EnvBin, dir)
		}
		return dir, nil
	}
	var dirs []string
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	if initdb, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(initdb); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	installed, err := filepath.Glob(pattern)
	if err != nil {
		return "", err
	}
	slices.SortFunc(installed, func(a, b string) int { return release(b) - release(a) })
	for _, dir := range append(dirs, installed...) {
		if isFile(filepath.Join(dir, "initdb")) && isFile(filepath.Join(dir, "postgres")) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no binaries: neither pg_config, PATH nor %s leads to initdb and postgres", pattern)
}

// release returns the number in a path such as /usr/lib/postgresql/17/bin, or 0.
func release(bin string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(bin)))
	return n
}

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}
