package ratelimit

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Headers says in which fields clients are told about their limits; formats are combined with |. Zero means
// [HeadersStructured]. They replace what was there before the next handler runs. Times are whole seconds, rounded up.
type Headers uint

const (
	// HeadersStructured is draft-ietf-httpapi-ratelimit-headers-08 to -11: all policies, and the tightest of them.
	//
	//	RateLimit-Policy: "burst";q=10;w=1, "hour";q=1000;w=3600
	//	RateLimit: "hour";r=742;t=1803
	HeadersStructured Headers = 1 << iota
	HeadersDraft06            // draft 06: RateLimit-Limit, -Remaining, -Reset and -Policy; not together with HeadersStructured
	HeadersLegacy             // X-RateLimit-Limit, -Remaining and -Reset, in Unix time by this machine's clock
	HeadersNone               // none of them, and alone; refusals still have Retry-After

	headersEnd // one past the last format
)

// String returns names, such as "HeadersStructured|HeadersLegacy".
func (h Headers) String() string {
	if h == 0 {
		return "Headers(0)"
	}
	var names []string
	for _, format := range [...]struct {
		bit  Headers
		name string
	}{
		{HeadersStructured, "HeadersStructured"},
		{HeadersDraft06, "HeadersDraft06"},
		{HeadersLegacy, "HeadersLegacy"},
		{HeadersNone, "HeadersNone"},
	} {
		if h&format.bit != 0 {
			names = append(names, format.name)
		}
	}
	if unknown := h &^ (headersEnd - 1); unknown != 0 {
		names = append(names, fmt.Sprintf("Headers(%#x)", uint(unknown)))
	}
	return strings.Join(names, "|")
}

// validate returns what is wrong with the formats, in words that follow the name of a field.
func (h Headers) validate() error {
	const policyTwice = HeadersStructured | HeadersDraft06
	switch {
	case h >= headersEnd:
		return fmt.Errorf("is %v, want formats of this package", h)
	case h&HeadersNone != 0 && h != HeadersNone:
		return fmt.Errorf("is %v, want HeadersNone alone or not at all", h)
	case h&policyTwice == policyTwice:
		return fmt.Errorf("is %v, want HeadersStructured or HeadersDraft06: both write RateLimit-Policy, in different syntaxes", h)
	}
	return nil
}

// The names of the fields as the keys of an http.Header. They are assigned to directly, since
// http.Header.Set would have to make the canonical form of "RateLimit" anew for each response.
const (
	fieldRateLimit        = "Ratelimit"
	fieldPolicy           = "Ratelimit-Policy"
	fieldDraft06Limit     = "Ratelimit-Limit"
	fieldDraft06Remaining = "Ratelimit-Remaining"
	fieldDraft06Reset     = "Ratelimit-Reset"
	fieldLegacyLimit      = "X-Ratelimit-Limit"
	fieldLegacyRemaining  = "X-Ratelimit-Remaining"
	fieldLegacyReset      = "X-Ratelimit-Reset"
)

// write sets the fields that describe d. It touches nothing if d has no result that was counted, or
// if no decision was made: there is nothing to say, and what a limiter further out said still holds.
// The clock is only asked for HeadersLegacy.
func (h Headers) write(dst http.Header, d Decision, now func() time.Time) {
	if h == 0 {
		h = HeadersStructured
	}
	if d.Outcome != Allowed && d.Outcome != Refused {
		return
	}
	tight := tightest(d.Results)
	if tight == nil {
		return
	}
	var stack [256]byte // enough for a few policies; append moves to the heap beyond that
	text, f := stack[:0], fieldList{}
	setInt := func(field string, n int64) {
		text = strconv.AppendInt(text, n, 10)
		f.end(field, text)
	}
	if h&HeadersStructured != 0 {
		text = appendPolicies(text, d.Results)
		f.end(fieldPolicy, text)
		text = appendServiceLimit(text, tight)
		f.end(fieldRateLimit, text)
	}
	if h&HeadersDraft06 != 0 {
		text = appendPoliciesDraft06(text, d.Results, tight)
		f.end(fieldPolicy, text)
		setInt(fieldDraft06Limit, int64(tight.Limit.Requests))
		setInt(fieldDraft06Remaining, remaining(tight))
		setInt(fieldDraft06Reset, ceilSeconds(tight.Reset))
	}
	if h&HeadersLegacy != 0 {
		setInt(fieldLegacyLimit, int64(tight.Limit.Requests))
		setInt(fieldLegacyRemaining, remaining(tight))
		setInt(fieldLegacyReset, resetUnix(tight, now()))
	}
	f.set(dst, string(text))
}

// A fieldList tells apart the values of fields of one value each, which are written one after the other. All lie in one
// string and one array: two allocations for a response, and not two for each field.
type fieldList struct {
	names [7]string
	ends  [7]int
	n     int
}

// end says that what was appended to the text is the value of a field.
func (f *fieldList) end(name string, text []byte) {
	f.names[f.n], f.ends[f.n] = name, len(text)
	f.n++
}

func (f *fieldList) set(dst http.Header, text string) {
	values, start := make([]string, f.n), 0
	for i, end := range f.ends[:f.n] {
		values[i] = text[start:end]
		dst[f.names[i]] = values[i : i+1 : i+1]
		start = end
	}
}

// tightest returns the counted result that a client has to go by, as [HeadersStructured] defines it,
// or nil if none was counted.
func tightest(results []Result) *Result {
	var best *Result
	for i := range results {
		if r := &results[i]; r.Counted && !r.DryRun && (best == nil || tighter(r, best)) {
			best = r
		}
	}
	return best
}

func tighter(a, b *Result) bool {
	aRefuses, bRefuses := a.Outcome == Refused, b.Outcome == Refused
	switch {
	case aRefuses != bRefuses:
		return aRefuses
	case !aRefuses && a.Remaining != b.Remaining:
		return a.Remaining < b.Remaining
	}
	// Of refusing results Remaining is not compared: what the client needs to know is when all of the
	// policies admit again.
	return a.Reset > b.Reset
}

// appendPolicies appends the value of RateLimit-Policy, a List of RFC 9651 (section 4.1.1).
func appendPolicies(b []byte, results []Result) []byte {
	start := len(b)
	for i := range results {
		r := &results[i]
		if !r.applied() {
			continue
		}
		if len(b) > start {
			b = append(b, ", "...)
		}
		b = appendQuoted(b, r.Policy)
		b = append(b, ";q="...)
		b = strconv.AppendInt(b, int64(r.Limit.Requests), 10)
		b = append(b, ";w="...)
		b = strconv.AppendInt(b, windowSeconds(r), 10)
		b = appendPartitionKey(b, r)
	}
	return b
}

// appendServiceLimit appends the value of RateLimit, a List of one Item.
func appendServiceLimit(b []byte, r *Result) []byte {
	b = appendQuoted(b, r.Policy)
	b = append(b, ";r="...)
	b = strconv.AppendInt(b, remaining(r), 10)
	b = append(b, ";t="...)
	b = strconv.AppendInt(b, ceilSeconds(r.Reset), 10)
	return appendPartitionKey(b, r)
}

// appendPartitionKey appends the parameter of draft-11, sections 3.1.4 and 4.1.3, a Byte Sequence of
// RFC 9651 (section 4.1.8), if the result has a key to show.
func appendPartitionKey(b []byte, r *Result) []byte {
	if len(r.partitionKey) == 0 {
		return b
	}
	b = append(b, ";pk=:"...)
	b = base64.StdEncoding.AppendEncode(b, r.partitionKey)
	return append(b, ':')
}

// appendPoliciesDraft06 appends the value of RateLimit-Policy as draft-06 has it. There a policy is
// known by its quota alone, and two with the same quota must not be listed. Clients look for the one
// that RateLimit-Limit speaks of, so that one is never the one left out.
func appendPoliciesDraft06(b []byte, results []Result, tight *Result) []byte {
	start := len(b)
	for i := range results {
		r := &results[i]
		if !r.applied() || r != tight && (r.Limit.Requests == tight.Limit.Requests || listed(results[:i], r.Limit.Requests)) {
			continue
		}
		if len(b) > start {
			b = append(b, ", "...)
		}
		b = strconv.AppendInt(b, int64(r.Limit.Requests), 10)
		b = append(b, ";w="...)
		b = strconv.AppendInt(b, windowSeconds(r), 10)
	}
	return b
}

func listed(results []Result, requests int) bool {
	for i := range results {
		if results[i].applied() && results[i].Limit.Requests == requests {
			return true
		}
	}
	return false
}

// appendQuoted appends s as a String of RFC 9651 (section 4.1.6). Names of policies are printable
// ASCII, and of those the result is a string of JSON as well (RFC 8259, section 7).
func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return append(b, '"')
}

// applied reports whether the policy had a say: it was counted, or need not be because another refused.
func (r *Result) applied() bool { return (r.Counted || r.spared) && !r.DryRun }

// remaining is what a client is told to have left, in the bounds of the limit whatever was counted:
// the draft allows no negative number (draft-11, section 4.1.1).
func remaining(r *Result) int64 { return int64(max(0, min(r.Remaining, r.Limit.Requests))) }

// windowSeconds is the length of the window: never 0 (draft-11, section 3.1.3), as MinWindow is a second.
func windowSeconds(r *Result) int64 { return ceilSeconds(r.Limit.Window) }

// ceilSeconds is d in whole seconds, rounded up, and 0 if d is negative.
func ceilSeconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 { // not (d + time.Second - 1) / time.Second, which overflows
		s++
	}
	return max(s, 0)
}

// resetUnix is when the window ends, in seconds since 1970.
func resetUnix(r *Result, now time.Time) int64 {
	end := now.Add(max(r.Reset, 0))
	if r.Limit.Window%time.Second == 0 {
		// Such a window ends on a whole second of the store's clock. Rounding up would be a second
		// late nearly always: the answer has been on its way since Reset was taken.
		return end.Round(time.Second).Unix()
	}
	return end.Add(time.Second - 1).Unix() // rounded up
}
