// Package ratelimit limits requests to HTTP handlers, with counts that all replicas of a service share
// in Postgres.
//
// A [Limiter] takes a key from each request, hashes it and counts it. Requests that arrive together are
// counted together. It then calls the next handler, or answers 429 with Retry-After:
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
// # Rules
//
//   - All processes that share a table share the Secret. Policies of one name and window share a budget
//     per key, in whichever process they run.
//   - Behind a proxy, [ClientIP] sees the proxy. Use [NewClientIP] and list the proxies.
//   - A token that nobody has verified is not a limit, since every invented one is a fresh budget. Before
//     authentication put an optional policy by [BearerToken] beside one by [ClientIP]; after it, use
//     FirstOf(BearerToken, ClientIP) or the account.
//   - A CORS middleware goes outside the limiter, so that its fields are on refusals too, and
//     [IsPreflight] keeps preflights from being counted.
//   - Windows are fixed: around the end of one, up to twice the limit passes in a short time.
//   - When the store cannot count, each policy's [FailureMode] decides, within [Config].Deadline.
//
// # Buckets
//
// What is counted is a bucket: the policy's name, its window, the kind of the key and the hash of its
// subject, such as
//
//	oauth.register/1m:ip:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
//
// The subject itself, an address or a token, reaches neither the store nor a log, an error or a header.
// The window is part of the bucket, so that limits with different windows never share a count.
package ratelimit
