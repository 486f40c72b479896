package ratelimit_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/krow/ratelimit/internal/testdb"
)

// A limiter starts nothing that outlives its requests: once all tests are over, no goroutine is left.
func TestMain(m *testing.M) {
	testdb.Main(m, func() error { return goleak.Find() })
}
