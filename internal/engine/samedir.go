package engine

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/result"
)

// sameDirectory is samePath for a directory that is to be used.
func (v *View) sameDirectory(dir string) error { return v.samePath("use", dir) }

// samePath refuses a path that leads a caller on this host to another directory or file
// than the daemon: in another mount namespace, or because a file system was mounted after
// the daemon began. It accepts the paths of callers on other hosts, and of a caller that
// has exited. act is what can't be done with it.
func (v *View) samePath(act, dir string) error {
	if v == nil || !v.here || !filepath.IsAbs(dir) {
		return nil
	}
	const opName = "engine.samePath"
	if v.process == 0 {
		return cell.Errorf(cell.Unavailable, opName, "run the command where the daemon runs, or give it a daemon of its own with PANDO_HOME",
			"cannot %s %s: the daemon does not see the process that names it, which is in another PID namespace", act, dir)
	}
	same, err := linux.SameDirectory(v.process, dir, v.e.ownDirs()...) // where the daemon mounts for itself
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH):
		return nil
	case errors.Is(err, syscall.EXDEV): // openat2(2), RESOLVE_IN_ROOT
		return cell.Errorf(cell.Invalid, opName, "give the path that it leads to", "cannot %s %s: it leads through a link of /proc, which is another one for each process", act, dir)
	case err != nil:
		return cell.Errorf(cell.Unavailable, opName, "run the command as the daemon's user", "cannot %s %s: the daemon can't tell whether it sees the same directory there: %w", act, dir, err)
	case !same:
		return cell.Errorf(cell.Conflict, opName, "end the daemon, and the next command starts one that does: pando daemon stop (cells are kept)",
			"cannot %s %s: the daemon sees another directory there, or other file systems mounted in it, than this command does", act, dir)
	}
	return nil
}

// onSource is onTarget for an act that writes to the source of what it is about: the caller
// and the daemon have to see the same one.
func onSource[T any](v *View, t result.Target, do func() (T, error)) (T, error) {
	return onTarget(v, t, func() (none T, err error) {
		if v.here {
			if err := v.sameSource(t); err != nil {
				return none, err
			}
		}
		return do()
	})
}

// sameSource is sameDirectory for the source of a cell or of a run's cell.
func (v *View) sameSource(t result.Target) error {
	id := t.Cell
	if t.Run != "" {
		r, err := v.e.reg.Run(t.Run)
		if err != nil {
			return err
		}
		id = r.CellID()
	}
	c, err := v.e.reg.Cell(id)
	if err != nil || c.NoSource {
		return err
	}
	for _, d := range c.Parts() {
		if err := v.sameDirectory(d.Source); err != nil {
			return err
		}
	}
	return nil
}

// samePaths is sameDirectory for what a plan has of the host besides the source: mounts,
// an image that is a directory, and the kernel of a machine.
func (v *View) samePaths(p *runPlan) error {
	for _, path := range append([]string{p.image.Path}, strings.SplitN(p.kernel, ":", 2)...) {
		if err := v.sameDirectory(path); err != nil {
			return err
		}
	}
	for _, m := range p.policy.Files.Mounts {
		if err := v.samePath("mount", m.Source); err != nil {
			return err
		}
	}
	return nil
}
