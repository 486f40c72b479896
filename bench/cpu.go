package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// cpuTime is how long this process has used cores.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // only an address or a name that is wrong is an error: getrusage(2)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// backends is how long each process of Postgres that works for a database has used cores, by its directory in /proc. That
// is more exact than the clock ticks of rusage, and also finds those in a container.
type backends map[string]time.Duration

// backendsOf finds the processes by the titles that Postgres gives them: "postgres: user database client(port) state" for
// one that serves it, and "postgres: walwriter" for the one that writes the log of them all. Those of another server that
// works beside it for a database of the same name would count too.
func backendsOf(database string) (backends, error) {
	found := make(backends)
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		title, err := os.ReadFile(file)
		if hasEnded(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		words := strings.Fields(string(title))
		if len(words) < 2 || words[0] != "postgres:" {
			continue
		}
		if words[1] != "walwriter" && (len(words) < 3 || words[2] != database) {
			continue
		}
		stat, err := os.ReadFile(strings.TrimSuffix(file, "cmdline") + "schedstat")
		if hasEnded(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var ns int64
		if _, err := fmt.Sscan(string(stat), &ns); err != nil {
			return nil, fmt.Errorf("bench: schedstat of %s: %w", title, err)
		}
		found[file] = time.Duration(ns)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("bench: no process in /proc works for database %s, want a Postgres on this machine and Linux", database)
	}
	return found, nil
}

// hasEnded reports whether the error is that of a process in /proc that has ended.
func hasEnded(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// since is how long the processes have used cores since earlier. What has ended is left out.
func (b backends) since(earlier backends) time.Duration {
	var sum time.Duration
	for file, now := range b {
		sum += now - earlier[file]
	}
	return sum
}
