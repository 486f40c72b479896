package store_test

import (
	"testing"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/migrations"
	"github.com/krow/ratelimit/store"
)

// A database that keeps failing is asked a few times and then once a second, whatever comes in. The
// error stays the one that it failed with. Counting goes on by itself when the fault has ended.
func TestDatabaseThatKeepsFailing(t *testing.T) {
	t.Parallel()
	r := newRecorder()
	pool := testdb.Pool(t, testdb.Empty(t), r.trace)
	logger, _ := logged()
	s := newStore(t, pool, store.PostgresConfig{Logger: logger})
	for range 1000 {
		_, err := s.Add(t.Context(), hits("a"))
		wantOnly(t, err, ratelimit.ErrNoTable)
	}
	if n := r.sent("INSERT"); n < 3 || n > 10 {
		t.Errorf("1000 hits on a missing table took %d statements, want 3 and one a second", n)
	}
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the store counts again", func() bool {
		_, err := s.Add(t.Context(), hits("a"))
		return err == nil
	})
}
