package ratelimit

import (
	"net/http"
	"strconv"
	"sync"
)

// setRefusalHeaders sets what every answer to a request that is not served must have, whoever writes
// it: Retry-After and Cache-Control. It leaves all other fields alone, such as those that a CORS
// middleware further out has set, without which a browser hides the answer from the page.
func setRefusalHeaders(h http.Header, d Decision) {
	values := []string{strconv.FormatInt(retryAfter(h, d), 10), noStore}
	h["Retry-After"], h["Cache-Control"] = values[0:1:1], values[1:2:2]
}

// noStore keeps caches from storing a 429 (RFC 6585, section 4), whatever was planned for the response.
const noStore = "no-store"

// retryAfter returns the seconds that a client is told to wait.
func retryAfter(h http.Header, d Decision) int64 {
	// Never 0 (RFC 9110, section 10.2.3, would allow it): widely used clients then retry at once.
	after := max(1, ceilSeconds(d.RetryAfter))
	// A limiter further out may ask for a longer wait, and the field is a single value. A date is
	// replaced, not compared: that would take the clock of this machine, which need not agree with
	// that of whoever wrote the date. So is anything else that is not a number of seconds.
	for _, text := range h["Retry-After"] {
		if s, ok := delaySeconds(text); ok {
			after = max(after, s)
		}
	}
	return after
}

// delaySeconds reads a Retry-After that is a number of seconds: 1*DIGIT (RFC 9110, section 10.2.3).
func delaySeconds(text string) (int64, bool) {
	n, err := strconv.ParseUint(text, 10, 63) // unlike ParseInt, it accepts no sign
	return int64(n), err == nil
}

// first is what http.Header.Get returns of a field whose name is in canonical form, which Get has to make sure of.
func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// bodies are buffers that refuse writes in.
var bodies = sync.Pool{New: func() any { return new([]byte) }}

// refuse is the answer to a refused request unless the user has another: 429 with the problem type
// of draft-ietf-httpapi-ratelimit-headers-11, sections 5.1 and 10.2.1.
func refuse(w http.ResponseWriter, r *http.Request, d Decision) {
	// Written by hand, as a flood of refusals should cost little.
	buf := bodies.Get().(*[]byte)
	defer bodies.Put(buf)
	body := (*buf)[:0]
	body = append(body, `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded"`...)
	body = append(body, `,"title":"Quota Exceeded","status":429`...)
	after := retryAfter(w.Header(), d)
	if r := tooCostly(d.Results); r != nil {
		body = append(body, `,"detail":"The request costs `...)
		body = strconv.AppendInt(body, int64(r.Cost), 10)
		body = append(body, `, and the limit is `...)
		body = strconv.AppendInt(body, int64(r.Limit.Requests), 10)
		body = append(body, `."`...)
	} else {
		body = append(body, `,"detail":"Try again in `...)
		body = strconv.AppendInt(body, after, 10)
		if after == 1 {
			body = append(body, ` second."`...)
		} else {
			body = append(body, ` seconds."`...)
		}
	}
	body = append(body, `,"violated-policies":[`...)
	comma := false
	for i := range d.Results {
		if !d.Results[i].refuses() {
			continue
		}
		if comma {
			body = append(body, ',')
		}
		comma = true
		body = appendQuoted(body, d.Results[i].Policy)
	}
	body = append(body, "]}\n"...)
	*buf = body
	writeProblem(w, r, http.StatusTooManyRequests, after, body)
}

// tooCostly returns a result that refuses and always will, or nil: there is no use in trying again.
func tooCostly(results []Result) *Result {
	for i := range results {
		if r := &results[i]; r.refuses() && r.Cost > 1 && r.Cost > r.Limit.Requests {
			return r
		}
	}
	return nil
}

// unavailable is the answer to a request that could not be decided on and must not pass, unless the
// user has another: 503, of the problem type that says no more than the status does (RFC 9457,
// section 4.2.1). Why the store failed is nothing for a client to know.
func unavailable(w http.ResponseWriter, r *http.Request, d Decision) {
	const body = `{"type":"about:blank","title":"Service Unavailable","status":503}` + "\n"
	writeProblem(w, r, http.StatusServiceUnavailable, retryAfter(w.Header(), d), []byte(body))
}

// writeProblem answers with a body of application/problem+json (RFC 9457), and with what setRefusalHeaders sets. It does
// not read the request's body: net/http drains a small one to keep the connection, and gives up on a large one.
func writeProblem(w http.ResponseWriter, r *http.Request, status int, after int64, body []byte) {
	h := w.Header()
	// All values lie in one array, and the numbers in one string, as those of Headers.write do.
	var stack [40]byte
	digits := strconv.AppendInt(stack[:0], after, 10)
	end := len(digits)
	numbers := string(strconv.AppendInt(digits, int64(len(body)), 10))
	values := []string{numbers[:end], noStore, "application/problem+json", "nosniff", numbers[end:]}
	h["Retry-After"], h["Cache-Control"] = values[0:1:1], values[1:2:2]
	h["Content-Type"], h["X-Content-Type-Options"] = values[2:3:3], values[3:4:4]
	if first(h["Content-Encoding"]) == "" {
		// Also the length that a HEAD is told (RFC 9110, section 8.6), which net/http cannot know.
		h["Content-Length"] = values[4:5:5]
	} else {
		// A middleware further out compresses what is written here, so its length is not this one.
		delete(h, "Content-Length")
	}
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // an error means that the client has gone
	}
}
