package main

import (
	"context"
	"flag"
	"fmt"
)

func top(p *program, f *flag.FlagSet) func(context.Context) error {
	n := f.Int("n", 10, "show so `many` buckets of each policy and window")
	policy := f.String("policy", "", "show only the policy of that `name`")
	full := f.Bool("full", false, "show hashes in full")
	return func(ctx context.Context) error {
		if *n < 1 {
			return usageError{fmt.Errorf("-n is %d, want at least 1", *n)}
		}
		pool, err := p.open(ctx)
		if err != nil {
			return err
		}
		defer pool.Close()
		// Rows of sliding windows live for two, of which the first is the one that goes on.
		rows, err := pool.Query(ctx, fmt.Sprintf(`
			SELECT %s FROM (
				SELECT *, row_number() OVER (
					PARTITION BY regexp_replace(bucket, ':[^:]*$', '') ORDER BY count DESC, bucket
				) AS place
				FROM %s
				WHERE expires_at > clock_timestamp()
					AND (split_part(bucket, ':', 1) NOT LIKE '%%-sliding'
						OR date_part('epoch', expires_at - clock_timestamp()) > date_part('epoch', clock_timestamp() - window_start))
					AND ($1 = '' OR starts_with(bucket, $1 || '/'))
			) AS r
			WHERE r.place <= $2
			ORDER BY split_part(r.bucket, '/', 1) COLLATE "C", regexp_replace(r.bucket, ':[^:]*$', '') COLLATE "C", r.place`, columns, p.table()), *policy, *n)
		if err != nil {
			return err
		}
		buckets, err := readBuckets(rows)
		if err != nil {
			return err
		}
		if len(buckets) == 0 && !p.json {
			_, err := fmt.Fprintln(p.stdout, "Nothing is counted at the moment.")
			return err
		}
		return printTable(p, buckets, head, func(b bucket) string { return b.line(*full) })
	}
}
