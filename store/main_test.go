package store_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/krow/ratelimit/internal/testdb"
)

func TestMain(m *testing.M) {
	testdb.Main(m, func() error { return goleak.Find() })
}
