package overlay

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/workspace"
)

// Overlayfs copies up one name of a file when that name is written; the other
// names keep the old file. Its index, which would keep them together, decodes file
// handles of the lower layers, which takes CAP_DAC_READ_SEARCH in the initial user
// namespace, and lies beside the layer, where a layer that became immutable has
// nothing. So the files that have several names are copied into a new layer before
// anything runs, with all names, and the copies that were not touched are taken out
// again when the layer becomes immutable.

// joined records, beside the files of a layer, what Join made in it.
type joined struct {
	Files []joinedFile `json:"files"`
	Dirs  []joinedDir  `json:"dirs"` // parents first
	// Removing is set before Files and Dirs, which are then the untouched ones, are removed: a
	// crash leaves the layer with some of them.
	Removing bool `json:"removing,omitempty"`
}

type joinedFile struct {
	Names [][]byte       `json:"names"`
	Stat  workspace.Stat `json:"stat"`
}

type joinedDir struct {
	Path   []byte            `json:"path"`
	Stat   workspace.Stat    `json:"stat"`
	UID    uint32            `json:"uid"`
	GID    uint32            `json:"gid"`
	XAttrs []workspace.XAttr `json:"xattrs,omitempty"`
	Same   bool              `json:"same,omitempty"` // Removing: it is as Join made it, except its contents
}

// looksLike reports whether a folder is the one that Join made, unchanged except its contents.
// The change time has no meaning: overlayfs marks folders when it reads them.
func (d *joinedDir) looksLike(o *joinedDir) bool {
	return d.is(o) && d.Stat.Mode == o.Stat.Mode && d.Stat.MTime == o.Stat.MTime && d.UID == o.UID && d.GID == o.GID && slices.Equal(d.XAttrs, o.XAttrs)
}

// is reports whether d is the folder o, whatever its attributes.
func (d *joinedDir) is(o *joinedDir) bool {
	return d.Stat.Ino == o.Stat.Ino && d.Stat.Dev == o.Stat.Dev
}

func (p *Provider) joinedPath(layer string) string { return filepath.Join(p.root, layer, "joined") }

// Join implements workspace.Provider.
func (p *Provider) Join(ctx context.Context, g workspace.Generation, groups []workspace.LinkGroup) error {
	if len(groups) == 0 {
		return nil
	}
	failpoint.Step("join the links of a layer")
	c := p.contents(g.Base).open()
	defer c.close()
	to, err := workspace.OpenRoot(p.fs(g.Layer))
	if err != nil {
		return err
	}
	defer to.Close()
	j := joiner{c: c, to: to, made: map[string]bool{"": true}}
	var top unix.Stat_t
	if err := unix.Fstat(int(to.Fd()), &top); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if err := os.Chmod(p.fs(g.Layer), 0o700); err != nil {
		return err
	}
	for _, grp := range groups {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := j.join(grp.Names); err != nil {
			return err
		}
	}
	for i := len(j.dirs) - 1; i >= 0; i-- { // children first: creating them changed the times
		d := j.dirs[i]
		if err := to.At(d.path, func(at string) error { return applyEntry(at, d.like) }); err != nil {
			return err
		}
	}
	if err := restoreTop(p.fs(g.Layer), &top); err != nil {
		return err
	}
	rec, newest, err := j.record(p, groups)
	if err != nil {
		return err
	}
	if err := p.writeJoined(g.Layer, rec); err != nil {
		return err
	}
	return passTick(ctx, newest)
}

// restoreTop restores the mode and time of a layer's top.
func restoreTop(dir string, st *unix.Stat_t) error {
	if err := unix.Chmod(dir, st.Mode&0o7777); err != nil {
		return &os.PathError{Op: "chmod", Path: dir, Err: err}
	}
	return os.Chtimes(dir, time.Time{}, time.Unix(0, st.Mtim.Nano()))
}

// passTick waits until the clock of file times is after ctime: a change in the same tick would
// leave the change time as it is.
func passTick(ctx context.Context, ctime int64) error {
	for {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now); err != nil {
			return os.NewSyscallError("clock_gettime", err)
		}
		if left := ctime - now.Nano(); left < 0 || left > workspace.RacySlack {
			return ctx.Err() // or the clock was set back, as is possible at any time
		}
		time.Sleep(time.Millisecond)
	}
}

// joiner copies files with several names of a base into a layer.
type joiner struct {
	c    *contents
	to   *linux.Dir
	made map[string]bool // folders
	dirs []joinerDir     // parents first
}

type joinerDir struct {
	path string
	like workspace.Entry
}

// join brings one file into the layer, under all its names.
func (j *joiner) join(names []string) error {
	at, mode, err := j.c.find(names[0])
	if err == nil && mode&unix.S_IFMT != unix.S_IFREG {
		err = j.c.no(names[0])
	}
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := j.c.within(at, func() error { return j.c.lstat(at, &st) }); err != nil {
		return err
	}
	fd := -1
	err = j.c.in(at, func(root *linux.Dir) (err error) {
		fd, err = workspace.OpenReadable(root, at.at, false)
		return err
	})
	if err != nil {
		return err
	}
	in := os.NewFile(uintptr(fd), names[0])
	defer in.Close()
	for i, name := range names {
		if err := j.folder(workspace.Parent(name)); err != nil {
			return err
		}
		if i > 0 {
			err = workspace.LinkInto(j.to, names[0], j.to, name)
		} else {
			f := workspace.FoundOf(name, &st)
			err = j.to.At(name, func(to string) error { return workspace.CopyFound(in, to, &f, workspace.KeptXAttr) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// folder makes a folder of the base, and those above it, in the layer.
func (j *joiner) folder(dir string) error {
	if j.made[dir] {
		return nil
	}
	if err := j.folder(workspace.Parent(dir)); err != nil {
		return err
	}
	list, err := j.c.merged(dir)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return j.c.no(dir)
	}
	at := list[0] // the topmost one is visible
	var st unix.Stat_t
	d := joinerDir{path: dir}
	err = j.c.within(at, func() error { return j.c.lstat(at, &st) })
	if err != nil {
		return err
	}
	f := workspace.FoundOf(dir, &st)
	d.like = workspace.EntryOf(&f)
	err = j.c.in(at, func(root *linux.Dir) error {
		fd, err := workspace.OpenReadable(root, at.at, true)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		d.like.XAttrs, err = workspace.ReadXAttrs(fd, workspace.KeptXAttr)
		return err
	})
	if err != nil {
		return err
	}
	err = j.to.At(dir, func(at string) error {
		if err := os.Mkdir(at, 0o700); err != nil {
			return err
		}
		return workspace.Own(at, st.Uid, st.Gid)
	})
	if err != nil {
		return err
	}
	j.made[dir] = true
	j.dirs = append(j.dirs, d)
	return nil
}

// record writes what was made, with its newest change time.
func (j *joiner) record(p *Provider, groups []workspace.LinkGroup) (rec joined, newest int64, err error) {
	look := func(path string) (workspace.Stat, error) {
		st, err := statIn(j.to, path)
		newest = max(newest, st.CTime)
		return st, err
	}
	for _, d := range j.dirs {
		made, err := p.folder(j.to, d.path)
		if err != nil {
			return rec, 0, err
		}
		rec.Dirs = append(rec.Dirs, made)
	}
	for _, g := range groups {
		st, err := look(g.Names[0])
		if err != nil {
			return rec, 0, err
		}
		f := joinedFile{Stat: st}
		for _, n := range g.Names {
			f.Names = append(f.Names, []byte(n))
		}
		rec.Files = append(rec.Files, f)
	}
	return rec, newest, nil
}

// in calls f with the folder of a path of a layer, and the last name of the path. It does not
// follow symlinks, which a cell may have put there.
func in(root *linux.Dir, path string, f func(dir int, name string) error) error {
	fd, err := workspace.OpenBeneath(root, workspace.Parent(path), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	name := path[strings.LastIndexByte(path, '/')+1:]
	if name == "" {
		name = "."
	}
	return f(fd, name)
}

// missing reports whether err says that a path does not exist, or only through a symlink.
func missing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// statIn describes the file at a path of a layer, the zero Stat for none.
func statIn(root *linux.Dir, path string) (workspace.Stat, error) {
	var st unix.Stat_t
	err := workspace.WithRights(root, workspace.Parent(path), func() error {
		return in(root, path, func(dir int, name string) error { return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	})
	switch {
	case err == nil:
		return workspace.StatOf(&st), nil
	case missing(err):
		return workspace.Stat{}, nil
	}
	return workspace.Stat{}, &os.PathError{Op: "stat", Path: linux.Abridged(path), Err: err}
}

// folder describes a folder of a layer. Its Stat is zero if there is none, or if it hides the
// folder of the base, or was renamed.
func (p *Provider) folder(root *linux.Dir, path string) (d joinedDir, err error) {
	d.Path = []byte(path)
	fd, err := workspace.OpenReadable(root, path, true)
	if missing(err) {
		return d, nil
	}
	if err != nil {
		return d, err
	}
	defer unix.Close(fd)
	for _, mark := range []string{"opaque", "redirect"} {
		if v, err := p.readMark(fd, mark); err != nil || v != "" && path != "" {
			return d, err
		}
	}
	var st unix.Stat_t
	err = workspace.WithRights(root, workspace.Parent(path), func() error {
		return in(root, path, func(dir int, name string) error { return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	})
	if err != nil {
		return d, &os.PathError{Op: "stat", Path: linux.Abridged(path), Err: err}
	}
	d.Stat, d.UID, d.GID = workspace.StatOf(&st), st.Uid, st.Gid
	d.XAttrs, err = workspace.ReadXAttrs(fd, workspace.KeptXAttr)
	return d, err
}

func (p *Provider) writeJoined(layer string, rec joined) error {
	b, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	next := p.joinedPath(layer) + ".next"
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil && rec.Removing {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(next, p.joinedPath(layer))
}

// readJoined returns the record of Join in a layer, nil for none.
func (p *Provider) readJoined(layer string) (*joined, error) {
	b, err := os.ReadFile(p.joinedPath(layer))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var rec joined
	if err := json.Unmarshal(b, &rec); err != nil {
		return nil, cell.Errorf(cell.Corrupt, "overlay.readJoined", "", "the record of hard links of layer %s is damaged: %w", layer, err)
	}
	return &rec, nil
}

// untouchedJoins returns the files of a record that are as Join made them, and the folders that
// still exist, the top among them.
func (p *Provider) untouchedJoins(layer string, rec *joined) (joined, error) {
	if rec.Removing {
		return *rec, nil
	}
	var same joined
	root, err := workspace.OpenRoot(p.fs(layer))
	if err != nil {
		return same, err
	}
	defer root.Close()
	for _, f := range rec.Files {
		all := true
		for _, n := range f.Names {
			st, err := statIn(root, string(n))
			if err != nil {
				return same, err
			}
			all = all && st == f.Stat
		}
		if all {
			same.Files = append(same.Files, f)
		}
	}
	top, err := p.folder(root, "")
	if err != nil {
		return same, err
	}
	same.Dirs = []joinedDir{top}
	for i := range rec.Dirs {
		was := &rec.Dirs[i]
		now, err := p.folder(root, string(was.Path))
		if err != nil {
			return same, err
		}
		if now.is(was) {
			now.Same = now.looksLike(was)
			same.Dirs = append(same.Dirs, now)
		}
	}
	return same, nil
}

// onlyJoins reports whether a layer contains only untouched files of Join.
func (p *Provider) onlyJoins(layer string) (bool, error) {
	rec, err := p.readJoined(layer)
	if rec == nil || err != nil {
		return false, err
	}
	files, dirs := map[string]workspace.Stat{}, map[string]*joinedDir{}
	for _, f := range rec.Files {
		for _, n := range f.Names {
			files[string(n)] = f.Stat
		}
	}
	for i := range rec.Dirs {
		dirs[string(rec.Dirs[i].Path)] = &rec.Dirs[i]
	}
	root, err := workspace.OpenRoot(p.fs(layer))
	if err != nil {
		return false, err
	}
	defer root.Close()
	found, err := workspace.Collect(context.Background(), root)
	if err != nil {
		return false, err
	}
	for i := range found {
		f := &found[i]
		if was := dirs[f.Path]; was != nil {
			if now, err := p.folder(root, f.Path); err != nil || !now.looksLike(was) {
				return false, err
			}
		} else if files[f.Path] != f.Stat {
			return false, nil
		}
	}
	return len(found) == len(files)+len(dirs), nil
}

// part removes from the layer to, which is the layer from or a copy of it, the untouched files
// that Join made in from: the base has them.
func (p *Provider) part(from, to string) error {
	rec, err := p.readJoined(from)
	if rec == nil || err != nil {
		return err
	}
	same, err := p.untouchedJoins(from, rec)
	if err != nil {
		return err
	}
	if from == to && !same.Removing {
		same.Removing = true
		if err := p.writeJoined(from, same); err != nil {
			return err
		}
	}
	failpoint.Step("part the links of a layer")
	if err := p.remove(to, &same); err != nil {
		return err
	}
	if from == to {
		return os.Remove(p.joinedPath(from))
	}
	return nil
}

// remove removes names, and the folders that are then empty and as Join made them, and restores
// the modes and times of the others.
func (p *Provider) remove(layer string, same *joined) error {
	root, err := workspace.OpenRoot(p.fs(layer))
	if err != nil {
		return err
	}
	defer root.Close()
	do := func(path []byte, f func(dir int, name string) error) error {
		err := in(root, string(path), f)
		if err == nil || missing(err) {
			return nil
		}
		return &os.PathError{Op: "part", Path: linux.Abridged(string(path)), Err: err}
	}
	for _, d := range same.Dirs { // the owner may have removed permissions
		if d.Stat.Mode&0o700 == 0o700 {
			continue
		}
		err := do(d.Path, func(dir int, name string) error { return unix.Fchmodat(dir, name, d.Stat.Mode&0o7777|0o700, 0) })
		if err != nil {
			return err
		}
	}
	for _, f := range same.Files {
		for _, n := range f.Names {
			if err := do(n, func(dir int, name string) error { return unix.Unlinkat(dir, name, 0) }); err != nil {
				return err
			}
		}
	}
	for _, d := range slices.Backward(same.Dirs) { // children first
		err := do(d.Path, func(dir int, name string) error {
			if d.Same {
				err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
				if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
					return err
				}
			}
			if err := unix.Fchmodat(dir, name, d.Stat.Mode&0o7777, 0); err != nil {
				return err
			}
			times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(d.Stat.MTime)}
			return unix.UtimesNanoAt(dir, name, times, unix.AT_SYMLINK_NOFOLLOW)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
