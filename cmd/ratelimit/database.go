package main

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit/migrations"
	"github.com/krow/ratelimit/store"
)

// open returns a pool, of few connections and in a mode that every pooler can handle. The error does not repeat the
// URL, which may hold a password.
func (p *program) open(ctx context.Context) (*pgxpool.Pool, error) {
	if err := migrations.Schema(p.schema).Validate(); err != nil {
		return nil, usageError{fmt.Errorf("-schema: %w", err)}
	}
	url := p.database
	if url == "" {
		url = p.getenv("DATABASE_URL")
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, usageError{errors.New("the URL of the database, or a variable of libpq, cannot be parsed; " +
			"want something like postgres://user@host:5432/database")}
	}
	config.MaxConns, config.MinConns, config.MinIdleConns = 2, 0, 0
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	return pgxpool.NewWithConfig(ctx, config)
}

// table is the qualified name of the table.
func (p *program) table() string { return pgx.Identifier{p.schema, "rate_limits"}.Sanitize() }

// store returns a store whose statements may take as long as the command.
func (p *program) store(pool *pgxpool.Pool) (*store.Postgres, error) {
	return store.NewPostgres(pool, store.PostgresConfig{Schema: p.schema, Timeout: p.timeout, ManualSweep: true})
}

func migrate(p *program, f *flag.FlagSet) func(context.Context) error {
	printOnly := f.Bool("print", false, "print the SQL, and ask no database")
	return func(ctx context.Context) error {
		schema := migrations.Schema(p.schema)
		if *printOnly {
			return p.printSQL(schema)
		}
		pool, err := p.open(ctx)
		if err != nil {
			return err
		}
		defer pool.Close()
		if err := schema.Up(ctx, pool); err != nil {
			return err
		}
		return p.print(struct {
			Table   string `json:"table"`
			Version int    `json:"version"`
		}{p.table(), migrations.Version}, fmt.Sprintf("%s is at version %d.\n", p.table(), migrations.Version))
	}
}

func sweep(p *program, _ *flag.FlagSet) func(context.Context) error {
	return func(ctx context.Context) error {
		pool, err := p.open(ctx)
		if err != nil {
			return err
		}
		defer pool.Close()
		s, err := p.store(pool)
		if err != nil {
			return err
		}
		n, err := s.Sweep(ctx)
		if printErr := p.print(struct {
			Deleted int64 `json:"deleted"`
		}{n}, fmt.Sprintf("%d rows were deleted.\n", n)); printErr != nil {
			return printErr
		}
		return err
	}
}
