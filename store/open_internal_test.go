package store

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"

	"github.com/jackc/pgx/v5/pgconn"
)

// A store that is closed ends the connections that it has, and those that are being made: a host that does
// not even refuse them would be waited for.
func TestDialUntilSevered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		severed, sever := context.WithCancel(context.Background())
		made, _ := net.Pipe()
		conn, err := dialUntil(severed, func(context.Context, string, string) (net.Conn, error) {
			return made, nil
		})(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 2)
		go func() {
			_, err := conn.Read(make([]byte, 1))
			ended <- err
		}()
		go func() {
			_, err := dialUntil(severed, func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			})(context.Background(), "", "")
			ended <- err
		}()
		synctest.Wait()
		if len(ended) != 0 {
			t.Fatalf("ended too early: %v", <-ended)
		}
		sever()
		for range 2 { // or synctest reports a deadlock
			if err := <-ended; !errors.Is(err, context.Canceled) && !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("error is %v", err)
			}
		}
	})
}

// A pool is made anew when a server has gone or can only be read, and not for a statement that was too slow or wrong.
func TestIsStale(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{context.DeadlineExceeded, false},
		{context.Canceled, false},
		{io.EOF, true},
		{&pgconn.PgError{Code: "25006"}, true}, // read_only_sql_transaction
		{&pgconn.PgError{Code: "25P02"}, false},
		{&pgconn.PgError{Code: "57P01"}, true},  // admin_shutdown
		{&pgconn.PgError{Code: "57014"}, false}, // query_canceled
		{&pgconn.PgError{Code: "08006"}, true},  // connection_failure
		{&pgconn.PgError{Code: "55P03"}, false}, // lock_not_available
		{&pgconn.PgError{}, false},
	} {
		if got := isStale(test.err); got != test.want {
			t.Errorf("%v: %v, want %v", test.err, got, test.want)
		}
	}
}
