package ratelimit

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/krow/ratelimit/internal/logevery"
	"github.com/krow/ratelimit/internal/memory"
)

const defaultDeadline = 250 * time.Millisecond

// A Limiter decides which requests are within the limits. [New] makes it, and nothing has to be closed.
type Limiter struct {
	store    Store
	config   Config // without what is below
	policies atomic.Pointer[[]policy]
	hasher   *hasher
	refusals *refusals
	local    *memory.Counter // for policies that are FailLocal
	log      *logevery.Logger
	dryLog   *logevery.Logger // of what would have been refused
}

// New returns a Limiter that counts in store, or all mistakes in the configuration, by field.
func New(store Store, config Config) (*Limiter, error) {
	if err := errors.Join(checkStore(store), config.validate()); err != nil {
		return nil, err
	}
	if config.Deadline == 0 {
		config.Deadline = defaultDeadline
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	l := &Limiter{
		store:    store,
		config:   config,
		hasher:   newHasher(config.Secret),
		refusals: newRefusals(),
		local:    memory.New(maxLocalBuckets),
		log:      logevery.New(config.Logger, time.Second),
		dryLog:   logevery.New(config.Logger, time.Second),
	}
	l.config.Secret = nil // the hasher has it; here, package fmt would print it with the Limiter
	l.config.Policies = nil
	l.usePolicies(config.Policies)
	return l, nil
}
