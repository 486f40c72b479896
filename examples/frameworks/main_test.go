package frameworks_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

func TestMain(m *testing.M) {
	testdb.Main(m, func() error { return goleak.Find() })
}

// once admits one request. Its window does not end while a test runs, unless that happens once in a year.
var once = ratelimit.Limit{Requests: 1, Window: 366 * 24 * time.Hour}

// patient is long enough on any machine.
const patient = time.Minute

// stores are made anew for each test.
var stores = map[string]func(*testing.T) ratelimit.Store{
	"memory": func(t *testing.T) ratelimit.Store {
		s, err := store.NewMemory(store.MemoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	},
	"postgres": func(t *testing.T) ratelimit.Store {
		s, err := store.NewPostgres(testdb.Pool(t, testdb.New(t)), store.PostgresConfig{Timeout: patient})
		if err != nil {
			t.Fatal(err)
		}
		return s
	},
}

func newLimiter(t *testing.T, s ratelimit.Store, policies ...ratelimit.Policy) *ratelimit.Limiter {
	t.Helper()
	limiter, err := ratelimit.New(s, ratelimit.Config{Policies: policies, Deadline: patient})
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}
