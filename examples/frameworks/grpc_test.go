package frameworks_test

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/krow/ratelimit"
	"github.com/krow/ratelimit/examples/frameworks"
	"github.com/krow/ratelimit/internal/testdb"
	"github.com/krow/ratelimit/store"
)

var (
	plenty = ratelimit.Limit{Requests: 100, Window: once.Window}
	none   = ratelimit.Limit{Requests: 0, Window: once.Window}
)

// calls are one of each kind. They return the error that the server has sent.
var calls = map[string]func(context.Context, healthpb.HealthClient) error{
	"unary": func(ctx context.Context, client healthpb.HealthClient) error {
		_, err := client.Check(ctx, &healthpb.HealthCheckRequest{})
		return err
	},
	"stream": func(ctx context.Context, client healthpb.HealthClient) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
		if err != nil {
			return err
		}
		_, err = stream.Recv()
		return err
	},
}

// One call is admitted, and the next one refused with the time until the window ends.
func TestGRPC(t *testing.T) {
	t.Parallel()
	for name, call := range calls {
		for in, newStore := range stores {
			t.Run(name+" in "+in, func(t *testing.T) {
				t.Parallel()
				limiter := newLimiter(t, newStore(t), frameworks.GRPCPolicies(once, once)...)
				client := newClient(t, limiter)
				if err := call(t.Context(), client); err != nil {
					t.Errorf("the first call: %v, want that it is admitted", err)
				}
				checkRefused(t, call(t.Context(), client))

				address := ratelimit.ClientIP(&http.Request{RemoteAddr: "127.0.0.1:1"})
				results, err := limiter.Peek(t.Context(), address, ratelimit.Key{})
				if err != nil || len(results) != 1 || results[0].Remaining != 0 {
					t.Errorf("of the client's address are left %+v, %v, want that it was counted", results, err)
				}
			})
		}
	}
}

// Callers with tokens have a limit each, and a token does not let anybody past the limit of the address.
func TestGRPCTokens(t *testing.T) {
	t.Parallel()
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limiter := newLimiter(t, stores["memory"](t), frameworks.GRPCPolicies(plenty, once)...)
			client := newClient(t, limiter)
			a := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer a")
			b := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer b")
			for _, ctx := range []context.Context{a, b, t.Context(), t.Context()} {
				if err := call(ctx, client); err != nil {
					t.Errorf("%v, want that the call is admitted", err)
				}
			}
			checkRefused(t, call(a, client))
			if err := limiter.SetPolicies(frameworks.GRPCPolicies(none, once)); err != nil {
				t.Fatal(err)
			}
			checkRefused(t, call(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer c"), client))
		})
	}
}

// While the store fails, a policy that is FailClosed has calls try again later. Why is nothing for a client to know.
func TestGRPCUnavailable(t *testing.T) {
	t.Parallel()
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			closed := testdb.Pool(t, testdb.New(t))
			counters, err := store.NewPostgres(closed, store.PostgresConfig{})
			if err != nil {
				t.Fatal(err)
			}
			closed.Close()
			policy := ratelimit.Policy{Name: "closed", Limit: once, OnFailure: ratelimit.FailClosed}
			client := newClient(t, newLimiter(t, counters, policy))
			s := status.Convert(call(t.Context(), client))
			if s.Code() != codes.Unavailable || s.Message() != "try again later" || retryDelay(t, s) != time.Second {
				t.Errorf("%v with %v, want Unavailable with a second to wait", s, s.Details())
			}
		})
	}
}

// A call whose client has left is not served.
func TestGRPCCanceled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	interceptor := frameworks.UnaryInterceptor(newLimiter(t, stores["memory"](t), frameworks.GRPCPolicies(plenty, plenty)...))
	_, err := interceptor(ctx, nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) {
		t.Error("the call was served")
		return nil, nil
	})
	if status.Code(err) != codes.Canceled {
		t.Errorf("the call ended with %v, want Canceled", err)
	}
}

func checkRefused(t *testing.T, err error) {
	t.Helper()
	s := status.Convert(err)
	if s.Code() != codes.ResourceExhausted {
		t.Errorf("the call ended with %v, want ResourceExhausted", err)
		return
	}
	if delay := retryDelay(t, s); delay <= 0 || delay > once.Window {
		t.Errorf("RetryInfo says %v, want the time until the window ends", delay)
	}
}

func retryDelay(t *testing.T, s *status.Status) time.Duration {
	t.Helper()
	details := s.Details()
	if len(details) != 1 {
		t.Fatalf("details are %v, want one RetryInfo", details)
	}
	info, ok := details[0].(*errdetails.RetryInfo)
	if !ok {
		t.Fatalf("the details are a %T, want a RetryInfo", details[0])
	}
	return info.GetRetryDelay().AsDuration()
}

// newClient returns a client of a server behind the interceptors, both of which end with the test.
func newClient(t *testing.T, limiter *ratelimit.Limiter) healthpb.HealthClient {
	t.Helper()
	server := grpc.NewServer(
		grpc.UnaryInterceptor(frameworks.UnaryInterceptor(limiter)),
		grpc.StreamInterceptor(frameworks.StreamInterceptor(limiter)),
	)
	healthpb.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return healthpb.NewHealthClient(conn)
}
