package debugpage

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/krow/ratelimit"
)

//go:embed page.html
var pageText string

//go:embed page.css
var style string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"style": func() template.CSS { return template.CSS(style) },
}).Parse(pageText))

// policyText lets the browser take nothing from anywhere but the page itself, and send its forms nowhere else.
var policyText = func() string {
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
}()

// Handler returns the handler that shows the page, for the policies of a limiter whose OnDecision the page is given.
// It answers at whatever path it is mounted. GET only reads; a caller is looked up and reset by POST, so that what is
// looked up is in no URL, and only from a page of the same origin ([http.CrossOriginProtection]). It asks nobody who he
// is: mount it where strangers do not get, or behind a middleware that asks. It panics if l is nil.
func (p *Page) Handler(l *ratelimit.Limiter) http.Handler {
	if l == nil {
		panic("debugpage: Handler: limiter is nil")
	}
	return http.NewCrossOriginProtection().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := view{}
		switch r.Method {
		case http.MethodGet, http.MethodHead:
			v = p.view(l, time.Now())
			v.Refresh = r.URL.Query().Has("refresh")
		case http.MethodPost:
			r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
			if err := r.ParseForm(); err != nil {
				http.Error(w, "the form cannot be read", http.StatusBadRequest)
				return
			}
			found := lookUp(r.Context(), l, r)
			v = p.view(l, time.Now())
			v.Lookup = found
		default:
			w.Header().Set("Allow", "GET, HEAD, POST")
			http.Error(w, "want GET or POST", http.StatusMethodNotAllowed)
			return
		}
		var body bytes.Buffer
		if err := page.Execute(&body, v); err != nil {
			http.Error(w, "the page cannot be made: "+err.Error(), http.StatusInternalServerError)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", policyText)
		h.Set("Cache-Control", "no-store")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(body.Bytes()) // whoever asked has left
	}))
}

// A lookupView is what was found of a caller.
type lookupView struct {
	Error, Done string
	Results     []resultView
}

type resultView struct {
	Policy, Bucket, Limit, Remaining, Reset string
	Refused                                 bool
}

// lookUp looks a caller up, or has it start anew. What was asked for is not repeated.
func lookUp(ctx context.Context, l *ratelimit.Limiter, r *http.Request) *lookupView {
	caller, err := callerOf(r)
	if err != nil {
		return &lookupView{Error: err.Error()}
	}
	keys, known := keysOf(l, caller)
	if len(known) == 0 {
		return &lookupView{Error: "no policy finds a key in that"}
	}
	var done string
	if r.PostForm.Get("do") == "reset" {
		if err := l.Reset(ctx, keys...); err != nil {
			return &lookupView{Error: fmt.Sprintf("not reset: %v", err)}
		}
		done = "Forgotten. Other processes may go on refusing for up to five seconds."
	}
	results, err := l.Peek(ctx, keys...)
	if err != nil {
		return &lookupView{Error: fmt.Sprintf("not looked up: %v", err), Done: done}
	}
	v := &lookupView{Done: done}
	for _, r := range results {
		if known[r.Policy] {
			v.Results = append(v.Results, resultView{
				r.Policy, shorten(r.Bucket), r.Limit.String(), fmt.Sprint(r.Remaining),
				r.Reset.Round(time.Second).String(), r.Outcome == ratelimit.Refused,
			})
		}
	}
	return v
}

// callerOf returns a request as the caller would make it.
func callerOf(r *http.Request) (*http.Request, error) {
	caller := nobody(r.Context())
	value := strings.TrimSpace(r.PostForm.Get("value"))
	if value == "" {
		return nil, errors.New("the value is empty")
	}
	switch by := r.PostForm.Get("by"); by {
	case "address":
		addr, err := netip.ParseAddr(value)
		if err != nil {
			return nil, errors.New("that is no address, want one such as 203.0.113.7 or 2001:db8::1")
		}
		caller.RemoteAddr = netip.AddrPortFrom(addr, 1).String()
	case "token":
		caller.Header.Set("Authorization", "Bearer "+value)
	case "field":
		name := strings.TrimSpace(r.PostForm.Get("field"))
		if name == "" {
			return nil, errors.New("the name of the field is empty")
		}
		caller.Header.Set(name, value)
	default:
		return nil, errors.New("want an address, a token or a field")
	}
	return caller, nil
}

// nobody returns a request that says nothing of who makes it.
func nobody(ctx context.Context) *http.Request {
	r := &http.Request{Method: http.MethodGet, Header: make(http.Header), URL: new(url.URL), RemoteAddr: "@"}
	return r.WithContext(ctx)
}

// keysOf returns a key for each policy, and the names of those that know the caller. The others, among them those with one
// key for all, get a key that is nobody's: all who share one would be looked up, and reset.
func keysOf(l *ratelimit.Limiter, caller *http.Request) (keys []ratelimit.Key, known map[string]bool) {
	known = make(map[string]bool)
	for _, policy := range l.Policies() {
		key := policy.Key(caller)
		if key.Equal(policy.Key(nobody(caller.Context()))) {
			key = ratelimit.NewKey("nobody", rand.Text())
		} else {
			known[policy.Name] = true
		}
		keys = append(keys, key)
	}
	return keys, known
}
