package store

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/krow/ratelimit"
)

// maxBucket is the longest bucket in bytes. A B-tree entry must stay below a third of a page
// (Postgres manual, "B-Tree Indexes"), and this is far below that.
const maxBucket = 512

// validate finds what the database would refuse, or count wrongly, before a hit joins others.
func validate(hits []ratelimit.Hit) error {
	for _, hit := range hits {
		if err := validateN(hit.N); err != nil {
			return err
		}
	}
	return validateWindows(hits)
}

// validateWindows is validate of hits that are not counted.
func validateWindows(hits []ratelimit.Hit) error {
	for i, hit := range hits {
		if err := validateBucket(hit.Bucket); err != nil {
			return err
		}
		if hit.Window < time.Millisecond || hit.Window > ratelimit.MaxWindow || hit.Window%time.Millisecond != 0 {
			return fmt.Errorf("%w: Window is %v, want 1ms to %v in whole milliseconds", ratelimit.ErrInvalidHit, hit.Window, ratelimit.MaxWindow)
		}
		for _, other := range hits[:i] {
			if other.Bucket == hit.Bucket && (other.Window != hit.Window || other.Sliding != hit.Sliding) {
				return fmt.Errorf("%w: one bucket with two kinds of windows, %v (sliding: %t) and %v (sliding: %t)",
					ratelimit.ErrInvalidHit, other.Window, other.Sliding, hit.Window, hit.Sliding)
			}
		}
	}
	return nil
}

func validateBuckets(buckets []string) error {
	for _, bucket := range buckets {
		if err := validateBucket(bucket); err != nil {
			return err
		}
	}
	return nil
}

func validateCharge(c ratelimit.Charge) error {
	if err := errors.Join(validateBucket(c.Bucket), validateN(c.N)); err != nil {
		return err
	}
	// 1970 to 9999: what both a microsecond count and Postgres hold.
	if s := c.Start.Unix(); s < 0 || s > 253402300799 {
		return fmt.Errorf("%w: Start is %v, want the start of a Count", ratelimit.ErrInvalidHit, c.Start)
	}
	return nil
}

// validateBucket does not quote a bucket that is wrong: who knows what it holds.
func validateBucket(bucket string) error {
	switch {
	case bucket == "" || len(bucket) > maxBucket:
		return fmt.Errorf("%w: Bucket has %d bytes, want 1 to %d", ratelimit.ErrInvalidHit, len(bucket), maxBucket)
	case !utf8.ValidString(bucket) || strings.IndexByte(bucket, 0) >= 0:
		return fmt.Errorf("%w: Bucket is not UTF-8 text without NUL", ratelimit.ErrInvalidHit)
	}
	return nil
}

func validateN(n int) error {
	if n < 1 || n > ratelimit.MaxRequests {
		return fmt.Errorf("%w: N is %d, want 1 to %d", ratelimit.ErrInvalidHit, n, ratelimit.MaxRequests)
	}
	return nil
}
