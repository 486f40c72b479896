package ratelimit_test

import (
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// A proxy is the network between a limiter and its Postgres, in bad moments. It begins by forwarding.
type proxy struct {
	target   string
	listener net.Listener
	closed   chan struct{}
	running  sync.WaitGroup

	mu    sync.Mutex
	holds bool
	delay time.Duration
	links map[*link]bool
	most  int // links at once
}

// A link is a connection through a proxy.
type link struct {
	client, server net.Conn
	held           bool // under the proxy's lock
}

func (l *link) close() {
	l.client.Close()
	l.server.Close()
}

// newProxy returns a proxy to the server of a database, and the database's URL through it.
func newProxy(t testing.TB, database string) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{target: u.Host, listener: listener, closed: make(chan struct{}), links: make(map[*link]bool)}
	u.Host = listener.Addr().String()
	p.running.Go(p.accept)
	t.Cleanup(func() {
		listener.Close()
		close(p.closed)
		p.drop()
		p.running.Wait()
	})
	return p, u.String()
}

// forward lets everything through. Connections that were held are closed: what was lost of them is not
// sent again.
func (p *proxy) forward() {
	p.set(false, 0)
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if l.held {
			l.close()
		}
	}
}

// hold makes a black hole: connections are accepted, and nothing goes through those that come nor
// through those that exist.
func (p *proxy) hold() { p.set(true, 0) }

// late holds every answer up for a time.
func (p *proxy) late(by time.Duration) { p.set(false, by) }

func (p *proxy) set(holds bool, delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holds, p.delay = holds, delay
	for l := range p.links {
		l.held = l.held || holds
	}
}

// drop closes all connections.
func (p *proxy) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

// peak returns how many connections there have been at once.
func (p *proxy) peak() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		l := &link{client: client, server: server}
		p.mu.Lock()
		l.held = p.holds
		p.links[l] = true
		p.most = max(p.most, len(p.links))
		p.mu.Unlock()
		p.running.Go(func() {
			p.copy(l, server, client, false)
			l.close()
			p.mu.Lock()
			delete(p.links, l)
			p.mu.Unlock()
		})
		p.running.Go(func() {
			p.copy(l, client, server, true)
			l.close()
		})
	}
}

// copy takes bytes from one side of a link to the other until either is closed.
func (p *proxy) copy(l *link, to, from net.Conn, answers bool) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		p.mu.Lock()
		held, delay := l.held, p.delay
		p.mu.Unlock()
		if answers && delay > 0 {
			select {
			case <-time.After(delay):
			case <-p.closed:
			}
		}
		if held {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
