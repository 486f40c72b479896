package store

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/krow/ratelimit"
)

// Batcher is what a [DB] needs besides for [PostgresConfig].Routed. A *pgxpool.Pool has it.
type Batcher interface {
	SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults
}

// routedStatements are the texts that a routed store sends, each about one bucket. They go to the server together, in
// one transaction, which is why what they need of the session can be set by the first.
//
// An engine that spreads the table over nodes sends a statement to the node that it is about if it can tell, before it
// runs anything, where that is, and that the statement means the same there. Citus does not route what has a volatile
// function in it, or a stable one in RETURNING. So the settings and the clock stand in statements without the table,
// and times are made numbers by functions that are immutable.
type routedStatements struct {
	settings, giveBackSettings, sweepSettings string

	count, giveBack string
	recent          string // the current window of a bucket and the one before
	current         string // when the current window starts, and the time
	now             string
	reset, sweep    string
}

func newRoutedStatements(table string, timeout time.Duration, synchronousCommit bool) routedStatements {
	settings := `SELECT set_config('lock_timeout', '{lockTimeout}', true)`
	sweepSettings := `SELECT 1`
	if !synchronousCommit {
		settings += `, set_config('synchronous_commit', 'off', true)`
		sweepSettings = `SELECT set_config('synchronous_commit', 'off', true)`
	}
	settingsFor := func(timeout time.Duration) string {
		return strings.ReplaceAll(settings, "{lockTimeout}", lockTimeout(timeout))
	}
	text := strings.NewReplacer("{table}", table,
		"{start}", `date_bin($2::bigint::float8 * interval '1 microsecond', statement_timestamp(), timestamptz 'epoch')`,
		"{micros(window_start)}", `(date_part('epoch', r.window_start - timestamptz 'epoch') * 1e6::float8)::bigint`,
		"{micros(expires_at)}", `(date_part('epoch', r.expires_at - timestamptz 'epoch') * 1e6::float8)::bigint`,
		"{now}", `(date_part('epoch', clock_timestamp()) * 1e6::float8)::bigint`)
	return routedStatements{
		settings:         settingsFor(timeout),
		giveBackSettings: settingsFor(giveBackTimeout(timeout)),
		sweepSettings:    sweepSettings,
		now:              text.Replace(`SELECT {now}`),
		current: text.Replace(`
		SELECT (date_part('epoch', date_bin($1::bigint::float8 * interval '1 microsecond', statement_timestamp(), timestamptz 'epoch')) * 1e6::float8)::bigint, {now}`),
		count: text.Replace(`
		INSERT INTO {table} AS r (bucket, window_start, count, expires_at)
		VALUES ($1::text, {start}, LEAST($3::bigint, 2147483647)::integer, {start} + $4::bigint::float8 * interval '1 microsecond')
		ON CONFLICT (bucket, window_start) DO UPDATE
		SET count = LEAST(r.count::bigint + excluded.count, 2147483647)::integer
		RETURNING r.count::bigint, {micros(window_start)}, {micros(expires_at)}`),
		recent: text.Replace(`
		SELECT r.count::bigint, {micros(window_start)}
		FROM {table} AS r
		WHERE r.bucket = $1::text AND r.window_start >= {start} - $2::bigint::float8 * interval '1 microsecond'`),
		giveBack: text.Replace(`
		UPDATE {table} AS r
		SET count = GREATEST(r.count::bigint - $3::bigint, 0)::integer
		WHERE r.bucket = $1::text AND r.window_start = timestamptz 'epoch' + $2::bigint::float8 * interval '1 microsecond'`),
		reset: text.Replace(`
		DELETE FROM {table} WHERE bucket = ANY ($1::text[])`),
		// Rows that expire in the same moment go together, so that it may be some more than asked for. What is locked
		// is waited for: a sweep of all nodes cannot skip it.
		sweep: text.Replace(`
		DELETE FROM {table}
		WHERE expires_at <= (
			SELECT max(oldest.expires_at)
			FROM (
				SELECT r.expires_at
				FROM {table} AS r
				WHERE r.expires_at <= statement_timestamp() - $1::bigint::float8 * interval '1 microsecond'
				ORDER BY r.expires_at
				LIMIT $2::bigint
			) AS oldest
		)`),
	}
}

// routed sends a statement for each bucket.
type routed struct {
	db  Batcher
	sql routedStatements
}

// A pipeline is statements that go to the server together, and what is to be done with the answers.
type pipeline struct{ pgx.Batch }

// read adds a statement and has f called for each row of its answer, when that has been read into the variables.
func (b *pipeline) read(f func(), into []any, sql string, args ...any) {
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, into, func() error { f(); return nil })
		return err
	})
}

func (r *routed) send(ctx context.Context, b *pipeline) error {
	return r.db.SendBatch(ctx, &b.Batch).Close()
}

func (r *routed) count(ctx context.Context, b *batch) error {
	expires := make([]int64, len(b.rows))
	var now int64
	var pipe pipeline
	pipe.Queue(r.sql.settings)
	for _, i := range b.sorted() {
		row, micros := &b.rows[i], b.rows[i].window.Microseconds()
		row.count = ratelimit.Count{} // an attempt that was rolled back may have left one
		var total, start, end int64
		pipe.read(func() {
			row.count.Total, row.count.Start = total, time.UnixMicro(start)
			expires[i] = end
		}, []any{&total, &start, &end}, r.sql.count, row.bucket, micros, row.n, row.life().Microseconds())
		if !row.sliding {
			continue
		}
		var count, rowStart int64
		pipe.read(func() {
			if rowStart == start-micros {
				row.count.Previous = count
			}
		}, []any{&count, &rowStart}, r.sql.recent, row.bucket, micros)
	}
	pipe.read(func() {}, []any{&now}, r.sql.now)
	if err := r.send(ctx, &pipe); err != nil {
		return err
	}
	for i := range b.rows {
		b.rows[i].count.Left = b.rows[i].left(expires[i] - now)
	}
	return nil
}

func (r *routed) giveBack(ctx context.Context, sums []windowSum) error {
	var pipe pipeline
	pipe.Queue(r.sql.giveBackSettings)
	for _, s := range sums {
		pipe.Queue(r.sql.giveBack, s.bucket, s.start, s.n)
	}
	return r.send(ctx, &pipe)
}

func (r *routed) get(ctx context.Context, hits []ratelimit.Hit) ([]ratelimit.Count, error) {
	counts := make([]ratelimit.Count, len(hits))
	var pipe pipeline
	for i, hit := range hits {
		c, micros := &counts[i], hit.Window.Microseconds()
		var start, now, count, rowStart int64
		pipe.read(func() {
			c.Start = time.UnixMicro(start)
			c.Left = max(0, time.Duration(start+micros-now)*time.Microsecond)
		}, []any{&start, &now}, r.sql.current, micros)
		pipe.read(func() {
			switch rowStart {
			case start:
				c.Total = count
			case start - micros:
				c.Previous = count
			}
		}, []any{&count, &rowStart}, r.sql.recent, hit.Bucket, micros)
	}
	return counts, r.send(ctx, &pipe)
}

func (r *routed) reset(ctx context.Context, buckets []string) error {
	var pipe pipeline
	pipe.Queue(r.sql.settings)
	pipe.Queue(r.sql.reset, buckets)
	return r.send(ctx, &pipe)
}

func (r *routed) sweep(ctx context.Context, grace time.Duration, most int) (deleted int64, err error) {
	var pipe pipeline
	pipe.Queue(r.sql.sweepSettings)
	pipe.Queue(r.sql.sweep, grace.Microseconds(), int64(most)).Exec(func(tag pgconn.CommandTag) error {
		deleted = tag.RowsAffected()
		return nil
	})
	err = r.send(ctx, &pipe)
	return deleted, err
}
