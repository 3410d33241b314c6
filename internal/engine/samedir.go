package engine

import (
	"errors"
	"io/fs"
	"path/filepath"
	"syscall"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// sameDirectory refuses a directory that a caller on this host sees as another one than
// the daemon does: in another mount namespace, or because a file system was mounted after
// the daemon began. It accepts what a caller on another host names, and what a caller
// named that has exited.
func (v *View) sameDirectory(dir string) error {
	if v == nil || !v.here || !filepath.IsAbs(dir) {
		return nil
	}
	const opName = "engine.sameDirectory"
	if v.process == 0 {
		return cell.Errorf(cell.Unavailable, opName, "run the command where the daemon runs, or give it a daemon of its own with PANDO_HOME",
			"cannot use %s: the daemon does not see the process that names it, which is in another PID namespace", dir)
	}
	same, err := linux.SameDirectory(v.process, dir)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH):
		return nil
	case err != nil:
		return cell.Errorf(cell.Unavailable, opName, "run the command as the daemon's user", "cannot use %s: the daemon can't tell whether it sees the same directory there: %w", dir, err)
	case !same:
		return cell.Errorf(cell.Conflict, opName, "end the daemon, and the next command starts one that does: pando daemon stop (cells are kept)",
			"cannot use %s: the daemon sees another directory there, or other file systems mounted in it, than this command does", dir)
	}
	return nil
}

// sameSource is sameDirectory for the source of a cell or of a run's cell.
func (v *View) sameSource(t Target) error {
	if !v.here {
		return nil
	}
	id := t.Cell
	if t.Run != "" {
		r, err := v.e.reg.run(t.Run)
		if err != nil {
			return err
		}
		id = r.CellID()
	}
	c, err := v.e.reg.cell(id)
	if err != nil || c.NoSource {
		return err
	}
	return v.sameDirectory(c.Source)
}
