package frameworks

import (
	"context"
	"net/http"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/krow/ratelimit"
)

// GRPCPolicies are policies for the keys of the interceptors, one for each key: the peer's address limits
// everybody, and a bearer token in addition.
func GRPCPolicies(perAddress, perToken ratelimit.Limit) []ratelimit.Policy {
	return []ratelimit.Policy{
		{Name: "grpc.ip", Limit: perAddress},
		{Name: "grpc.token", Limit: perToken, Optional: true},
	}
}

// UnaryInterceptor limits calls. The limiter has GRPCPolicies.
func UnaryInterceptor(limiter *ratelimit.Limiter) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if err := check(ctx, limiter); err != nil {
			return nil, err
		}
		return handler(ctx, req)
	}
}

// StreamInterceptor limits how many streams are opened, and not the messages in them. The limiter has GRPCPolicies.
func StreamInterceptor(limiter *ratelimit.Limiter) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if err := check(stream.Context(), limiter); err != nil {
			return err
		}
		return handler(srv, stream)
	}
}

// check counts a call and returns the error to end it with, or nil if it may go on.
func check(ctx context.Context, limiter *ratelimit.Limiter) error {
	d := limiter.Allow(ctx, keys(ctx)...)
	switch d.Outcome {
	case ratelimit.Refused:
		return withRetry(codes.ResourceExhausted, "too many requests", d)
	case ratelimit.Unavailable:
		return withRetry(codes.Unavailable, "try again later", d)
	case ratelimit.Canceled:
		return status.FromContextError(ctx.Err()).Err()
	}
	return nil
}

// withRetry is an error that tells the client how long to wait.
func withRetry(code codes.Code, message string, d ratelimit.Decision) error {
	s := status.New(code, message)
	if detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(d.RetryAfter)}); err == nil {
		s = detailed
	}
	return s.Err()
}

// keys says who is calling, in the order of GRPCPolicies. The functions for HTTP read what they need of a call, too.
func keys(ctx context.Context) []ratelimit.Key {
	r := &http.Request{Header: make(http.Header)}
	if p, ok := peer.FromContext(ctx); ok {
		r.RemoteAddr = p.Addr.String()
	}
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		r.Header["Authorization"] = md.Get("authorization")
	}
	return []ratelimit.Key{ratelimit.ClientIP(r), ratelimit.BearerToken(r)}
}
