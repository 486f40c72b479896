package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/krow/ratelimit"
)

// statements are the texts that a store sends, made once. Each is a transaction of its own.
type statements struct {
	countOne, countMany, countSliding string
	giveBack                          string
	get, reset                        string
	sweep                             string
}

// newStatements writes the statements for one table.
//
// They have in common that every parameter has an explicit cast, so that they mean the same in all
// of pgx's query modes, and that what they need of the session they set for themselves alone:
// set_config with is_local true ends with the transaction, which is the statement. It must be
// evaluated before the first row is locked, or lock_timeout comes too late; and a form that is
// not evaluated at all fails silently, which is why a test counts fsyncs.
//
// Every function and operator is called with exactly the types it is declared with. Of those that merely
// fit, Postgres would prefer one that somebody else has made in a schema further down the search_path,
// public for instance, and run it with the rights of this role.
//
// The database's clock alone decides the window. date_bin counts from the Unix epoch and in absolute
// time, so that time zones and their changes do not matter. The time left is taken with
// clock_timestamp, which is right even after a wait for a row lock.
//
// expires_at is written on insert only: it is indexed, and an update of it would not be HOT
// (Postgres manual, "Heap-Only Tuples"). It is when the last window ends that asks for the row: the window of the row
// itself, or the next one if windows are sliding. The count stops growing at the column's maximum.
//
// lock_timeout is written into the texts: as a parameter it would cost a lone caller a twentieth of the
// statement.
func newStatements(table string, timeout time.Duration, synchronousCommit bool) statements {
	settings, sweepSettings := `set_config('lock_timeout', '{lockTimeout}', true)`, ``
	if !synchronousCommit {
		settings += ` || set_config('synchronous_commit', 'off', true)`
		sweepSettings = `AND (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL`
	}
	const answer = `
		ON CONFLICT (bucket, window_start) DO UPDATE
		SET count = LEAST(r.count::bigint + excluded.count, 2147483647)::integer
		RETURNING r.bucket, r.count::bigint,
			(date_part('epoch', r.window_start) * 1e6::float8)::bigint,
			(date_part('epoch', r.expires_at - clock_timestamp()) * 1e6::float8)::bigint`

	// Between the two starts lies half of what a row lives, as microseconds, since days would follow a time zone.
	// For a row that is not sliding there is none so near.
	const previous = `, coalesce((
			SELECT p.count FROM {table} AS p
			WHERE p.bucket = r.bucket
				AND p.window_start = r.window_start - date_part('epoch', r.expires_at - r.window_start) * 5e5::float8 * interval '1 microsecond'
		), 0)::bigint`

	settingsFor := func(timeout time.Duration) string {
		return strings.ReplaceAll(settings, "{lockTimeout}", lockTimeout(timeout))
	}
	text := strings.NewReplacer("{table}", table, "{settings}", settingsFor(timeout),
		"{giveBackSettings}", settingsFor(giveBackTimeout(timeout)), "{sweepSettings}", sweepSettings, "{answer}", answer,
		"{answerSliding}", strings.ReplaceAll(answer+previous, "{table}", table))
	return statements{
		// One bucket has a text of its own, since VALUES is cheaper than unnest and its plan. The
		// settings stand in the row, which is made before any lock is asked for; in RETURNING they
		// would be evaluated after the wait.
		countOne: text.Replace(`
		INSERT INTO {table} AS r (bucket, window_start, count, expires_at)
		VALUES (
			$1::text,
			date_bin($2::bigint::float8 * interval '1 microsecond', statement_timestamp(), timestamptz 'epoch'),
			CASE WHEN {settings} IS NOT NULL THEN LEAST($3::bigint, 2147483647)::integer END,
			date_bin($2::bigint::float8 * interval '1 microsecond', statement_timestamp(), timestamptz 'epoch') + $2::bigint::float8 * interval '1 microsecond'
		){answer}`),

		// The subselect in WHERE is an init plan, evaluated once and before the rows are read. Rows
		// are locked in the order of the arrays, which are sorted: two stores that count the same
		// buckets can then wait for each other but not deadlock.
		countMany: text.Replace(`
		INSERT INTO {table} AS r (bucket, window_start, count, expires_at)
		SELECT hit.bucket,
			date_bin(hit.micros::float8 * interval '1 microsecond', statement_timestamp(), timestamptz 'epoch'),
			LEAST(hit.n, 2147483647)::integer,
			date_bin(hit.micros::float8 * interval '1 microsecond', statement_timestamp(), timestamptz 'epoch') + hit.micros::float8 * interval '1 microsecond'
		FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS hit (bucket, micros, n)
		WHERE (SELECT {settings}) IS NOT NULL{answer}`),

		// A text of its own for batches with sliding windows, so that others do not pay for what they ask.
		countSliding: text.Replace(`
		INSERT INTO {table} AS r (bucket, window_start, count, expires_at)
		SELECT hit.bucket,
			date_bin(hit.micros::float8 * interval '1 microsecond', statement_timestamp(), timestamptz 'epoch'),
			LEAST(hit.n, 2147483647)::integer,
			date_bin(hit.micros::float8 * interval '1 microsecond', statement_timestamp(), timestamptz 'epoch') + hit.life::float8 * interval '1 microsecond'
		FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) AS hit (bucket, micros, n, life)
		WHERE (SELECT {settings}) IS NOT NULL{answerSliding}`),

		// An update never makes a row, and the window is named by its start, so that a charge to
		// a window that has ended or was swept does nothing. The rows are locked in order first,
		// because an update with a join promises no order.
		giveBack: text.Replace(`
		UPDATE {table} AS r
		SET count = GREATEST(r.count::bigint - charge.n, 0)::integer
		FROM (
			SELECT c.bucket, c.window_start, given.n
			FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS given (bucket, start, n)
			JOIN {table} AS c ON c.bucket = given.bucket
				AND c.window_start = timestamptz 'epoch' + given.start::float8 * interval '1 microsecond'
			WHERE (SELECT {giveBackSettings}) IS NOT NULL
			ORDER BY c.bucket, c.window_start
			FOR UPDATE OF c
		) AS charge
		WHERE r.bucket = charge.bucket AND r.window_start = charge.window_start`),

		get: text.Replace(`
		SELECT coalesce(r.count, 0)::bigint, coalesce(p.count, 0)::bigint,
			(date_part('epoch', w.start) * 1e6::float8)::bigint,
			(date_part('epoch', w.start + w.size - clock_timestamp()) * 1e6::float8)::bigint
		FROM (
			SELECT hit.bucket, hit.place, hit.micros::float8 * interval '1 microsecond' AS size,
				date_bin(hit.micros::float8 * interval '1 microsecond', statement_timestamp(), timestamptz 'epoch') AS start
			FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS hit (bucket, micros, place)
		) AS w
		LEFT JOIN {table} AS r ON r.bucket = w.bucket AND r.window_start = w.start
		LEFT JOIN {table} AS p ON p.bucket = w.bucket AND p.window_start = w.start - w.size
		ORDER BY w.place`),

		// Not by ctid, as the sweep does it: a row that was updated while this waits for it has another.
		reset: text.Replace(`
		DELETE FROM {table}
		WHERE bucket = ANY ($1::text[]) AND (SELECT {settings}) IS NOT NULL`),

		// The array of ctids makes this a range scan of the index on expires_at and then one fetch
		// for each row. SKIP LOCKED: sweeps that meet do not wait for one another, and a row that
		// is being written is left for the next sweep.
		sweep: text.Replace(`
		DELETE FROM {table}
		WHERE ctid = ANY (ARRAY(
			SELECT ctid FROM {table}
			WHERE expires_at <= statement_timestamp() - $1::bigint::float8 * interval '1 microsecond'
			ORDER BY expires_at
			LIMIT $2::bigint
			FOR UPDATE SKIP LOCKED
		))
		{sweepSettings}`),
	}
}

// count sends a batch and fills in the answers of its rows.
func (p *Postgres) count(ctx context.Context, b *batch) error {
	err := p.retry(ctx, func() error { return p.countOnce(ctx, b) })
	if err != nil {
		return p.describe(err, fmt.Sprintf("counting (buckets: %d)", len(b.rows)))
	}
	return nil
}

func (p *Postgres) countOnce(ctx context.Context, b *batch) error {
	rows, order, err := p.queryCounts(ctx, b)
	if err != nil {
		return err
	}
	defer rows.Close()

	var bucket pgtype.DriverBytes
	var total, start, left, previous int64
	into := []any{&bucket, &total, &start, &left}
	if b.sliding {
		into = append(into, &previous)
	}
	for k := 0; rows.Next(); k++ {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		// Rows come back in the order they were sent, unless one is missing. The bucket decides.
		if k >= len(order) || b.rows[order[k]].bucket != string(bucket) {
			if k = slices.IndexFunc(order, func(i int) bool { return b.rows[i].bucket == string(bucket) }); k < 0 {
				return errors.New("a bucket came back that was not sent")
			}
		}
		row := &b.rows[order[k]]
		row.count = ratelimit.Count{
			Total: total,
			Left:  min(max(time.Duration(left)*time.Microsecond-(row.life()-row.window), 0), row.window),
			Start: time.UnixMicro(start),
		}
		if row.sliding {
			row.count.Previous = previous
		}
	}
	return rows.Err()
}

// queryCounts sends a batch and returns the order in which its rows went.
func (p *Postgres) queryCounts(ctx context.Context, b *batch) (_ pgx.Rows, order []int, err error) {
	order = make([]int, len(b.rows))
	for i := range order {
		order[i] = i
		b.rows[i].count = ratelimit.Count{} // an attempt that was rolled back may have left one
	}
	if len(b.rows) == 1 && !b.sliding {
		r := &b.rows[0]
		rows, err := p.db.Query(ctx, p.sql.countOne, p.args(r.bucket, r.window.Microseconds(), r.n)...)
		return rows, order, err
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(b.rows[i].bucket, b.rows[j].bucket) })
	buckets := make([]string, len(order))
	windows := make([]int64, len(order))
	ns := make([]int64, len(order))
	for k, i := range order {
		r := &b.rows[i]
		buckets[k], windows[k], ns[k] = r.bucket, r.window.Microseconds(), r.n
	}
	if !b.sliding {
		rows, err := p.db.Query(ctx, p.sql.countMany, p.args(buckets, windows, ns)...)
		return rows, order, err
	}
	lives := make([]int64, len(order))
	for k, i := range order {
		lives[k] = b.rows[i].life().Microseconds()
	}
	rows, err := p.db.Query(ctx, p.sql.countSliding, p.args(buckets, windows, ns, lives)...)
	return rows, order, err
}

// giveBack sends charges, those of one window added up, since an update touches a row once.
func (p *Postgres) giveBack(ctx context.Context, charges []charge) error {
	type window struct {
		bucket string
		start  int64
	}
	sums := make(map[window]int64, len(charges))
	for _, c := range charges {
		sums[window{c.Bucket, c.Start.UnixMicro()}] += int64(c.N)
	}
	var buckets []string
	var starts, ns []int64
	for w, n := range sums {
		buckets, starts, ns = append(buckets, w.bucket), append(starts, w.start), append(ns, n)
	}
	err := p.retry(ctx, func() error {
		_, err := p.db.Exec(ctx, p.sql.giveBack, p.args(buckets, starts, ns)...)
		return err
	})
	if err != nil {
		return p.describe(err, fmt.Sprintf("giving back (buckets: %d)", len(sums)))
	}
	return nil
}

// lockTimeout makes Postgres give up a wait for a row before the timeout of the statement: it then answers
// 55P03 and the connection lives, while pgx closes one whose context has ended, which counts as a failure of
// the database. It bounds a single wait, and a statement that is not the first in line for a row waits twice:
// for its turn, and then for whoever has locked the row. Both together end a little before the timeout.
func lockTimeout(timeout time.Duration) string {
	ms := max((timeout * 2 / 5).Milliseconds(), 1) // 0 would be no timeout
	return strconv.FormatInt(ms, 10) + "ms"
}

// args puts the query mode, if the store has one of its own, in front of a statement's arguments, where
// pgx takes it from.
func (p *Postgres) args(args ...any) []any {
	if p.config.QueryExecMode == 0 {
		return args
	}
	return append([]any{p.config.QueryExecMode}, args...)
}

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
