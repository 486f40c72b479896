package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// cpuTime is how long this process has used cores.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// backends is how long each process of Postgres that works for a database has used cores, by its directory in /proc. That
// is more exact than the clock ticks of rusage, and also finds those in a container.
type backends map[string]time.Duration

// backendsOf finds the processes by the titles that Postgres gives them: "postgres: user database client(port) state" for
// one that serves it, and "postgres: walwriter" for the one that writes the log of them all.
func backendsOf(database string) (backends, error) {
	found := make(backends)
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		title, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return nil, err
		}
		words := strings.Fields(string(title))
		if len(words) == 0 || words[0] != "postgres:" {
			continue
		}
		if words = words[1:]; !slices.Contains(words, database) && !slices.Contains(words, "walwriter") {
			continue
		}
		var ns int64
		stat, err := os.ReadFile(strings.TrimSuffix(file, "cmdline") + "schedstat")
		if err != nil {
			continue
		}
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

// since is how long the processes have used cores since earlier. What has ended is left out.
func (b backends) since(earlier backends) time.Duration {
	var sum time.Duration
	for file, now := range b {
		sum += now - earlier[file]
	}
	return sum
}
