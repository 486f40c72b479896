package main

import (
	"bufio"
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/krow/ratelimit/internal/testdb"
)

// findings returns what doctor found, by check.
func findings(t *testing.T, database string, args ...string) (code int, found map[string]finding) {
	t.Helper()
	r := call(t, database, "", append([]string{"doctor", "-json"}, args...)...)
	found = make(map[string]finding)
	for lines := bufio.NewScanner(strings.NewReader(r.stdout)); lines.Scan(); {
		var f finding
		if err := json.Unmarshal(lines.Bytes(), &f); err != nil {
			t.Fatalf("%v in %s", err, lines.Text())
		}
		found[f.Check] = f
	}
	if r.stderr != "" {
		t.Errorf("doctor says %q", r.stderr)
	}
	return r.code, found
}

func TestDoctorOfAHealthyDatabase(t *testing.T) {
	t.Parallel()
	database := counted(t)
	code, found := findings(t, database)
	for check, f := range found {
		if f.Level != levelOK || f.Found == "" || f.Advice != "" {
			t.Errorf("%s: %+v", check, f)
		}
	}
	if code != exitOK || len(found) != 9 {
		t.Errorf("exit %d with %d findings, want 0 with 9", code, len(found))
	}
	if r := call(t, database, "", "doctor"); !strings.HasPrefix(r.stdout, "CHECK") || strings.Count(r.stdout, "\n") != 10 {
		t.Errorf("the table is\n%s", r.stdout)
	}
}

// Each thing that is wrong is found, alone, with advice.
func TestDoctorFinds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		sql     string
		setting string // of the session
		check   string
		level   string
		found   string
	}{
		"missing table":    {"DROP TABLE rate_limits", "", "table", levelProblem, "is missing"},
		"another table":    {"DROP TABLE rate_limits; CREATE TABLE rate_limits (bucket text)", "", "table", levelProblem, "has the columns bucket text"},
		"without comment":  {"COMMENT ON TABLE rate_limits IS NULL", "", "table", levelNote, "its comment"},
		"newer":            {"COMMENT ON TABLE rate_limits IS 'counters (github.com/krow/ratelimit, migration 99)'", "", "table", levelNote, "its comment"},
		"primary key":      {"ALTER TABLE rate_limits DROP CONSTRAINT rate_limits_pkey", "", "primary key", levelProblem, "nothing can be counted"},
		"index":            {"DROP INDEX rate_limits_expires_idx", "", "index", levelProblem, "none on expires_at"},
		"row security":     {"ALTER TABLE rate_limits ENABLE ROW LEVEL SECURITY", "", "side effects", levelNote, "row-level security: true"},
		"rule":             {"CREATE RULE r AS ON DELETE TO rate_limits DO INSTEAD NOTHING", "", "side effects", levelNote, "rules: 1"},
		"autovacuum":       {"ALTER TABLE rate_limits SET (autovacuum_enabled = false)", "", "vacuum", levelProblem, "autovacuum is off"},
		"unswept":          {"INSERT INTO rate_limits SELECT n::text, 'epoch', 1, now() - interval '1 day' FROM generate_series(1, 5000) AS n", "", "sweep", levelProblem, "5000 rows"},
		"read-only role":   {"", "default_transaction_read_only=on", "writing", levelProblem, "read-only"},
		"strict isolation": {"", "default_transaction_isolation=serializable", "isolation", levelNote, "serializable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := testdb.New(t)
			if test.sql != "" {
				exec(t, database, test.sql)
			}
			u, err := url.Parse(database)
			if err != nil {
				t.Fatal(err)
			}
			if test.setting != "" {
				u.RawQuery += "&" + test.setting
			}
			code, found := findings(t, u.String())
			f := found[test.check]
			if f.Level != test.level || !strings.Contains(f.Found, test.found) || f.Advice == "" {
				t.Errorf("%s: %+v, want the level %s and %q", test.check, f, test.level, test.found)
			}
			if want := map[string]int{levelNote: exitOK, levelProblem: exitFailed}[test.level]; code != want {
				t.Errorf("exit %d, want %d", code, want)
			}
			for check, f := range found {
				if check != test.check && f.Level != levelOK {
					t.Errorf("it finds this too: %+v", f)
				}
			}
		})
	}
}

// A role that may do less is told what it lacks.
func TestDoctorOfPrivileges(t *testing.T) {
	t.Parallel()
	server := testdb.Server(t)
	exec(t, server.URL(), `CREATE ROLE poor LOGIN PASSWORD 'poor'`)
	if r := call(t, server.URL(), "", "migrate"); r.code != exitOK {
		t.Fatalf("migrate: %+v", r)
	}
	u, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("poor", "poor")
	for _, test := range []struct{ grant, found string }{
		{"SELECT (bucket)", "this role may not SELECT, INSERT, UPDATE, DELETE"},
		{"SELECT, INSERT", "this role may not UPDATE, DELETE"},
	} {
		exec(t, server.URL(), "GRANT "+test.grant+" ON rate_limits TO poor")
		code, found := findings(t, u.String())
		if f := found["privileges"]; code != exitFailed || f.Level != levelProblem || f.Found != test.found {
			t.Errorf("exit %d and %+v, want %q", code, f, test.found)
		}
	}
	exec(t, server.URL(), "GRANT UPDATE, DELETE ON rate_limits TO poor")
	if code, found := findings(t, u.String()); code != exitOK || found["privileges"].Level != levelOK {
		t.Errorf("exit %d and %+v, want no problem", code, found["privileges"])
	}
}
