package engine

import (
	"cmp"
	"context"
	"io"
	"net"

	"github.com/pando-dev/pando/internal/cell"
)

// What a view does with files and ports of cells that it sees.

// Files: see live.Manager.
func (v *View) Files(ctx context.Context, id cell.ID, a cell.FileAct, in io.Reader) ([]cell.FileInfo, error) {
	return entered(v, id, func() ([]cell.FileInfo, error) {
		if a.Act == cell.FileWrite {
			if err := v.e.gc.Room(); err != nil {
				return nil, err
			}
		}
		if a.Writes() {
			defer v.e.steps.Wrote(id)
		}
		return v.e.alive.Files(ctx, id, a, in)
	})
}

// Manage: see live.Manager.
func (v *View) Manage(ctx context.Context, id cell.ID, a cell.FileAct, in io.Reader, out io.Writer) error {
	if err := v.Enter(id); err != nil {
		return err
	}
	if a.Writes() {
		defer v.e.steps.Wrote(id)
	}
	return v.e.alive.Manage(ctx, id, a, in, out)
}

// Watch: see live.Manager.
func (v *View) Watch(ctx context.Context, id cell.ID, path string, below bool, tell func(cell.FileEvent) error) error {
	if err := v.Enter(id); err != nil {
		return err
	}
	return v.e.alive.Watch(ctx, id, path, below, tell)
}

// ReadFiles: see live.Manager.
func (v *View) ReadFiles(ctx context.Context, id cell.ID, path string, w io.Writer) error {
	if err := v.Enter(id); err != nil {
		return err
	}
	return v.e.alive.ReadFiles(ctx, id, path, w)
}

// WriteFiles: see live.Manager.
func (v *View) WriteFiles(ctx context.Context, id cell.ID, path string, r io.Reader) error {
	if err := cmp.Or(v.Enter(id), v.e.gc.Room()); err != nil {
		return err
	}
	defer v.e.steps.Wrote(id)
	return v.e.alive.WriteFiles(ctx, id, path, r)
}

// SFTP: see live.Manager.
func (v *View) SFTP(ctx context.Context, id cell.ID) (net.Conn, error) {
	return entered(v, id, func() (net.Conn, error) {
		if err := v.e.gc.Room(); err != nil {
			return nil, err
		}
		defer v.e.steps.Wrote(id)
		return v.e.alive.SFTP(ctx, id)
	})
}

// Dial: see live.Manager.
func (v *View) Dial(ctx context.Context, id cell.ID, port int) (net.Conn, error) {
	return entered(v, id, func() (net.Conn, error) { return v.e.alive.Dial(ctx, id, port) })
}

// Ports: see live.Manager.
func (v *View) Ports(ctx context.Context, id cell.ID) ([]cell.Listening, error) {
	return entered(v, id, func() ([]cell.Listening, error) { return v.e.alive.Ports(ctx, id) })
}
