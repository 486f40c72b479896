package ratelimit_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/testdb"
)

// The GO rows, through real servers and connections.

func newServer(t testing.TB, h http.Handler, configure ...func(*httptest.Server)) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	for _, f := range configure {
		f(server)
	}
	if server.EnableHTTP2 {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return server
}

func http2(s *httptest.Server) { s.EnableHTTP2 = true }

// protocols runs a test on HTTP/1.1 and on HTTP/2.
func protocols(t *testing.T, test func(t *testing.T, start func(http.Handler) *httptest.Server)) {
	t.Helper()
	for major, configure := range map[int]func(*httptest.Server){1: func(*httptest.Server) {}, 2: http2} {
		t.Run(fmt.Sprintf("HTTP %d", major), func(t *testing.T) {
			t.Parallel()
			test(t, func(h http.Handler) *httptest.Server {
				return newServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.ProtoMajor != major {
						t.Errorf("request is %s, want HTTP %d", r.Proto, major)
					}
					h.ServeHTTP(w, r)
				}), configure)
			})
		})
	}
}

// do sends a request and returns the reply without the fields that the server adds.
func do(t testing.TB, server *httptest.Server, r *http.Request) reply {
	t.Helper()
	response, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	response.Header.Del("Date")
	return reply{response.StatusCode, response.Header, string(body)}
}

func get(t testing.TB, server *httptest.Server) reply {
	t.Helper()
	return do(t, server, newGet(t, server.URL))
}

func newGet(t testing.TB, url string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// dial opens a connection on which a test writes its own HTTP/1.1. It gives up after a while.
func dial(t testing.TB, server *httptest.Server) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

// byPeer returns a limiter in memory by the address of the peer.
func byPeer(t testing.TB, limit ratelimit.Limit) *ratelimit.Limiter {
	t.Helper()
	return newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: limit}}})
}

// GO-01: a client that waits for leave to send its body is refused at once.
func TestExpectContinueIsRefused(t *testing.T) {
	t.Parallel()
	next := new(spy)
	server := newServer(t, byPeer(t, long(0)).Handler(next))
	conn, reader := dial(t, server)
	fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: example.com\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n")
	response, err := http.ReadResponse(reader, nil) // returns a 100 like any other
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusTooManyRequests || !response.Close {
		t.Errorf("status is %d, close %t, want 429 and true", response.StatusCode, response.Close)
	}
	if next.takeCalls() != 0 {
		t.Error("next was called")
	}
}

// GO-02 and GO-05: a refused client that sends a body keeps its connection.
func TestRefusalKeepsConnection(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		configure func(*httptest.Server)
		bytes     int
	}{
		"GO-02 100 KiB on HTTP 1.1": {func(*httptest.Server) {}, 100 << 10},
		"GO-05 2 MiB on HTTP 2":     {http2, 2 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newServer(t, byPeer(t, long(0)).Handler(new(spy)), test.configure)
			for i := range 3 {
				reused := false
				trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
				r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodPost, server.URL,
					strings.NewReader(strings.Repeat("x", test.bytes)))
				if err != nil {
					t.Fatal(err)
				}
				if got := do(t, server, r); got.Status != http.StatusTooManyRequests {
					t.Errorf("request %d: %d, want 429", i, got.Status)
				}
				if reused != (i > 0) {
					t.Errorf("request %d: connection reused: %t, want %t", i, reused, i > 0)
				}
			}
		})
	}
}

// GO-04: a body that is announced and never sent holds a refusal up no longer than ReadTimeout.
func TestRefusalBeforeBodyThatNeverComes(t *testing.T) {
	t.Parallel()
	server := newServer(t, byPeer(t, long(0)).Handler(new(spy)), func(s *httptest.Server) {
		s.Config.ReadTimeout = 500 * time.Millisecond
	})
	conn, reader := dial(t, server)
	fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: example.com\r\nContent-Length: 10\r\n\r\n")
	var timeout net.Error
	if _, err := io.ReadAll(reader); errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("the connection is still open: %v", err)
	}
}

// GO-07: a panic of next passes through, and its request stays counted.
func TestPanicPassesThrough(t *testing.T) {
	t.Parallel()
	protocols(t, func(t *testing.T, start func(http.Handler) *httptest.Server) {
		next := new(spy)
		server := start(byPeer(t, long(2)).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(w, r)
			panic(http.ErrAbortHandler)
		})))
		for range 2 {
			response, err := server.Client().Do(newGet(t, server.URL))
			if err == nil {
				response.Body.Close()
				t.Errorf("status is %d, want the connection or stream to break", response.StatusCode)
			}
		}
		if got := get(t, server); got.Status != http.StatusTooManyRequests {
			t.Errorf("third request: %d, want 429", got.Status)
		}
		if got := next.takeCalls(); got != 2 {
			t.Errorf("next was called %d times, want 2", got)
		}
	})
}

// GO-08 and fault 16: next is a proxy, and its upstream limits too. The structured fields are lists, to
// which each layer adds a line. X-RateLimit-Limit is then ambiguous, as the documentation of Headers says.
// What the upstream says with its own 429 is neither lost nor doubled.
func TestProxyWithUpstreamThatLimits(t *testing.T) {
	t.Parallel()
	var status atomic.Int64
	upstream := newServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("RateLimit", `"upstream";r=0;t=7`)
		w.Header().Set("X-RateLimit-Limit", "3")
		if status.Load() == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", "7")
		}
		w.WriteHeader(int(status.Load()))
	}))
	target, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := new(http.Transport)
	t.Cleanup(transport.CloseIdleConnections)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: transport}
	server := newServer(t, newLimiter(t, memoryStore(t), ratelimit.Config{
		Policies: []ratelimit.Policy{{Name: "default", Limit: long(2)}},
		Headers:  ratelimit.HeadersStructured | ratelimit.HeadersLegacy,
	}).Handler(proxy))

	for i, test := range []struct {
		status     int
		retryAfter []string
		remaining  string
	}{
		{http.StatusOK, nil, "1"},
		{http.StatusTooManyRequests, []string{"7"}, "0"},
	} {
		status.Store(int64(test.status))
		got := get(t, server)
		if got.Status != test.status {
			t.Errorf("request %d: %d, want the upstream's %d", i, got.Status, test.status)
		}
		if diff := cmp.Diff(test.retryAfter, got.Header.Values("Retry-After")); diff != "" {
			t.Errorf("request %d: Retry-After (-want +got):\n%s", i, diff)
		}
		lines := got.Header.Values("RateLimit")
		if len(lines) != 2 || !strings.HasPrefix(lines[0], `"default";r=`+test.remaining+";t=") || lines[1] != `"upstream";r=0;t=7` {
			t.Errorf("request %d: RateLimit is %q, want our line and the upstream's", i, lines)
		}
		if diff := cmp.Diff([]string{"2", "3"}, got.Header.Values("X-RateLimit-Limit")); diff != "" {
			t.Errorf("request %d: X-RateLimit-Limit (-want +got):\n%s", i, diff)
		}
	}
	if got := get(t, server); got.Status != http.StatusTooManyRequests || len(got.Header.Values("RateLimit")) != 1 || len(got.Header.Values("Retry-After")) != 1 {
		t.Errorf("our own refusal is %v, want one line of each field", got)
	}
}

// GO-10 and GO-11: preflights can be left out of the count; an OPTIONS that is none counts.
func TestSkipPreflight(t *testing.T) {
	t.Parallel()
	origin := []string{"Origin", "https://example.com"}
	method := []string{"Access-Control-Request-Method", "PUT"}
	for _, test := range []struct {
		name    string
		method  string
		fields  []string
		skipped bool
	}{
		{"GO-10 preflight", http.MethodOptions, append(origin, method...), true},
		{"GO-11 bare OPTIONS", http.MethodOptions, nil, false},
		{"OPTIONS with Origin", http.MethodOptions, origin, false},
		{"OPTIONS with a method", http.MethodOptions, method, false},
		{"GET with both", http.MethodGet, append(origin, method...), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var seen decisions
			limiter := newLimiter(t, memoryStore(t), ratelimit.Config{
				Policies: []ratelimit.Policy{{Name: "default", Limit: long(0)}}, Skip: ratelimit.IsPreflight, OnDecision: seen.observe,
			})
			next := new(spy)
			r := request("203.0.113.7:1", test.fields...)
			r.Method = test.method
			if got := ratelimit.IsPreflight(r); got != test.skipped {
				t.Errorf("IsPreflight is %t, want %t", got, test.skipped)
			}
			got := serve(limiter.Handler(next), r)
			if !test.skipped {
				if got.Status != http.StatusTooManyRequests || next.takeCalls() != 0 || len(seen.take()) != 1 {
					t.Errorf("status is %d, want the request to be counted and refused", got.Status)
				}
				return
			}
			check(t, "skipped request", served(), got)
			if next.takeCalls() != 1 || next.decided {
				t.Error("next was not called, or with a decision")
			}
			if diff := cmp.Diff(ratelimit.Decision{Outcome: ratelimit.Allowed}, limiter.Check(r), equalDecisions); diff != "" {
				t.Errorf("Check (-want +got):\n%s", diff)
			}
			if got := seen.take(); len(got) != 0 {
				t.Errorf("observed %v, want nothing", got)
			}
		})
	}
}

// A Skip need not give the same answer twice, so it is asked once for each request.
func TestSkipIsAskedOnce(t *testing.T) {
	t.Parallel()
	asked := 0
	next := new(spy)
	handler := newLimiter(t, memoryStore(t), ratelimit.Config{
		Policies: []ratelimit.Policy{{Name: "default", Limit: long(1)}},
		Skip:     func(*http.Request) bool { asked++; return asked%2 == 0 },
	}).Handler(next)
	if diff := cmp.Diff(map[int]int{200: 3, 429: 1}, statuses(handler, request("203.0.113.7:1"), 4)); diff != "" || asked != 4 {
		t.Errorf("asked %d times, want 4; statuses (-want +got):\n%s", asked, diff)
	}
}

// GO-13: the request reaches next as it came.
func TestRequestIsUnchanged(t *testing.T) {
	t.Parallel()
	clientIP, err := ratelimit.NewClientIP(ratelimit.ClientIPConfig{Header: "X-Forwarded-For", TrustedProxies: []string{"10.0.0.0/8"}})
	if err != nil {
		t.Fatal(err)
	}
	limiter := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: long(1), Key: clientIP}}})
	next := new(spy)
	r := request("10.0.0.5:1", "X-Forwarded-For", "203.0.113.7", "Authorization", "Bearer abc")
	before := r.Clone(r.Context())
	limiter.Handler(next).ServeHTTP(httptest.NewRecorder(), r)
	for name, got := range map[string]*http.Request{"caller's": r, "next's": next.request} {
		if got.RemoteAddr != before.RemoteAddr || got.RequestURI != before.RequestURI || got.Method != before.Method {
			t.Errorf("the %s request is %s %s from %s", name, got.Method, got.RequestURI, got.RemoteAddr)
		}
		if diff := cmp.Diff(before.Header, got.Header); diff != "" {
			t.Errorf("header of the %s request (-before +after):\n%s", name, diff)
		}
	}
	if _, ok := ratelimit.FromContext(r.Context()); ok || !next.decided {
		t.Error("the decision is in the caller's request, or not in next's")
	}
}

// GO-14: two instances on one database, each with a pool of its own, admit together what the limit says.
func TestInstancesShareLimit(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	var servers []*httptest.Server
	for range 2 {
		limiter := newLimiter(t, postgresStore(t, testdb.Pool(t, url)), ratelimit.Config{
			Policies: []ratelimit.Policy{{Name: "default", Limit: long(100), OnFailure: ratelimit.FailClosed}},
		})
		servers = append(servers, newServer(t, limiter.Handler(new(spy))))
	}
	var mu sync.Mutex
	got := make(map[int]int)
	var wg sync.WaitGroup
	for i := range 500 {
		wg.Go(func() {
			response, err := servers[i%2].Client().Do(newGet(t, servers[i%2].URL))
			if err != nil {
				t.Error(err)
				return
			}
			response.Body.Close()
			mu.Lock()
			defer mu.Unlock()
			got[response.StatusCode]++
		})
	}
	wg.Wait()
	if diff := cmp.Diff(map[int]int{200: 100, 429: 400}, got); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
	}
}

// GO-17: a route can be the key only where it is known, inside the mux. Outside, the pattern is empty, which is
// no key: the request is counted under its peer's address.
func TestKeyByRoute(t *testing.T) {
	t.Parallel()
	config := ratelimit.Config{Policies: []ratelimit.Policy{{
		Name: "route", Limit: long(1),
		Key: func(r *http.Request) ratelimit.Key { return ratelimit.NewKey("route", r.Pattern) },
	}}}
	next := new(spy)

	limiter := newLimiter(t, memoryStore(t), config)
	inside := http.NewServeMux()
	inside.Handle("GET /a/{id}", limiter.Handler(next))
	inside.Handle("GET /b/{id}", limiter.Handler(next))
	outside := http.NewServeMux()
	outside.Handle("GET /a/{id}", next)
	outside.Handle("GET /b/{id}", next)

	for _, test := range []struct {
		name    string
		handler http.Handler
		want    []int // of /a/1, /a/2, /b/1
		kind    string
	}{
		{"inside", inside, []int{200, 429, 200}, "route"},
		{"outside", newLimiter(t, memoryStore(t), config).Handler(outside), []int{200, 429, 429}, "peer"},
	} {
		var got []int
		for i, path := range []string{"/a/1", "/a/2", "/b/1"} {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.RemoteAddr = fmt.Sprintf("203.0.113.7:%d", i)
			got = append(got, serve(test.handler, r).Status)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: statuses (-want +got):\n%s", test.name, diff)
		}
		if got := next.decision.Results[0].KeyKind; got != test.kind {
			t.Errorf("%s: kind of the key is %q, want %q", test.name, got, test.kind)
		}
	}
}

// Faults 67 and 68: next gets the ResponseWriter that the limiter got, and so all that it can do.
func TestResponseWriterIsNotWrapped(t *testing.T) {
	t.Parallel()
	next := new(spy)
	w := httptest.NewRecorder()
	byPeer(t, long(1)).Handler(next).ServeHTTP(w, request("203.0.113.7:1"))
	if next.writer != w {
		t.Errorf("next got a %T, want the very *httptest.ResponseRecorder", next.writer)
	}
	var refused http.ResponseWriter
	own := newLimiter(t, memoryStore(t), ratelimit.Config{
		Policies: []ratelimit.Policy{{Name: "default", Limit: long(0)}},
		Refused:  http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { refused = w }),
	})
	if own.Handler(next).ServeHTTP(w, request("203.0.113.7:1")); refused != w {
		t.Errorf("Refused got a %T, want the very *httptest.ResponseRecorder", refused)
	}
}

// Fault 67: events reach the client one by one, also through http.ResponseController, and files are
// still sent by the kernel.
func TestEventStream(t *testing.T) {
	t.Parallel()
	protocols(t, func(t *testing.T, start func(http.Handler) *httptest.Server) {
		read := make(chan struct{})
		server := start(byPeer(t, long(1)).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, ok := w.(io.ReaderFrom); !ok && r.ProtoMajor == 1 { // HTTP/2 has none
				t.Errorf("%T is no io.ReaderFrom", w)
			}
			if _, ok := w.(http.Pusher); !ok && r.ProtoMajor == 2 {
				t.Errorf("%T is no http.Pusher", w)
			}
			w.Header().Set("Content-Type", "text/event-stream")
			flush := w.(http.Flusher).Flush
			for i := range 4 {
				fmt.Fprintf(w, "data: %d\n", i)
				flush()
				<-read // the client has the event before there is another
				flush = func() {
					controller := http.NewResponseController(w)
					if err := errors.Join(controller.SetWriteDeadline(time.Now().Add(time.Minute)), controller.Flush()); err != nil {
						t.Error(err)
					}
				}
			}
		})))
		response, err := server.Client().Do(newGet(t, server.URL))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		reader := bufio.NewReader(response.Body)
		for i := range 4 {
			line, err := reader.ReadString('\n')
			if want := fmt.Sprintf("data: %d\n", i); err != nil || line != want {
				t.Errorf("event is %q, %v, want %q", line, err, want)
			}
			read <- struct{}{}
		}
		if _, err := reader.ReadByte(); err != io.EOF {
			t.Errorf("after the last event: %v, want the end", err)
		}
	})
}

// Fault 68: an upgrade works and counts once. Nothing is written to the connection after it, and no
// database connection is held for it, though its key runs out. An upgrade over the limit is a plain 429.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t))
	server := newServer(t, newLimiter(t, postgresStore(t, pool), ratelimit.Config{
		Policies: []ratelimit.Policy{{Name: "default", Limit: long(2)}},
	}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		conn, buffered, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
		line, err := buffered.ReadString('\n')
		if err != nil {
			t.Error(err)
		}
		fmt.Fprint(conn, line)
	})))
	upgrade := func() (net.Conn, *bufio.Reader, *http.Response) {
		conn, reader := dial(t, server)
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: example.com\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		return conn, reader, response
	}
	conn, reader, response := upgrade()
	if response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("first upgrade: %d, want 101", response.StatusCode)
	}
	if got := get(t, server).Status; got != http.StatusOK {
		t.Errorf("request beside the upgrade: %d, want 200", got)
	}
	if got, want := counts(t, pool), []int64{2}; !cmp.Equal(want, got) {
		t.Errorf("counts are %v, want %v: each request once", got, want)
	}
	_, _, refused := upgrade()
	refused.Body.Close()
	if refused.StatusCode != http.StatusTooManyRequests {
		t.Errorf("second upgrade: %d, want 429", refused.StatusCode)
	}
	if got := pool.Stat().AcquiredConns(); got != 0 {
		t.Errorf("%d database connections are held while the socket lives, want none", got)
	}
	fmt.Fprint(conn, "hello\n")
	if rest, err := io.ReadAll(reader); string(rest) != "hello\n" || err != nil {
		t.Errorf("after the upgrade came %q, %v, want the echo alone", rest, err)
	}
}

// counts returns the counts in the table, in the order of their buckets.
func counts(t testing.TB, pool *pgxpool.Pool) []int64 {
	t.Helper()
	rows, err := pool.Query(t.Context(), "SELECT count FROM rate_limits ORDER BY bucket, window_start")
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// No connection is held while the handler runs: with a pool of one, hundreds of requests on one bucket and their
// handlers' own queries all get through (fault 47).
func TestHandlerHasThePool(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.New(t), func(c *pgxpool.Config) { c.MaxConns = 1 })
	var queried atomic.Int64
	limiter := newLimiter(t, postgresStore(t, pool), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: long(150)}}})
	handler := limiter.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var n int64
		if err := pool.QueryRow(r.Context(), "SELECT 1").Scan(&n); err != nil {
			t.Error(err)
		}
		queried.Add(n)
	}))
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() { serve(handler, request("203.0.113.7:1")) })
	}
	wg.Wait()
	if n := queried.Load(); n != 150 {
		t.Errorf("%d handlers have asked the database, want 150", n)
	}
}
