//go:build unix

package pgserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// stopTimeout is how long a server gets to end before it is killed.
const stopTimeout = 10 * time.Second

// guardScript becomes Postgres, and leaves a guard behind. The guard reads a pipe that the process
// which started it holds open: a line releases the guard, and the pipe's end means that the process
// is gone, however it went. The guard then ends Postgres and removes its directory. It is a
// grandchild, so that Postgres does not have a child it knows nothing of.
const guardScript = `
dir=$1; shift
( (
	read line <&3 && exit
	kill -QUIT $$
	for i in 1 2 3 4 5 6 7 8 9 10; do kill -0 $$ && sleep 1; done
	rm -rf "$dir"
) >/dev/null 2>&1 & )
exec "$@" 3<&-
`

// process is a server that this process has started.
type process struct {
	bin  string
	dir  string
	port string
	url  string
	cred *syscall.Credential // nil to run as this process's own user

	cmd    *exec.Cmd
	guard  *os.File        // the pipe that the guard reads
	exited context.Context // done when cmd is gone
	frozen []int           // what pause has stopped
}

// startLocal is the local way.
func startLocal(ctx context.Context) (*Server, error) {
	return startBinaries(ctx, debianBinaries, freePort)
}

func startBinaries(ctx context.Context, pattern string, port func() (string, error)) (*Server, error) {
	bin, err := binaries(ctx, pattern)
	if err != nil {
		return nil, passOver{err}
	}
	p := &process{bin: bin}
	password := newPassword()
	s, err := p.create(ctx, password, port, func() error { return p.initdb(ctx, password) })
	if err != nil {
		return nil, passOver{fmt.Errorf("the binaries in %s: %w", bin, err)}
	}
	return s, nil
}

// create makes the data and starts a server on it, at the first of the ports that is free.
func (p *process) create(ctx context.Context, password string, port func() (string, error), makeData func() error) (_ *Server, err error) {
	if p.dir, err = os.MkdirTemp("", "ratelimit-postgres-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(p.dir))
		}
	}()
	if err := p.dropPrivileges(); err != nil {
		return nil, err
	}
	if err := makeData(); err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		if p.port, err = port(); err != nil {
			return nil, err
		}
		p.url = superuserURL("127.0.0.1:"+p.port, password)
		err = p.launch(ctx)
		if err == nil {
			about := fmt.Sprintf("the binaries in %s, started on port %s of 127.0.0.1", p.bin, p.port)
			return &Server{url: p.url, about: about, machine: p}, nil
		}
		if ctx.Err() != nil || attempt == portAttempts || !isPortTaken(err.Error()) {
			return nil, err
		}
	}
}

// dropPrivileges has the server run as an ordinary user if this process is root's, for Postgres will
// not run as root.
func (p *process) dropPrivileges() error {
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return fmt.Errorf("root needs another user to run Postgres as: %w", err)
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return err
	}
	p.cred = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return os.Chown(p.dir, int(uid), int(gid))
}

// command returns a command that runs as the server's user, in its directory, and that a Ctrl-C in
// the terminal does not reach: tests are to finish with the server before it ends.
func (p *process) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = p.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: p.cred}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PG") { // PGDATA, PGPORT and the like would steer the server
			cmd.Env = append(cmd.Env, kv)
		}
	}
	return cmd
}

// initdb makes the data. It may stay in the kernel's memory: only the server's own writes are to be
// as durable as they are elsewhere.
func (p *process) initdb(ctx context.Context, password string) error {
	pwfile := filepath.Join(p.dir, "password")
	if err := os.WriteFile(pwfile, []byte(password+"\n"), 0o600); err != nil {
		return err
	}
	if p.cred != nil {
		if err := os.Chown(pwfile, int(p.cred.Uid), int(p.cred.Gid)); err != nil {
			return err
		}
	}
	cmd := p.command(ctx, filepath.Join(p.bin, "initdb"),
		"--pgdata="+p.data(), "--username=postgres", "--pwfile="+pwfile, "--auth=scram-sha-256",
		"--encoding=UTF8", "--locale=C", "--no-sync")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, bytes.TrimSpace(out))
	}
	return os.Remove(pwfile)
}

// replica copies the data of the server while it runs.
func (p *process) replica(ctx context.Context) (*Server, error) {
	u, err := url.Parse(p.url)
	if err != nil {
		return nil, err
	}
	password, _ := u.User.Password()
	r := &process{bin: p.bin}
	return r.create(ctx, password, freePort, func() error {
		if !isFile(filepath.Join(r.bin, "pg_basebackup")) {
			return p.copyTo(ctx, r, u.User.Username(), password)
		}
		cmd := r.command(ctx, filepath.Join(r.bin, "pg_basebackup"), "--pgdata="+r.data(), "--write-recovery-conf",
			"--checkpoint=fast", "--no-sync", "--host=127.0.0.1", "--port="+p.port, "--username="+u.User.Username())
		cmd.Env = append(cmd.Env, "PGPASSWORD="+password)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("pg_basebackup: %w\n%s", err, bytes.TrimSpace(out))
		}
		return nil
	})
}

func (p *process) data() string    { return filepath.Join(p.dir, "data") }
func (p *process) logName() string { return filepath.Join(p.dir, "log") }

// launch starts the server and returns when it answers. If it does not, the server is gone and the
// error holds what it has logged last.
func (p *process) launch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := p.exec(); err != nil {
		return err
	}
	defer context.AfterFunc(p.exited, cancel)()
	if err := awaitAnswer(ctx, p.url); err != nil {
		p.end(syscall.SIGKILL)
		return fmt.Errorf("%w; its log ends:\n%s", err, p.logTail())
	}
	return nil
}

func (p *process) exec() error {
	log, err := os.Create(p.logName())
	if err != nil {
		return err
	}
	defer log.Close()
	held, guard, err := os.Pipe()
	if err != nil {
		return err
	}
	defer held.Close()
	cmd := p.command(context.Background(), "sh", "-c", guardScript, "sh", p.dir,
		filepath.Join(p.bin, "postgres"), "-D", p.data(), "-p", p.port,
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", maxConnections)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{held} // descriptor 3 of the script
	if err := cmd.Start(); err != nil {
		return errors.Join(err, guard.Close())
	}
	exited, exit := context.WithCancel(context.Background())
	go func() {
		_ = cmd.Wait() // how it ended stands in the log
		exit()
	}()
	p.cmd, p.guard, p.exited = cmd, guard, exited
	return nil
}

// restart tries again while something of the killed server is still there.
func (p *process) restart(ctx context.Context) error {
	if p.exited.Err() == nil {
		return errors.New("the server runs")
	}
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := p.launch(ctx)
		if err == nil || !isPortTaken(err.Error()) && !strings.Contains(err.Error(), "shared memory block") {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
}

// logTail returns the last lines that the server has logged.
func (p *process) logTail() string {
	log, err := os.ReadFile(p.logName())
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(log[max(0, len(log)-2000):]))
}

// pause stops the postmaster and then, none being added any more, all that it has started.
func (p *process) pause(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	p.frozen = []int{p.cmd.Process.Pid}
	rows, err := conn.Query(ctx, "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
	if err != nil {
		return errors.Join(err, p.resume())
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return errors.Join(err, p.resume())
	}
	for _, pid := range pids {
		if syscall.Kill(pid, syscall.SIGSTOP) == nil { // one that ended by itself is as good
			p.frozen = append(p.frozen, pid)
		}
	}
	return nil
}

func (p *process) resume() error {
	for _, pid := range p.frozen {
		_ = syscall.Kill(pid, syscall.SIGCONT) // one that ended by itself is as good
	}
	p.frozen = nil
	return nil
}

// kill ends all of the server at once. One that does not answer any more loses its postmaster, and
// the rest notices within moments.
func (p *process) kill(ctx context.Context) error {
	if len(p.frozen) == 0 {
		_ = p.pause(ctx)
	}
	for _, pid := range p.frozen {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	p.frozen = nil
	p.end(syscall.SIGKILL)
	return nil
}

// end ends the server with a signal and returns when it is gone.
func (p *process) end(sig syscall.Signal) {
	_ = p.resume()
	_ = p.cmd.Process.Signal(sig) // it fails for a server that has ended
	select {
	case <-p.exited.Done():
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		<-p.exited.Done()
	}
	_ = p.release()
}

func (p *process) stop() error {
	p.end(syscall.SIGQUIT) // without a checkpoint, for the data goes too
	return os.RemoveAll(p.dir)
}

// release tells the guard that it is not needed.
func (p *process) release() error {
	if p.guard == nil {
		return nil
	}
	_, err := io.WriteString(p.guard, "\n")
	err = errors.Join(err, p.guard.Close())
	p.guard = nil
	return err
}
