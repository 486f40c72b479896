package store

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/krow/ratelimit"
)

// retry repeats f while Postgres guarantees that it did nothing: after a serialization failure, under a
// role whose default isolation is that strict, and after a deadlock, which only others' statements
// can cause. A lost connection is not retried: nobody knows what was counted.
func (p *Postgres) retry(ctx context.Context, f func() error) error {
	for {
		err := f()
		p.resetAfter(err)
		if err == nil || ctx.Err() != nil || !hasCode(err, "40001", "40P01") {
			return err
		}
	}
}

// describe says what was being done when err came, and which of package ratelimit's errors it is.
func (p *Postgres) describe(err error, doing string) error {
	kind, advice := ratelimit.ErrUnavailable, ""
	switch {
	case hasCode(err, "42P01", "3F000"): // undefined_table, invalid_schema_name
		kind = ratelimit.ErrNoTable
		advice = ": run the migrations, with migrations.Up or a migration tool, for the schema of that name"
	case hasCode(err, "42501"): // insufficient_privilege
		advice = ": grant USAGE on the schema, and SELECT, INSERT, UPDATE and DELETE on the table"
	case hasCode(err, "26000", "42P05"): // invalid_sql_statement_name, duplicate_prepared_statement
		advice = ": behind this pooler, set PostgresConfig.QueryExecMode to pgx.QueryExecModeExec"
	case hasCode(err, "25006"), // read_only_sql_transaction
		errors.Is(err, pgconn.ErrReadOnlyConnection), errors.Is(err, pgconn.ErrStandbyConnection):
		kind = ratelimit.ErrReadOnly
	case hasCode(err, "55P03", "57014"), // lock_not_available, query_canceled
		errors.Is(err, context.DeadlineExceeded):
		kind = ratelimit.ErrTimeout
	}
	return fmt.Errorf("%w: %s in %s%s: %w", kind, doing, p.table, advice, err)
}

func hasCode(err error, codes ...string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && slices.Contains(codes, pg.Code)
}

// recovered is f with a panic made an error. The goroutines of a store are not those of requests,
// where net/http catches the panic of a hook, a logger or a driver; here it would end the process.
func recovered(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: panic: %v\n%s", ratelimit.ErrUnavailable, v, debug.Stack())
		}
	}()
	return f()
}
