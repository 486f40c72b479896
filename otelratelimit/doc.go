// Package otelratelimit tells OpenTelemetry what package ratelimit does: metrics of decisions, statements, sweeps and the
// breaker, and attributes on the span of each request. [Metrics] has one method for each hook of [ratelimit.Config]
// and [store.PostgresConfig].
//
// # Metrics
//
// Of a limiter:
//
//   - ratelimit.decisions, a counter in {request}: what each policy said of a request, by ratelimit.policy,
//     ratelimit.outcome, ratelimit.source and ratelimit.dry_run. A request counts once for each policy that applied.
//   - ratelimit.decision.duration, a histogram in s: how long the decision on a request took, by ratelimit.outcome. Its
//     count is the number of requests.
//   - ratelimit.store.errors, a counter in {request}: requests that the store did not count, by error.type, whatever
//     became of them. It goes on while the breaker is open and no statement is sent.
//
// Of a Postgres store:
//
//   - ratelimit.store.flush.duration, a histogram in s: how long a counting statement took, by error.type.
//   - ratelimit.store.flush.rows, a histogram in {row}: how many buckets it counted.
//   - ratelimit.store.flush.hits, a histogram in {hit}: how much it added to them.
//   - ratelimit.store.breaker.open, an up-down counter in {store}: how many stores leave their database alone by now.
//   - ratelimit.store.sweep.duration, a histogram in s: how long a sweep took, by error.type.
//   - ratelimit.store.sweep.deleted, a counter in {row}: how many expired rows were deleted.
//
// # Attributes
//
//   - ratelimit.policy: the policy's name.
//   - ratelimit.outcome: allowed, refused, unavailable or canceled. See [ratelimit.Outcome].
//   - ratelimit.source: what the outcome comes from. It is store for a count of the store; memory for a refusal that was
//     remembered; local for this process's own count under [ratelimit.FailLocal]; none where the policy did not count,
//     as the store failed, the client left, or another policy refused from memory.
//   - ratelimit.dry_run: whether the policy is one of [ratelimit.Policy].DryRun, and the outcome not acted on.
//   - error.type: timeout, unavailable, read_only, no_table, invalid_hit or _OTHER, after the errors of package
//     ratelimit. It is deadline for a request whose own deadline passed, and canceled for a sweep whose context
//     ended. It is not there where nothing failed.
//
// No attribute has a key, a bucket or anything else of a client, so that there are at most a few series for each
// policy.
//
// # Traces
//
// A request whose context has a span that records gets the attributes of the decision there, and no span of its own:
//
//   - ratelimit.outcome: of the whole decision.
//   - ratelimit.policy: the policy that decided against the request. It is not there if the request was allowed.
//   - ratelimit.elapsed: how long the decision took, in seconds.
//   - ratelimit.error: why the store did not count the request, as error.type says it.
//   - ratelimit.dry_run_policy: the first policy of [ratelimit.Policy].DryRun that would have refused it.
//
// The span is that of a middleware further out, such as otelhttp. Of nested limiters, the last one to decide is shown.
package otelratelimit
