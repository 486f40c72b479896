package querytest

import (
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
)

func readRules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile("../alerts.yaml", false, model.LegacyValidation, queryParser, slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	if len(errs) > 0 {
		t.FailNow()
	}
	var all []rulefmt.Rule
	for _, group := range groups.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

// The rules ask for nothing that is not exposed.
func TestAlertSelectors(t *testing.T) {
	t.Parallel()
	db, engine := scraped(t), newEngine(t)
	for _, rule := range readRules(t) {
		checkSelectors(t, engine, db, rule.Expr)
	}
}

// minutes is how long a service is watched. What befalls it begins after two hours.
const minutes = 180

// A service in good order: a hundred requests a second, a refusal each ten seconds, all of it in one or two
// milliseconds, and a sweep each minute.
var healthy = map[string]string{
	`ratelimit_decision_duration_seconds_count{ratelimit_outcome="allowed"}`:                                                              "0+6000x180",
	`ratelimit_decision_duration_seconds_bucket{ratelimit_outcome="allowed",le="0.001"}`:                                                  "0+5000x180",
	`ratelimit_decision_duration_seconds_bucket{ratelimit_outcome="allowed",le="0.0025"}`:                                                 "0+6000x180",
	`ratelimit_decision_duration_seconds_bucket{ratelimit_outcome="allowed",le="0.3"}`:                                                    "0+6000x180",
	`ratelimit_decision_duration_seconds_bucket{ratelimit_outcome="allowed",le="+Inf"}`:                                                   "0+6000x180",
	`ratelimit_decisions_total{ratelimit_policy="api",ratelimit_outcome="refused",ratelimit_dry_run="false",ratelimit_source="memory"}`:   "0+6x180",
	`ratelimit_decisions_total{ratelimit_policy="api",ratelimit_outcome="refused",ratelimit_dry_run="true",ratelimit_source="store"}`:     "0+6x180",
	`ratelimit_decisions_total{ratelimit_policy="login",ratelimit_outcome="refused",ratelimit_dry_run="false",ratelimit_source="memory"}`: "0+0x180",
	`ratelimit_store_errors_total{error_type="timeout"}`:                                                                                  "0+0x180",
	`ratelimit_store_breaker_open{}`:                 "0+0x180",
	`ratelimit_store_flush_duration_seconds_count{}`: "0+3000x180",
	`ratelimit_store_sweep_duration_seconds_count{}`: "0+1x180",
	`ratelimit_store_sweep_duration_seconds_sum{}`:   "0+0.05x180",
}

func TestAlertsFire(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		befalls map[string]string // in place of what is so of a healthy service
		want    []string          // the alerts that fire, and what they name
	}{
		"nothing": {},
		"two in a hundred are not counted": {
			befalls: map[string]string{`ratelimit_store_errors_total{error_type="timeout"}`: "0+0x120 120+120x59"},
			want:    []string{"RatelimitStoreFailing api"},
		},
		"one in two hundred is not counted": {
			befalls: map[string]string{`ratelimit_store_errors_total{error_type="timeout"}`: "0+0x120 30+30x59"},
		},
		"a minute of errors": {
			befalls: map[string]string{`ratelimit_store_errors_total{error_type="timeout"}`: "0+0x120 200+0x59"},
		},
		"the breaker stays open": {
			befalls: map[string]string{`ratelimit_store_breaker_open{}`: "0+0x120 1+0x59"},
			want:    []string{"RatelimitBreakerOpen api a:8080"},
		},
		"the breaker is open for a minute": {
			befalls: map[string]string{`ratelimit_store_breaker_open{}`: "0+0x120 1+0x1 0+0x57"},
		},
		"a policy refuses much more": {
			befalls: map[string]string{
				`ratelimit_decisions_total{ratelimit_policy="api",ratelimit_outcome="refused",ratelimit_dry_run="false",ratelimit_source="memory"}`: "0+6x120 1000+1000x59",
			},
			want: []string{"RatelimitRefusalsSurge api api"},
		},
		"a policy that never refused begins to": {
			befalls: map[string]string{
				`ratelimit_decisions_total{ratelimit_policy="login",ratelimit_outcome="refused",ratelimit_dry_run="false",ratelimit_source="memory"}`: "0+0x120 120+120x59",
			},
			want: []string{"RatelimitRefusalsSurge api login"},
		},
		"a policy refuses ten times as much, which is little": {
			befalls: map[string]string{
				`ratelimit_decisions_total{ratelimit_policy="api",ratelimit_outcome="refused",ratelimit_dry_run="false",ratelimit_source="memory"}`: "0+6x120 770+50x59",
			},
		},
		"a policy would refuse much more where it is tried out": {
			befalls: map[string]string{
				`ratelimit_decisions_total{ratelimit_policy="api",ratelimit_outcome="refused",ratelimit_dry_run="true",ratelimit_source="store"}`: "0+6x120 1000+1000x59",
			},
		},
		"two in a hundred decisions are slow": {
			befalls: map[string]string{
				`ratelimit_decision_duration_seconds_bucket{ratelimit_outcome="allowed",le="0.001"}`:  "0+5000x120 604800+4800x59",
				`ratelimit_decision_duration_seconds_bucket{ratelimit_outcome="allowed",le="0.0025"}`: "0+6000x120 725880+5880x59",
			},
			want: []string{"RatelimitDecisionsSlow api"},
		},
		"one in two hundred decisions is slow": {
			befalls: map[string]string{
				`ratelimit_decision_duration_seconds_bucket{ratelimit_outcome="allowed",le="0.0025"}`: "0+6000x120 725970+5970x59",
			},
		},
		"sweeps take all the time": {
			befalls: map[string]string{`ratelimit_store_sweep_duration_seconds_sum{}`: "0+0.05x120 60+55x59"},
			want:    []string{"RatelimitSweepBehind api a:8080"},
		},
		"sweeps do not end": {
			befalls: map[string]string{`ratelimit_store_sweep_duration_seconds_count{}`: "0+1x60 60+0x119"},
			want:    []string{"RatelimitNotSwept api"},
		},
		"sweeps fail": {
			befalls: map[string]string{
				`ratelimit_store_sweep_duration_seconds_count{}`:                      "0+1x60 60+0x119",
				`ratelimit_store_sweep_duration_seconds_count{error_type="no_table"}`: "0+0x60 1+1x119",
			},
			want: []string{"RatelimitNotSwept api"},
		},
		"nobody calls, and nothing is swept": {
			befalls: map[string]string{
				`ratelimit_store_sweep_duration_seconds_count{}`: "0+1x60 60+0x119",
				`ratelimit_store_flush_duration_seconds_count{}`: "0+3000x60 180000+0x119",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			series := maps.Clone(healthy)
			maps.Copy(series, test.befalls)
			var got []string
			for alert := range fired(t, series) {
				got = append(got, alert)
			}
			slices.Sort(got)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("alerts that fire (-want +got):\n%s", diff)
			}
		})
	}
}

var inAnnotation = regexp.MustCompile(`\$labels\.(\w+)`)

// fired evaluates the rules each minute, as Prometheus does, and returns the alerts that fire at any time.
func fired(t *testing.T, series map[string]string) map[string]bool {
	t.Helper()
	load := new(strings.Builder)
	fmt.Fprintln(load, "load 1m")
	for name, values := range series {
		name = strings.Replace(name, "{", `{job="api",instance="a:8080",`, 1)
		fmt.Fprintf(load, "  %s %s\n", strings.Replace(name, ",}", "}", 1), values)
	}
	db := promqltest.LoadedStorage(t, load.String())
	t.Cleanup(func() { _ = db.Close() })
	query := rules.EngineQueryFunc(newEngine(t), db)
	alerts := make(map[string]bool)
	for _, rule := range readRules(t) {
		expr, err := queryParser.ParseExpr(rule.Expr)
		if err != nil {
			t.Fatal(err)
		}
		r := rules.NewAlertingRule(rule.Alert, expr, time.Duration(rule.For), time.Duration(rule.KeepFiringFor),
			labels.FromMap(rule.Labels), labels.FromMap(rule.Annotations), labels.EmptyLabels(), "", true, slog.New(slog.DiscardHandler))
		for minute := range minutes {
			at := time.Unix(0, 0).Add(time.Duration(minute) * time.Minute)
			if _, err := r.Eval(t.Context(), 0, at, query, nil, 0); err != nil {
				t.Fatal(err)
			}
			for _, a := range r.ActiveAlerts() {
				if a.State != rules.StateFiring {
					continue
				}
				named := []string{rule.Alert}
				for _, label := range []string{"job", "instance", "ratelimit_policy"} {
					if v := a.Labels.Get(label); v != "" {
						named = append(named, v)
					}
				}
				alerts[strings.Join(named, " ")] = true
				a.Annotations.Range(func(l labels.Label) {
					if strings.Contains(l.Value, "<error") {
						t.Errorf("%s: %s is %q", rule.Alert, l.Name, l.Value)
					}
				})
				for _, text := range rule.Annotations {
					for _, m := range inAnnotation.FindAllStringSubmatch(text, -1) {
						if !a.Labels.Has(m[1]) {
							t.Errorf("%s: there is no label %s, of which it tells in %q", rule.Alert, m[1], text)
						}
					}
				}
			}
		}
	}
	return alerts
}
