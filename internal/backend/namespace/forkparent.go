package namespace

import (
	"errors"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/hazard"
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/repl"
)

// A forkParent is an interpreter that runs no user code any more and is only forked: that of a
// template, or of a cell that was branched. No other process runs in its namespaces. It lives
// until its own cell and all its forks have ended.
type forkParent struct {
	d       *Driver
	of      cell.ID      // the cell that it belongs to, or belonged to
	first   *linux.Child // process 1 of its PID namespace; all below end with it
	prog    *linux.Child // the interpreter; equal to first in a fork
	conn    *repl.Conn
	outside bool        // it has the filter against set-user-ID bits
	full    []string    // its mounts in memory that contain files
	up      *forkParent // its own fork parent, or nil
	depth   int         // number of forks between it and the first of its family
	drop    func()      // called after its last use

	generators func() []hazard.Process // random number generators in its process

	turn   sync.Mutex // serialises forks
	traced bool       // stopped by ptrace, for good

	// guarded by Driver.mu:
	users    int          // reference count: its cell, and its forks
	children map[int]bool // its requested children, by PID
}

// manyNamespaces is the raised limit of user namespaces.
const manyNamespaces = "1048576"

// limit is the file with the limit of user namespaces below the family's first, and the number
// of forks in progress that need it raised.
type limit struct {
	file *os.File
	mu   sync.Mutex // guards what follows
	open int
}

// openLimit opens the limit of this process's user namespace, once.
func (d *Driver) openLimit() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.limit != nil {
		return nil
	}
	f, err := os.OpenFile("/proc/sys/user/max_user_namespaces", os.O_WRONLY, 0)
	if err != nil {
		return cell.Errorf(cell.Unsupported, "namespace.Seal", "run pando where /proc/sys is writable, as it is outside containers",
			"cannot fork interpreters: %w", err)
	}
	d.limit = &limit{file: f}
	return nil
}

// raise allows user namespaces below the family's first; lower restores the limit after the
// last use. The namespaces below have their own limits.
func (l *limit) raise() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == 0 {
		if _, err := l.file.WriteString(manyNamespaces); err != nil {
			return err
		}
	}
	l.open++
	return nil
}

func (l *limit) lower() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open--; l.open == 0 {
		l.file.WriteString("0")
	}
}

// ref counts one more user. The caller holds Driver.mu.
func (t *forkParent) ref() { t.users++ }

// unref counts one user less. It ends this parent after the last, and then its own parents.
func (t *forkParent) unref() {
	for t != nil {
		t.d.mu.Lock()
		t.users--
		over := t.users == 0
		t.d.mu.Unlock()
		if !over {
			return
		}
		t.conn.Close()
		t.first.Kill()
		t.drop()
		t = t.up
	}
}

// seal makes all writable mounts of a fork parent read-only, or writable again. It fails for a
// mount with files open for writing.
func (c *liveCell) seal(on bool) error {
	s := &linux.Script{}
	s.Stdio([3]*os.File{}, c.Init.PIDFD)
	flags := unix.CLONE_NEWNS
	if c.fork != nil {
		flags |= unix.CLONE_NEWUSER
	}
	s.Call("join the cell", unix.SYS_SETNS, int(c.Init.PIDFD.Fd()), flags)
	c.sealing(s, on)
	s.Exit()
	return run(s, linux.SpawnOptions{Share: true})
}

// sealing adds the calls of seal to a script in the cell's mount namespace.
func (c *liveCell) sealing(s *linux.Script, on bool) {
	attr := make([]byte, 32) // struct mount_attr {attr_set, attr_clr, propagation, userns_fd uint64}
	if on {
		attr[0] = unix.MOUNT_ATTR_RDONLY
	} else {
		attr[8] = unix.MOUNT_ATTR_RDONLY
	}
	for _, p := range c.changing() {
		at := s.OpenPlain(p)
		s.Call(sealOp+p, unix.SYS_MOUNT_SETATTR, at, "", unix.AT_EMPTY_PATH, attr, len(attr))
		s.Call("close", unix.SYS_CLOSE, at)
	}
	c.Uncover(s, on) // last: where the above failed, nothing is uncovered
}

// filled returns the cell's mounts in memory that contain files. Forks get a layer over them.
func (c *liveCell) filled() (list []string) {
	places := []string{"/dev/shm"}
	for _, m := range c.Spec().Mounts {
		if m.Kind == cell.Tmpfs && !m.ReadOnly {
			places = append(places, m.Target)
		}
	}
	for _, p := range places {
		if len(c.inMemory(p)) > 0 {
			list = append(list, p)
		}
	}
	return list
}

// inMemory returns the names in a mount that forks get a layer over. Mount points and what every
// cell has in /run are made anew in each fork.
func (c *liveCell) inMemory(place string) (names []string) {
	entries, _ := c.entries(place)
	for _, e := range entries {
		at := place + "/" + e.Name()
		if at == isolation.Told && c.holdsLinks(at) || at == isolation.Locks && c.empty(at) {
			continue
		}
		if !slices.ContainsFunc(c.Spec().Mounts, func(m cell.Mount) bool { return m.Target == at }) {
			names = append(names, e.Name())
		}
	}
	return names
}

// empty reports whether a path of the cell is an empty directory.
func (c *liveCell) empty(at string) bool {
	entries, err := c.entries(at)
	return err == nil && len(entries) == 0
}

// holdsLinks reports whether a path of the cell is a directory with links of its mounts alone.
func (c *liveCell) holdsLinks(at string) bool {
	entries, err := c.entries(at)
	for _, e := range entries {
		if e.Type() != os.ModeSymlink || !c.hasLink(func(target string) bool { return target == at+"/"+e.Name() }) {
			return false
		}
	}
	return err == nil && c.hasLink(func(target string) bool { return strings.HasPrefix(target, at+"/") })
}

func (c *liveCell) hasLink(is func(target string) bool) bool {
	return slices.ContainsFunc(c.Spec().Mounts, func(m cell.Mount) bool { return m.Kind == cell.Link && is(m.Target) })
}

// entries reads a directory of the cell, by name. A symlink there is none (ENOTDIR): it would lead
// to the host's.
func (c *liveCell) entries(at string) ([]os.DirEntry, error) {
	d, err := linux.OpenInRoot(c.Init.PID, at, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if errors.Is(err, unix.ELOOP) {
		return nil, unix.ENOTDIR
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	entries, err := d.ReadDir(-1)
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// covered refuses a fork if something is mounted below a mount in memory that contains files: the
// kernel allows no overlay over such a mount in another namespace. It also refuses one if there is
// a file in the place of a directory that the fork needs.
func (c *liveCell) covered(kind cell.Kind, full []string) error {
	for _, p := range full {
		if _, err := c.entries(isolation.Told); strings.HasPrefix(isolation.Told, p+"/") && errors.Is(err, unix.ENOTDIR) {
			return cell.Errorf(kind, "namespace.Fork", "remove it", "cannot fork the interpreter: %s is no directory, and forks have links there", isolation.Told)
		}
		for _, m := range c.Spec().Mounts {
			if m.Kind != cell.Link && strings.HasPrefix(m.Target, p+"/") {
				return cell.Errorf(kind, "namespace.Fork", "write them to /tmp instead, or remove them",
					"cannot fork the interpreter: there are files in %s, where %s is mounted too: %s", p, m.Target, strings.Join(c.inMemory(p), ", "))
			}
		}
	}
	return nil
}

// hideProc covers /proc of a template's interpreter, or uncovers it. /proc would give it access
// to every process below it.
func (c *liveCell) hideProc(on bool) error {
	s := &linux.Script{}
	s.Stdio([3]*os.File{}, c.Init.PIDFD)
	s.Call("join the cell", unix.SYS_SETNS, int(c.Init.PIDFD.Fd()), unix.CLONE_NEWNS)
	if on {
		s.Mount("tmpfs", "/proc", "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=4k,mode=0555")
	} else {
		s.Call("uncover /proc", unix.SYS_UMOUNT2, "/proc", unix.MNT_DETACH)
	}
	s.Exit()
	return run(s, linux.SpawnOptions{Share: true})
}

const sealOp = "seal "

// changing returns the writable mounts of a cell.
func (c *liveCell) changing() []string {
	list := []string{"/dev/shm", confine.CanaryDir}
	for _, m := range c.Spec().Mounts {
		if !m.ReadOnly && m.Kind != cell.Link && m.Kind != cell.Protect {
			list = append(list, m.Target)
		}
	}
	return list
}
