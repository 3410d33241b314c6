package namespace

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/repl"
)

// A fork starts with everything its parent had. The fork's own code closes what it may not
// keep. This file verifies that from outside, while the fork is stopped: what is absent then
// cannot come back. After the fork resumed, a descriptor could be anywhere: in a message in a
// socket, in another process, under another number.

// stopGrace is the time limit for a process to stop.
const stopGrace = 5 * time.Second

// whileStopped stops a process, calls look, and verifies that the process did not run
// meanwhile. The process stays stopped.
func whileStopped(p *linux.Child, look func(status []byte) error) error {
	if err := p.Signal(unix.SIGSTOP); err != nil {
		return not("it ended during the check")
	}
	path := procPath(p.PID, "status")
	for until, wait := time.Now().Add(stopGrace), 10*time.Microsecond; time.Now().Before(until); wait = min(2*wait, time.Millisecond) {
		status, err := os.ReadFile(path)
		if err != nil {
			return unseenOf(err)
		}
		if !stopped(status) {
			time.Sleep(wait)
			continue
		}
		if err := look(status); err != nil {
			return err
		}
		again, err := os.ReadFile(path)
		if err == nil && stopped(again) && switches(again) == switches(status) {
			return nil
		}
	}
	return not("it did not stop")
}

func stopped(status []byte) bool {
	s := linux.StatusField(status, "State")
	return strings.HasPrefix(s, "T") || strings.HasPrefix(s, "t")
}

// switches returns the context switch counters, which change whenever a process runs.
func switches(status []byte) string {
	return linux.StatusField(status, "voluntary_ctxt_switches") + " " + linux.StatusField(status, "nonvoluntary_ctxt_switches")
}

// auditStopped verifies that a fork that is not adopted yet has one thread, no other process
// below it or in its process group, only the descriptors it was given, no writable memory
// shared with others, and is in its cgroups. The fork stays stopped until it is adopted. The
// fork of a branch's source keeps its open files and shared memory.
func (c *liveCell) auditStopped() error {
	return whileStopped(c.Init, func(status []byte) error {
		if n := linux.StatusField(status, "Threads"); n != "1" {
			return not("it has %s threads", n)
		}
		if list, err := c.below(); err != nil || len(list) > 0 {
			return not("it has started another process (%v %v)", list, err)
		}
		const hint = "a program with a fork of its own must call setsid in the child: see docs/reference/eval-protocol.md"
		group, terminal := group(c.Init.PID)
		if group != strconv.Itoa(c.Init.PID) {
			return cell.Errorf(cell.Denied, "namespace.Fork", hint,
				"cannot fork the interpreter: the fork has stayed in the process group of its parent, and could signal it")
		}
		if err := c.auditCgroups(); err != nil || c.fork.source {
			return err
		}
		if terminal != "0" {
			return cell.Errorf(cell.Denied, "namespace.Fork", hint, "cannot fork the interpreter: the fork has kept the terminal of its parent")
		}
		files, err := openFiles(c.Init.PID)
		if err != nil {
			return err
		}
		for fd, what := range files {
			if fd >= len(c.prog.given) || what != c.prog.given[fd] {
				return not("it has kept its descriptor %d (%s)", fd, what)
			}
		}
		shared, n, err := sharedMemory(c.Init.PID)
		if err != nil || len(shared) > 0 {
			return not("it shares memory: %s (%v)", strings.Join(shared, ", "), err)
		}
		c.fork.files, c.fork.maps = strconv.Itoa(len(files))+" when it was forked, all its own", strconv.Itoa(n)+", none shared and writable"
		return nil
	})
}

// group returns the process group of a process and its controlling terminal, "0" for none. A
// signal to a group reaches all its members whatever their PID namespaces are. The only member
// of a group can join no other group that it does not see.
func group(pid int) (group, terminal string) {
	b, _ := os.ReadFile(procPath(pid, "stat"))
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // state, parent, group, session, terminal
	if len(f) < 5 {
		return "", ""
	}
	return f[2], f[4]
}

// below lists the processes in a fork's PID namespace except the first.
func (c *liveCell) below() (list []string, err error) {
	b, err := os.ReadFile(procPath(c.Init.PID, "task/"+strconv.Itoa(c.Init.PID)+"/children"))
	if err == nil { // orphans are in this list, too
		return strings.Fields(string(b)), nil
	}
	names, err := filepath.Glob(procPath(c.Init.PID, "root/proc/[0-9]*"))
	for _, n := range names { // a kernel without such lists
		if n = filepath.Base(n); n != "1" {
			list = append(list, n)
		}
	}
	return list, err
}

// auditCgroups verifies that a fork is in its cgroups, which it entered itself.
func (c *liveCell) auditCgroups() error {
	dirs := c.Cgroups()
	if len(dirs) == 0 {
		return nil
	}
	b, err := os.ReadFile(procPath(c.Init.PID, "cgroup"))
	if err != nil {
		return unseenOf(err)
	}
	for _, d := range dirs {
		found := false
		for l := range strings.Lines(string(b)) {
			f := strings.SplitN(strings.TrimSpace(l), ":", 3)
			if len(f) == 3 && (d.V2 && f[0] == "0" || !d.V2 && f[0] != "0" && slices.ContainsFunc(strings.Split(f[1], ","), func(x string) bool { return slices.Contains(d.Controllers, x) })) {
				found = found || strings.HasSuffix(d.Path, f[2]) && filepath.Base(d.Path) == filepath.Base(f[2]) || strings.HasSuffix(f[2], "/"+filepath.Base(d.Path))
			}
		}
		if !found {
			return not("it did not enter its cgroup %s", d.Path)
		}
	}
	return nil
}

// sharedMemory lists the mappings of a process that others may write to, and counts all
// mappings. A shared mapping that is not writable now can become so. Files with a name are as
// immutable as the mount they are on.
func sharedMemory(pid int) (list []string, n int, err error) {
	b, err := os.ReadFile(procPath(pid, "maps"))
	if err != nil {
		return nil, 0, unseenOf(err)
	}
	for l := range bytes.Lines(b) { // from-to rwxs offset device inode name
		n++
		at := bytes.IndexByte(l, ' ')
		if at < 0 || len(l) < at+6 || l[at+4] != 's' {
			continue
		}
		w := strings.Fields(string(l))
		what := strings.Join(w[5:], " ")
		file := strings.HasPrefix(what, "/") && !strings.HasSuffix(what, " (deleted)") && !strings.HasPrefix(what, "/SYSV") && !strings.HasPrefix(what, "/memfd:")
		if w[1][1] == 'w' || !file {
			if what == "" {
				what = "anonymous memory"
			}
			list = append(list, what)
		}
	}
	return list, n, nil
}

// auditAlone verifies that a fork parent's cell has no other process or thread, and that the
// parent shares no memory with the processes below it. It asks the kernel, not the interpreter.
func (c *liveCell) auditAlone(kind cell.Kind) error {
	if err := c.auditNoProcesses(kind); err != nil {
		return err
	}
	if err := c.auditSingleThread(kind); err != nil {
		return err
	}
	shared, _, err := sharedMemory(c.prog.proc.PID)
	if err != nil {
		return err
	}
	return obstructed(kind, repl.Obstacles{Shared: shared})
}

// auditProcHidden verifies that a template's interpreter has no access to /proc, which the
// caller has covered, and no descriptors in messages that were not received.
func (c *liveCell) auditProcHidden() error {
	pid := c.prog.proc.PID
	files, err := openFiles(pid)
	if err != nil {
		return err
	}
	names := []string{"cwd"}
	for fd := range files {
		names = append(names, "fd/"+strconv.Itoa(fd))
	}
	for _, n := range names {
		var fs unix.Statfs_t
		if err := unix.Statfs(procPath(pid, n), &fs); err == nil && (fs.Type == unix.PROC_SUPER_MAGIC || fs.Type == unix.NSFS_MAGIC) {
			return cell.Errorf(cell.Unsupported, "namespace.Seal", "close it first", "cannot fork the interpreter: it has something of /proc open (%s)", n)
		}
		if b, err := os.ReadFile(procPath(pid, strings.Replace(n, "fd/", "fdinfo/", 1))); err == nil {
			if k := linux.StatusField(b, "scm_fds"); k != "" && k != "0" {
				return cell.Errorf(cell.Unsupported, "namespace.Seal", "receive them first", "cannot fork the interpreter: one of its sockets contains descriptors that were not received (%s)", n)
			}
		}
	}
	return nil
}

// auditReleased verifies that a fork parent did not keep the descriptors sent for a fork. With
// those it could read the fork's requests and answer them.
func (t *forkParent) auditReleased(given [4]string) error {
	err := whileStopped(t.prog, func([]byte) error { return hasNot(t.prog.PID, "its fork parent", given[:]) })
	t.prog.Signal(unix.SIGCONT)
	return err
}

// hasNot verifies that a stopped process has none of the descriptors given to others, and no
// message from which it could receive them.
func hasNot(pid int, name string, given []string) error {
	files, err := openFiles(pid)
	for fd, what := range files {
		if slices.Contains(given, what) {
			return not("%s has kept its descriptor (%d, %s)", name, fd, what)
		}
		if !strings.HasPrefix(what, "socket:") {
			continue
		}
		if b, err := os.ReadFile(procPath(pid, "fdinfo/"+strconv.Itoa(fd))); err == nil {
			if n := linux.StatusField(b, "scm_fds"); n != "" && n != "0" {
				return not("%s has descriptors in a socket that were not received (%d)", name, fd)
			}
		}
	}
	return err
}

// killStrays kills children of the fork parent that were not requested.
func (t *forkParent) killStrays() {
	for _, of := range []*linux.Child{t.prog, t.first} {
		b, err := os.ReadFile(procPath(of.PID, "task/"+strconv.Itoa(of.PID)+"/children"))
		if err != nil {
			continue
		}
		for _, s := range strings.Fields(string(b)) {
			pid, _ := strconv.Atoi(s)
			t.d.mu.Lock()
			known := t.children[pid] || pid == t.prog.PID
			t.d.mu.Unlock()
			if known || pid <= 0 {
				continue
			}
			f, err := linux.OpenProcess(pid)
			if err != nil {
				continue
			}
			if st, err := os.ReadFile(procPath(pid, "status")); err == nil && linux.StatusField(st, "PPid") == strconv.Itoa(of.PID) {
				unix.PidfdSendSignal(int(f.Fd()), unix.SIGKILL, nil, 0)
			}
			f.Close()
		}
	}
}

// freeze stops a fork parent for good after a branch. If its pid namespace survives without it,
// it is killed. Otherwise a thread of this process stops it with ptrace; no pending signal
// wakes it.
func (t *forkParent) freeze() error {
	if t.prog.PID != t.first.PID {
		return t.prog.Kill()
	}
	t.prog.Signal(unix.SIGSTOP)
	var err error
	t.d.tracer.Do(func() {
		pid := t.prog.PID
		if err = unix.PtraceSeize(pid); err != nil {
			return
		}
		t.traced = true
		if err = unix.PtraceInterrupt(pid); err == nil {
			_, err = unix.Wait4(pid, nil, unix.WALL, nil)
		}
	})
	if err != nil {
		return fmt.Errorf("cannot stop the fork parent: %w", err)
	}
	return nil
}

// reap reaps a process that this process traces: it cannot be reaped otherwise.
func (t *forkParent) reap() {
	if t.traced {
		t.d.tracer.Do(func() { unix.Wait4(t.prog.PID, nil, unix.WALL, nil) })
	}
}
