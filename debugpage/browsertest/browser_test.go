package browsertest_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/debugpage"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// browser starts Chromium and returns the context of a tab. What the tab asks for is noted in asked.
func browser(t *testing.T) (ctx context.Context, asked func() []string) {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("the test needs the package chromium: %v", err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()))
	if os.Geteuid() == 0 { // for whom it has no sandbox
		options = append(options, chromedp.NoSandbox)
	}
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	var mu sync.Mutex
	var urls []string
	err = chromedp.Listen(ctx, func(event any) {
		if e, ok := event.(*network.EventRequestWillBeSent); ok {
			mu.Lock()
			defer mu.Unlock()
			urls = append(urls, e.Request.URL)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	return ctx, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(urls)
	}
}

func do(t *testing.T, ctx context.Context, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(ctx, steps...); err != nil {
		t.Fatal(err)
	}
}

func get[T any](t *testing.T, ctx context.Context, a chromedp.Action[T]) T {
	t.Helper()
	v, err := chromedp.Run(ctx, a)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// A service counts in Postgres, and has the page on a server of its own.
type service struct {
	limiter *ratelimit.Limiter
	page    string // its URL
}

func newService(t *testing.T) *service {
	t.Helper()
	page := debugpage.New()
	counters, err := store.NewPostgres(testdb.Pool(t, testdb.New(t)), store.PostgresConfig{
		OnFlush: page.OnFlush, OnSweep: page.OnSweep, OnBreaker: page.OnBreaker, Timeout: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	long := func(n int) ratelimit.Limit { return ratelimit.Limit{Requests: n, Window: ratelimit.MaxWindow} }
	limiter, err := ratelimit.New(counters, ratelimit.Config{
		OnDecision: page.OnDecision, Deadline: time.Minute,
		Policies: []ratelimit.Policy{
			{Name: "oauth.register", Limit: long(3)},
			{Name: "mcp.call.with.a.name.that.is.rather.long.for.a.telephone", Limit: long(60), Key: ratelimit.BearerToken, Optional: true, Sliding: true},
			{Name: "site", Limit: long(1000), Key: ratelimit.Constant("site"), DryRun: true, OnFailure: ratelimit.FailLocal},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/debug/ratelimit", page.Handler(limiter))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return &service{limiter, server.URL + "/debug/ratelimit"}
}

func (s *service) requests(n int) {
	for range n {
		s.limiter.Check(&http.Request{RemoteAddr: "203.0.113.7:1", Header: http.Header{"Authorization": {"Bearer abc"}}})
	}
}

// wait returns when the page shows some words. It may load itself anew meanwhile.
func wait(t *testing.T, ctx context.Context, words string) {
	t.Helper()
	text := ""
	for ctx.Err() == nil && !strings.Contains(text, words) {
		text, _ = chromedp.Run(ctx, chromedp.Evaluate[string]("document.body ? document.body.innerText : ''")) // it may be loading
	}
	if ctx.Err() != nil {
		t.Fatalf("%q does not show in\n%s", words, text)
	}
}

// The page renders, shows what happens while one looks at it, looks a caller up and resets it, and asks for nothing
// but itself.
func TestPage(t *testing.T) {
	t.Parallel()
	s := newService(t)
	ctx, asked := browser(t)
	do(t, ctx, chromedp.Navigate(s.page+"?refresh"))
	wait(t, ctx, "Nobody in the last minutes")
	s.requests(5)
	wait(t, ctx, "oauth.register/8784h:ip:fec52565aa0c…")
	wait(t, ctx, "buckets each")
	do(t, ctx, chromedp.Navigate(s.page))
	color := get(t, ctx, chromedp.Evaluate[string](`getComputedStyle(document.querySelector("svg .below")).fill`))
	if color == "rgb(0, 0, 0)" || color == "" {
		t.Errorf("the charts are %q: the stylesheet is not used", color)
	}
	do(t, ctx, chromedp.SetValue(`select[name=by]`, "address"), chromedp.SendKeys(`input[name=value]`, "203.0.113.7"),
		chromedp.Click(`button[value=look]`), chromedp.WaitVisible(`#found`))
	wait(t, ctx, "refused")
	here, found := get(t, ctx, chromedp.Location()), get(t, ctx, chromedp.Text(`#found`))
	if strings.Contains(here, "203") || !strings.Contains(found, "oauth.register") || strings.Contains(found, "site") {
		t.Errorf("at %s it found\n%s", here, found)
	}
	do(t, ctx, chromedp.SendKeys(`input[name=value]`, "203.0.113.7"), chromedp.Click(`button[value=reset]`))
	wait(t, ctx, "Forgotten.")
	if d := s.limiter.Check(&http.Request{RemoteAddr: "203.0.113.7:1"}); d.Outcome != ratelimit.Allowed {
		t.Errorf("after the reset the caller is %s", d.Outcome)
	}
	for _, u := range asked() {
		if !strings.HasPrefix(u, s.page) && !strings.HasSuffix(u, "/favicon.ico") {
			t.Errorf("the page has asked for %s", u)
		}
	}
}

// A page of another origin cannot reset a caller by a form that it sends.
func TestForeignForm(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.requests(3)
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte(`<form method=post action="` + s.page + `"><input name=by value=address><input name=value value=203.0.113.7>
			<button name=do value=reset>win</button></form>`))
	}))
	t.Cleanup(evil.Close)
	u, err := url.Parse(evil.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = "localhost:" + u.Port() // another site than 127.0.0.1
	ctx, _ := browser(t)
	do(t, ctx, chromedp.Navigate(u.String()), chromedp.Click("button"))
	wait(t, ctx, "cross-origin")
	if d := s.limiter.Check(&http.Request{RemoteAddr: "203.0.113.7:1"}); d.Outcome != ratelimit.Refused {
		t.Errorf("the caller is %s, want it refused as before", d.Outcome)
	}
}

// It fits on a telephone, and is dark where that is wanted.
func TestLooks(t *testing.T) {
	t.Parallel()
	s := newService(t)
	ctx, _ := browser(t)
	pictures := os.Getenv("RATELIMIT_TEST_PICTURES") // a directory to put them in, for a look
	for name, look := range map[string]struct {
		width  int64
		scheme string
	}{
		"light":     {1200, "light"},
		"dark":      {1200, "dark"},
		"telephone": {390, "light"},
	} {
		s.requests(20)
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: look.scheme}},
		})
		if err != nil {
			t.Fatal(err)
		}
		var viewport []chromedp.EmulateViewportOption
		if look.width < 600 {
			viewport = append(viewport, chromedp.EmulateMobile)
		}
		do(t, ctx, chromedp.EmulateViewport(look.width, 900, viewport...), chromedp.Navigate(s.page))
		wait(t, ctx, "Look up")
		content, width := get(t, ctx, chromedp.Evaluate[int](`document.documentElement.scrollWidth`)), get(t, ctx, chromedp.Evaluate[int](`window.innerWidth`))
		background := get(t, ctx, chromedp.Evaluate[string](`getComputedStyle(document.body).backgroundColor`))
		if content > int(look.width) || width != int(look.width) {
			t.Errorf("%s: the page is %d wide in a window of %d, want %d", name, content, width, look.width)
		}
		if isDark := background == "rgb(20, 24, 28)"; isDark != (look.scheme == "dark") {
			t.Errorf("%s: the background is %s", name, background)
		}
		if pictures != "" {
			picture := get(t, ctx, chromedp.FullScreenshot(100))
			if err := os.WriteFile(filepath.Join(pictures, name+".png"), picture, 0o600); err != nil {
				t.Error(err)
			}
		}
	}
}
