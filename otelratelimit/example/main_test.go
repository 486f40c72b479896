package main

import (
	"bytes"
	"regexp"
	"testing"

	"github.com/krow/ratelimit/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

func TestExample(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), &out, testdb.New(t), "127.0.0.1:0", true); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		// Five of ten are refused, or fewer if a minute ended meanwhile.
		`(?m)^ratelimit_decisions_total\{.*ratelimit_dry_run="false",ratelimit_outcome="allowed",ratelimit_policy="hello",ratelimit_source="store"\} ([5-9]|10)$`,
		`(?m)^ratelimit_decision_duration_seconds_count\{`,
		`(?m)^ratelimit_store_flush_duration_seconds_count\{`,
		`(?m)^ratelimit_store_breaker_open\{.*\} 0$`,
	} {
		if !regexp.MustCompile(want).Match(out.Bytes()) {
			t.Errorf("there is no %s in\n%s", want, out.Bytes())
		}
	}
}
