package ratelimit

import (
	"net/netip"
	"strings"
)

// forwarded is the list of RFC 7239, section 4: elements of pairs, of which "for" names the hop.
var forwarded = listSyntax{
	isBroken: hasOpenQuote,
	cutLast:  cutLastElement,
	addr:     elementAddr,
}

// hasOpenQuote reports whether a quoted string on the line has no end. It is not known then where
// elements end. A line without one can still be malformed; it is cut, and the malformed
// elements do not parse.
func hasOpenQuote(line string) bool {
	open := false
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case '"':
			open = !open
		case '\\':
			if open {
				i++
			}
		}
	}
	return open
}

// cutLastElement cuts the line at its last comma outside quoted strings. It reads from the right, where
// the proxy wrote, so that no quote of a client's can take the proxy's element in: in well-formed text, a
// quote seen from the right ends a string, and the next one without a backslash before it begins it.
func cutLastElement(line string) (rest, last string) {
	quoted := false
	for i := len(line) - 1; i >= 0; i-- {
		switch line[i] {
		case '"':
			if !quoted || i == 0 || line[i-1] != '\\' {
				quoted = !quoted
			}
		case ',':
			if !quoted {
				return line[:i], line[i+1:]
			}
		}
	}
	return "", line
}

// elementAddr returns the address of a forwarded-element's "for" parameter. It returns the zero Addr if
// the element is malformed, has no "for" or two, or does not name an address.
func elementAddr(element string) netip.Addr {
	var node string
	found := false
	for element != "" {
		if element[0] == ';' { // the grammar has empty pairs
			element = element[1:]
			continue
		}
		name, value, rest, ok := cutPair(element)
		if !ok || rest != "" && rest[0] != ';' {
			return netip.Addr{}
		}
		if strings.EqualFold(name, "for") {
			if found {
				return netip.Addr{}
			}
			node, found = value, true
		}
		element = rest
	}
	return nodeAddr(node)
}

// cutPair cuts off the forwarded-pair that s begins with. There is no white space in it.
func cutPair(s string) (name, value, rest string, ok bool) {
	n := tokenLen(s)
	if n == 0 || n == len(s) || s[n] != '=' {
		return "", "", "", false
	}
	name, s = s[:n], s[n+1:]
	if strings.HasPrefix(s, `"`) {
		value, rest, ok = cutQuoted(s[1:])
		return name, value, rest, ok
	}
	n = tokenLen(s)
	return name, s[:n], s[n:], n > 0
}

// cutQuoted returns the text of the quoted string (RFC 9110, section 5.6.4) whose opening quote stood
// before s, and what follows its closing quote.
func cutQuoted(s string) (text, rest string, ok bool) {
	end := strings.IndexAny(s, `"\`)
	if end >= 0 && s[end] == '"' {
		return s[:end], s[end+1:], true
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), s[i+1:], true
		case '\\':
			if i++; i == len(s) {
				return "", "", false
			}
		}
		b.WriteByte(s[i])
	}
	return "", "", false
}

// nodeAddr returns the address of a node (RFC 7239, section 6): an IPv4 address, or an IPv6 address in
// brackets, and perhaps a port. It returns the zero Addr for the others, "unknown" and obfuscated
// identifiers.
func nodeAddr(node string) netip.Addr {
	name, port, hasPort := strings.Cut(node, ":")
	if strings.HasPrefix(node, "[") {
		end := strings.IndexByte(node, ']') + 1
		name, port, hasPort = node[:end], "", end < len(node)
		if hasPort {
			if node[end] != ':' {
				return netip.Addr{}
			}
			port = node[end+1:]
		}
	}
	if hasPort && !isNodePort(port) {
		return netip.Addr{}
	}
	return headerAddr(name)
}

// isNodePort reports whether s is a node-port: one to five digits, or an obfuscated port.
func isNodePort(s string) bool {
	obfuscated := strings.HasPrefix(s, "_")
	if obfuscated {
		s = s[1:]
	} else if len(s) > 5 {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case '0' <= c && c <= '9':
		case obfuscated && (isAlphanumeric(c) || c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return s != ""
}
