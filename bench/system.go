package main

import (
	"context"
	"net/http"
	"net/netip"
	"time"
)

// A system is a limiter that is compared with others, set up as its own documentation says and with the
// settings that measured best here.
type system struct {
	name string
	// family is what it counts in.
	family family
	// open makes it anew, with nothing counted.
	open func(env *environment, quota quota) (*subject, error)
}

type family string

const (
	inPostgres family = "Postgres"
	inRedis    family = "Redis"
	inMemory   family = "memory"
)

// A quota is what every system is told to admit: so many requests of each key in an hour.
type quota struct {
	requests int
	keys     []string // addresses, each of a client of its own
}

const window = time.Hour

// A subject is an open system.
type subject struct {
	// decide asks for one decision on the key of that number: the level of the store.
	decide func(ctx context.Context, key int) (admitted bool, err error)
	// middleware wraps a handler and limits by the client's address: nil if the system has none.
	middleware func(http.Handler) http.Handler
	close      func()
}

// addresses returns n different client addresses.
func addresses(n int) []string {
	keys := make([]string, n)
	addr := netip.MustParseAddr("10.0.0.1")
	for i := range keys {
		keys[i] = addr.String()
		addr = addr.Next()
	}
	return keys
}

// systems are all that take part, in the order of the table.
func systems() []system {
	return []system{
		{ratelimitPostgres, inPostgres, openRatelimitPostgres},
		{ratelimitMemory, inMemory, openRatelimitMemory},
		{oneStatement, inPostgres, openOneStatement(true)},
		{oneStatementAsync, inPostgres, openOneStatement(false)},
		{bareUpsert, inPostgres, openBareUpsert},
		{"redis_rate", inRedis, openRedisRate},
		{"ulule, Redis", inRedis, openUluleRedis},
		{"throttled, Redis", inRedis, openThrottledRedis},
		{"INCR and EXPIRE, Redis", inRedis, openIncrExpire},
		{"httprate", inMemory, openHTTPRate},
		{"go-limiter", inMemory, openGoLimiter},
		{"ulule, memory", inMemory, openUluleMemory},
		{"throttled, memory", inMemory, openThrottledMemory},
	}
}

// The names of systems that the ratios speak of.
const (
	ratelimitPostgres = "ratelimit, Postgres"
	ratelimitMemory   = "ratelimit, memory"
	oneStatement      = "one statement per request"
	oneStatementAsync = "one statement per request, asynchronous commit"
	bareUpsert        = "bare upsert, asynchronous commit"
)
