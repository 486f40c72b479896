//go:build !unix

package pgserver

import (
	"context"
	"errors"
)

// startLocal is the local way, which needs signals and the shell.
func startLocal(context.Context) (*Server, error) {
	return nil, passOver{errors.New("servers are started from binaries on Unix only")}
}
