package querytest

import (
	"testing"

	"github.com/krow/ratelimit/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }
