// Package httpserver is the HTTP side of the example.
package httpserver

import (
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
)

// New returns the handler of the service. Who calls tools has to have one of the tokens.
func New(pool *pgxpool.Pool, limits *RateLimits, tokens []string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if err := pool.Ping(r.Context()); err != nil {
			http.Error(w, "the database does not answer", http.StatusServiceUnavailable)
		}
	})
	mux.Handle("POST /oauth/register", limits.Register(http.HandlerFunc(register)))
	mux.Handle("POST /mcp", authenticate(tokens, limits.Call(http.HandlerFunc(call))))
	return mux
}

func register(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "{\"client_id\":%q}\n", rand.Text())
}

func call(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintln(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
}

func authenticate(tokens []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := bearerToken(r)
		for _, known := range tokens {
			if subtle.ConstantTimeCompare([]byte(token), []byte(known)) == 1 {
				next.ServeHTTP(w, r)
				return
			}
		}
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "unknown token", http.StatusUnauthorized)
	})
}

func bearerToken(r *http.Request) string {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return ""
	}
	return token
}
