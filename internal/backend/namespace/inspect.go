package namespace

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// What a fork is, seen from outside: the kernel is asked, and not the fork.

const outside = "outside"

// not is what nobody gets to see where isolation holds.
func not(format string, args ...any) error {
	return cell.Errorf(cell.Denied, "namespace.Fork", "report this: the cell's isolation does not hold on this host", "cannot fork the interpreter: "+format, args...)
}

// unseenOf is why the kernel could not be asked about a process. That this process has
// no descriptors left says nothing about that one.
func unseenOf(err error) error {
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return cell.Errorf(cell.Unavailable, "namespace.Fork", cell.RoomHint, "cannot look at the interpreter: %w", err)
	}
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) { // as an ordinary user; root sees it, and the interpreter says so
		return cell.Errorf(cell.Conflict, "namespace.Fork", "take that back before, or "+cell.ForkSandbox,
			"cannot fork the interpreter: it is not dumpable, so that nothing of it can be looked at (PR_SET_DUMPABLE, or a change of its user): %w", err)
	}
	return not("it ended while it was looked at")
}

// apart makes sure that a fork is in namespaces of its own.
func (c *liveCell) apart(t *trunk) (made madeCell, err error) {
	made = madeCell{Init: c.init.PID, Namespaces: map[string]string{}}
	if c.link != nil {
		made.Link = c.link.Kind
	}
	for _, n := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		ours, err := os.Readlink(procPath(c.init.PID, "ns/"+n))
		if err != nil {
			return made, err
		}
		theirs, err := os.Readlink(procPath(t.prog.PID, "ns/"+n))
		if err != nil {
			return made, err
		}
		if ours == theirs && !c.fork.goesOn(n) {
			return made, not("the fork shares its trunk's %s namespace", n)
		}
		made.Namespaces[n] = ours
	}
	made.UserNS = made.Namespaces["user"]
	return made, nil
}

// goesOn reports whether a source that was branched keeps its namespace.
func (f *fork) goesOn(kind string) bool {
	return f.source && kind != "user" && kind != "mnt" && kind != "pid"
}

// privileges makes sure that a fork has no more capabilities than caps, and the
// filter.
func (c *liveCell) privileges(caps uint64) error {
	b, err := os.ReadFile(procPath(c.init.PID, "status"))
	if err != nil {
		return unseenOf(err)
	}
	want := fmt.Sprintf("%016x", caps)
	for _, x := range [][2]string{{"CapInh", "0000000000000000"}, {"CapPrm", want}, {"CapEff", want}, {"CapBnd", want}, {"CapAmb", "0000000000000000"},
		{"NoNewPrivs", "1"}, {"Seccomp", "2"}, {"Threads", "1"}} {
		if got := linux.StatusField(b, x[0]); got != x[1] {
			return not("its %s is %s, not %s", x[0], got, x[1])
		}
	}
	return nil
}

// confined makes sure that a fork has no more privileges than caps, nor anybody
// that it started while it had them.
func (c *liveCell) confined(caps uint64) error {
	if err := c.privileges(caps); err != nil {
		return err
	}
	if list, err := c.below(); err != nil || len(list) > 0 {
		return not("it has started another process before it was adopted (%v %v)", list, err)
	}
	return nil
}

// inspect looks at a fork before anything is evaluated in it: at its privileges,
// and at whose the files are that it has open.
func (c *liveCell) inspect() error {
	if err := c.confined(c.caps()); err != nil {
		return err
	}
	return c.descriptors()
}

// seen is what was seen of a fork.
func (c *liveCell) seen() []cell.Hazard {
	return []cell.Hazard{
		{Name: "namespaces", Seen: outside, Value: "user, mount, pid, network, ipc, uts and cgroup namespace of its own"},
		{Name: "privileges", Seen: outside, Value: fmt.Sprintf("capabilities %016x, no_new_privs, seccomp filter", c.caps())},
		{Name: "descriptors", Seen: outside, Value: c.fork.files},
		{Name: "mappings", Seen: outside, Value: c.fork.maps},
		{Name: "hostname", Seen: outside, Value: c.w.Spec.Hostname},
		{Name: "machine-id", Seen: outside, Value: strings.TrimSpace(idFiles(c.w.Spec.ID, "")[2].text)},
	}
}

// descriptors makes sure that each file that the fork has open is of its own
// mounts. The rest it has made itself: it had none, see bare.
func (c *liveCell) descriptors() error {
	pid := c.init.PID
	mine, err := openFiles(pid)
	if err != nil {
		return err
	}
	var mounts map[uint64]bool
	for fd, what := range mine {
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, procPath(pid, "fd/"+strconv.Itoa(fd)), 0, unix.STATX_MNT_ID|unix.STATX_TYPE, &st); err != nil {
			continue // closed meanwhile
		}
		if strings.HasPrefix(what, "/") && what != "/dev/null" && !strings.HasPrefix(what, "/memfd:") {
			if mounts == nil {
				if mounts, err = mountIDs(pid); err != nil {
					return err
				}
			}
			if !mounts[st.Mnt_id] {
				return not("its descriptor %d (%s) is not of its own files", fd, what)
			}
		}
	}
	return c.worksInItsOwn()
}

// worksInItsOwn makes sure that a fork's working directory is in its own mounts: it
// begins in a copy of its trunk's, below what was mounted for the fork. A directory
// that was removed has no path, but its parents have.
func (c *liveCell) worksInItsOwn() error {
	pid := c.init.PID
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, procPath(pid, "cwd"), 0, unix.STATX_MNT_ID, &st); err != nil {
		return err
	}
	dir, err := os.Readlink(procPath(pid, "cwd"))
	if err != nil {
		return err
	}
	for ; ; dir = filepath.Dir(dir) {
		var own unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, procPath(pid, "root"+dir), unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &own)
		switch {
		case err == nil && own.Mnt_id == st.Mnt_id:
			return nil
		case err == nil || dir == "/" || !filepath.IsAbs(dir):
			return not("it works in a folder that is not its own")
		}
	}
}

// openFiles says what the descriptors of a process are.
func openFiles(pid int) (map[int]string, error) {
	dir, err := os.Open(procPath(pid, "fd"))
	if err != nil {
		return nil, unseenOf(err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	list := make(map[int]string, len(names))
	buf := make([]byte, 4096)
	for _, n := range names {
		k, err := unix.Readlinkat(int(dir.Fd()), n, buf)
		if fd, aerr := strconv.Atoi(n); err == nil && aerr == nil {
			list[fd] = string(buf[:k])
		}
	}
	return list, nil
}

// mountIDs are the numbers of the mounts that a process sees.
func mountIDs(pid int) (map[uint64]bool, error) {
	f, err := os.Open(procPath(pid, "mountinfo"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list := map[uint64]bool{}
	for s := bufio.NewScanner(f); s.Scan(); {
		id, _, _ := strings.Cut(s.Text(), " ")
		if n, err := strconv.ParseUint(id, 10, 64); err == nil {
			list[n] = true
		}
	}
	return list, nil
}
