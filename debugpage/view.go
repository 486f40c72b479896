package debugpage

import (
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	"github.com/krow/ratelimit"
)

// A view is what the template shows.
type view struct {
	Now, Uptime string
	Refresh     bool
	Policies    []policyView
	Busiest     []bucketView
	Store       storeView
	Lookup      *lookupView
}

type policyView struct {
	Name, Limit, Key, OnFailure string
	Modes                       []string
	Admitted, Refused           string // a second
	Uncounted                   string // or nothing
	Chart                       template.HTML
}

type bucketView struct {
	Policy, Bucket, PerMinute, Refused string
}

type storeView struct {
	Seen                                  bool
	Statements, Hits, Batch, Median, Slow string
	Chart                                 template.HTML
	Open                                  bool
	Breaker, Sweep, Failure               string
}

func (p *Page) view(l *ratelimit.Limiter, now time.Time) view {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := view{Now: now.UTC().Format("15:04:05 UTC"), Uptime: now.Sub(p.started).Round(time.Second).String()}
	for _, policy := range l.Policies() {
		v.Policies = append(v.Policies, p.policyView(policy, now))
	}
	for _, w := range p.busiest.top(now, 12) {
		v.Busiest = append(v.Busiest, bucketView{w.policy, shorten(w.bucket), number(w.requests / 2), number(w.refused / 2)})
	}
	v.Store = p.storeView(now)
	return v
}

func (p *Page) policyView(policy ratelimit.Policy, now time.Time) policyView {
	v := policyView{Name: policy.Name, Limit: policy.Limit.String(), OnFailure: policy.OnFailure.String()}
	for mode, is := range map[string]bool{
		"sliding": policy.Sliding, "dry run": policy.DryRun, "optional": policy.Optional,
		"by cost": policy.Cost != nil, "by request": policy.LimitFor != nil,
	} {
		if is {
			v.Modes = append(v.Modes, mode)
		}
	}
	slices.Sort(v.Modes)
	a := p.policies[policy.Name]
	if a == nil {
		a = new(activity)
	}
	admitted, refused, uncounted := a.admitted.values(now), a.refused.values(now), a.uncounted.values(now)
	v.Admitted, v.Refused = number(rate(admitted)), number(rate(refused))
	if n := rate(uncounted); n > 0 {
		v.Uncounted = number(n)
	}
	v.Chart = chart("admitted and refused a second", admitted, refused)
	return v
}

func (p *Page) storeView(now time.Time) storeView {
	f := &p.flushes
	v := storeView{Seen: f.n > 0, Breaker: "closed", Sweep: "none yet", Open: p.breaker.open}
	if v.Seen {
		statements, hits := f.perSecond.values(now), f.hits.values(now)
		v.Statements, v.Hits = number(rate(statements)), number(rate(hits))
		v.Chart = chart("statements a second", statements, nil)
		n := min(f.n, maxFlushes)
		elapsed := slices.Sorted(slices.Values(f.elapsed[:n]))
		v.Median, v.Slow = duration(elapsed[n/2]), duration(elapsed[n*99/100])
		sum := 0
		for _, b := range f.buckets[:n] {
			sum += b
		}
		v.Batch = number(float64(sum) / float64(n))
	}
	switch {
	case p.breaker.open:
		v.Breaker = "open since " + ago(now, p.breaker.since) + ": the database keeps failing and is asked once a second"
	case !p.breaker.since.IsZero():
		v.Breaker = "closed since " + ago(now, p.breaker.since)
	}
	if s := p.sweep; !s.at.IsZero() {
		v.Sweep = fmt.Sprintf("%d rows in %s, %s ago", s.stats.Deleted, duration(s.stats.Elapsed), ago(now, s.at))
		if s.stats.Err != nil {
			v.Sweep += ", ended by: " + s.stats.Err.Error()
		}
	}
	if !p.failure.at.IsZero() {
		v.Failure = ago(now, p.failure.at) + " ago: " + p.failure.text
	}
	return v
}

// shorten leaves twelve digits of the hash at the end of a bucket's name.
func shorten(bucket string) string {
	i := strings.LastIndexByte(bucket, ':')
	if i < 0 || len(bucket) < i+13 {
		return bucket
	}
	return bucket[:i+13] + "…"
}

func number(n float64) string {
	switch {
	case n == 0:
		return "0"
	case n < 10:
		return fmt.Sprintf("%.1f", n)
	}
	return fmt.Sprintf("%.0f", n)
}

func duration(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

func ago(now, at time.Time) string { return max(0, now.Sub(at)).Round(time.Second).String() }

// chart draws a value or two for each second as areas, the second on top of the first.
func chart(title string, below, above []uint32) template.HTML {
	const height = 40.0
	sum := slices.Clone(below)
	for i := range above {
		sum[i] += above[i]
	}
	peak := slices.Max(sum)
	area := func(class string, values, floor []uint32) string {
		var b strings.Builder
		fmt.Fprintf(&b, `<polygon class="%s" points="`, class)
		y := func(v uint32) float64 { return height - height*float64(v)/float64(max(peak, 1)) }
		for i, v := range values {
			fmt.Fprintf(&b, "%d,%.1f ", i, y(v))
		}
		for i := len(values) - 1; i >= 0; i-- {
			from := uint32(0)
			if floor != nil {
				from = floor[i]
			}
			fmt.Fprintf(&b, "%d,%.1f ", i, y(from))
		}
		return b.String() + `"/>`
	}
	svg := area("below", below, nil)
	if above != nil {
		svg += area("above", sum, below)
	}
	return template.HTML(fmt.Sprintf(
		`<svg viewBox="0 0 %d %.0f" preserveAspectRatio="none" role="img" aria-label="%s in the last three minutes">%s</svg><small>peak %d</small>`,
		len(below)-1, height, template.HTMLEscapeString(title), svg, peak))
}
