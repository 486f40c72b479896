// Soak has three instances of a limited service work for a while, on a Postgres of its own that is
// paused, killed, cut off, locked and made read-only now and then, and checks all the time what the
// limiter promises:
//
//   - Nobody is admitted above a limit. Every admission is charged to the window, by the database's
//     clock, that its count came from. Policies that are FailClosed, on a store with SynchronousCommit, are
//     held to that in every window, whatever happens. The others count without waiting for the disk:
//     each crash within a window may cost as much as has been counted in it, and so admit the limit
//     once more. What they let through without a count is told apart, and is not judged.
//   - Nobody is refused below a limit: a window of a policy that stands alone has admitted its limit in
//     full if it refused anybody, unless the store failed in it.
//   - Counting resumes after each fault, in every store, within five seconds.
//   - Heap, goroutines, connections, rows and the size of the table stay level, and expired rows go.
//
// It prints a line every few seconds and a summary, and exits with status 1 if a promise was broken.
// Ctrl-C ends it early, with the summary.
//
//	go run ./internal/soak -duration 30m
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"
)

type options struct {
	duration time.Duration
	rate     int
	seed     uint64
	url      string
}

func main() {
	log.SetFlags(0)
	var o options
	flag.DurationVar(&o.duration, "duration", time.Minute, "how long to keep the load up, at least 30s")
	flag.IntVar(&o.rate, "rate", 2000, "requests a second, of all instances together")
	flag.Uint64Var(&o.seed, "seed", rand.Uint64(), "decides which faults come and when")
	flag.StringVar(&o.url, "database-url", "", "`URL` of a database to use in place of an own server, in a schema that is made and dropped; there are no faults then")
	flag.Parse()
	if flag.NArg() > 0 || o.duration < 30*time.Second || o.rate < callers {
		log.Fatalf("soak: want no arguments, a duration of 30s or more, and a rate of %d or more", callers)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	broken, err := run(ctx, o, os.Stdout)
	if err != nil {
		log.Fatal("soak: ", err)
	}
	if broken > 0 {
		os.Exit(1)
	}
}

// A soak is one run.
type soak struct {
	out       *log.Logger
	began     time.Time
	db        *database
	instances []*instance
	ledger    *ledger
	faults    *faults
	tally     tally
	samples   []sample
}

// run returns how many promises were found broken. An error means that it could not look.
func run(ctx context.Context, o options, out io.Writer) (broken int, err error) {
	goroutines := runtime.NumGoroutine()
	db, err := openDatabase(ctx, o.url)
	if err != nil {
		return 0, err
	}
	s := &soak{out: log.New(out, "", 0), db: db, ledger: newLedger(), began: time.Now()}
	s.faults = newFaults(s, o.seed)
	if err := s.open(); err != nil {
		s.close()
		return 0, joinClose(err, db)
	}
	s.out.Printf("%v, %d requests a second, seed %d, on %s", o.duration, o.rate, o.seed, db)

	loaded, cancel := context.WithTimeout(ctx, o.duration)
	defer cancel()
	var beside sync.WaitGroup
	var failed error
	if db.server != nil {
		beside.Go(func() {
			if failed = s.faults.run(loaded, s.began.Add(o.duration)); failed != nil {
				cancel()
			}
		})
	}
	beside.Go(func() { s.watch(loaded, o.duration) })
	s.load(loaded, o.rate)
	beside.Wait()
	lasted := time.Since(s.began)

	s.ledger.settle(time.Now().Add(time.Hour), s.faults) // all windows, whether they have ended or not
	s.judge(lasted)
	s.ledger.check(s.close(), "a pool could not be closed: not all connections were given back")
	s.ledger.check(s.db.idle(), "connections are left after all pools were closed")
	if err := joinClose(failed, db); err != nil {
		return 0, err
	}
	s.ledger.check(within(10*time.Second, func() bool { return runtime.NumGoroutine() <= goroutines }),
		"goroutines are left after everything was closed: %d, and %d before", runtime.NumGoroutine(), goroutines)
	s.summary(lasted)
	return s.ledger.broken, nil
}

func (s *soak) clock() string {
	d := time.Since(s.began).Round(time.Second)
	return fmt.Sprintf("%02d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}

// within polls until f is true, or for so long.
func within(d time.Duration, f func() bool) bool {
	deadline := time.Now().Add(d)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		if time.Now().After(deadline) {
			return false
		}
		<-tick.C
	}
	return true
}
