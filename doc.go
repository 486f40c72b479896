// Package ratelimit limits requests to HTTP handlers, with counts that all replicas of a service share in Postgres.
//
//	counters, err := store.NewPostgres(pool, store.PostgresConfig{})
//	...
//	limiter, err := ratelimit.New(counters, ratelimit.Config{
//		Secret: secret,
//		Policies: []ratelimit.Policy{
//			{Name: "oauth.register", Limit: ratelimit.PerMinute(5), Key: ratelimit.ClientIP},
//		},
//	})
//	...
//	mux.Handle("POST /oauth/register", limiter.Handler(register))
//
// What is counted is a bucket: the policy's name, its window, the kind of the key and the hash of its subject. The
// subject itself, an address or a token, reaches neither the store nor a log, an error or a header.
//
//	oauth.register/1m:ip:fec52565aa0cf18f57d7cf5b3ac728503b8992d2d6f7d46da1d1201090902b02
//
// Everything is safe for concurrent use. The README tells what is promised and what is not.
package ratelimit
