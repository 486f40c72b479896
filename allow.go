package ratelimit

import (
	"context"
	"net/http"
	"net/url"
)

// Allow is [Limiter.Check] for what is no HTTP request: a call of gRPC, a message, a job of a queue. It counts under
// the keys given, one for each policy in the order of the configuration; the last one is for all that are left. In
// place of a zero [Key], or of none at all, there is one of kind "none" that all share, unless the policy is
// optional.
//
// The functions of the configuration get an empty request with ctx, where they find whatever the caller has put
// there; Skip and Key are not called. Allow waits for the store as Check does.
func (l *Limiter) Allow(ctx context.Context, keys ...Key) Decision {
	return l.check(requestOf(ctx), given(keys))
}

// requestOf returns the request that the functions of the configuration get for what is none.
func requestOf(ctx context.Context) *http.Request {
	r := &http.Request{Header: make(http.Header), URL: new(url.URL)}
	return r.WithContext(ctx)
}

// given returns keys that are given, and not asked of a request.
func given(keys []Key) []Key {
	if len(keys) == 0 {
		return []Key{{}}
	}
	return keys
}
