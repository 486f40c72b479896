// Command ratelimit looks after the table of the rate limiter github.com/krow/ratelimit: it makes it, shows who is
// counted in it, and finds out what is wrong with it. Its usage is what
//
//	ratelimit help
//
// prints, and docs/command.md has an example of each command.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

const usage = `ratelimit looks after the table of the rate limiter github.com/krow/ratelimit.

Usage:

	ratelimit command [flags]

Commands:

	migrate   make the table, or bring it up to date
	top       show the busiest buckets of each policy
	show      show what is counted of an address or a token
	reset     forget what is counted of an address or a token
	sweep     delete rows that have expired
	doctor    look for what is wrong, and say what to do

The database is the one of -database, of the variable DATABASE_URL, or of the variables of libpq, such as PGHOST and
PGPASSFILE. RATELIMIT_SECRET is the Secret of the limiters, which show and reset need to hash as they do. What is no
address, such as a token, is read from standard input and is never an argument.

"ratelimit command -h" tells the flags of a command.

It exits with 0 if all is well, with 1 if something failed or doctor has found a problem, and with 2 if it was
called in a wrong way.
`

// Exit codes.
const (
	exitOK = iota
	exitFailed
	exitUsage
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	p := &program{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv}
	code := p.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// A program is the command with what it gets from outside.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string

	// Flags that several commands have.
	database, schema string
	timeout          time.Duration
	json             bool
}

// A command is one of the commands of the program: it defines its flags and returns what it does.
type command struct {
	name, about string
	define      func(p *program, f *flag.FlagSet) func(context.Context) error
}

var commands = []command{
	{"migrate", "Makes the table rate_limits and its schema, or brings the table up to date. It may be called at any time.", migrate},
	{"top", "Shows the busiest buckets of each policy in the windows that have not ended. It reads the whole table.", top},
	{"show", "Shows what is counted of a subject, in all policies and windows that the table knows, or in those of -policy.", show},
	{"reset", "Forgets what is counted of a subject, as show finds it. Without -yes it only shows what that would be.\n" +
		"Processes that remember a refusal go on refusing for up to five seconds.", reset},
	{"sweep", "Deletes rows that have expired, as stores do by themselves unless ManualSweep is set.", sweep},
	{"doctor", "Looks at the database, the table and what is between, and says what to do about what is wrong.", doctor},
}

// A usageError is one that the caller can mend by calling in another way.
type usageError struct{ error }

// errProblems says that doctor has found some, and told them.
var errProblems = errors.New("problems were found")

func (p *program) run(ctx context.Context, args []string) int {
	if len(args) == 0 {
		fmt.Fprint(p.stderr, usage)
		return exitUsage
	}
	name := args[0]
	if slices.Contains([]string{"help", "-h", "-help", "--help"}, name) {
		fmt.Fprint(p.stdout, usage)
		return exitOK
	}
	i := slices.IndexFunc(commands, func(c command) bool { return c.name == name })
	if i < 0 {
		fmt.Fprintf(p.stderr, "ratelimit: there is no command %.40q; \"ratelimit help\" lists them\n", name)
		return exitUsage
	}
	err := p.runCommand(ctx, commands[i], args[1:])
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errProblems):
		return exitFailed
	}
	fmt.Fprintf(p.stderr, "ratelimit %s: %v\n", name, err)
	if errors.As(err, new(usageError)) {
		return exitUsage
	}
	return exitFailed
}

func (p *program) runCommand(ctx context.Context, c command, args []string) error {
	f := flag.NewFlagSet(c.name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&p.database, "database", "", "`URL` of the database; better in DATABASE_URL, if it has a password")
	f.StringVar(&p.schema, "schema", "public", "`name` of the schema of the table")
	f.DurationVar(&p.timeout, "timeout", time.Minute, "how `long` all of it may take")
	f.BoolVar(&p.json, "json", false, "print JSON, an object on each line")
	do := c.define(p, f)
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(p.stdout, "ratelimit %s [flags]\n\n%s\n\n", c.name, c.about)
		f.SetOutput(p.stdout)
		f.PrintDefaults()
		return nil
	case err != nil:
		return usageError{err}
	case f.NArg() > 0:
		// Not quoted: it may be a token.
		return usageError{errors.New("there are arguments that are no flags; a token is read from standard input")}
	case p.timeout <= 0:
		return usageError{fmt.Errorf("-timeout is %v, want more than 0", p.timeout)}
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return do(ctx)
}

// firstLine returns the first line of what is read, without its end.
func firstLine(r io.Reader) (string, error) {
	const most = 64 << 10
	text, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return "", fmt.Errorf("reading standard input: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	line = strings.TrimSuffix(line, "\r")
	if len(line) > most {
		return "", fmt.Errorf("the line on standard input has more than %d bytes", most)
	}
	return line, nil
}
