// Command bench compares this limiter with its peers, on the same workloads and servers and in turn.
//
//	go run .            # a table of medians
//	go run . -quick     # the same within 50 seconds, less steady
//	go run . -json      # an object a line, and the ratios
//	go run . -curves charts    # how cost grows, as charts and the figures they are drawn from
//	go run . -capacity         # what decisions cost Postgres
//	go run . -simulate         # many instances, simulated
//
// It starts a Postgres and a redis-server on this machine unless it is told of others.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"
)

func main() {
	quick := flag.Bool("quick", false, "finish within 50 seconds")
	asJSON := flag.Bool("json", false, "print one JSON object a line")
	rounds := flag.Int("rounds", 9, "how often each system is measured; medians are printed")
	slice := flag.Duration("slice", time.Second, "how long each time")
	callers := flag.Int("callers", 64, "how many callers ask at once, but for single")
	keys := flag.Int("keys", 10_000, "how many keys the spread workload has")
	only := flag.String("only", "", "names of the workloads or curves to run, separated by commas; all by default")
	postgres := flag.String("postgres", "", "URL of a Postgres to use, in schemas that are made and dropped; starts one by default")
	redis := flag.String("redis", "", "URL of a Redis to use, whose keys are left to expire; starts one by default")
	curves := flag.String("curves", "", "measure how cost grows, and write charts and figures to this directory")
	model := flag.Bool("simulate", false, "check a simulation of many instances against this machine, and predict what is beyond it")
	cost := flag.Bool("capacity", false, "print what decisions cost Postgres: statements, connections, write-ahead log, room")
	flag.Parse()
	if instance() {
		return
	}
	if *quick {
		*rounds, *slice = 3, 150*time.Millisecond
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	switch {
	case *curves != "":
		err = grow(ctx, *postgres, *redis, *only, *curves)
	case *model:
		err = simulate(ctx, *postgres, *redis, *asJSON, 2**slice)
	case *cost:
		err = capacity(ctx, *postgres, *redis, *callers, 10**slice)
	default:
		err = compare(ctx, *postgres, *redis, *only, workloads(*callers, *keys), *rounds, *slice, *asJSON)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func compare(ctx context.Context, postgres, redis, only string, loads []workload, rounds int, slice time.Duration, asJSON bool) error {
	loads, err := choose(loads, func(w workload) string { return w.name }, only)
	if err != nil {
		return err
	}
	env, stop, err := start(ctx, postgres, redis)
	if err != nil {
		return err
	}
	defer stop()
	var all []*run
	for i := range loads {
		fmt.Fprintf(os.Stderr, "%s (%s), %d of %d\n", loads[i].name, loads[i].level, i+1, len(loads))
		runs, err := loads[i].measure(ctx, env, rounds, slice)
		if err != nil {
			return fmt.Errorf("%s: %w", loads[i].name, err)
		}
		all = append(all, runs...)
	}
	if asJSON {
		return writeJSON(os.Stdout, all)
	}
	return writeTable(os.Stdout, all)
}

// choose returns those of all that have one of the names, which are separated by commas, or all if there are none.
func choose[T any](all []T, nameOf func(T) string, names string) ([]T, error) {
	if names == "" {
		return all, nil
	}
	var chosen []T
	for name := range strings.SplitSeq(names, ",") {
		before := len(chosen)
		for _, one := range all {
			if nameOf(one) == name {
				chosen = append(chosen, one)
			}
		}
		if len(chosen) == before {
			return nil, fmt.Errorf("there is nothing to run that is called %q", name)
		}
	}
	return chosen, nil
}
