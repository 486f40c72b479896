package ratelimit_test

import (
	"testing"

	"github.com/krow/ratelimit"
)

func TestHeadersString(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		headers ratelimit.Headers
		want    string
	}{
		{0, "Headers(0)"},
		{ratelimit.HeadersStructured, "HeadersStructured"},
		{ratelimit.HeadersDraft06, "HeadersDraft06"},
		{ratelimit.HeadersLegacy, "HeadersLegacy"},
		{ratelimit.HeadersNone, "HeadersNone"},
		{ratelimit.HeadersStructured | ratelimit.HeadersLegacy, "HeadersStructured|HeadersLegacy"},
		{ratelimit.HeadersNone | 1<<9, "HeadersNone|Headers(0x200)"},
		{1 << 4, "Headers(0x10)"},
	} {
		if got := test.headers.String(); got != test.want {
			t.Errorf("Headers(%#x).String() = %q, want %q", uint(test.headers), got, test.want)
		}
	}
}
