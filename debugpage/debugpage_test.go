package debugpage_test

import (
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/debugpage"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

func TestMain(m *testing.M) { testdb.Main(m) }

const token = "s3cr3t-t0ken"

// A service is a limiter with a page.
type service struct {
	page    *debugpage.Page
	limiter *ratelimit.Limiter
	url     string // of the page
}

func newService(t *testing.T, counters ratelimit.Store, page *debugpage.Page) *service {
	t.Helper()
	long := func(n int) ratelimit.Limit { return ratelimit.Limit{Requests: n, Window: ratelimit.MaxWindow} }
	limiter, err := ratelimit.New(counters, ratelimit.Config{OnDecision: page.OnDecision, Deadline: time.Minute, Policies: []ratelimit.Policy{
		{Name: "ip", Limit: long(2)},
		{Name: "token", Limit: long(5), Key: ratelimit.BearerToken, Optional: true, Sliding: true, DryRun: true},
		{Name: "key", Limit: long(7), Key: ratelimit.Header("X-Api-Key"), Optional: true},
		{Name: "site", Limit: long(1000), Key: ratelimit.Constant("<b>all</b>"), OnFailure: ratelimit.FailLocal},
	}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(page.Handler(limiter))
	t.Cleanup(server.Close)
	return &service{page, limiter, server.URL + "/debug/ratelimit"}
}

func inMemory(t *testing.T) *service {
	t.Helper()
	counters, err := store.NewMemory(store.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return newService(t, counters, debugpage.New())
}

func (s *service) request(peer string, fields ...string) {
	r := &http.Request{RemoteAddr: peer, Header: make(http.Header)}
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	s.limiter.Check(r)
}

// text returns the status of a response and what a reader sees of it.
func text(t *testing.T, response *http.Response, err error) (int, string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	_, body2, _ := strings.Cut(string(body), "<body>")
	words := regexp.MustCompile(`<[^>]*>`).ReplaceAllString(body2, " ")
	return response.StatusCode, strings.Join(strings.Fields(html.UnescapeString(words)), " ")
}

func (s *service) get(t *testing.T) string {
	t.Helper()
	response, err := http.Get(s.url)
	status, words := text(t, response, err)
	if status != http.StatusOK {
		t.Errorf("status %d", status)
	}
	return words
}

func (s *service) post(t *testing.T, pairs ...string) string {
	t.Helper()
	form := make(url.Values)
	for i := 0; i < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	response, err := http.PostForm(s.url, form)
	status, words := text(t, response, err)
	if status != http.StatusOK {
		t.Errorf("%v: status %d: %s", form, status, words)
	}
	_, found, _ := strings.Cut(words, " Found ")
	found, _, _ = strings.Cut(found, " Policies ")
	return found
}

func wantWords(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q is not in\n%s", w, text)
		}
	}
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	s := inMemory(t)
	words := s.get(t)
	wantWords(t, words,
		"ip 2/8784h on failure: open", "token 5/8784h on failure: open dry run optional sliding",
		"site 1000/8784h on failure: local", "Nobody in the last minutes", "Is OnFlush set?", "breaker closed", "last sweep none yet")
	for range 3 {
		s.request("203.0.113.7:1")
	}
	wantWords(t, s.get(t), "ip/8784h:ip:fec52565aa0c… 1.5 0.5", "site/8784h:constant:")
}

// The charts show what was in the seconds that are over.
func TestRates(t *testing.T) {
	t.Parallel()
	s := inMemory(t)
	began := time.Now()
	for range 60 {
		s.request("203.0.113.7:1")
	}
	s.page.OnFlush(store.FlushStats{Buckets: 3, Hits: 30, Elapsed: 1500 * time.Microsecond})
	s.page.OnFlush(store.FlushStats{Buckets: 6, Hits: 30, Elapsed: 2500 * time.Microsecond, Err: errors.New("<i>cut</i>")})
	s.page.OnSweep(store.SweepStats{Deleted: 77, Elapsed: time.Second, Err: errors.New("gone")})
	s.page.OnBreaker(true)
	words := s.get(t)
	for strings.Contains(words, "0 admitted/s 0 refused/s peak 0 token") { // the second is not over
		if time.Since(began) > 20*time.Second {
			t.Fatalf("nothing shows after %v:\n%s", time.Since(began), words)
		}
		words = s.get(t)
	}
	wantWords(t, words, "0.2 admitted/s 5.8 refused/s", "6.0 hits/s 0.2 statements/s 4.5 buckets each 2.5 ms median 2.5 ms 99 %",
		"open since", "77 rows in 1.0 s", "ended by: gone", "ago: <i>cut</i>")
	s.page.OnBreaker(false)
	wantWords(t, s.get(t), "breaker closed since")
}

func TestLookUp(t *testing.T) {
	t.Parallel()
	s := inMemory(t)
	for range 3 {
		s.request("203.0.113.7:1", "Authorization", "Bearer "+token, "X-Api-Key", "k")
	}
	for _, test := range []struct {
		form []string
		want string
	}{
		{[]string{"by", "address", "value", " 203.0.113.7 "}, "ip ip/8784h:ip:fec52565aa0c… 2/8784h 0 "},
		{[]string{"by", "address", "value", "203.0.113.8"}, "ip ip/8784h:ip:ddbea5471056… 2/8784h 2 "},
		{[]string{"by", "token", "value", token}, "token token/8784h-sliding:bearer:"},
		{[]string{"by", "field", "field", "x-api-key", "value", "k"}, "key key/8784h:header-x-api-key:"},
		{[]string{"by", "field", "field", "X-Other", "value", "k"}, "no policy finds a key in that"},
		{[]string{"by", "field", "value", "k"}, "the name of the field is empty"},
		{[]string{"by", "address", "value", "203.0.113"}, "that is no address"},
		{[]string{"by", "address"}, "the value is empty"},
		{[]string{"value", "x"}, "want an address, a token or a field"},
	} {
		found := s.post(t, append(test.form, "do", "look")...)
		if !strings.Contains(found, test.want) {
			t.Errorf("%q: found %q, want %q", test.form, found, test.want)
		}
		if strings.Contains(found, token) || strings.Contains(found, "site") {
			t.Errorf("%q: found %q, which holds the token, or a policy that does not know the caller", test.form, found)
		}
	}
}

// A reset is of one caller, in the policies that know it.
func TestReset(t *testing.T) {
	t.Parallel()
	s := inMemory(t)
	remaining := func() []int {
		d := s.limiter.Check(&http.Request{RemoteAddr: "203.0.113.7:1", Header: http.Header{"Authorization": {"Bearer " + token}}})
		var all []int
		for _, r := range d.Results {
			all = append(all, r.Remaining)
		}
		return all
	}
	remaining()
	remaining()
	wantWords(t, s.post(t, "by", "address", "value", "203.0.113.7", "do", "reset"), "Forgotten.", "2/8784h 2 ")
	if diff := cmp.Diff([]int{1, 2, 997}, remaining()); diff != "" {
		t.Errorf("remaining by address, token and site (-want +got):\n%s", diff)
	}
	wantWords(t, s.post(t, "by", "token", "value", token, "do", "reset"), "Forgotten.")
	if diff := cmp.Diff([]int{0, 4, 996}, remaining()); diff != "" {
		t.Errorf("remaining by address, token and site (-want +got):\n%s", diff)
	}
}

// What a page of somebody else's sends is refused, and what is sent is nothing but the page.
func TestProtection(t *testing.T) {
	t.Parallel()
	s := inMemory(t)
	do := func(method string, fields ...string) *http.Response {
		r, err := http.NewRequest(method, s.url, strings.NewReader("by=address&value=203.0.113.7&do=reset"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for i := 0; i < len(fields); i += 2 {
			r.Header.Set(fields[i], fields[i+1])
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response
	}
	for _, test := range []struct {
		method string
		fields []string
		want   int
	}{
		{"POST", []string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		{"POST", []string{"Origin", "https://evil.example"}, http.StatusForbidden},
		{"POST", []string{"Sec-Fetch-Site", "same-origin"}, http.StatusOK},
		{"GET", []string{"Sec-Fetch-Site", "cross-site"}, http.StatusOK},
		{"PUT", []string{"Sec-Fetch-Site", "same-origin"}, http.StatusMethodNotAllowed},
	} {
		if got := do(test.method, test.fields...).StatusCode; got != test.want {
			t.Errorf("%s %q: status %d, want %d", test.method, test.fields, got, test.want)
		}
	}
	h := do("GET").Header
	wantWords(t, h.Get("Content-Security-Policy"), "default-src 'none'", "form-action 'self'", "frame-ancestors 'none'")
	if h.Get("Cache-Control") != "no-store" || h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("fields are %v", h)
	}
	big, err := http.PostForm(s.url, url.Values{"value": {strings.Repeat("x", 70<<10)}})
	if status, _ := text(t, big, err); status != http.StatusBadRequest {
		t.Errorf("a form that is too big gets %d, want 400", status)
	}
}

// Any number of callers and policies takes a bounded memory, and the busiest are found among them.
func TestManyCallers(t *testing.T) {
	t.Parallel()
	s := inMemory(t)
	for i := range 5000 {
		s.request(fmt.Sprintf("10.0.%d.%d:1", i/250, i%250))
		if i%20 == 0 {
			s.request("203.0.113.7:1")
		}
	}
	wantWords(t, s.get(t), "ip/8784h:ip:fec52565aa0c…")
	for i := range 1000 {
		s.page.OnDecision(nil, ratelimit.Decision{Outcome: ratelimit.Allowed, Results: []ratelimit.Result{{Policy: fmt.Sprint(i), Counted: true}}})
	}
}

// The page and its hooks may be used by many at once.
func TestAtOnce(t *testing.T) {
	t.Parallel()
	s := inMemory(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 50 {
				s.request("203.0.113.7:1")
				s.page.OnFlush(store.FlushStats{Hits: 1})
				s.page.OnSweep(store.SweepStats{})
				s.page.OnBreaker(i%2 == 0)
				s.get(t)
			}
		})
	}
	wg.Wait()
}

// On a real database: what the hooks are told shows, while it works and when it does not.
func TestOnPostgres(t *testing.T) {
	t.Parallel()
	page := debugpage.New()
	pool := testdb.Pool(t, testdb.New(t))
	counters, err := store.NewPostgres(pool, store.PostgresConfig{
		OnFlush: page.OnFlush, OnSweep: page.OnSweep, OnBreaker: page.OnBreaker, ManualSweep: true, Timeout: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, counters, page)
	s.request("203.0.113.7:1")
	if _, err := counters.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	words := s.get(t)
	wantWords(t, words, "buckets each", "0 rows in", "ip/8784h:ip:fec52565aa0c…")
	if strings.Contains(words, "not counted/s") {
		t.Errorf("what was counted is said not to be:\n%s", words)
	}
	if _, err := pool.Exec(t.Context(), "DROP TABLE rate_limits"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for !(strings.Contains(words, "not counted/s") && strings.Contains(words, "open since")) && time.Since(began) < 20*time.Second {
		s.request("203.0.113.8:1")
		words = s.get(t)
	}
	wantWords(t, words, "not counted/s", "open since", "table is missing")
	wantWords(t, s.post(t, "by", "address", "value", "203.0.113.7", "do", "look"), "not looked up: ")
	wantWords(t, s.post(t, "by", "address", "value", "203.0.113.7", "do", "reset"), "not reset: ")
}

func TestHandlerPanicsWithoutLimiter(t *testing.T) {
	t.Parallel()
	defer func() {
		if v := recover(); v != "debugpage: Handler: limiter is nil" {
			t.Errorf("recovered %v", v)
		}
	}()
	debugpage.New().Handler(nil)
}

var decision = ratelimit.Decision{Outcome: ratelimit.Allowed, Results: []ratelimit.Result{
	{Policy: "ip", Bucket: "ip/1m:ip:1", Counted: true, Outcome: ratelimit.Allowed},
	{Policy: "token", Bucket: "token/1m:bearer:1", Counted: true, Outcome: ratelimit.Refused},
}}

func TestDecisionAllocatesNothing(t *testing.T) { // not beside others, whose allocations would count
	page := debugpage.New()
	if n := testing.AllocsPerRun(1000, func() { page.OnDecision(nil, decision) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// BenchmarkOnDecision is what a decision of two policies costs.
//
//	go test -run='^$' -bench=. ./debugpage
func BenchmarkOnDecision(b *testing.B) {
	page := debugpage.New()
	b.ReportAllocs()
	for b.Loop() {
		page.OnDecision(nil, decision)
	}
}
