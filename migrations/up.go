package migrations

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// Errors that [Schema.Up] returns, wrapped.
var (
	// ErrNewer: the table was made by a later release of this package. Nothing was changed.
	ErrNewer = errors.New("the table is newer than this program")
	// ErrUnversioned: there is a table, or another relation of its name, that does not tell its
	// version. Nothing was changed.
	ErrUnversioned = errors.New("the table does not tell its version")
)

// DB is what [Schema.Up] runs on: a *pgxpool.Pool or a *pgx.Conn.
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// lockKey is the advisory lock under which migrations run, one at a time in a database. It is the
// first eight bytes of the SHA-256 of github.com/krow/ratelimit/migrations, as a number with a sign.
const lockKey int64 = -3776493926962328776

// Up is [Schema.Up] for [Public].
func Up(ctx context.Context, db DB) error { return Public.Up(ctx, db) }

// Up brings the table in the schema to [Version]. It makes what is missing, the schema included.
//
// If the table is current, Up runs one query on the catalog and takes no lock. Otherwise all that is
// missing is made in one transaction, under an advisory lock: any number of processes may call Up at
// once when they start. Up works through a pooler in transaction mode.
//
// Up fails with [ErrNewer] or [ErrUnversioned] for a table that it would not know how to change. It
// needs the right to create the table only when there is something to do.
func (s Schema) Up(ctx context.Context, db DB) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if v := reflect.ValueOf(db); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return errors.New("migrations: db is nil, want a *pgxpool.Pool or a *pgx.Conn")
	}
	if err := s.up(ctx, db); err != nil {
		return fmt.Errorf("migrations: schema %q: %w", string(s.name()), err)
	}
	return nil
}

func (s Schema) up(ctx context.Context, db DB) error {
	found, err := s.find(ctx, db)
	if err != nil || found.version == Version {
		return err
	}

	// Read committed whatever the role's default: the state must be read after the lock was had, not
	// before the wait for it.
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // does nothing after the commit

	_, err = tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1::bigint)", pgx.QueryExecModeExec, lockKey)
	if err != nil {
		return fmt.Errorf("wait for other migrations: %w", err)
	}
	found, err = s.find(ctx, tx)
	if err != nil || found.version == Version {
		return err
	}
	if !found.schema {
		_, err := tx.Exec(ctx, "CREATE SCHEMA "+s.quoted(), pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			return fmt.Errorf("create the schema: %w", err)
		}
	}
	for _, m := range all() {
		if m.version <= found.version {
			continue
		}
		if _, err := tx.Exec(ctx, m.in(s).up, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("run %s: %w", m.name, err)
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// state is what the catalog says.
type state struct {
	schema  bool // whether the schema is there
	version int  // of the table, 0 if there is none
}

// stamp is how the table's comment ends.
var stamp = regexp.MustCompile(`\(github\.com/krow/ratelimit, migration ([1-9][0-9]{0,5})\)$`)

// querier is a [DB] or a transaction on it.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// find reads the catalog alone: to name the table in a query would take a lock on it, and wait for
// whoever has locked it.
func (s Schema) find(ctx context.Context, db querier) (state, error) {
	const sql = `
		SELECT n.oid IS NOT NULL, c.oid IS NOT NULL, coalesce(pg_catalog.obj_description(c.oid, 'pg_class'), '')
		FROM (VALUES ($1::text)) AS wanted (schema)
		LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.schema
		LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = 'rate_limits'`
	var (
		found   state
		table   bool
		comment string
	)
	// Without a prepared statement, which a pooler may not know.
	err := db.QueryRow(ctx, sql, pgx.QueryExecModeExec, string(s.name())).Scan(&found.schema, &table, &comment)
	if err != nil {
		return state{}, fmt.Errorf("read the catalog: %w", err)
	}
	if !table {
		return found, nil
	}
	match := stamp.FindStringSubmatch(comment)
	if match == nil {
		return state{}, fmt.Errorf("%w: the comment of %s does not end as these migrations write it: "+
			"for another's table, use another schema; for a lost comment, "+
			"run the COMMENT ON TABLE of the migration that made the table", ErrUnversioned, s.table())
	}
	found.version, err = strconv.Atoi(match[1])
	if err != nil {
		return state{}, err
	}
	if found.version > Version {
		return state{}, fmt.Errorf("%w: %s is at migration %d, this program knows up to %d",
			ErrNewer, s.table(), found.version, Version)
	}
	return found, nil
}
