package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit/internal/pgserver"
	"github.com/krow/ratelimit/migrations"
)

const (
	// schema is where the table is, so that the table of somebody who names a database is left alone.
	schema = "ratelimit_soak"
	// application is what the connections of the instances are known by.
	application = "ratelimit soak"
	// patience bounds what is asked of the database beside the load.
	patience = 10 * time.Second
)

// A database is what all instances share.
type database struct {
	url    string
	server *pgserver.Server // nil if the database was named
	admin  *pgxpool.Pool
}

func openDatabase(ctx context.Context, url string) (_ *database, err error) {
	db := &database{url: url}
	if url == "" {
		if db.server, err = pgserver.StartOwn(ctx); err != nil {
			return nil, err
		}
		db.url = db.server.URL()
	}
	if db.admin, err = db.pool("ratelimit soak's observer", 2); err != nil {
		return nil, joinClose(err, db)
	}
	// It fails if the schema is there already: somebody else may be using it.
	if _, err := db.admin.Exec(ctx, "CREATE SCHEMA "+schema); err != nil {
		err = fmt.Errorf("making schema %s, to be dropped at the end: %w", schema, err)
		db.admin.Close()
		db.admin = nil
		return nil, joinClose(err, db)
	}
	if err := migrations.Schema(schema).Up(ctx, db.admin); err != nil {
		return nil, joinClose(err, db)
	}
	if db.server != nil {
		// Every minute, as it comes, is too rare for the table of a short run to become level.
		if err := db.configure(ctx, "autovacuum_naptime", "2s"); err != nil {
			return nil, joinClose(err, db)
		}
	}
	return db, nil
}

func (db *database) String() string {
	if db.server == nil {
		return "the database that was named, without faults"
	}
	return db.server.String()
}

// pool returns a pool whose sessions are known by a name.
func (db *database) pool(name string, most int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(db.url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = most
	config.ConnConfig.RuntimeParams["application_name"] = name
	if name != application {
		config.ConnConfig.RuntimeParams["default_transaction_read_only"] = "off" // a fault turns it on
	}
	return pgxpool.NewWithConfig(context.Background(), config)
}

// configure changes a setting of the server, and sets it back if the value is empty.
func (db *database) configure(ctx context.Context, name, value string) error {
	sql := "ALTER SYSTEM RESET " + name
	if value != "" {
		sql = "ALTER SYSTEM SET " + name + " = '" + value + "'"
	}
	for _, sql := range []string{sql, "SELECT pg_reload_conf()"} {
		if _, err := db.admin.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// observed is what the database says of itself.
type observed struct {
	Connections int           // of the instances
	Rows        int           // in the table
	Size        int64         // of the table and its indexes, in bytes
	Overdue     time.Duration // for how long a row has been expired at most
}

func (db *database) observe(ctx context.Context) (observed, error) {
	rows, err := db.admin.Query(ctx, `
		SELECT (SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database())::int,
			count(*)::int,
			pg_total_relation_size('`+schema+`.rate_limits'),
			(greatest(extract(epoch FROM clock_timestamp() - min(expires_at)), 0) * 1e9)::bigint
		FROM `+schema+`.rate_limits`, application)
	if err != nil {
		return observed{}, err
	}
	o, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[struct {
		Connections, Rows int
		Size              int64
		Overdue           *int64
	}])
	if err != nil {
		return observed{}, err
	}
	seen := observed{Connections: o.Connections, Rows: o.Rows, Size: o.Size}
	if o.Overdue != nil {
		seen.Overdue = time.Duration(*o.Overdue)
	}
	return seen, nil
}

// idle waits until no connection of the instances is left, and reports false if that does not come.
func (db *database) idle() bool {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return within(patience, func() bool {
		o, err := db.observe(ctx)
		return err == nil && o.Connections == 0
	})
}

func (db *database) close() error {
	var errs []error
	if db.admin != nil {
		if db.server == nil {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			_, err := db.admin.Exec(ctx, "DROP SCHEMA "+schema+" CASCADE")
			errs = append(errs, err)
		}
		db.admin.Close()
	}
	if db.server != nil {
		errs = append(errs, db.server.Stop())
	}
	return errors.Join(errs...)
}

func joinClose(err error, db *database) error { return errors.Join(err, db.close()) }
