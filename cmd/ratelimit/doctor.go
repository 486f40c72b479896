package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit/migrations"
)

// A finding is what doctor has to say of one thing it looked at.
type finding struct {
	Check  string `json:"check"`
	Level  string `json:"level"` // one of the levels
	Found  string `json:"found"`
	Advice string `json:"advice,omitempty"`
}

// The levels of findings. Only a problem makes doctor fail.
const (
	levelOK      = "ok"
	levelNote    = "note"
	levelProblem = "problem"
)

// An examination is one call of doctor.
type examination struct {
	p        *program
	conn     *pgxpool.Conn
	findings []finding
}

func (e *examination) say(level, check, advice, format string, args ...any) {
	e.findings = append(e.findings, finding{check, level, fmt.Sprintf(format, args...), advice})
}

func doctor(p *program, _ *flag.FlagSet) func(context.Context) error {
	return func(ctx context.Context) error {
		e := &examination{p: p}
		if err := e.examine(ctx); err != nil {
			return err
		}
		err := printTable(p, e.findings, "CHECK\t\tFOUND", func(f finding) string {
			line := f.Check + "\t" + f.Level + "\t" + f.Found
			if f.Advice != "" {
				line += "\n\t\t→ " + f.Advice
			}
			return line
		})
		if err == nil && slices.ContainsFunc(e.findings, func(f finding) bool { return f.Level == levelProblem }) {
			return errProblems
		}
		return err
	}
}

// examine makes all findings. An error is one that says nothing about the database.
func (e *examination) examine(ctx context.Context) error {
	pool, err := e.p.open(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	began := time.Now()
	if e.conn, err = pool.Acquire(ctx); err != nil {
		e.say(levelProblem, "connection", "look at the URL, the server, and what is between", "%s", strings.Join(strings.Fields(err.Error()), " "))
		return nil
	}
	defer e.conn.Release()
	e.say(levelOK, "connection", "", "made in %v", time.Since(began).Round(time.Millisecond))
	for _, check := range []func(context.Context) error{e.server, e.clock, e.pooler, e.table} {
		if err := check(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (e *examination) row(ctx context.Context, sql string, args []any, into ...any) error {
	return e.conn.QueryRow(ctx, sql, args...).Scan(into...)
}

func (e *examination) server(ctx context.Context) error {
	var version int
	var text, isolation string
	var standby, readOnly bool
	err := e.row(ctx, `SELECT current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery(),
		current_setting('transaction_read_only')::bool, current_setting('default_transaction_isolation')`, nil,
		&version, &text, &standby, &readOnly, &isolation)
	if err != nil {
		return err
	}
	if version < 140000 {
		e.say(levelProblem, "server", "take Postgres 14 or later", "Postgres %s", text)
	} else {
		e.say(levelOK, "server", "", "Postgres %s", text)
	}
	switch {
	case standby:
		e.say(levelProblem, "writing", "name all hosts of the cluster in the URL, for store.OpenPostgres, or set target_session_attrs=read-write",
			"this is a standby, which counts nothing")
	case readOnly:
		e.say(levelProblem, "writing", "ALTER ROLE … SET default_transaction_read_only = off", "transactions of this role are read-only")
	default:
		e.say(levelOK, "writing", "", "this server takes writes")
	}
	if isolation != "read committed" {
		e.say(levelNote, "isolation", "ALTER ROLE … SET default_transaction_isolation = 'read committed'",
			"transactions of this role are %s: statements that meet have to be sent again", isolation)
	}
	return nil
}

// clock compares the clocks. The database's alone decides windows.
func (e *examination) clock(ctx context.Context) error {
	before := time.Now()
	var theirs float64
	if err := e.row(ctx, `SELECT date_part('epoch', clock_timestamp())`, nil, &theirs); err != nil {
		return err
	}
	took := time.Since(before)
	ours := float64(before.Add(took/2).UnixMicro()) / 1e6
	ahead := time.Duration((theirs - ours) * float64(time.Second)).Round(time.Millisecond)
	if math.Abs(ahead.Seconds()) > 0.5+took.Seconds() {
		e.say(levelNote, "clock", "look at NTP on both; FailLocal and HeadersLegacy go by the clock of the service",
			"the database is %v ahead of this machine", ahead)
	} else {
		e.say(levelOK, "clock", "", "%v apart, in a round trip of %v", ahead.Abs(), took.Round(time.Microsecond))
	}
	return nil
}

// pooler finds out whether something answers in the server's place: the number of the process that it told when the
// connection was made is then one of its own.
func (e *examination) pooler(ctx context.Context) error {
	var pid uint32
	if err := e.row(ctx, "SELECT pg_backend_pid()", nil, &pid); err != nil {
		return err
	}
	if pid == e.conn.Conn().PgConn().PID() {
		e.say(levelOK, "pooler", "", "none")
		return nil
	}
	e.say(levelNote, "pooler", "in transaction mode set PostgresConfig.QueryExecMode to pgx.QueryExecModeExec, "+
		"unless it is PgBouncer 1.21 or later with max_prepared_statements", "there is one between")
	return nil
}

// A layout is what the catalog says of the table.
type layout struct {
	comment           *string
	columns, missing  []string
	primaryKey, index bool
	rowSecurity       bool
	triggers, rules   int
	autovacuum        bool
	live, dead        int64
	size              int64
	sinceVacuum       *float64
}

func (e *examination) table(ctx context.Context) error {
	var l layout
	err := e.row(ctx, `
		SELECT obj_description(c.oid, 'pg_class'),
			ARRAY(SELECT attname::text || ' ' || format_type(atttypid, atttypmod) FROM pg_attribute
				WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped ORDER BY attname),
			ARRAY(SELECT privilege FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege
				WHERE NOT has_table_privilege(c.oid, privilege)),
			EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary AND indisvalid
				AND pg_get_indexdef(indexrelid) LIKE '%(bucket, window_start)%'),
			EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisvalid AND pg_get_indexdef(indexrelid) LIKE '%(expires_at)%'),
			c.relrowsecurity,
			(SELECT count(*)::int FROM pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal),
			(SELECT count(*)::int FROM pg_rewrite WHERE ev_class = c.oid),
			current_setting('autovacuum')::bool AND NOT coalesce('autovacuum_enabled=false' = ANY (c.reloptions) OR 'autovacuum_enabled=off' = ANY (c.reloptions), false),
			coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0), pg_total_relation_size(c.oid),
			date_part('epoch', clock_timestamp() - greatest(s.last_autovacuum, s.last_vacuum))
		FROM pg_class AS c
		JOIN pg_namespace AS n ON n.oid = c.relnamespace
		LEFT JOIN pg_stat_all_tables AS s ON s.relid = c.oid
		WHERE n.nspname = $1 AND c.relname = 'rate_limits'`, []any{e.p.schema},
		&l.comment, &l.columns, &l.missing, &l.primaryKey, &l.index, &l.rowSecurity, &l.triggers, &l.rules,
		&l.autovacuum, &l.live, &l.dead, &l.size, &l.sinceVacuum)
	if errors.Is(err, pgx.ErrNoRows) {
		e.say(levelProblem, "table", fmt.Sprintf("ratelimit migrate -schema %s", e.p.schema), "%s is missing", e.p.table())
		return nil
	}
	if err != nil {
		return err
	}
	if e.shape(l) {
		e.upkeep(ctx, l)
	}
	return nil
}

var wantColumns = []string{"bucket text", "count integer", "expires_at timestamp with time zone", "window_start timestamp with time zone"}

// shape looks at what the table is, and reports whether it can be read.
func (e *examination) shape(l layout) bool {
	version := fmt.Sprintf("migration %d)", migrations.Version)
	switch {
	case !slices.Equal(l.columns, wantColumns):
		e.say(levelProblem, "table", "drop it and run ratelimit migrate: its counts are worth a window at most",
			"%s has the columns %s, want %s", e.p.table(), strings.Join(l.columns, ", "), strings.Join(wantColumns, ", "))
		return false
	case l.comment == nil || !strings.HasSuffix(*l.comment, version):
		e.say(levelNote, "table", "ratelimit migrate tells more; see the section about migrations in the README", "its comment does not end with %q", version)
	default:
		e.say(levelOK, "table", "", "%s, version %d", e.p.table(), migrations.Version)
	}
	if !l.primaryKey {
		e.say(levelProblem, "primary key", "ALTER TABLE … ADD PRIMARY KEY (bucket, window_start)", "it is not (bucket, window_start): nothing can be counted")
	}
	if !l.index {
		e.say(levelProblem, "index", "CREATE INDEX CONCURRENTLY ON … (expires_at)", "there is none on expires_at: each sweep reads the whole table")
	}
	if l.rowSecurity || l.triggers > 0 || l.rules > 0 {
		e.say(levelNote, "side effects", "take them away: they may keep rows from being written",
			"row-level security: %v, triggers: %d, rules: %d", l.rowSecurity, l.triggers, l.rules)
	}
	if len(l.missing) > 0 {
		e.say(levelProblem, "privileges", fmt.Sprintf("GRANT %s ON %s TO …", strings.Join(l.missing, ", "), e.p.table()),
			"this role may not %s", strings.Join(l.missing, ", "))
		return !slices.Contains(l.missing, "SELECT")
	}
	e.say(levelOK, "privileges", "", "this role may select, insert, update and delete")
	return true
}

// upkeep looks at how the table is kept small.
func (e *examination) upkeep(ctx context.Context, l layout) {
	const most = 100_000
	var expired int
	err := e.row(ctx, fmt.Sprintf(`SELECT count(*)::int FROM (SELECT FROM %s WHERE expires_at < clock_timestamp() - interval '5 minutes' LIMIT $1) AS r`,
		e.p.table()), []any{most}, &expired)
	switch {
	case err != nil:
		e.say(levelProblem, "sweep", "", "%v", describe(err))
	case expired >= 1000:
		count := fmt.Sprint(expired)
		if expired == most {
			count += " or more"
		}
		e.say(levelProblem, "sweep", "let a store sweep, which each does that counts unless ManualSweep is set, or call ratelimit sweep now and then",
			"%s rows expired more than 5 minutes ago", count)
	default:
		e.say(levelOK, "sweep", "", "%d rows expired more than 5 minutes ago", expired)
	}
	vacuumed := "never"
	if l.sinceVacuum != nil {
		vacuumed = seconds(*l.sinceVacuum) + " ago"
	}
	found := fmt.Sprintf("about %d live rows and %d dead ones, %d kB with indexes, last vacuum %s", l.live, l.dead, l.size/1024, vacuumed)
	switch {
	case !l.autovacuum:
		e.say(levelProblem, "vacuum", "turn autovacuum on, for the server and for the table", "autovacuum is off; %s", found)
	case l.dead > 20_000 && l.dead > l.live:
		e.say(levelProblem, "vacuum", "look for a transaction or a replication slot that has been open for long, which keeps dead rows, "+
			"and at autovacuum_naptime and autovacuum_vacuum_cost_limit", "autovacuum falls behind: %s", found)
	default:
		e.say(levelOK, "vacuum", "", "%s", found)
	}
}

// describe is an error of the server without the parts of others.
func describe(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return fmt.Sprintf("%s (SQLSTATE %s)", pg.Message, pg.Code)
	}
	return err.Error()
}
