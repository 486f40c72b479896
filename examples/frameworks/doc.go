// Package frameworks shows the limiter in the routers and frameworks that Go services use: net/http, chi, gin, echo
// and gRPC. Each file stands for itself, to be copied from.
package frameworks
