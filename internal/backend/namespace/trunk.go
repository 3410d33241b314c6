package namespace

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/hazard"
	"github.com/pando-dev/pando/internal/interp"
	"github.com/pando-dev/pando/internal/linux"
)

// A trunk is an interpreter that runs no user code any more and is only forked:
// that of a template, or of a running cell after it was branched. Nobody else
// runs in its namespaces. It lives as long as its own cell, or something that
// was forked from it.
type trunk struct {
	d       *Driver
	of      cell.ID      // that it is of, or was
	first   *linux.Child // process 1 of its pid namespace: with it all below ends
	prog    *linux.Child // the interpreter; the same, in a fork
	conn    *interp.Conn
	mounts  []cell.Mount
	outside bool     // it writes to directories of the host, and has the filter for that
	full    []string // of what it has in memory alone, the places with something in them
	up      *trunk   // that it was forked from
	depth   int      // forks between it and the first of its family
	drop    func()   // when it is over

	drawn func() []hazard.Process // what generators of random numbers it has

	turn   sync.Mutex // one fork at a time
	traced bool       // it is held by this process, for good

	// guarded by Driver.mu:
	users int          // its cell, and what was forked from it
	twigs map[int]bool // its children that were asked for
}

// manyNamespaces is a limit of user namespaces that is none.
const manyNamespaces = "1048576"

// limit is the file by which the first user namespace of a family says how many
// there may be below it, and how many forks are under way that it has been
// raised for.
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

// raise lets user namespaces be made below the family's first; lower takes that
// back when nobody needs it any more. What is below has limits of its own.
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

// hold counts one more user of a trunk. The caller has Driver.mu.
func (t *trunk) hold() { t.users++ }

// let counts one less, and ends what nobody needs any more, from the lowest up.
func (t *trunk) let() {
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

// own says of each mount of a fork whether it is made anew in it: what can be
// written, what its trunk shows otherwise or not at all, what is watched, and
// what lies below one of these.
func own(trunk, fork []cell.Mount) []bool {
	list := make([]bool, len(fork))
	for i, m := range fork {
		writable := !m.ReadOnly && m.Kind != cell.Link && m.Kind != cell.Protect
		list[i] = writable || m.Denies != nil || !slices.ContainsFunc(trunk, func(t cell.Mount) bool { return same(t, m) })
		for j := range i {
			list[i] = list[i] || list[j] && below(m.Target, fork[j].Target)
		}
	}
	return list
}

// same reports whether two mounts show the same in the same way.
func same(a, b cell.Mount) bool {
	return a.Kind == b.Kind && a.Target == b.Target && a.Source == b.Source && a.ReadOnly == b.ReadOnly && a.Owned == b.Owned &&
		slices.Equal(a.Lower, b.Lower) && a.Upper == b.Upper && a.Work == b.Work
}

// below reports whether a path is another, or lies in it.
func below(path, dir string) bool {
	return path == dir || len(path) > len(dir) && path[:len(dir)] == dir && (path[len(dir)] == '/' || dir == "/")
}

// seal makes everything read-only that can be written in the trunk's mounts. A
// mount with files that are open for writing refuses that.
func (c *liveCell) seal(on bool) error {
	s := &linux.Script{}
	s.Stdio([3]*os.File{}, c.init.PIDFD)
	flags := unix.CLONE_NEWNS
	if c.fork != nil {
		flags |= unix.CLONE_NEWUSER
	}
	s.Call("join the cell", unix.SYS_SETNS, int(c.init.PIDFD.Fd()), flags)
	c.sealing(s, on)
	s.Exit()
	return run(s, linux.SpawnOptions{Share: true})
}

// sealing adds to a script, in the cell's mounts, what seals them.
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
}

// filled are the places of a cell that are in memory alone and have something in
// them: its forks get that, too.
func (c *liveCell) filled() (list []string) {
	places := []string{"/dev/shm"}
	for _, m := range c.w.Spec.Mounts {
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

// inMemory are the names at a place that forks get a layer over. What we made
// there for the canaries, or to mount something on, is made in each.
func (c *liveCell) inMemory(place string) (names []string) {
	entries, _ := os.ReadDir(procPath(c.init.PID, "root"+place))
	for _, e := range entries {
		at := place + "/" + e.Name()
		if at != confine.CanaryDir && !slices.ContainsFunc(c.w.Spec.Mounts, func(m cell.Mount) bool { return m.Target == at }) {
			names = append(names, e.Name())
		}
	}
	return names
}

// covered refuses a fork where something is mounted below a place that has files
// in memory: the kernel puts no layer over such a place in another namespace.
func (c *liveCell) covered(kind cell.Kind, full []string) error {
	for _, p := range full {
		for _, m := range c.w.Spec.Mounts {
			if m.Kind != cell.Link && strings.HasPrefix(m.Target, p+"/") {
				return cell.Errorf(kind, "namespace.Fork", "write them to /tmp instead, or remove them",
					"cannot fork the interpreter: there are files in %s, where %s is mounted too: %s", p, m.Target, strings.Join(c.inMemory(p), ", "))
			}
		}
	}
	return nil
}

// layered mounts a file system in memory over what is at a place, which shows
// through until it is changed.
func layered(s *linux.Script, target, mode string) {
	const at = 90 // free: what scripts are given is above, what they open is below
	old := s.OpenPlain(target)
	s.Call("hold "+target, unix.SYS_DUP3, old, at, unix.O_CLOEXEC)
	s.Call("close", unix.SYS_CLOSE, old)
	s.Mount("tmpfs", target, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, mode)
	bits, _ := strconv.ParseUint(strings.TrimPrefix(mode, "mode="), 8, 32)
	for _, d := range []string{"/u", "/w"} {
		s.Call("mkdir "+target+d, unix.SYS_MKDIRAT, linux.AtCWD, target+d, 0o700)
	}
	s.Call("chmod "+target, unix.SYS_FCHMODAT, linux.AtCWD, target+"/u", uint32(bits))
	s.Mount("overlay", target, "overlay", unix.MS_NOSUID|unix.MS_NODEV, "lowerdir=/proc/self/fd/90,upperdir="+target+"/u,workdir="+target+"/w,userxattr")
	s.Call("close", unix.SYS_CLOSE, at)
}

// seclude takes /proc away from a template's interpreter, by which it could go
// into every process below it; or gives it back.
func (c *liveCell) seclude(on bool) error {
	s := &linux.Script{}
	s.Stdio([3]*os.File{}, c.init.PIDFD)
	s.Call("join the cell", unix.SYS_SETNS, int(c.init.PIDFD.Fd()), unix.CLONE_NEWNS)
	if on {
		s.Mount("tmpfs", "/proc", "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=4k,mode=0555")
	} else {
		s.Call("uncover /proc", unix.SYS_UMOUNT2, "/proc", unix.MNT_DETACH)
	}
	s.Exit()
	return run(s, linux.SpawnOptions{Share: true})
}

const sealOp = "seal "

// changing are the mounts of a cell that can be written.
func (c *liveCell) changing() []string {
	list := []string{"/dev/shm"}
	for _, m := range c.w.Spec.Mounts {
		if !m.ReadOnly && m.Kind != cell.Link && m.Kind != cell.Protect {
			list = append(list, m.Target)
		}
	}
	return list
}
