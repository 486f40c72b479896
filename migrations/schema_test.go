package migrations_test

import (
	"strings"
	"testing"

	"github.com/krow/ratelimit/migrations"
)

func TestSchemaNamesThatAreRefused(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name migrations.Schema
		want string
	}{
		{"pg_catalog", `migrations: schema "pg_catalog" belongs to Postgres itself, want one of your own`},
		{"pg_rate", `migrations: schema "pg_rate" belongs to Postgres itself, want one of your own`},
		{"information_schema", `migrations: schema "information_schema" belongs to Postgres itself, want one of your own`},
		{"a\x00b", `migrations: schema "a\x00b" holds a control character`},
		{"a\nb", `migrations: schema "a\nb" holds a control character`},
		{"a\xff", `migrations: schema "a\xff" is not UTF-8`},
		{
			migrations.Schema(strings.Repeat("ö", 32)),
			`migrations: schema "öööööööööööööööööööööööööööööööö" has 64 bytes, want at most 63`,
		},
	}
	for _, tt := range tests {
		if _, err := tt.name.FS(); err == nil || err.Error() != tt.want {
			t.Errorf("FS of %q: error %v, want %s", tt.name, err, tt.want)
		}
		if _, err := tt.name.Split(); err == nil || err.Error() != tt.want {
			t.Errorf("Split of %q: error %v, want %s", tt.name, err, tt.want)
		}
		// No database is asked.
		if err := tt.name.Up(t.Context(), nil); err == nil || err.Error() != tt.want {
			t.Errorf("Up of %q: error %v, want %s", tt.name, err, tt.want)
		}
	}
}
