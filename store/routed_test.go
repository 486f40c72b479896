package store_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

// What a routed store sends about the table has nothing in it that keeps Citus from sending it to one node: no volatile
// function, no array of buckets, no lock that is skipped, and in RETURNING nothing that is not immutable. Postgres itself
// tells that: it makes an index of nothing else.
func TestRoutedStatements(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	s := newStore(t, pool, store.PostgresConfig{Routed: true})
	count, recent, giveBack, reset, sweep := s.RoutedTexts()
	for _, text := range []string{count, recent, giveBack, reset, sweep} {
		for _, word := range []string{"clock_timestamp", "set_config", "unnest", "SKIP LOCKED", "WITH "} {
			if strings.Contains(text, word) {
				t.Errorf("%s is in\n%s", word, text)
			}
		}
	}
	_, returning, _ := strings.Cut(count, "RETURNING ")
	if want := 3; strings.Count(returning, "::bigint") != want {
		t.Fatalf("not %d expressions: %s", want, returning)
	}
	for _, expression := range regexp.MustCompile(`::bigint(, )?`).Split(returning, -1) {
		if expression == "" {
			continue
		}
		sql := fmt.Sprintf("CREATE INDEX ON rate_limits (((%s)::bigint))", strings.ReplaceAll(expression, "r.", ""))
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Errorf("%s is not immutable: %v", expression, err)
		}
	}
}

// A batch is one round trip, and one transaction: what fails in it leaves nothing.
func TestRoutedBatch(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	trips := &roundTrips{DB: testdb.Pool(t, url, maxConns(1))}
	s := newStore(t, trips, store.PostgresConfig{Routed: true, ManualSweep: true})
	add(t, s, hits("a", "b")...)
	if n := trips.n.Load(); n != 1 {
		t.Errorf("a batch of two buckets is %d round trips, want 1", n)
	}
	exec(t, connect(t, url), `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';
		CREATE TRIGGER fail BEFORE INSERT ON rate_limits FOR EACH ROW WHEN (NEW.bucket = 'fails') EXECUTE FUNCTION fail()`)
	_, err := s.Add(t.Context(), hits("a", "b", "fails", "z"))
	wantOnly(t, err, ratelimit.ErrUnavailable)
	if got := add(t, s, hits("a", "b", "z")...); got[0] != 2 || got[1] != 2 || got[2] != 1 {
		t.Errorf("totals are %v, want 2, 2 and 1: nothing of the call that failed", got)
	}
}

// A roundTrips counts what is sent to a pool.
type roundTrips struct {
	store.DB
	n atomic.Int64
}

func (r *roundTrips) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	r.n.Add(1)
	return r.DB.Exec(ctx, sql, args...)
}

func (r *roundTrips) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	r.n.Add(1)
	return r.DB.Query(ctx, sql, args...)
}

func (r *roundTrips) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	r.n.Add(1)
	return r.DB.(store.Batcher).SendBatch(ctx, batch)
}

// A row that is kept from being written is an error for those who asked for it, and not for others.
func TestRoutedRowThatDoesNotComeBack(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	exec(t, connect(t, url), `CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER skip BEFORE INSERT ON rate_limits FOR EACH ROW WHEN (NEW.bucket = 'bad') EXECUTE FUNCTION skip()`)
	s := newStore(t, testdb.Pool(t, url), store.PostgresConfig{Routed: true})
	for _, buckets := range [][]string{{"bad"}, {"a", "bad"}, {"bad", "z"}} {
		_, err := s.Add(t.Context(), hits(buckets...))
		wantOnly(t, err, ratelimit.ErrUnavailable)
	}
	if got := addOne(t, s, hit("a")); got != 2 {
		t.Errorf("total of the neighbour is %d, want 2", got)
	}
}

func TestRoutedConfig(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	_, err := store.NewPostgres(struct{ store.DB }{pool}, store.PostgresConfig{Routed: true, QueryExecMode: pgx.QueryExecModeExec})
	for _, want := range []string{"no method SendBatch, which PostgresConfig.Routed needs", "QueryExecMode is exec and Routed is set"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}
