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
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/linux"
)

// Audits of a fork from outside: they ask the kernel, not the fork.

const outside = "outside"

// not returns the error for a broken isolation, which must never occur.
func not(format string, args ...any) error {
	return cell.Errorf(cell.Denied, "namespace.Fork", "report this: the cell's isolation does not hold on this host", "cannot fork the interpreter: "+format, args...)
}

// unseenOf returns the error for a process that could not be inspected. A lack of descriptors
// in this process proves nothing about that one.
func unseenOf(err error) error {
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return cell.Errorf(cell.Unavailable, "namespace.Fork", cell.RoomHint, "cannot inspect the interpreter: %w", err)
	}
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) { // for an ordinary user; root can read it, and the interpreter reports it
		return cell.Errorf(cell.Conflict, "namespace.Fork", "undo that first, or "+cell.ForkSandbox,
			"cannot fork the interpreter: it is not dumpable, so that nothing of it can be looked at (PR_SET_DUMPABLE, or a change of its user): %w", err)
	}
	return not("it ended during the check")
}

// auditNamespaces verifies that a fork has its own namespaces, and returns them.
func (c *liveCell) auditNamespaces(t *forkParent) (made isolation.Made, err error) {
	made = isolation.Made{Init: c.Init.PID, Namespaces: map[string]string{}, Link: c.LinkKind()}
	for _, n := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		ours, err := os.Readlink(procPath(c.Init.PID, "ns/"+n))
		if err != nil {
			return made, err
		}
		theirs, err := os.Readlink(procPath(t.prog.PID, "ns/"+n))
		if err != nil {
			return made, err
		}
		if ours == theirs && !c.fork.keepsNamespace(n) {
			return made, not("the fork shares its parent's %s namespace", n)
		}
		made.Namespaces[n] = ours
	}
	made.UserNS = made.Namespaces["user"]
	return made, nil
}

// keepsNamespace reports whether the source of a branch keeps its namespace of this kind.
func (f *fork) keepsNamespace(kind string) bool {
	return f.source && kind != "user" && kind != "mnt" && kind != "pid"
}

// privileges verifies that a fork has exactly the capabilities caps, no_new_privs, and a
// seccomp filter.
func (c *liveCell) privileges(caps uint64) error {
	b, err := os.ReadFile(procPath(c.Init.PID, "status"))
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

// auditConfined verifies that a fork has no more privileges than caps, and started no process
// while it had more.
func (c *liveCell) auditConfined(caps uint64) error {
	if err := c.privileges(caps); err != nil {
		return err
	}
	if list, err := c.below(); err != nil || len(list) > 0 {
		return not("it has started another process before it was adopted (%v %v)", list, err)
	}
	return nil
}

// auditAdoptable audits a fork before it evaluates anything: its privileges and its open files.
func (c *liveCell) auditAdoptable() error {
	if err := c.auditConfined(c.Caps()); err != nil {
		return err
	}
	return c.descriptors()
}

// observed returns the audit results for the certificate.
func (c *liveCell) observed() []cell.Hazard {
	return []cell.Hazard{
		{Name: "namespaces", Seen: outside, Value: "user, mount, pid, network, ipc, uts and cgroup namespace of its own"},
		{Name: "privileges", Seen: outside, Value: fmt.Sprintf("capabilities %016x, no_new_privs, seccomp filter", c.Caps())},
		{Name: "descriptors", Seen: outside, Value: c.fork.files},
		{Name: "mappings", Seen: outside, Value: c.fork.maps},
		{Name: "hostname", Seen: outside, Value: c.Spec().Hostname},
		{Name: "machine-id", Seen: outside, Value: isolation.MachineID(c.Spec().ID)},
	}
}

// descriptors verifies that each open file of the fork is on its own mounts. The fork made all
// other descriptors itself: see auditStopped.
func (c *liveCell) descriptors() error {
	pid := c.Init.PID
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
				return not("its descriptor %d (%s) is not on its own mounts", fd, what)
			}
		}
	}
	return c.auditWorkdir()
}

// auditWorkdir verifies that a fork's working directory is on its own mounts. A fork starts in
// its parent's directory, below the mounts made for the fork. A removed directory has no path,
// but its parents have.
func (c *liveCell) auditWorkdir() error {
	pid := c.Init.PID
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
		at, err := linux.OpenInRoot(pid, dir, unix.O_PATH|unix.O_NOFOLLOW)
		if err == nil {
			err = unix.Statx(int(at.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &own)
			at.Close()
		}
		switch {
		case err == nil && own.Mnt_id == st.Mnt_id:
			return nil
		case err == nil || dir == "/" || !filepath.IsAbs(dir):
			return not("its working directory is not on its own mounts")
		}
	}
}

// openFiles returns the link targets of a process's descriptors.
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

// mountIDs returns the IDs of the mounts that a process sees.
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
