package ratelimit

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// defaultIPv6Prefix is what one customer of a network gets at least: whoever has one IPv6 address has
// 2^64 of them.
const (
	defaultIPv6Prefix = 64
	minIPv6Prefix     = 32 // what one network gets from its registry
)

// ClientIP is a [KeyFunc] for the address of the TCP peer, of kind "ip", which behind a proxy is the proxy. IPv6
// addresses count by their /64 prefix. It reads no header field.
func ClientIP(r *http.Request) Key { return ipKey(kindIP, peerAddr(r), defaultIPv6Prefix) }

// ClientIPConfig is for [NewClientIP]. The zero value is [ClientIP].
type ClientIPConfig struct {
	// Header is the one field that is read: "X-Forwarded-For", "Forwarded" (RFC 7239), or one with a single address, such
	// as "X-Real-IP". Addresses may have ports. All trusted proxies must set it, and not pass on a client's.
	Header string
	// TrustedProxies are the peers whose Header is believed: addresses, CIDR prefixes, or "unix" for peers on a Unix
	// socket. List the proxies and nothing else: whoever reaches the server from there chooses its own key.
	TrustedProxies []string
	// IPv6Prefix is how many bits of an IPv6 address count, from 32 to 128. Defaults to 64.
	IPv6Prefix int
}

// NewClientIP returns a [KeyFunc] for the client's address as trusted proxies tell it. A list is read from the right, past
// trusted proxies to the first other address. If the peer is not trusted or there is no Header, the peer is the client;
// if something else than an address is in the way, there is no key. All mistakes are reported at once, by field.
func NewClientIP(c ClientIPConfig) (KeyFunc, error) {
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("ratelimit: ClientIPConfig."+format, args...))
	}
	ip := &clientIP{header: http.CanonicalHeaderKey(c.Header), ipv6Prefix: c.IPv6Prefix}
	if c.Header != "" {
		if err := checkFieldName(c.Header); err != nil {
			wrong("Header is %q, %w", c.Header, err)
		}
		if len(c.TrustedProxies) == 0 {
			wrong("Header is %q and TrustedProxies is empty, want the proxies that set the header", c.Header)
		}
	} else if len(c.TrustedProxies) > 0 {
		wrong("TrustedProxies is %q and Header is empty, want the header that they set", c.TrustedProxies)
	}
	for i, proxy := range c.TrustedProxies {
		if proxy == "unix" {
			ip.trustUnix = true
			continue
		}
		prefix, err := parseProxy(proxy)
		if err != nil {
			wrong("TrustedProxies[%d] is %q, %w", i, proxy, err)
		}
		ip.trusted = append(ip.trusted, prefix)
	}
	if ip.ipv6Prefix == 0 {
		ip.ipv6Prefix = defaultIPv6Prefix
	} else if ip.ipv6Prefix < minIPv6Prefix || ip.ipv6Prefix > 128 {
		wrong("IPv6Prefix is %d, want %d to 128, or 0 for %d", c.IPv6Prefix, minIPv6Prefix, defaultIPv6Prefix)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return ip.key, nil
}

// parseProxy returns the prefix that an entry of TrustedProxies stands for, or what is wrong with it in
// words that follow the entry. Addresses are unmapped before they are compared, so a prefix
// of mapped addresses is turned into the IPv4 prefix too: it would never match.
func parseProxy(s string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(s); err == nil {
		if addr.Zone() != "" {
			return netip.Prefix{}, errors.New("want an address without a zone")
		}
		addr = addr.Unmap()
		if addr.IsUnspecified() {
			return netip.Prefix{}, errors.New("which no peer has, want the address of a proxy")
		}
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, errors.New(`want an address, a CIDR prefix or "unix"`)
	}
	if prefix.Addr().Is4In6() {
		if prefix.Bits() < 96 {
			return netip.Prefix{}, errors.New("want an IPv4 prefix, or at least /96 of mapped addresses")
		}
		prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
	}
	if prefix.Bits() == 0 {
		return netip.Prefix{}, errors.New("which lets every client choose its own key, want the addresses of the proxies")
	}
	return prefix.Masked(), nil
}

// clientIP is a [ClientIPConfig] that has been checked.
type clientIP struct {
	header     string // in canonical form, or empty
	trusted    []netip.Prefix
	trustUnix  bool
	ipv6Prefix int
}

// key is the KeyFunc that NewClientIP returns.
func (c *clientIP) key(r *http.Request) Key { return ipKey(kindIP, c.client(r), c.ipv6Prefix) }

// client returns the address of the client, or the zero Addr if there is none to be had.
func (c *clientIP) client(r *http.Request) netip.Addr {
	peer := peerAddr(r)
	if !c.trusts(peer) && !(c.trustUnix && isUnixPeer(r)) {
		return peer
	}
	lines := r.Header[c.header]
	if len(lines) == 0 {
		return peer
	}
	switch c.header {
	case "X-Forwarded-For":
		return c.lastUntrusted(lines, xForwardedFor)
	case "Forwarded":
		return c.lastUntrusted(lines, forwarded)
	}
	if len(lines) > 1 {
		return netip.Addr{}
	}
	return headerAddr(trimOWS(lines[0]))
}

// trusts reports whether addr is that of a trusted proxy. The zero Addr is not.
func (c *clientIP) trusts(addr netip.Addr) bool {
	for _, prefix := range c.trusted {
		if prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// lastUntrusted returns the rightmost address on the lines that is not that of a trusted proxy. It is
// the zero Addr if something unreadable comes before it, or if there is none.
func (c *clientIP) lastUntrusted(lines []string, list listSyntax) netip.Addr {
	for _, line := range slices.Backward(lines) {
		if list.isBroken(line) {
			return netip.Addr{}
		}
		for line != "" {
			var item string
			line, item = list.cutLast(line)
			if item = trimOWS(item); item == "" {
				continue
			}
			if addr := list.addr(item); !c.trusts(addr) {
				return addr
			}
		}
	}
	return netip.Addr{}
}

// A listSyntax is how a field that is a list of hops is read. Items are cut off one by one, from the
// right: the walk is then over at the client, however much it has put in front.
type listSyntax struct {
	isBroken func(line string) bool                // whether the line cannot be cut into items
	cutLast  func(line string) (rest, last string) // the last item and what stands to the left of its comma
	addr     func(item string) netip.Addr          // the address in an item, or the zero Addr
}

// xForwardedFor is the list that proxies agree on without a standard.
var xForwardedFor = listSyntax{
	isBroken: func(string) bool { return false },
	cutLast: func(line string) (rest, last string) {
		i := strings.LastIndexByte(line, ',')
		return line[:max(i, 0)], line[i+1:]
	},
	addr: headerAddr,
}

// headerAddr returns the address in a header field, with or without a port. Unlike that of the peer, it
// must not have a zone, which means something only on the machine that wrote it.
func headerAddr(s string) netip.Addr {
	if strings.IndexByte(s, '%') >= 0 {
		return netip.Addr{}
	}
	return canonical(parseEndpoint(s))
}

// peerAddr returns the address of the TCP peer, or the zero Addr if RemoteAddr is none.
func peerAddr(r *http.Request) netip.Addr { return canonical(parseEndpoint(r.RemoteAddr)) }

// isUnixPeer reports whether the request came over a Unix socket. The peer's own socket rarely has a
// name: RemoteAddr is then "@" on Linux and empty elsewhere.
func isUnixPeer(r *http.Request) bool {
	return r.RemoteAddr == "" || r.RemoteAddr[0] == '@' || r.RemoteAddr[0] == '/'
}

// parseEndpoint parses "a.b.c.d", "a.b.c.d:port", "v6", "[v6]" and "[v6]:port". It returns the zero Addr
// for anything else. The form is found out first because a failed parse allocates its error.
func parseEndpoint(s string) netip.Addr {
	bracketed := strings.HasPrefix(s, "[")
	if inner, ok := strings.CutSuffix(s, "]"); ok && bracketed {
		if addr, err := netip.ParseAddr(inner[1:]); err == nil && addr.Is6() {
			return addr
		}
		return netip.Addr{}
	}
	if bracketed || strings.Count(s, ":") == 1 {
		endpoint, _ := netip.ParseAddrPort(s)
		return endpoint.Addr()
	}
	addr, _ := netip.ParseAddr(s)
	return addr
}

// canonical returns addr in the form in which addresses are compared. Unspecified addresses are those
// of nobody: it returns the zero Addr for them.
func canonical(addr netip.Addr) netip.Addr {
	addr = addr.WithZone("").Unmap()
	if addr.IsUnspecified() {
		return netip.Addr{}
	}
	return addr
}

// maxAddressText is the length of the longest text of a prefix.
const maxAddressText = len("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128")

// ipKey returns the key of an address in canonical form, and the zero Key for the zero Addr.
func ipKey(kind string, addr netip.Addr, ipv6Prefix int) Key {
	if !addr.IsValid() {
		return Key{}
	}
	text := make([]byte, 0, maxAddressText)
	if addr.Is4() {
		text = addr.AppendTo(text)
	} else {
		text = netip.PrefixFrom(addr, ipv6Prefix).Masked().AppendTo(text)
	}
	return makeKey(kind, string(text))
}

// fallbackKey returns the key under which a request is counted for which a KeyFunc found none: that of
// the TCP peer's address, of kind "peer", or one of kind "none" that all requests share whose peer has
// no address. No KeyFunc returns keys of these kinds, so no real client shares a bucket with them.
func fallbackKey(r *http.Request) Key {
	if key := ipKey(kindPeer, peerAddr(r), defaultIPv6Prefix); !key.IsZero() {
		return key
	}
	return makeKey(kindNone, "no address")
}
