package debugpage_test

import (
	"log"
	"net/http"
	"os"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/debugpage"
	"github.com/krow/ratelimit/store"
)

func ExamplePage_Handler() {
	page := debugpage.New()
	counters, err := store.OpenPostgres(os.Getenv("DATABASE_URL"), store.PostgresConfig{
		OnFlush: page.OnFlush, OnSweep: page.OnSweep, OnBreaker: page.OnBreaker,
	})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(counters, ratelimit.Config{
		Policies:   []ratelimit.Policy{{Name: "api", Limit: ratelimit.PerMinute(60)}},
		OnDecision: page.OnDecision,
	})
	if err != nil {
		log.Fatal(err)
	}
	private := http.NewServeMux() // on a port that only operators reach
	private.Handle("/debug/ratelimit", page.Handler(limiter))
	log.Fatal(http.ListenAndServe("127.0.0.1:6060", private))
}
