package ratelimit

import (
	"context"
	"net/http"
	"net/url"
)

// Allow is [Limiter.Check] for what is no HTTP request: one key for each policy, the last one for all that are left. For
// a zero Key there is one that all share, unless the policy is optional. The policies' functions get an empty request
// with ctx.
func (l *Limiter) Allow(ctx context.Context, keys ...Key) Decision {
	d, _ := l.check(requestOf(ctx), given(keys))
	return d
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
