package store

import (
	"strconv"
	"strings"
	"time"
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

	const start = `date_bin(hit.micros::float8 * interval '1 microsecond', statement_timestamp(), timestamptz 'epoch')`

	settingsFor := func(timeout time.Duration) string {
		return strings.ReplaceAll(settings, "{lockTimeout}", lockTimeout(timeout))
	}
	text := strings.NewReplacer("{table}", table, "{settings}", settingsFor(timeout),
		"{giveBackSettings}", settingsFor(giveBackTimeout(timeout)), "{sweepSettings}", sweepSettings, "{start}", start, "{answer}", answer,
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
			{start},
			LEAST(hit.n, 2147483647)::integer,
			{start} + hit.micros::float8 * interval '1 microsecond'
		FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS hit (bucket, micros, n)
		WHERE (SELECT {settings}) IS NOT NULL{answer}`),

		// A text of its own for batches with sliding windows, so that others do not pay for what they ask.
		countSliding: text.Replace(`
		INSERT INTO {table} AS r (bucket, window_start, count, expires_at)
		SELECT hit.bucket,
			{start},
			LEAST(hit.n, 2147483647)::integer,
			{start} + hit.life::float8 * interval '1 microsecond'
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
				{start} AS start
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

// lockTimeout makes Postgres give up a wait for a row before the timeout of the statement: it then answers
// 55P03 and the connection lives, while pgx closes one whose context has ended, which counts as a failure of
// the database. It bounds a single wait, and a statement that is not the first in line for a row waits twice:
// for its turn, and then for whoever has locked the row. Both together end a little before the timeout.
func lockTimeout(timeout time.Duration) string {
	ms := max((timeout * 2 / 5).Milliseconds(), 1) // 0 would be no timeout
	return strconv.FormatInt(ms, 10) + "ms"
}
