package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/krow/ratelimit"
)

// newRequest returns a request of a peer with header lines such as "X-Real-IP: 192.0.2.1". Two short
// names stand for long ones: XFF and FWD.
func newRequest(remoteAddr string, lines ...string) *http.Request {
	r := &http.Request{RemoteAddr: remoteAddr, Header: http.Header{}}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		switch name {
		case "XFF":
			name = "X-Forwarded-For"
		case "FWD":
			name = "Forwarded"
		}
		r.Header.Add(name, value)
	}
	return r
}

func newClientIP(t testing.TB, c ratelimit.ClientIPConfig) ratelimit.KeyFunc {
	t.Helper()
	key, err := ratelimit.NewClientIP(c)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// A clientIPTest is a request and the subject of its key, "" if there is none.
type clientIPTest struct {
	name    string
	trusted string // separated by spaces
	remote  string
	lines   []string
	want    string
}

// run runs the test with the given header configured, or with ClientIP itself if nobody is trusted.
func (test clientIPTest) run(t *testing.T, header string) {
	t.Helper()
	key := ratelimit.ClientIP
	if test.trusted != "" {
		key = newClientIP(t, ratelimit.ClientIPConfig{Header: header, TrustedProxies: strings.Fields(test.trusted)})
	}
	r := newRequest(test.remote, test.lines...)
	header0 := r.Header.Clone()
	got := key(r)
	if got := ratelimit.Subject(got); got != test.want {
		t.Errorf("subject %q, want %q", got, test.want)
	}
	if !got.IsZero() && got.Kind() != "ip" {
		t.Errorf("kind %q, want ip", got.Kind())
	}
	if r.RemoteAddr != test.remote { // GO-13
		t.Errorf("RemoteAddr has become %q", r.RemoteAddr)
	}
	if diff := cmp.Diff(header0, r.Header); diff != "" {
		t.Errorf("header has changed (-want +got):\n%s", diff)
	}
}

func TestClientIP(t *testing.T) {
	t.Parallel()
	for _, test := range []clientIPTest{
		{"IP-01", "", "203.0.113.7:51234", nil, "203.0.113.7"},
		{"IP-02", "", "[2001:db8:1:2:3:4:5:6]:443", nil, "2001:db8:1:2::/64"},
		{"IP-04", "", "203.0.113.7", nil, "203.0.113.7"},
		{"IP-05", "", "2001:db8::1", nil, "2001:db8::/64"},
		{"IP-07", "", "@", nil, ""},
		{"IP-08", "", "", nil, ""},
		{"IP-10", "", "0.0.0.0:80", nil, ""},
		{"IP-10 IPv6", "", "[::]:80", nil, ""},
		{"IP-10 mapped", "", "[::ffff:0.0.0.0]:80", nil, ""},
		{"IP-11", "", "203.0.113.7:51234", []string{"XFF: 1.2.3.4"}, "203.0.113.7"},
		{"brackets without port", "", "[2001:db8::1]", nil, "2001:db8::/64"},
		{"IPv4 in brackets", "", "[203.0.113.7]:80", nil, ""},
		{"IPv4 in brackets without port", "", "[203.0.113.7]", nil, ""},
		{"mapped", "", "[::ffff:203.0.113.7]:80", nil, "203.0.113.7"},
		{"loopback", "", "[::1]:80", nil, "::/64"},
		{"empty port", "", "203.0.113.7:", nil, ""},
		{"port not a number", "", "203.0.113.7:http", nil, ""},
		{"port out of range", "", "203.0.113.7:65536", nil, ""},
		{"open bracket", "", "[2001:db8::1", nil, ""},
		{"bracket alone", "", "[", nil, ""},
		{"brackets alone", "", "[]", nil, ""},
		{"close bracket", "", "]", nil, ""},
		{"leading zero", "", "203.0.113.07:80", nil, ""},
		{"host name", "", "localhost:80", nil, ""},
		{"space", "", " 203.0.113.7:80", nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, "")
		})
	}
}

func TestNewClientIPXForwardedFor(t *testing.T) {
	t.Parallel()
	for _, test := range []clientIPTest{
		{"IP-13", "10.0.0.0/8", "10.0.0.5:555", []string{"XFF: 3.3.3.3, 10.0.0.1"}, "3.3.3.3"},
		{"IP-14", "10.0.0.0/8", "10.0.0.5:555", []string{"XFF: 1.2.3.4, 99.99.99.99"}, "99.99.99.99"},
		{"IP-16", "198.51.100.0/24", "198.51.100.9:1", []string{"XFF: 127.0.0.1", "XFF: 8.8.8.8, 198.51.100.1"}, "8.8.8.8"},
		{"IP-17", "10.0.0.0/8", "10.0.0.5:1", []string{"XFF: 5.5.5.5, 6.6.6.6", "XFF: 7.7.7.7, 4.4.4.4"}, "4.4.4.4"},
		{"IP-19", "10.0.0.0/8", "10.0.0.5:1", []string{"XFF: garbage, 10.0.0.1"}, ""},
		{"IP-19 does not look left", "10.0.0.0/8", "10.0.0.5:1", []string{"XFF: 3.3.3.3", "XFF: garbage, 10.0.0.1"}, ""},
		{"IP-20", "10.0.0.0/8", "10.0.0.5:1", []string{"XFF: 6.6.6.6, unknown, 10.0.0.1"}, ""},
		{"IP-22", "10.0.0.0/8", "10.0.0.5:1", nil, "10.0.0.5"},
		{"IP-23", "10.0.0.0/8", "10.0.0.5:1", []string{"XFF: ::ffff:10.0.0.9, 10.0.0.1"}, ""},
		{"IP-23 with a client", "10.0.0.0/8", "10.0.0.5:1", []string{"XFF: 3.3.3.3, ::ffff:10.0.0.9, 10.0.0.1"}, "3.3.3.3"},
		{"IP-23 mapped peer", "10.0.0.0/8", "[::ffff:10.0.0.5]:1", []string{"XFF: 3.3.3.3"}, "3.3.3.3"},
		{"IP-25", "2606:4700::/32", "[2606:4700::5]:1", []string{"XFF: 2606:4700::1%evil"}, ""},
		{"IP-25 untrusted", "2606:4700::/32", "[2606:4700::5]:1", []string{"XFF: 2001:db8::1%evil"}, ""},
		{"IP-26", "2606:4700::/32", "[2606:4700::5]:1", []string{"XFF: 2001:db8:aa:bb::1, 2606:4700::1"}, "2001:db8:aa:bb::/64"},
		{"IP-28", "10.0.0.0/8", "10.0.0.5:1", []string{"XFF: [2001:db8:aa:bb::1]:41234"}, "2001:db8:aa:bb::/64"},
		{"IP-29", "10.0.0.0/8", "10.0.0.5:1", []string{"XFF: [2001:db8:aa:bb::1]"}, "2001:db8:aa:bb::/64"},
		{"IP-31", "10.0.0.0/8", "10.0.0.5:1", []string{"XFF: ::ffff:cb00:7107"}, "203.0.113.7"},
		{"IP-32", "10.0.0.0/8", "10.0.0.5:1", []string{"XFF: 2001:db8:1234:5678::1.2.3.4"}, "2001:db8:1234:5678::/64"},
		{"IP-34", "10.0.0.0/8", "10.0.0.5:1", []string{"XFF: 300.1.1.1"}, ""},
		{"IP-35", "10.1.2.3/8", "10.9.9.9:1", []string{"XFF: 3.3.3.3"}, "3.3.3.3"},
		{"IP-37", "10.0.0.7", "10.0.0.7:1", []string{"XFF: 3.3.3.3"}, "3.3.3.3"},
		{"IP-37 neighbour", "10.0.0.7", "10.0.0.8:1", []string{"XFF: 3.3.3.3"}, "10.0.0.8"},
		{"IP-38", "10.244.0.0/24", "10.244.0.3:1", []string{"XFF: 10.244.1.50, 10.244.0.10"}, "10.244.1.50"},
		{"IP-40", "10.0.0.0/8", "10.0.0.5:1", []string{"X-Real-IP: 1.1.1.1", "True-Client-IP: 2.2.2.2", "XFF: 3.3.3.3"}, "3.3.3.3"},
		{"several prefixes", "192.0.2.1 10.0.0.0/8 2001:db8:f::/48", "[2001:db8:f::1]:1", []string{"XFF: 3.3.3.3, 192.0.2.1,10.0.0.9"}, "3.3.3.3"},
		{"mapped prefix", "::ffff:10.0.0.0/104", "10.0.0.5:1", []string{"XFF: 3.3.3.3"}, "3.3.3.3"},
		{"mapped address", "::ffff:10.0.0.5", "10.0.0.5:1", []string{"XFF: 3.3.3.3"}, "3.3.3.3"},
		{"unspecified entry", "10.0.0.0/8", "10.0.0.5:1", []string{"XFF: 3.3.3.3, 0.0.0.0"}, ""},
		{"port of a hop", "10.0.0.0/8", "10.0.0.5:1", []string{"XFF: 3.3.3.3:4, 10.0.0.1:5"}, "3.3.3.3"},
		{"zone of the peer", "fe80::/10", "[fe80::1%eth0]:1", []string{"XFF: 3.3.3.3"}, "3.3.3.3"},
		{"empty line", "10.0.0.0/8", "10.0.0.5:1", []string{"XFF: "}, ""},
		{"only commas", "10.0.0.0/8", "10.0.0.5:1", []string{"XFF: , ,,"}, ""},
		{"socket, trusted", "unix", "@", []string{"XFF: 3.3.3.3"}, "3.3.3.3"},
		{"socket without a name, trusted", "unix", "", []string{"XFF: 3.3.3.3"}, "3.3.3.3"},
		{"socket with a path, trusted", "unix", "/run/proxy.sock", []string{"XFF: 3.3.3.3"}, "3.3.3.3"},
		{"socket without header", "unix", "@", nil, ""},
		{"socket, not trusted", "10.0.0.0/8", "@", []string{"XFF: 3.3.3.3"}, ""},
		{"garbage is no socket", "unix", "garbage", []string{"XFF: 3.3.3.3"}, ""},
		{"socket trusted, peer on TCP", "unix", "192.0.2.1:1", []string{"XFF: 3.3.3.3"}, "192.0.2.1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, "x-forwarded-for") // names have no case
		})
	}
}

func TestNewClientIPSingleAddress(t *testing.T) {
	t.Parallel()
	for _, test := range []clientIPTest{
		{"address", "10.0.0.0/8", "10.0.0.5:1", []string{"X-Real-IP: 3.3.3.3"}, "3.3.3.3"},
		{"spaces", "10.0.0.0/8", "10.0.0.5:1", []string{"X-Real-IP: \t3.3.3.3 "}, "3.3.3.3"},
		{"port", "10.0.0.0/8", "10.0.0.5:1", []string{"X-Real-IP: [2001:db8::1]:80"}, "2001:db8::/64"},
		{"a proxy as the client", "10.0.0.0/8", "10.0.0.5:1", []string{"X-Real-IP: 10.0.0.9"}, "10.0.0.9"},
		{"other header", "10.0.0.0/8", "10.0.0.5:1", []string{"X-Real-IP: 3.3.3.3", "XFF: 4.4.4.4", "FWD: for=5.5.5.5"}, "3.3.3.3"},
		{"list", "10.0.0.0/8", "10.0.0.5:1", []string{"X-Real-IP: 3.3.3.3, 4.4.4.4"}, ""},
		{"two lines", "10.0.0.0/8", "10.0.0.5:1", []string{"X-Real-IP: 3.3.3.3", "X-Real-IP: 3.3.3.3"}, ""},
		{"empty", "10.0.0.0/8", "10.0.0.5:1", []string{"X-Real-IP: "}, ""},
		{"garbage", "10.0.0.0/8", "10.0.0.5:1", []string{"X-Real-IP: unknown"}, ""},
		{"zone", "10.0.0.0/8", "10.0.0.5:1", []string{"X-Real-IP: fe80::1%eth0"}, ""},
		{"absent", "10.0.0.0/8", "10.0.0.5:1", nil, "10.0.0.5"},
		{"peer not trusted", "10.0.0.0/8", "192.0.2.1:1", []string{"X-Real-IP: 3.3.3.3"}, "192.0.2.1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, "X-Real-IP")
		})
	}
}

func TestNewClientIPPrefix(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		prefix int
		remote string
		want   string
	}{
		{0, "[2001:db8:1:2:3:4:5:6]:1", "2001:db8:1:2::/64"},
		{32, "[2001:db8:1:2:3:4:5:6]:1", "2001:db8::/32"},
		{56, "[2001:db8:1:2ff:3:4:5:6]:1", "2001:db8:1:200::/56"},
		{128, "[2001:db8:1:2:3:4:5:6]:1", "2001:db8:1:2:3:4:5:6/128"},
		{32, "203.0.113.7:1", "203.0.113.7"},
		{32, "[::ffff:203.0.113.7]:1", "203.0.113.7"},
	} {
		t.Run(fmt.Sprintf("%s at %d", test.remote, test.prefix), func(t *testing.T) {
			t.Parallel()
			key := newClientIP(t, ratelimit.ClientIPConfig{IPv6Prefix: test.prefix})
			if got := ratelimit.Subject(key(newRequest(test.remote))); got != test.want {
				t.Errorf("subject %q, want %q", got, test.want)
			}
		})
	}
}

func TestNewClientIPMistakes(t *testing.T) {
	t.Parallel()
	proxies := []string{"10.0.0.0/8"}
	for _, test := range []struct {
		name   string
		config ratelimit.ClientIPConfig
		want   []string
	}{
		{"no proxies", ratelimit.ClientIPConfig{Header: "X-Forwarded-For"}, []string{
			`ratelimit: ClientIPConfig.Header is "X-Forwarded-For" and TrustedProxies is empty, want the proxies that set the header`,
		}},
		{"no header", ratelimit.ClientIPConfig{TrustedProxies: proxies}, []string{
			`ratelimit: ClientIPConfig.TrustedProxies is ["10.0.0.0/8"] and Header is empty, want the header that they set`,
		}},
		{"not a name", ratelimit.ClientIPConfig{Header: "X Real IP", TrustedProxies: proxies}, []string{
			`ratelimit: ClientIPConfig.Header is "X Real IP", want the name of a header field`,
		}},
		{"Host", ratelimit.ClientIPConfig{Header: "host", TrustedProxies: proxies}, []string{
			`ratelimit: ClientIPConfig.Header is "host", want a field that net/http leaves in Request.Header`,
		}},
		{"IPv6Prefix", ratelimit.ClientIPConfig{IPv6Prefix: 31}, []string{
			`ratelimit: ClientIPConfig.IPv6Prefix is 31, want 32 to 128, or 0 for 64`,
		}},
		{"all at once", ratelimit.ClientIPConfig{
			Header: "a:b",
			TrustedProxies: []string{
				"10.0.0.0/8", "unix", "10.0.0.0/33", "proxy.internal", "", " 10.0.0.1", "10.0.0.1:80", "fe80::1%eth0", "fe80::1%eth0/64",
				"0.0.0.0", "::", "::ffff:0.0.0.0", "0.0.0.0/0", "::/0", "192.0.2.1/0", "::ffff:0.0.0.0/96", "::ffff:10.0.0.0/95",
			},
			IPv6Prefix: 129,
		}, []string{
			`ratelimit: ClientIPConfig.Header is "a:b", want the name of a header field`,
			`ratelimit: ClientIPConfig.TrustedProxies[2] is "10.0.0.0/33", want an address, a CIDR prefix or "unix"`,
			`ratelimit: ClientIPConfig.TrustedProxies[3] is "proxy.internal", want an address, a CIDR prefix or "unix"`,
			`ratelimit: ClientIPConfig.TrustedProxies[4] is "", want an address, a CIDR prefix or "unix"`,
			`ratelimit: ClientIPConfig.TrustedProxies[5] is " 10.0.0.1", want an address, a CIDR prefix or "unix"`,
			`ratelimit: ClientIPConfig.TrustedProxies[6] is "10.0.0.1:80", want an address, a CIDR prefix or "unix"`,
			`ratelimit: ClientIPConfig.TrustedProxies[7] is "fe80::1%eth0", want an address without a zone`,
			`ratelimit: ClientIPConfig.TrustedProxies[8] is "fe80::1%eth0/64", want an address without a zone`,
			`ratelimit: ClientIPConfig.TrustedProxies[9] is "0.0.0.0", which no peer has, want the address of a proxy`,
			`ratelimit: ClientIPConfig.TrustedProxies[10] is "::", which no peer has, want the address of a proxy`,
			`ratelimit: ClientIPConfig.TrustedProxies[11] is "::ffff:0.0.0.0", which no peer has, want the address of a proxy`,
			`ratelimit: ClientIPConfig.TrustedProxies[12] is "0.0.0.0/0", which lets every client choose its own key, want the addresses of the proxies`,
			`ratelimit: ClientIPConfig.TrustedProxies[13] is "::/0", which lets every client choose its own key, want the addresses of the proxies`,
			`ratelimit: ClientIPConfig.TrustedProxies[14] is "192.0.2.1/0", which lets every client choose its own key, want the addresses of the proxies`,
			`ratelimit: ClientIPConfig.TrustedProxies[15] is "::ffff:0.0.0.0/96", which lets every client choose its own key, want the addresses of the proxies`,
			`ratelimit: ClientIPConfig.TrustedProxies[16] is "::ffff:10.0.0.0/95", want an IPv4 prefix, or at least /96 of mapped addresses`,
			`ratelimit: ClientIPConfig.IPv6Prefix is 129, want 32 to 128, or 0 for 64`,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			key, err := ratelimit.NewClientIP(test.config)
			if err == nil || key != nil {
				t.Fatalf("NewClientIP = %t, %v, want no function and an error", key != nil, err)
			}
			if diff := cmp.Diff(test.want, strings.Split(err.Error(), "\n")); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
		})
	}
}

// The caller's slice is not kept.
func TestNewClientIPCopiesProxies(t *testing.T) {
	t.Parallel()
	proxies := []string{"10.0.0.5"}
	key := newClientIP(t, ratelimit.ClientIPConfig{Header: "X-Forwarded-For", TrustedProxies: proxies})
	proxies[0] = "10.0.0.6"
	if got := ratelimit.Subject(key(newRequest("10.0.0.6:1", "XFF: 3.3.3.3"))); got != "10.0.0.6" {
		t.Errorf("subject %q, want 10.0.0.6", got)
	}
}

// Fault 19 and G11: whoever has an IPv6 address has a /64 of them.
func TestIPv6Rotation(t *testing.T) {
	t.Parallel()
	buckets := make(map[string]bool)
	add := func(host string) {
		buckets[ratelimit.Bucket(nil, "p/1m:", ratelimit.ClientIP(newRequest(host)))] = true
	}
	for range 1000 {
		addr := netip.MustParseAddr("2001:db8:1:2::").As16()
		for i := 8; i < 16; i++ {
			addr[i] = byte(rand.Uint32())
		}
		add(netip.AddrPortFrom(netip.AddrFrom16(addr), uint16(rand.Uint32())).String())
	}
	if len(buckets) != 1 {
		t.Errorf("1000 hosts of a /64 have %d buckets, want 1", len(buckets))
	}
	add("[2001:db8:1:3::1]:443")
	if len(buckets) != 2 {
		t.Errorf("with the neighbour prefix there are %d buckets, want 2", len(buckets))
	}
}

// Fault 20: proxies that append the port.
func TestForwardedPorts(t *testing.T) {
	t.Parallel()
	key := newClientIP(t, ratelimit.ClientIPConfig{Header: "X-Forwarded-For", TrustedProxies: []string{"10.0.0.0/8"}})
	var got []string
	for _, entry := range []string{"198.51.100.4:40211", "198.51.100.4:40212", "[2001:db8::9]:443", "2001:db8::9", "unknown"} {
		got = append(got, ratelimit.Subject(key(newRequest("10.0.0.5:1", "XFF: "+entry))))
	}
	want := []string{"198.51.100.4", "198.51.100.4", "2001:db8::/64", "2001:db8::/64", ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("subjects (-want +got):\n%s", diff)
	}
}

// Fault 22: a client that writes the header itself neither gets a fresh budget nor spends a victim's.
func TestForwardedSpoofing(t *testing.T) {
	t.Parallel()
	for _, header := range []string{"", "X-Forwarded-For", "X-Real-IP", "Forwarded", "True-Client-IP"} {
		key := ratelimit.ClientIP
		if header != "" {
			key = newClientIP(t, ratelimit.ClientIPConfig{Header: header, TrustedProxies: []string{"10.0.0.0/8"}})
		}
		for i := range 5 {
			forged := fmt.Sprintf("192.0.2.%d", i)
			r := newRequest("203.0.113.5:4711", "XFF: "+forged, "X-Real-IP: "+forged, "True-Client-IP: "+forged, "FWD: for="+forged)
			if got := ratelimit.Subject(key(r)); got != "203.0.113.5" {
				t.Errorf("header %q, peer not trusted: subject %q, want 203.0.113.5", header, got)
			}
		}
	}
	list := newClientIP(t, ratelimit.ClientIPConfig{Header: "X-Forwarded-For", TrustedProxies: []string{"10.0.0.0/8"}})
	const victim = "198.51.100.77"
	for _, forged := range []string{victim, victim + ", 10.0.0.9", "10.0.0.9", "garbage", `"`, victim + ",", "::ffff:10.0.0.1"} {
		r := newRequest("10.0.0.5:1", "XFF: "+forged+", 203.0.113.5")
		if got := ratelimit.Subject(list(r)); got != "203.0.113.5" {
			t.Errorf("forged prefix %q: subject %q, want 203.0.113.5", forged, got)
		}
	}
}

// Fault 23: Header.Get returns the first line, which is the client's.
func TestRepeatedLines(t *testing.T) {
	t.Parallel()
	key := newClientIP(t, ratelimit.ClientIPConfig{Header: "X-Forwarded-For", TrustedProxies: []string{"10.0.0.0/8"}})
	for _, test := range []struct {
		lines []string
		want  string
	}{
		{[]string{"XFF: 10.0.0.7", "XFF: 198.51.100.20"}, "198.51.100.20"},
		{[]string{"XFF: 198.51.100.20", "XFF: 10.0.0.7"}, "198.51.100.20"},
		{[]string{"XFF: 192.0.2.1", "XFF: , \t198.51.100.20\t , ,10.0.0.7 ,, "}, "198.51.100.20"},
		{[]string{"XFF: 198.51.100.20", "XFF: ", "XFF:  , "}, "198.51.100.20"},
	} {
		if got := ratelimit.Subject(key(newRequest("10.0.0.5:1", test.lines...))); got != test.want {
			t.Errorf("%q: subject %q, want %q", test.lines, got, test.want)
		}
	}
}

// Fault 25: a request whose peer has no address is counted in one bucket that says so.
func TestFallbackKey(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ remote, kind, subject string }{
		{"203.0.113.7:51234", "peer", "203.0.113.7"},
		{"[::ffff:203.0.113.7]:51234", "peer", "203.0.113.7"},
		{"[2001:db8:1:2:3:4:5:6]:443", "peer", "2001:db8:1:2::/64"},
		{"", "none", "no address"},
		{"@", "none", "no address"},
		{"garbage", "none", "no address"},
		{"0.0.0.0:80", "none", "no address"},
	} {
		r := newRequest(test.remote)
		key := ratelimit.FallbackKey(r)
		if key.Kind() != test.kind || ratelimit.Subject(key) != test.subject {
			t.Errorf("%q: key %s %q, want %s %q", test.remote, key.Kind(), ratelimit.Subject(key), test.kind, test.subject)
		}
		if r.RemoteAddr != test.remote {
			t.Errorf("RemoteAddr has become %q", r.RemoteAddr)
		}
		bucket := ratelimit.Bucket(nil, "p/1m:", key)
		for _, other := range []ratelimit.Key{
			ratelimit.ClientIP(r),
			ratelimit.NewKey(test.kind, test.subject),
			ratelimit.Constant(test.subject)(r),
		} {
			if !other.IsZero() && (ratelimit.Bucket(nil, "p/1m:", other) == bucket || other.Equal(key)) {
				t.Errorf("%q: the fallback shares a bucket with %v", test.remote, other)
			}
		}
	}
}

// HK-07, HK-08 and G11: which addresses are one caller.
func TestSameClient(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		a, b string
		same bool
	}{
		{"HK-07", "[::ffff:203.0.113.7]:1", "203.0.113.7:2", true},
		{"HK-07 in hex", "[::ffff:cb00:7107]:1", "203.0.113.7", true},
		{"HK-08", "[2001:db8:1:2::1]:1", "[2001:db8:1:2:ffff::9]:1", true},
		{"HK-08 other prefix", "[2001:db8:1:2::1]:1", "[2001:db8:1:3::1]:1", false},
		{"G11 mapped", "[::ffff:1.2.3.4]:1", "1.2.3.4:1", true},
		{"G11 mapped, other", "[::ffff:1.2.3.4]:1", "[::ffff:5.6.7.8]:1", false},
		{"G11 zone", "[fe80::1%eth0]:1", "fe80::1%eth0", true},
		{"G11 no zone", "[fe80::1%eth0]:1", "[fe80::1]:1", true},
		{"G11 other zone", "fe80::1%eth0", "fe80::1%eth1", true},
		{"mapped with zone", "[::ffff:1.2.3.4%eth0]:1", "1.2.3.4:1", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			a, b := ratelimit.ClientIP(newRequest(test.a)), ratelimit.ClientIP(newRequest(test.b))
			if a.IsZero() || b.IsZero() {
				t.Fatalf("no key for %q or %q", test.a, test.b)
			}
			if same := ratelimit.Bucket(nil, "", a) == ratelimit.Bucket(nil, "", b); same != test.same {
				t.Errorf("one bucket for %q and %q: %t, want %t", test.a, test.b, same, test.same)
			}
		})
	}
}

// isCanonical reports whether s is how an address looks as a subject.
func isCanonical(s string, bits int) bool {
	if addr, err := netip.ParseAddr(s); err == nil {
		return addr.Is4() && addr.String() == s && !addr.IsUnspecified()
	}
	prefix, err := netip.ParsePrefix(s)
	return err == nil && prefix.Bits() == bits && prefix.Masked() == prefix &&
		prefix.Addr().Is6() && !prefix.Addr().Is4In6() && prefix.String() == s
}

// FuzzClientIP: whatever a request says, its key is zero or canonical, the request stays as it is, a
// peer that is not trusted is its own key, and what a client writes never changes what the proxy appends.
func FuzzClientIP(f *testing.F) {
	f.Add("203.0.113.7:51234", "1.2.3.4", "5.6.7.8, 10.0.0.1")
	f.Add("[fe80::1%eth0]:80", "[2001:db8::1]:80", "::ffff:1.2.3.4%x")
	f.Add("@", ", ,", "unknown")
	f.Add("10.0.0.5", "", "10.0.0.1")
	proxies := []string{"10.0.0.0/8", "unix", "fe80::/10"}
	list := newClientIP(f, ratelimit.ClientIPConfig{Header: "X-Forwarded-For", TrustedProxies: proxies, IPv6Prefix: 48})
	single := newClientIP(f, ratelimit.ClientIPConfig{Header: "X-Real-IP", TrustedProxies: proxies, IPv6Prefix: 48})
	f.Fuzz(func(t *testing.T, remote, line1, line2 string) {
		r := newRequest(remote, "XFF: "+line1, "XFF: "+line2, "X-Real-IP: "+line1)
		header := r.Header.Clone()
		direct := ratelimit.ClientIP(r)
		if !direct.IsZero() && !isCanonical(ratelimit.Subject(direct), 64) {
			t.Errorf("ClientIP of %q: subject %q is not canonical", remote, ratelimit.Subject(direct))
		}
		fallback := ratelimit.FallbackKey(r)
		if direct.IsZero() != (fallback.Kind() == "none") || !direct.IsZero() && ratelimit.Subject(direct) != ratelimit.Subject(fallback) {
			t.Errorf("%q: fallback %q does not go with %q", remote, ratelimit.Subject(fallback), ratelimit.Subject(direct))
		}
		for _, key := range []ratelimit.KeyFunc{list, single} {
			if got := key(r); !got.IsZero() && !isCanonical(ratelimit.Subject(got), 48) {
				t.Errorf("%q, %q: subject %q is not canonical", remote, r.Header, ratelimit.Subject(got))
			}
			r.RemoteAddr = "192.0.2.200:1"
			if got := ratelimit.Subject(key(r)); got != "192.0.2.200" {
				t.Errorf("peer not trusted, %q: subject %q", r.Header, got)
			}
			r.RemoteAddr = remote
		}
		if r.RemoteAddr != remote || !cmp.Equal(header, r.Header) {
			t.Error("the request has changed")
		}
		r = newRequest("10.0.0.5:1", "XFF: "+line1, "XFF: "+line2+", 203.0.113.9", "XFF: 10.0.0.1")
		if got := ratelimit.Subject(list(r)); got != "203.0.113.9" {
			t.Errorf("%q: subject %q, want 203.0.113.9", r.Header, got)
		}
	})
}

func BenchmarkClientIP(b *testing.B) {
	proxies := []string{"10.0.0.0/8"}
	list := newClientIP(b, ratelimit.ClientIPConfig{Header: "X-Forwarded-For", TrustedProxies: proxies})
	forwarded := newClientIP(b, ratelimit.ClientIPConfig{Header: "Forwarded", TrustedProxies: proxies})
	for _, bench := range []struct {
		name string
		key  ratelimit.KeyFunc
		r    *http.Request
	}{
		{"IPv4", ratelimit.ClientIP, newRequest("203.0.113.7:51234")},
		{"IPv6", ratelimit.ClientIP, newRequest("[2001:db8:1:2:3:4:5:6]:443")},
		{"X-Forwarded-For", list, newRequest("10.0.0.5:1", "XFF: 1.2.3.4, 203.0.113.7, 10.0.0.1")},
		{"Forwarded", forwarded, newRequest("10.0.0.5:1", `FWD: for=1.2.3.4, for="[2001:db8::1]:80";proto=https, for=10.0.0.1`)},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				bench.key(bench.r)
			}
		})
	}
}
