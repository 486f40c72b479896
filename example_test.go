package ratelimit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/migrations"
	"github.com/krow/ratelimit/store"
)

func Example() {
	// A service uses store.NewPostgres, so that all its replicas share the counts.
	counters, err := store.NewMemory(store.MemoryConfig{})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(counters, ratelimit.Config{
		Policies: []ratelimit.Policy{
			{Name: "oauth.register", Limit: ratelimit.PerDay(2), Key: ratelimit.ClientIP},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	register := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
	})
	handler := limiter.Handler(register)

	for range 3 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("POST", "/oauth/register", nil))
		fmt.Println(w.Code, http.StatusText(w.Code))
	}
	// Output:
	// 201 Created
	// 201 Created
	// 429 Too Many Requests
}

func Example_postgres() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	if err := migrations.Up(ctx, pool); err != nil {
		log.Fatal(err)
	}
	counters, err := store.NewPostgres(pool, store.PostgresConfig{})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(counters, ratelimit.Config{
		Secret: []byte(os.Getenv("RATELIMIT_SECRET")),
		Policies: []ratelimit.Policy{
			{Name: "api.burst", Limit: ratelimit.PerSecond(10)},
			{Name: "api.hour", Limit: ratelimit.PerHour(1000)},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(":8080", limiter.Handler(http.DefaultServeMux)))
}

// Before authentication anybody can invent a token, so the address limits everybody and the token,
// where there is one, limits in addition.
func ExampleBearerToken() {
	policies := []ratelimit.Policy{
		{Name: "mcp.ip", Limit: ratelimit.PerMinute(300), Key: ratelimit.ClientIP},
		{Name: "mcp.token", Limit: ratelimit.PerMinute(60), Key: ratelimit.BearerToken, Optional: true},
	}
	fmt.Println(len(policies))
	// Output: 2
}

func ExampleNewClientIP() {
	clientIP, err := ratelimit.NewClientIP(ratelimit.ClientIPConfig{
		Header:         "X-Forwarded-For",
		TrustedProxies: []string{"10.0.0.0/8"},
	})
	if err != nil {
		log.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.0.0.5:40211"
	r.Header.Set("X-Forwarded-For", "192.0.2.1, 198.51.100.20, 10.0.0.7")
	fmt.Println(clientIP(r).Equal(ratelimit.NewKey("ip", "198.51.100.20")))
	// Output: true
}

func ExampleNewKey() {
	type accountKey struct{}
	byAccount := func(r *http.Request) ratelimit.Key {
		account, _ := r.Context().Value(accountKey{}).(string)
		return ratelimit.NewKey("account", account)
	}
	r := httptest.NewRequest("GET", "/", nil)
	fmt.Println(byAccount(r))
	fmt.Println(byAccount(r.WithContext(context.WithValue(r.Context(), accountKey{}, "a-4711"))))
	// Output:
	// no key
	// account:redacted
}

func ExampleLimiter_Check() {
	counters, err := store.NewMemory(store.MemoryConfig{})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(counters, ratelimit.Config{
		Policies: []ratelimit.Policy{{Name: "search", Limit: ratelimit.PerDay(1)}},
	})
	if err != nil {
		log.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/", nil)
	for range 2 {
		d := limiter.Check(r)
		fmt.Println(d.Outcome, d.Results[0].Remaining)
	}
	// Output:
	// allowed 0
	// refused 0
}

func ExampleFromContext() {
	handler := func(w http.ResponseWriter, r *http.Request) {
		if d, ok := ratelimit.FromContext(r.Context()); ok && d.Err != nil {
			log.Print("served without being counted")
		}
	}
	http.HandleFunc("/", handler)
}

// Limits come from a configuration file as they would be said.
func ExampleParseLimit() {
	var limits map[string]ratelimit.Limit
	err := json.Unmarshal([]byte(`{"register": "5 per hour", "call": "100/1m", "login": "10/fortnight"}`), &limits)
	fmt.Println(err)
	limit, err := ratelimit.ParseLimit("1000 per 15 minutes")
	fmt.Println(limit, err)
	// Output:
	// ratelimit: limit "10/fortnight": "fortnight" is no window, want one such as "1m", "hour" or "15 minutes"
	// 1000/15m <nil>
}

// Log-ins are limited in any hour, not only from one full hour to the next: whoever has spent the limit at 11:59 gets the
// first attempt back at 12:12, and the last one at 13:00.
func ExamplePolicy_sliding() {
	counters, err := store.NewMemory(store.MemoryConfig{})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(counters, ratelimit.Config{
		Policies: []ratelimit.Policy{{Name: "login", Limit: ratelimit.PerHour(5), Sliding: true}},
	})
	if err != nil {
		log.Fatal(err)
	}
	r := httptest.NewRequest("POST", "/login", nil)
	for range 6 {
		fmt.Println(limiter.Check(r).Outcome)
	}
	// Output:
	// allowed
	// allowed
	// allowed
	// allowed
	// allowed
	// refused
}

// A stricter limit is tried out beside the one in force, before anybody is refused by it.
func ExamplePolicy_dryRun() {
	counters, err := store.NewMemory(store.MemoryConfig{})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(counters, ratelimit.Config{
		Policies: []ratelimit.Policy{
			{Name: "call", Limit: ratelimit.PerHour(1000)},
			{Name: "call.strict", Limit: ratelimit.PerHour(2), DryRun: true},
		},
		OnDecision: func(_ *http.Request, d ratelimit.Decision) {
			for _, r := range d.Results {
				fmt.Print(r.Policy, " ", r.Outcome, "; ")
			}
			fmt.Println("so it is", d.Outcome)
		},
		Logger: slog.New(slog.DiscardHandler), // which would be told, too
	})
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		limiter.Check(httptest.NewRequest("GET", "/", nil))
	}
	// Output:
	// call allowed; call.strict allowed; so it is allowed
	// call allowed; call.strict allowed; so it is allowed
	// call allowed; call.strict refused; so it is allowed
}

// An export costs as many units as the rows that it asks for.
func ExamplePolicy_cost() {
	counters, err := store.NewMemory(store.MemoryConfig{})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(counters, ratelimit.Config{
		Policies: []ratelimit.Policy{{
			Name:  "export",
			Limit: ratelimit.PerDay(1000),
			Cost: func(r *http.Request) int {
				rows, _ := strconv.Atoi(r.URL.Query().Get("rows"))
				return rows // 1 if there is no number
			},
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, rows := range []string{"800", "300", "200"} {
		d := limiter.Check(httptest.NewRequest("GET", "/export?rows="+rows, nil))
		fmt.Println(rows, d.Outcome, d.Results[0].Remaining)
	}
	// Output:
	// 800 allowed 200
	// 300 refused 200
	// 200 allowed 0
}

// Limits depend on the plan of the customer, which a middleware further out has put into the context.
func ExamplePolicy_limitFor() {
	type plan struct{}
	plans := map[string]ratelimit.Limit{ // from a configuration file
		"pro":      ratelimit.PerMinute(600),
		"internal": ratelimit.Unlimited(),
	}
	counters, err := store.NewMemory(store.MemoryConfig{})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(counters, ratelimit.Config{
		Policies: []ratelimit.Policy{{
			Name:  "call",
			Limit: ratelimit.PerMinute(60), // for plans that are not in the map
			LimitFor: func(r *http.Request) ratelimit.Limit {
				name, _ := r.Context().Value(plan{}).(string)
				return plans[name]
			},
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{"free", "pro", "internal"} {
		r := httptest.NewRequest("GET", "/", nil)
		d := limiter.Check(r.WithContext(context.WithValue(r.Context(), plan{}, name)))
		fmt.Print(name, " is ", d.Outcome)
		for _, result := range d.Results {
			fmt.Print(", limit ", result.Limit, ", ", result.Remaining, " remain")
		}
		fmt.Println()
	}
	// Output:
	// free is allowed, limit 60/1m, 59 remain
	// pro is allowed, limit 600/1m, 598 remain
	// internal is allowed
}

// A worker asks before it takes on a job, and puts it off by as long as the limit wants.
func ExampleLimiter_Allow() {
	counters, err := store.NewMemory(store.MemoryConfig{})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(counters, ratelimit.Config{
		Policies: []ratelimit.Policy{
			{Name: "mail.customer", Limit: ratelimit.PerDay(2)},
			{Name: "mail.all", Limit: ratelimit.PerDay(1000)},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	all := ratelimit.NewKey("queue", "mail")
	for _, customer := range []string{"ada", "ada", "ada", "bob"} {
		d := limiter.Allow(context.Background(), ratelimit.NewKey("customer", customer), all)
		if d.Outcome != ratelimit.Allowed {
			fmt.Println(customer, "is put off:", d.RetryAfter > 0)
			continue
		}
		fmt.Println(customer, "is written to")
	}
	// Output:
	// ada is written to
	// ada is written to
	// ada is put off: true
	// bob is written to
}

// An interceptor of gRPC, here without its types: whoever has authenticated the call has put the account into the
// context.
func ExampleLimiter_Allow_interceptor() {
	type account struct{}
	counters, err := store.NewMemory(store.MemoryConfig{})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(counters, ratelimit.Config{
		Policies: []ratelimit.Policy{{Name: "call", Limit: ratelimit.PerMinute(1)}},
	})
	if err != nil {
		log.Fatal(err)
	}
	intercept := func(ctx context.Context, handler func(context.Context) error) error {
		name, _ := ctx.Value(account{}).(string)
		if d := limiter.Allow(ctx, ratelimit.NewKey("account", name)); d.Outcome != ratelimit.Allowed {
			return fmt.Errorf("%s, try again later", d.Outcome) // codes.ResourceExhausted, with errdetails.RetryInfo
		}
		return handler(ctx)
	}
	ctx := context.WithValue(context.Background(), account{}, "ada")
	for range 2 {
		fmt.Println(intercept(ctx, func(context.Context) error { return nil }))
	}
	// Output:
	// <nil>
	// refused, try again later
}

// A service reads its configuration anew, when it gets a SIGHUP perhaps. What has been counted stays.
func ExampleLimiter_SetPolicies() {
	counters, err := store.NewMemory(store.MemoryConfig{})
	if err != nil {
		log.Fatal(err)
	}
	read := func(text string) []ratelimit.Policy {
		var limits map[string]ratelimit.Limit
		if err := json.Unmarshal([]byte(text), &limits); err != nil {
			log.Fatal(err)
		}
		return []ratelimit.Policy{{Name: "call", Limit: limits["call"]}}
	}
	limiter, err := ratelimit.New(counters, ratelimit.Config{Policies: read(`{"call": "2 per day"}`)})
	if err != nil {
		log.Fatal(err)
	}
	ask := func() {
		d := limiter.Check(httptest.NewRequest("GET", "/", nil))
		fmt.Println(d.Outcome, d.Results[0].Remaining)
	}
	ask()
	if err := limiter.SetPolicies(read(`{"call": "10 per day"}`)); err != nil {
		log.Print(err) // and go on with the old ones
	}
	ask()
	// Output:
	// allowed 1
	// allowed 8
}

// Only log-ins that fail are limited: one that succeeds gives back what it has spent.
func ExampleDecision_Refund() {
	counters, err := store.NewMemory(store.MemoryConfig{})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(counters, ratelimit.Config{
		Policies: []ratelimit.Policy{{Name: "login.failed", Limit: ratelimit.PerDay(2), OnFailure: ratelimit.FailLocal}},
	})
	if err != nil {
		log.Fatal(err)
	}
	login := limiter.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "open sesame" {
			http.Error(w, "wrong password", http.StatusUnauthorized)
			return
		}
		if d, ok := ratelimit.FromContext(r.Context()); ok {
			d.Refund()
		}
	}))
	for _, password := range []string{"open sesame", "open sesame", "hunter2", "open sesame", "12345", "qwerty"} {
		r := httptest.NewRequest("POST", "/login", nil)
		r.SetBasicAuth("ali baba", password)
		w := httptest.NewRecorder()
		login.ServeHTTP(w, r)
		fmt.Print(w.Code, " ")
	}
	// Output: 200 200 401 200 401 429
}

// Support looks at a customer who is refused, and has it start anew.
func ExampleLimiter_Peek() {
	counters, err := store.NewMemory(store.MemoryConfig{})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(counters, ratelimit.Config{
		Policies: []ratelimit.Policy{{Name: "call", Limit: ratelimit.PerDay(2), Key: ratelimit.BearerToken}},
	})
	if err != nil {
		log.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Authorization", "Bearer mF_9.B5f-4.1JqM")
	for range 3 {
		limiter.Check(r)
	}

	token := ratelimit.NewKey("bearer", "mF_9.B5f-4.1JqM") // of the kind that BearerToken gives it
	show := func() {
		results, err := limiter.Peek(context.Background(), token)
		if err != nil {
			log.Fatal(err)
		}
		for _, r := range results {
			fmt.Println(r.Policy, r.Outcome, r.Remaining, "of", r.Limit)
		}
	}
	show()
	if err := limiter.Reset(context.Background(), token); err != nil {
		log.Fatal(err)
	}
	show()
	fmt.Println(limiter.Check(r).Outcome)
	// Output:
	// call refused 0 of 2/24h
	// call allowed 2 of 2/24h
	// allowed
}

// A caller starts anew when support has helped it.
func ExampleLimiter_Reset() {
	counters, err := store.NewMemory(store.MemoryConfig{})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(counters, ratelimit.Config{
		Policies: []ratelimit.Policy{{Name: "export", Limit: ratelimit.PerDay(1)}},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, ada := context.Background(), ratelimit.NewKey("account", "ada")
	fmt.Println(limiter.Allow(ctx, ada).Outcome, limiter.Allow(ctx, ada).Outcome)
	if err := limiter.Reset(ctx, ada); err != nil {
		log.Fatal(err)
	}
	fmt.Println(limiter.Allow(ctx, ada).Outcome)
	// Output:
	// allowed refused
	// allowed
}

// Whoever has a token is counted by it and its address together, and others by the address alone.
func ExampleFirstOf() {
	key := ratelimit.FirstOf(ratelimit.Join(ratelimit.BearerToken, ratelimit.ClientIP), ratelimit.ClientIP)
	r := httptest.NewRequest("GET", "/", nil)
	fmt.Println(key(r))
	r.Header.Set("Authorization", "Bearer abc")
	fmt.Println(key(r))
	// Output:
	// ip:redacted
	// bearer+ip:redacted
}

func ExampleHeader() {
	key := ratelimit.Header("X-Api-Key")
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("X-Api-Key", "abc")
	fmt.Println(key(r))
	// Output:
	// header-x-api-key:redacted
}

// One budget for all callers together keeps a service from too much load.
func ExampleConstant() {
	policies := []ratelimit.Policy{
		{Name: "all", Limit: ratelimit.PerSecond(500), Key: ratelimit.Constant("all")},
		{Name: "each", Limit: ratelimit.PerSecond(10)},
	}
	fmt.Println(policies[0].Limit, policies[1].Limit)
	// Output:
	// 500/1s 10/1s
}

// Preflights are answered by the CORS middleware, which goes outside, and not counted.
func ExampleIsPreflight() {
	config := ratelimit.Config{Skip: ratelimit.IsPreflight}
	r := httptest.NewRequest("OPTIONS", "/", nil)
	r.Header.Set("Origin", "https://app.example")
	r.Header.Set("Access-Control-Request-Method", "POST")
	fmt.Println(config.Skip(r))
	// Output:
	// true
}

// A handler of one's own for refusals finds the header fields set, and the decision in the context.
func ExampleLimiter_Handler() {
	counters, err := store.NewMemory(store.MemoryConfig{})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(counters, ratelimit.Config{
		Policies: []ratelimit.Policy{{Name: "search", Limit: ratelimit.Limit{Requests: 0, Window: ratelimit.MaxWindow}}},
		Refused: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			d, _ := ratelimit.FromContext(r.Context())
			http.Error(w, "too much "+d.Results[0].Policy, http.StatusTooManyRequests)
		}),
	})
	if err != nil {
		log.Fatal(err)
	}
	w := httptest.NewRecorder()
	limiter.Handler(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest("GET", "/search", nil))
	fmt.Print(w.Code, " ", w.Body)
	// Output:
	// 429 too much search
}
