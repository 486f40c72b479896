package migrations_test

import (
	"context"
	"fmt"
	"io/fs"
	"log"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit/migrations"
)

// A service without a migration tool makes the table when it starts.
func ExampleUp() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	if err := migrations.Up(ctx, pool); err != nil {
		log.Fatal(err)
	}
}

// For golang-migrate, which wants files for up and down.
func ExampleSchema_Split() {
	files, err := migrations.Schema("limits").Split()
	if err != nil {
		log.Fatal(err)
	}
	names, err := fs.Glob(files, "*.sql")
	fmt.Println(names, err)
	// Output:
	// [001_create_rate_limits.down.sql 001_create_rate_limits.up.sql] <nil>
}

// For goose and tern.
func ExampleSchema_FS() {
	files, err := migrations.Schema("limits").FS()
	if err != nil {
		log.Fatal(err)
	}
	names, err := fs.Glob(files, "*.sql")
	fmt.Println(names, err)
	// Output:
	// [001_create_rate_limits.sql] <nil>
}
