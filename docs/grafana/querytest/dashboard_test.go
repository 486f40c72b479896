package querytest

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// A board is what the tests need of the dashboard.
type board struct {
	Templating struct {
		List []struct {
			Name       string
			Type       string
			Definition string
		}
	}
	Panels []struct {
		Title      string
		Type       string
		Datasource struct{ UID string }
		GridPos    struct{ X, Y, W, H int }
		Targets    []struct {
			Expr         string
			LegendFormat string
			Datasource   struct{ UID string }
		}
	}
}

func readDashboard(t *testing.T) ([]byte, board) {
	t.Helper()
	raw, err := os.ReadFile("../dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var b board
	if err := json.Unmarshal(raw, &b); err != nil {
		t.Fatal(err)
	}
	return raw, b
}

// The dashboard has the fields that Grafana's own schema asks for and no others, and no panel lies on another.
func TestDashboardIsGrafanas(t *testing.T) {
	t.Parallel()
	raw, b := readDashboard(t)
	plugins.RegisterDefaultPlugins()
	//lint:ignore SA1019 the schema after this one is not read by each Grafana that is in use
	var d dashboard.Dashboard
	// When there is nothing to report it returns an empty list, which as an error is not nil.
	if err := d.UnmarshalJSONStrict(raw); err != nil && err.Error() != "" {
		t.Fatal(err)
	}
	if err := d.Validate(); err != nil {
		t.Error(err)
	}
	for i, p := range b.Panels {
		g := p.GridPos
		if g.X < 0 || g.W < 1 || g.X+g.W > 24 {
			t.Errorf("panel %q reaches from column %d to %d, want 0 to 24", p.Title, g.X, g.X+g.W)
		}
		for _, q := range b.Panels[:i] {
			o := q.GridPos
			if g.X < o.X+o.W && o.X < g.X+g.W && g.Y < o.Y+o.H && o.Y < g.Y+g.H {
				t.Errorf("panels %q and %q overlap", q.Title, p.Title)
			}
		}
	}
}

// interpolate puts values where Grafana puts those of variables.
func interpolate(t *testing.T, query string) string {
	t.Helper()
	query = strings.NewReplacer(
		"$__rate_interval", "5m",
		"$job", ".*",
		"$instance", ".*",
		"$policy", ".*",
	).Replace(query)
	if strings.Contains(query, "$") {
		t.Errorf("%s\nhas a variable that the test does not know", query)
	}
	return query
}

var (
	labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)
	inLegend    = regexp.MustCompile(`{{(\w+)}}`)
)

// Each query of the dashboard shows something above zero while everything happens that there are metrics of, and
// each legend has its labels.
func TestDashboardQueries(t *testing.T) {
	t.Parallel()
	_, b := readDashboard(t)
	db, engine := scraped(t), newEngine(t)
	queries := 0
	for _, p := range b.Panels {
		if p.Type == "row" {
			continue
		}
		if p.Datasource.UID != "${datasource}" {
			t.Errorf("panel %q has the data source %q, want that of the variable", p.Title, p.Datasource.UID)
		}
		for _, target := range p.Targets {
			queries++
			if target.Datasource.UID != "${datasource}" {
				t.Errorf("a query of panel %q has the data source %q, want that of the variable", p.Title, target.Datasource.UID)
			}
			query := interpolate(t, target.Expr)
			checkSelectors(t, engine, db, query)
			result := evaluate(t, engine, db, query, lastScrape)
			shows := false
			for _, sample := range result {
				shows = shows || sample.F > 0
			}
			if !shows {
				t.Errorf("panel %q: %s\nyields %v, want something above zero", p.Title, query, result)
			}
			for _, m := range inLegend.FindAllStringSubmatch(target.LegendFormat, -1) {
				if !hasLabel(result, m[1]) {
					t.Errorf("panel %q: %s\nyields no label %s, which the legend shows", p.Title, query, m[1])
				}
			}
		}
	}
	if queries < 20 {
		t.Errorf("%d queries were found in the dashboard, want at least 20", queries)
	}
	variables := 0
	for _, v := range b.Templating.List {
		if v.Type == "datasource" {
			continue
		}
		variables++
		m := labelValues.FindStringSubmatch(v.Definition)
		if m == nil {
			t.Errorf("variable %s is %q, want label_values(selector, label)", v.Name, v.Definition)
			continue
		}
		selector := interpolate(t, m[1])
		checkSelectors(t, engine, db, selector)
		if !hasLabel(evaluate(t, engine, db, selector, lastScrape), m[2]) {
			t.Errorf("variable %s: %s has no label %s", v.Name, selector, m[2])
		}
	}
	if variables != 3 {
		t.Errorf("%d variables were found in the dashboard, want 3", variables)
	}
}
