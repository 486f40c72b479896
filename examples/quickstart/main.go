// Quickstart shows in a few seconds what the limiter is for: three replicas of one server, each
// with a limit of 10 requests a minute. With a map in each process they admit 30; with the shared
// limiter they admit 10.
//
// It uses the Postgres that DATABASE_URL names, or else starts one that ends with the program: in
// Docker, or from the Postgres binaries of this machine. Where there is none to be had it
// counts in memory and says so.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/internal/pgserver"
	"github.com/krow/ratelimit/migrations"
	"github.com/krow/ratelimit/store"
)

const (
	replicas = 3
	requests = 30
)

var limit = ratelimit.PerMinute(10)

func main() {
	log.SetFlags(0)
	addr := flag.String("addr", "127.0.0.1:0", "`address` to serve on after the demonstration; port 0 takes a free one")
	once := flag.Bool("once", false, "exit after the demonstration, with status 0 only if the shared limiter admitted exactly 10")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, *addr, *once)
	if err != nil && (*once || ctx.Err() == nil) {
		log.Fatal("quickstart: ", err)
	}
}

func run(ctx context.Context, addr string, once bool) error {
	stores, release, err := openStores(ctx)
	if err != nil {
		return err
	}
	defer release()

	// In a service the secret comes from the configuration and all replicas share it. A new one for
	// each run also starts all counts anew.
	secret := []byte(rand.Text() + rand.Text())

	if err := awaitWindow(ctx, stores[0]); err != nil {
		return err
	}
	urls := make([]string, replicas)
	for i := range urls {
		handler, err := newServer(stores[i], "demo", secret)
		if err != nil {
			return err
		}
		url, stop, err := serve("127.0.0.1:0", handler)
		if err != nil {
			return err
		}
		defer stop()
		urls[i] = url
	}
	admitted, err := demonstrate(ctx, urls)
	if err != nil {
		return err
	}

	if once {
		if admitted != limit.Requests {
			return fmt.Errorf("the shared limiter admitted %d requests, want %d", admitted, limit.Requests)
		}
		return nil
	}
	handler, err := newServer(stores[0], "try", secret)
	if err != nil {
		return err
	}
	url, stop, err := serve(addr, handler)
	if err != nil {
		return err
	}
	defer stop()
	fmt.Printf("\nServing until Ctrl-C. The 11th within a minute is refused:\n\n  curl -i %s/shared\n", url)
	<-ctx.Done()
	return nil
}

// newServer is one replica: a handler behind the limiter, and the same behind a map of its own.
func newServer(counters ratelimit.Store, name string, secret []byte) (http.Handler, error) {
	limiter, err := ratelimit.New(counters, ratelimit.Config{
		Secret:   secret,
		Deadline: 5 * time.Second, // a laptop that has just started a database is slow
		Policies: []ratelimit.Policy{{Name: name, Limit: limit, Key: ratelimit.ClientIP, OnFailure: ratelimit.FailClosed}},
	})
	if err != nil {
		return nil, err
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") })
	mux := http.NewServeMux()
	mux.Handle("/shared", limiter.Handler(hello))
	mux.Handle("/map", newMapLimiter(limit.Requests).Handler(hello))
	return mux, nil
}

// demonstrate sends the requests, each in turn to the next replica, and returns how many of them the
// shared limiter admitted.
func demonstrate(ctx context.Context, urls []string) (int, error) {
	fmt.Printf("%d replicas, %v a client, %d requests round robin\n\n", replicas, limit, requests)
	fmt.Println("request  replica  in-process map  shared limiter")
	var byMap, shared int
	for i := range requests {
		url := urls[i%replicas]
		m, err := get(ctx, url+"/map")
		if err != nil {
			return 0, err
		}
		s, err := get(ctx, url+"/shared")
		if err != nil {
			return 0, err
		}
		told := s.Header.Get("RateLimit")
		switch s.StatusCode {
		case http.StatusOK:
			shared++
		case http.StatusTooManyRequests:
			told = "Retry-After: " + s.Header.Get("Retry-After")
		}
		if m.StatusCode == http.StatusOK {
			byMap++
		}
		fmt.Printf("%7d  %7d  %14d  %14d  %s\n", i+1, i%replicas+1, m.StatusCode, s.StatusCode, told)
	}
	fmt.Printf("\nin-process map: admitted %d of %d\nshared limiter: admitted %d of %d\n", byMap, requests, shared, requests)
	return shared, nil
}

func get(ctx context.Context, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return resp, errors.Join(err, resp.Body.Close())
}

// serve serves on addr until stop is called, which waits for the requests under way.
func serve(addr string, handler http.Handler) (url string, stop func(), err error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Print("quickstart: ", err)
		}
	}()
	return "http://" + listener.Addr().String(), func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			log.Print("quickstart: ", err)
		}
		<-done
	}, nil
}

// openStores returns a store for each replica, with a pool of its own like that of another process.
func openStores(ctx context.Context) (stores []ratelimit.Store, release func(), err error) {
	url := os.Getenv("DATABASE_URL")
	stop := func() {}
	if url != "" {
		fmt.Println("Postgres: the one that DATABASE_URL names; the table public.rate_limits is made there if it is missing")
	} else {
		server, err := pgserver.Start(ctx)
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		if err != nil {
			fmt.Printf("NOTICE: no Postgres to be had, counting in memory instead, which only one process can share.\n%v\n", err)
			return inMemory()
		}
		about, _, _ := strings.Cut(server.String(), " (") // why it is no other is for those who run the tests
		fmt.Println("Postgres:", about)
		url = server.URL()
		stop = func() {
			if err := server.Stop(); err != nil {
				log.Print("quickstart: ", err)
			}
		}
	}
	var pools []*pgxpool.Pool
	closeAll := func() {
		for _, pool := range pools {
			pool.Close()
		}
		stop()
	}
	defer func() {
		if err != nil {
			closeAll()
		}
	}()
	for range replicas {
		pool, err := pgxpool.New(ctx, url)
		if err != nil {
			return nil, nil, err
		}
		pools = append(pools, pool)
		if err := migrations.Up(ctx, pool); err != nil {
			return nil, nil, err
		}
		s, err := store.NewPostgres(pool, store.PostgresConfig{Timeout: 5 * time.Second})
		if err != nil {
			return nil, nil, err
		}
		stores = append(stores, s)
	}
	return stores, closeAll, nil
}

func inMemory() ([]ratelimit.Store, func(), error) {
	m, err := store.NewMemory(store.MemoryConfig{})
	if err != nil {
		return nil, nil, err
	}
	return []ratelimit.Store{m, m, m}, func() {}, nil
}

// awaitWindow waits for the next window if the current one is about to end: a demonstration that runs
// across the boundary would be admitted twice the limit, as fixed windows do.
func awaitWindow(ctx context.Context, s ratelimit.Store) error {
	const enough = 10 * time.Second
	counts, err := s.Add(ctx, []ratelimit.Hit{{Bucket: "quickstart.probe", Window: limit.Window, N: 1}})
	if err != nil {
		return err
	}
	left := counts[0].Left
	if left > enough {
		return nil
	}
	fmt.Printf("waiting %v for the next window\n", left.Round(time.Second))
	select {
	case <-time.After(left + time.Second):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
