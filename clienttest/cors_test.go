package clienttest_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/google/go-cmp/cmp"
	"github.com/rs/cors"

	"github.com/krow/ratelimit"
)

// withCORS lets the scripts of an origin call the API, and read how long they have to wait.
func withCORS(limiter *ratelimit.Limiter, api http.Handler, origin string) http.Handler {
	c := cors.New(cors.Options{
		AllowedOrigins: []string{origin}, // such as "https://app.example.com"
		AllowedHeaders: []string{"Authorization"},
		ExposedHeaders: []string{"Retry-After", "RateLimit", "RateLimit-Policy"},
		MaxAge:         600,
	})
	return c.Handler(limiter.Handler(api))
}

// fetchTwice sends a field that asks for a preflight. The second %q says whether the browser adds credentials of its
// own, such as cookies.
const fetchTwice = `(async () => {
	const all = [];
	for (let i = 0; i < 2; i++) {
		try {
			const {status, headers} = await fetch(%q, {headers: {Authorization: "Bearer x"}, credentials: %q});
			const fields = ["Retry-After", "RateLimit", "RateLimit-Policy"].map(name => String(headers.get(name)));
			all.push([status, ...fields].join(" "));
		} catch (error) {
			all.push(error.name);
		}
	}
	return all;
})()`

// TestCORS has the script of a page call a server of another origin, in a real browser. The limit is one request.
func TestCORS(t *testing.T) {
	t.Parallel()
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, "<!doctype html><title>page</title>")
	}))
	t.Cleanup(page.Close)
	browser := newBrowser(t)

	type wiring func(*ratelimit.Limiter, http.Handler) http.Handler
	exposing := func(names ...string) cors.Options {
		return cors.Options{
			AllowedOrigins:   []string{page.URL},
			AllowedHeaders:   []string{"Authorization"},
			AllowCredentials: true,
			ExposedHeaders:   names,
			MaxAge:           600,
		}
	}
	outside := func(o cors.Options) wiring {
		return func(l *ratelimit.Limiter, api http.Handler) http.Handler { return cors.New(o).Handler(l.Handler(api)) }
	}
	inside := func(o cors.Options) wiring {
		return func(l *ratelimit.Limiter, api http.Handler) http.Handler { return l.Handler(cors.New(o).Handler(api)) }
	}
	documented := func(l *ratelimit.Limiter, api http.Handler) http.Handler { return withCORS(l, api, page.URL) }
	passedOn := exposing("*")
	passedOn.OptionsPassthrough = true

	once, never := []string{"OPTIONS 204", "GET 200", "GET 429"}, []string{"OPTIONS 204", "GET 429", "GET 429"}
	// What a script reads, where the name of a field stands for what the server has sent.
	const (
		admitted = "200 null RateLimit RateLimit-Policy"
		refused  = "429 Retry-After RateLimit RateLimit-Policy"
	)
	for _, tt := range []struct {
		name        string
		wire        wiring
		skip        func(*http.Request) bool
		credentials string
		answered    []string
		read        []string
	}{
		{"as documented", documented, nil, "omit", once, []string{admitted, refused}},
		{"none exposed", outside(exposing()), nil, "omit", once, []string{"200 null null null", "429 null null null"}},
		{"all exposed", outside(exposing("*")), nil, "omit", once, []string{admitted, refused}},
		// With credentials, "*" is the name of a field (Fetch standard, "CORS protocol and credentials").
		{
			"all exposed, with credentials", outside(exposing("*")), nil, "include",
			once,
			[]string{"200 null null null", "429 null null null"},
		},
		// A preflight that reaches the limiter is not counted if it is skipped.
		{"passed on, skipped", outside(passedOn), ratelimit.IsPreflight, "omit", once, []string{admitted, refused}},
		{"passed on, counted", outside(passedOn), nil, "omit", never, []string{refused, refused}},
		// The refusal of a limiter outside has no field of CORS, so that the script cannot see it at all.
		{"inside, skipped", inside(exposing("*")), ratelimit.IsPreflight, "omit", once, []string{admitted, "TypeError"}},
		{"inside, counted", inside(exposing("*")), nil, "omit", never, []string{"TypeError", "TypeError"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			counters, _ := newStore(t)
			limiter, err := newLimiter(counters, long, tt.skip)
			if err != nil {
				t.Fatal(err)
			}
			api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodOptions {
					w.WriteHeader(http.StatusNoContent)
				}
			})
			journal := &journal{next: tt.wire(limiter, api)}
			server := httptest.NewServer(journal)
			t.Cleanup(server.Close)

			read := evaluate(t, browser, page.URL, fmt.Sprintf(fetchTwice, server.URL, tt.credentials))

			var answered, want []string
			for _, e := range journal.exchanges() {
				answered = append(answered, fmt.Sprint(e.method, " ", e.status))
				if e.method != http.MethodOptions && len(want) < len(tt.read) {
					fields := strings.NewReplacer("Retry-After", e.header.Get("Retry-After"),
						"RateLimit-Policy", e.header.Get("RateLimit-Policy"), "RateLimit", e.header.Get("RateLimit"))
					want = append(want, fields.Replace(tt.read[len(want)]))
				}
			}
			if diff := cmp.Diff(tt.answered, answered); diff != "" {
				t.Errorf("answers of the server (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want, read); diff != "" {
				t.Errorf("what the script has read (-want +got):\n%s", diff)
			}
		})
	}
}

// newBrowser starts Chromium, and returns the context of its first tab. It is stopped when the test ends.
func newBrowser(t *testing.T) context.Context {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.WSURLReadTimeout(patient))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium has none for root
	}
	allocator, cancel := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	t.Cleanup(cancel)
	browser, _ := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		if err := chromedp.Cancel(browser); err != nil {
			t.Error(err)
		}
	})
	if err := chromedp.Do(browser); err != nil {
		t.Fatalf("Chromium does not start, Debian's package is chromium: %v", err)
	}
	return browser
}

// evaluate returns what a script comes to on a page in a new tab.
func evaluate(t *testing.T, browser context.Context, page, script string) []string {
	t.Helper()
	tab, cancel := chromedp.NewContext(browser)
	defer cancel()
	if err := chromedp.Do(tab, chromedp.Navigate(page)); err != nil {
		t.Fatal(err)
	}
	result, err := chromedp.Run(tab, chromedp.Evaluate[[]string](script, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatal(err)
	}
	return result
}
