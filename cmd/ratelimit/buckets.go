package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A bucket is a row of the table, taken apart.
type bucket struct {
	Policy  string  `json:"policy"`
	Window  string  `json:"window"`
	Sliding bool    `json:"sliding"`
	Kind    string  `json:"key_kind"`
	Hash    string  `json:"hash"`
	Count   int64   `json:"count"`
	Starts  string  `json:"window_start"`
	EndsIn  float64 `json:"ends_in_seconds"` // below zero for the window before, which a sliding one still looks at
	Bucket  string  `json:"bucket"`
}

// Of a bucket's name, the limiter writes: policy/window[-sliding]:kind:hash.
const sliding = "-sliding"

// readBuckets reads the rows of a query for a bucket, its window's start in seconds since 1970, the seconds until its row
// expires and since the window started, and the count.
func readBuckets(rows pgx.Rows) ([]bucket, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (b bucket, err error) {
		var start, expiresIn, age float64
		if err := row.Scan(&b.Bucket, &start, &expiresIn, &age, &b.Count); err != nil {
			return b, err
		}
		b.EndsIn = expiresIn
		if i := strings.LastIndexByte(b.Bucket, ':'); i >= 0 {
			b.Hash = b.Bucket[i+1:]
			name := parsePrefix(b.Bucket[:i])
			b.Policy, b.Window, b.Sliding, b.Kind = name.policy, name.window, name.sliding, name.kind
		}
		if b.Sliding { // the row lives for two windows
			b.EndsIn = expiresIn - (expiresIn+age)/2
		}
		b.Starts = time.UnixMilli(int64(start * 1000)).UTC().Format(time.RFC3339)
		return b, nil
	})
}

// columns are what readBuckets reads, of a table that is named r.
const columns = `r.bucket,
	date_part('epoch', r.window_start),
	date_part('epoch', r.expires_at - clock_timestamp()),
	date_part('epoch', clock_timestamp() - r.window_start),
	r.count`

// A prefix is a bucket's name without the hash.
type prefix struct {
	text                 string
	policy, window, kind string
	sliding              bool
}

func parsePrefix(text string) prefix {
	p := prefix{text: text}
	var name string
	name, p.kind, _ = strings.Cut(text, ":")
	p.policy, p.window, _ = strings.Cut(name, "/")
	p.window, p.sliding = strings.CutSuffix(p.window, sliding)
	return p
}

// prefixes returns what buckets of the table begin with. It goes from each to the next in the primary key's index, and so
// reads as many pages as there are prefixes and not the whole table (a "loose index scan").
func (p *program) prefixes(ctx context.Context, pool *pgxpool.Pool) ([]prefix, error) {
	// After all buckets of "a:ip:" comes whatever is not less than "a:ip;", as ';' follows ':'.
	rows, err := pool.Query(ctx, fmt.Sprintf(`
		WITH RECURSIVE found AS (
			(SELECT bucket FROM %[1]s ORDER BY bucket LIMIT 1)
			UNION ALL
			SELECT (
				SELECT r.bucket FROM %[1]s AS r
				WHERE r.bucket >= (regexp_replace(found.bucket, ':[^:]*$', '') || ';') COLLATE "C"
				ORDER BY r.bucket LIMIT 1
			)
			FROM found WHERE found.bucket IS NOT NULL
		)
		SELECT regexp_replace(bucket, ':[^:]*$', '') FROM found WHERE bucket IS NOT NULL`, p.table()))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (prefix, error) {
		var text string
		err := row.Scan(&text)
		return parsePrefix(text), err
	})
}

const head = "POLICY\tWINDOW\tKEY\tCOUNT\tENDS IN"

// line is a bucket as a line of a table under head.
func (b bucket) line(full bool) string {
	window := b.Window
	if b.Sliding {
		window += " sliding"
	}
	hash := b.Hash
	if !full && len(hash) > 12 {
		hash = hash[:12] + "…"
	}
	ends := seconds(b.EndsIn)
	if b.EndsIn <= 0 {
		ends = "over"
	}
	return fmt.Sprintf("%s\t%s\t%s:%s\t%d\t%s", b.Policy, window, b.Kind, hash, b.Count, ends)
}
