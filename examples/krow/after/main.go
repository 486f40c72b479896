// Krow registers OAuth clients and answers calls of tools, with a limit on each. It needs DATABASE_URL, and
// API_TOKENS with the tokens of its callers, separated by spaces.
package main

import (
	"context"
	"flag"
	"log"
	"net/http"
	"os"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/examples/krow/after/httpserver"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "`address` to serve on")
	flag.Parse()
	if err := run(context.Background(), *addr); err != nil {
		log.Fatal("krow: ", err)
	}
}

func run(ctx context.Context, addr string) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	limits, err := httpserver.NewRateLimits(ctx, pool, ratelimit.Config{Secret: []byte(os.Getenv("RATELIMIT_SECRET"))})
	if err != nil {
		return err
	}
	tokens := strings.Fields(os.Getenv("API_TOKENS"))
	return http.ListenAndServe(addr, httpserver.New(pool, limits, tokens))
}
