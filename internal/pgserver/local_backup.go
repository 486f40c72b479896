//go:build unix

package pgserver

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5"
)

// copyScript copies what is named in its third and later arguments from one directory to another. The server goes on
// writing meanwhile, of which tar warns; that is what the write-ahead log is for.
const copyScript = `umask 077; mkdir -p "$2" && from=$1 to=$2 && shift 2 && cd "$from" && tar cf - "$@" 2>/dev/null | tar xf - -C "$to"`

// copyTo copies the data of the running server for a standby that streams from it, as pg_basebackup does, for binaries
// that come without that (Postgres manual, "Making a Base Backup Using the Low Level API").
func (p *process) copyTo(ctx context.Context, r *process, user, password string) error {
	conn, err := pgx.Connect(ctx, p.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var version int
	if err := conn.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
		return err
	}
	begin, end := "SELECT pg_backup_start('replica', true)", "SELECT labelfile FROM pg_backup_stop(false)"
	if version < 150_000 {
		begin, end = "SELECT pg_start_backup('replica', true, false)", "SELECT labelfile FROM pg_stop_backup(false, false)"
	}
	if _, err := conn.Exec(ctx, begin); err != nil {
		return err
	}
	if err := p.copyFiles(ctx, r, "--exclude=./postmaster.pid", "--exclude=./pg_wal/*", "--exclude=./pg_replslot/*", "."); err != nil {
		return err
	}
	var label string
	if err := conn.QueryRow(ctx, end).Scan(&label); err != nil {
		return err
	}
	if err := p.copyFiles(ctx, r, "pg_wal"); err != nil {
		return err
	}
	settings, err := os.ReadFile(filepath.Join(r.data(), "postgresql.auto.conf"))
	if err != nil {
		return err
	}
	settings = fmt.Appendf(settings, "primary_conninfo = 'host=127.0.0.1 port=%s user=%s password=%s'\n", p.port, user, password)
	for name, text := range map[string][]byte{"backup_label": []byte(label), "standby.signal": nil, "postgresql.auto.conf": settings} {
		name = filepath.Join(r.data(), name)
		if err := os.WriteFile(name, text, 0o600); err != nil {
			return err
		}
		if r.cred != nil {
			if err := os.Chown(name, int(r.cred.Uid), int(r.cred.Gid)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *process) copyFiles(ctx context.Context, r *process, names ...string) error {
	cmd := r.command(ctx, "sh", append([]string{"-c", copyScript, "sh", p.data(), r.data()}, names...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("copying the data: %w\n%s", err, bytes.TrimSpace(out))
	}
	return nil
}
