package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// asideEnd is added to the name of what lay in the way of a mount.
const asideEnd = ".pando-aside"

// makeWay clears the places of a cell's mounts before it is made.
func (e *Engine) makeWay(c *state.Cell) error {
	moved, err := clearTargets(c.Setup.Mounts)
	if len(moved) > 0 {
		e.log.Warn("moved aside what was in the way of mounts", "cell", c.ID, "what", moved)
		e.mu.Lock()
		e.moved[c.ID] = append(e.moved[c.ID], moved...)
		e.mu.Unlock()
	}
	if err != nil {
		return fmt.Errorf("cannot make way for the cell's mounts: %w", err)
	}
	return nil
}

// takeMoved returns, once, what was moved aside for a cell.
func (e *Engine) takeMoved(id cell.ID) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	moved := e.moved[id]
	delete(e.moved, id)
	return moved
}

// clearTargets makes way for mounts below what a cell at rest keeps for
// itself: its home and its /tmp. While it ran it could put a symlink or a file
// where a mount has its place or leads through. Such a thing is moved aside in
// its own directory, is never followed, and is named. (In the workspace
// nothing is moved: its state is the user's, and the start is refused.)
func clearTargets(mounts []cell.Mount) (moved []string, err error) {
	for _, own := range mounts {
		if own.Role != cell.RoleHome && own.Role != cell.RoleTmp {
			continue
		}
		for _, m := range mounts {
			rel, below := strings.CutPrefix(m.Target, own.Target+"/")
			if !below || covered(mounts, own.Target, m.Target) {
				continue
			}
			at, aside, err := clearPath(writable(&own), rel, m)
			if err != nil {
				return moved, err
			}
			if aside != "" {
				moved = append(moved, fmt.Sprintf("%s: was in the way of a mount and is now %s beside it", filepath.Join(own.Target, at), aside))
			}
		}
	}
	return moved, nil
}

// covered reports whether another mount between outer and target holds target.
func covered(mounts []cell.Mount, outer, target string) bool {
	for _, m := range mounts {
		if m.Kind != cell.Link && len(m.Target) > len(outer) && strings.HasPrefix(target, m.Target+"/") {
			return true
		}
	}
	return false
}

// clearPath walks rel below root without following anything, and moves aside
// the first thing in m's way. It returns where that was and its new name.
// Nothing else writes below root meanwhile.
func clearPath(root, rel string, m cell.Mount) (at, aside string, err error) {
	parts := strings.Split(rel, "/")
	for i := range parts {
		at = filepath.Join(parts[:i+1]...)
		st, err := os.Lstat(filepath.Join(root, at))
		if errors.Is(err, fs.ErrNotExist) {
			return "", "", nil
		}
		if err != nil {
			return "", "", err
		}
		if whitedOut(st) {
			return "", "", nil
		}
		fits := st.IsDir()
		if i == len(parts)-1 {
			if fits, err = fitsTarget(st, m); err != nil {
				return "", "", err
			}
		}
		if !fits {
			aside, err = moveAside(filepath.Join(root, at))
			return at, aside, err
		}
	}
	return "", "", nil
}

// fitsTarget reports whether a mount can be placed on what is there.
func fitsTarget(st fs.FileInfo, m cell.Mount) (bool, error) {
	switch m.Kind {
	case cell.Link:
		return true, nil // a second way to something: whatever the cell put there is its own affair
	case cell.Bind:
		src, err := os.Stat(m.Source)
		if err != nil {
			return false, err
		}
		return src.IsDir() && st.IsDir() || src.Mode().IsRegular() && st.Mode().IsRegular(), nil
	}
	return st.IsDir(), nil
}

// whitedOut reports whether a thing in a layer says that there is nothing.
func whitedOut(st fs.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && st.Mode()&fs.ModeCharDevice != 0 && sys.Rdev == 0
}

// moveAside gives what is at path another name in its directory.
func moveAside(path string) (name string, err error) {
	to := path + asideEnd
	for n := 2; ; n++ {
		if _, err := os.Lstat(to); errors.Is(err, fs.ErrNotExist) {
			return filepath.Base(to), os.Rename(path, to)
		} else if err != nil {
			return "", err
		}
		if n > 1000 {
			return "", cell.Errorf(cell.Conflict, "engine.clearTargets", "remove some of them, or start from a new cell",
				"cannot make way for a mount: there are too many %s", path+asideEnd)
		}
		to = fmt.Sprintf("%s%s-%d", path, asideEnd, n)
	}
}
