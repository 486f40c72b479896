package migrations

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// A Schema is the name of the schema that the table is made in. The empty name stands for [Public].
//
// It is the name of a schema alone, never of a table, and is used as it stands: capitals are kept,
// and a dot is part of the name. Schema("app.rate_limits") is a schema with a dot in its name.
//
// A name has at most 63 bytes of UTF-8 without control characters. Postgres would cut a longer one,
// and so use another schema than the one that was named. The schemas of Postgres itself, which are
// information_schema and all that begin with pg_, are refused.
type Schema string

// Public is the schema that is used if none is named.
const Public Schema = "public"

// maxIdentifier is how many bytes Postgres keeps of a name.
const maxIdentifier = 63

func (s Schema) name() Schema {
	if s == "" {
		return Public
	}
	return s
}

// Validate returns what is wrong with the name, or nil.
func (s Schema) Validate() error {
	var wrong string
	switch {
	case !utf8.ValidString(string(s)):
		wrong = "is not UTF-8"
	case strings.ContainsFunc(string(s), unicode.IsControl):
		wrong = "holds a control character"
	case len(s) > maxIdentifier:
		wrong = fmt.Sprintf("has %d bytes, want at most %d", len(s), maxIdentifier)
	case s == "information_schema" || strings.HasPrefix(string(s), "pg_"):
		wrong = "belongs to Postgres itself, want one of your own"
	default:
		return nil
	}
	return fmt.Errorf("migrations: schema %q %s", string(s), wrong)
}

func (s Schema) quoted() string { return pgx.Identifier{string(s.name())}.Sanitize() }

// table returns the qualified name of the table.
func (s Schema) table() string {
	if s.name() == Public {
		return "public.rate_limits"
	}
	return s.quoted() + ".rate_limits"
}
