package namespace

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/repl"
)

// The source of a branch continues in a fork of its process, and fork(2) does not copy all that
// the kernel keeps for a process. The interpreter takes file locks and interval timers again,
// reopens files at their offsets, and returns to its working directory; the locks are verified
// from outside. Other state cannot be restored. This file finds it, and refuses the branch with
// its name.

// unkept verifies that a fork of the interpreter, and the source that continues, would have all
// state that the kernel keeps. It returns the link targets of the descriptors and the file
// locks on each. The caller checks memory with unkeptMemory.
func (c *liveCell) unkept(kind cell.Kind) (files map[int]string, locks map[int][]string, err error) {
	pid, keepsNamespace := c.prog.proc.PID, kind == cell.Conflict
	files, err = openFiles(pid)
	if err != nil {
		return nil, nil, err
	}
	var lost []string
	add := func(format string, args ...any) { lost = append(lost, fmt.Sprintf(format, args...)) }
	status, signals, err := settled(func() ([]byte, error) { return os.ReadFile(procPath(pid, "status")) })
	if err != nil {
		return nil, nil, unseenOf(err)
	}
	for _, s := range signals {
		add("signal %s, which waits for it", s)
	}
	if n := linux.StatusField(status, "VmLck"); n != "" && n != "0 kB" {
		add("%s of locked memory (mlock)", n)
	}
	timers, _ := os.ReadFile(procPath(pid, "timers"))
	for l := range bytes.Lines(timers) {
		if id, ok := strings.CutPrefix(strings.TrimSpace(string(l)), "ID: "); ok {
			add("timer %s (timer_create)", id)
		}
	}
	if a, err := unix.SchedGetAttr(pid, 0); err == nil && a.Flags&unix.SCHED_FLAG_RESET_ON_FORK != 0 {
		add("its scheduling policy (SCHED_RESET_ON_FORK)")
	}
	for _, z := range c.unwaited() {
		add("the exit status of its child %s, which has ended and was not waited for", z)
	}
	for i, given := range c.prog.given[:3] {
		if given != "" && files[i] != given {
			add("descriptor %d, which leads to %s instead of the interpreter's output", i, files[i])
		}
	}
	if keepsNamespace {
		limits, _ := os.ReadFile(procPath(pid, "limits"))
		if f := strings.Fields(afterLine(limits, "Max cpu time")); len(f) > 0 && f[0] != "unlimited" {
			add("what it has used of its limit of CPU time (RLIMIT_CPU)")
		}
		if _, terminal := group(pid); terminal != "0" {
			add("its controlling terminal")
		}
		bound := boundSockets(pid)
		for _, fd := range slices.Sorted(maps.Keys(files)) {
			if path := bound[files[fd]]; path != "" {
				add("socket %s, which others reach by its path", path)
			}
		}
	}
	locks = map[int][]string{}
	for _, fd := range slices.Sorted(maps.Keys(files)) {
		info, err := os.ReadFile(procPath(pid, "fdinfo/"+strconv.Itoa(fd)))
		if err != nil {
			continue // closed meanwhile
		}
		var outside bool
		for _, l := range locksOf(info) {
			switch {
			case strings.HasPrefix(l, "LEASE"), strings.HasPrefix(l, "DELEG"):
				add("its lease on %s", files[fd])
			case keepsNamespace && !c.owns(files[fd]):
				outside = true
			}
			locks[fd] = append(locks[fd], l)
		}
		if outside {
			add("its lock on %s, which is not a file of the cell alone", files[fd])
		}
		if keepsNamespace && fd > interpreterFDs {
			if s := c.unkeptFile(fd, files[fd], info); s != "" {
				add("%s", s)
			}
		}
	}
	return files, locks, obstructed(kind, repl.Obstacles{Unkept: lost})
}

// interpreterFDs is the interpreter's highest own descriptor.
const interpreterFDs = 3

// unkeptFile returns the state of a descriptor that the source would lose, or "".
func (c *liveCell) unkeptFile(fd int, what string, info []byte) string {
	pid := c.prog.proc.PID
	var st, again unix.Stat_t
	if unix.Stat(procPath(pid, "fd/"+strconv.Itoa(fd)), &st) != nil {
		return ""
	}
	if strings.HasSuffix(what, "inotify") || strings.HasSuffix(what, "[fanotify]") {
		if bytes.Contains(info, []byte("\ninotify ")) || bytes.Contains(info, []byte("\nfanotify ")) {
			return fmt.Sprintf("the files that descriptor %d watches (inotify)", fd)
		}
		return ""
	}
	if !strings.HasPrefix(what, "/") || strings.HasPrefix(what, "/memfd:") {
		return ""
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFIFO:
		return fmt.Sprintf("named pipe %s, which others reach by its path", what)
	case unix.S_IFCHR:
		if major := unix.Major(st.Rdev); major >= 136 && major <= 143 || st.Rdev == unix.Mkdev(5, 2) {
			return fmt.Sprintf("terminal %s (descriptor %d)", what, fd)
		}
		return ""
	case unix.S_IFREG:
		if st.Nlink == 0 {
			return "" // see unobstructed
		}
	case unix.S_IFDIR:
		if pos := linux.StatusField(info, "pos"); pos != "" && pos != "0" {
			return fmt.Sprintf("the place in directory %s, which it is reading", what)
		}
	default:
		return ""
	}
	at, err := linux.OpenInRoot(pid, what, unix.O_PATH|unix.O_NOFOLLOW)
	if err == nil {
		err = unix.Fstat(int(at.Fd()), &again)
		at.Close()
	}
	if err != nil || again.Dev != st.Dev || again.Ino != st.Ino {
		return fmt.Sprintf("%s (descriptor %d), which cannot be opened again by that name", what, fd)
	}
	return ""
}

// unkeptMemory fails for memory that forks do not inherit (MADV_DONTFORK). It reads all page
// tables of the process, so it is called while the source still runs.
func (c *liveCell) unkeptMemory(kind cell.Kind) error {
	b, err := os.ReadFile(procPath(c.prog.proc.PID, "smaps"))
	if err != nil {
		return nil // a kernel without smaps
	}
	var lost []string
	at := ""
	for l := range bytes.Lines(b) {
		name, flags, _ := strings.Cut(strings.TrimSpace(string(l)), " ")
		switch {
		case name == "VmFlags:" && slices.Contains(strings.Fields(flags), "dc"):
			lost = append(lost, "memory at "+at+" (MADV_DONTFORK)")
		case strings.Contains(name, "-") && !strings.HasSuffix(name, ":"):
			at = name
		}
	}
	return obstructed(kind, repl.Obstacles{Unkept: lost})
}

// memoryForked verifies that the source's fork has all its memory. It compares the lists of
// mappings, which is faster than unkeptMemory. Only if a mapping is missing, it asks
// unkeptMemory for the reason.
func (b *branching) memoryForked() error {
	var observed [2][]mapping
	for i, pid := range []int{b.t.prog.PID, b.self.c.Init.PID} {
		text, err := os.ReadFile(procPath(pid, "maps"))
		if err != nil {
			return unseenOf(err)
		}
		observed[i] = mappings(text)
	}
	for _, m := range observed[0] {
		if !slices.ContainsFunc(observed[1], m.isIn) {
			return b.old.unkeptMemory(cell.Conflict)
		}
	}
	return nil
}

// mapping is a line of /proc/PID/maps.
type mapping struct {
	start, end uint64
	what       string // permissions, offset, file
	grows      bool   // heap or stack
}

// isIn reports whether o is the mapping m in a fork. A heap or stack may have grown since.
func (m mapping) isIn(o mapping) bool {
	return m.what == o.what && (m.start == o.start && m.end == o.end || m.grows && o.start <= m.start && m.end <= o.end)
}

func mappings(text []byte) (list []mapping) {
	for l := range bytes.Lines(text) { // 7f0000000000-7f0000001000 rw-p 00000000 00:00 0 [heap]
		span, what, _ := strings.Cut(strings.TrimSpace(string(l)), " ")
		from, to, _ := strings.Cut(span, "-")
		m := mapping{what: what, grows: strings.HasSuffix(what, "[heap]") || strings.HasSuffix(what, "[stack]")}
		m.start, _ = strconv.ParseUint(from, 16, 64)
		m.end, _ = strconv.ParseUint(to, 16, 64)
		list = append(list, m)
	}
	return list
}

// owns reports whether only this cell has the file, so that a lock on it excludes only
// processes of the cell.
func (c *liveCell) owns(path string) bool {
	owned, longest := isolation.Below(path, "/dev/shm"), 0
	for _, m := range c.Spec().Mounts {
		if isolation.Below(path, m.Target) && len(m.Target) > longest && m.Kind != cell.Link && m.Kind != cell.Protect {
			owned, longest = m.Owned || m.Kind == cell.Overlay || m.Kind == cell.Tmpfs, len(m.Target)
		}
	}
	return owned
}

// unwaited lists the zombie children of the interpreter. An interpreter that is process 1 of
// its cell also adopts orphans; those have another session and are not listed.
func (c *liveCell) unwaited() (list []string) {
	pid := c.prog.proc.PID
	b, _ := os.ReadFile(procPath(pid, "task/"+strconv.Itoa(pid)+"/children"))
	own := statFields(pid)
	for _, s := range strings.Fields(string(b)) {
		child, err := strconv.Atoi(s)
		f := statFields(child)
		if err != nil || len(f) < 4 || f[0] != "Z" || len(own) < 4 || c.fork != nil && f[3] != own[3] {
			continue
		}
		name, _ := os.ReadFile(procPath(child, "comm"))
		list = append(list, strconv.Itoa(linux.InnerPID(child))+" "+strings.TrimSpace(string(name)))
	}
	return list
}

// statFields returns the fields of /proc/PID/stat after the name: state, parent, group,
// session.
func statFields(pid int) []string {
	b, _ := os.ReadFile(procPath(pid, "stat"))
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
}

// locksOf returns the locks in a descriptor's fdinfo: kind, access, first and last byte,
// without the fields that differ between processes.
func locksOf(info []byte) (list []string) {
	for l := range bytes.Lines(info) { // lock: 1: POSIX ADVISORY WRITE 17 fe:00:4711 0 EOF
		if f := strings.Fields(string(l)); len(f) >= 9 && f[0] == "lock:" {
			list = append(list, strings.Join([]string{f[2], f[4], f[len(f)-2], f[len(f)-1]}, " "))
		}
	}
	return list
}

// auditLocks verifies that a process has the locks that another had.
func auditLocks(pid int, had map[int][]string, files map[int]string) error {
	for _, fd := range slices.Sorted(maps.Keys(had)) {
		info, err := os.ReadFile(procPath(pid, "fdinfo/"+strconv.Itoa(fd)))
		has := locksOf(info)
		for _, l := range had[fd] {
			if err != nil || !slices.Contains(has, l) {
				return cell.Errorf(cell.Conflict, "namespace.Branch", "release the lock first, or "+cell.ForkSandbox,
					"cannot branch the cell: its interpreter did not take its lock on %s again (%s)", files[fd], l)
			}
		}
	}
	return nil
}

// handlerGrace is how long a signal that waits is given: while its handler runs it is blocked, so that the
// next one of a timer waits until the handler has returned.
const handlerGrace = 250 * time.Millisecond

// settled reads a status until no signal waits, or handlerGrace is over. It returns the signals that
// wait then.
func settled(read func() ([]byte, error)) (status []byte, signals []string, err error) {
	for end := time.Now().Add(handlerGrace); ; time.Sleep(time.Millisecond) {
		if status, err = read(); err != nil {
			return nil, nil, err
		}
		if signals = pendingSignals(status); len(signals) == 0 || time.Now().After(end) {
			return status, signals, nil
		}
	}
}

// pendingSignals returns the names of signals that are pending and blocked. Other signals are
// delivered before the process stops.
func pendingSignals(status []byte) (names []string) {
	blocked, _ := strconv.ParseUint(linux.StatusField(status, "SigBlk"), 16, 64)
	for _, field := range []string{"SigPnd", "ShdPnd"} {
		bits, _ := strconv.ParseUint(linux.StatusField(status, field), 16, 64)
		for n := range 64 {
			sig := unix.Signal(n + 1)
			if bits&blocked>>n&1 == 0 {
				continue
			}
			name := unix.SignalName(sig)
			if name == "" {
				name = strconv.Itoa(n + 1)
			}
			names = append(names, name)
		}
	}
	return names
}

// afterLine returns the rest of the line that begins with words.
func afterLine(text []byte, words string) string {
	for l := range bytes.Lines(text) {
		if rest, ok := strings.CutPrefix(string(l), words); ok {
			return rest
		}
	}
	return ""
}

// boundSockets returns the sockets in a process's network namespace that are bound to a path
// and receive: their paths by link target.
func boundSockets(pid int) map[string]string {
	b, _ := os.ReadFile(procPath(pid, "net/unix"))
	list := map[string]string{}
	for l := range bytes.Lines(b) { // Num: RefCount Protocol Flags Type St Inode Path
		f := strings.Fields(string(l))
		if len(f) < 8 || strings.HasPrefix(f[7], "@") { // no name, or an abstract one
			continue
		}
		flags, _ := strconv.ParseUint(f[3], 16, 32)
		if flags&(1<<16) != 0 || f[4] == "0002" { // it listens, or receives datagrams
			list["socket:["+f[6]+"]"] = strings.Join(f[7:], " ")
		}
	}
	return list
}
