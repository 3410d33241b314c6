package namespace

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/interp"
	"github.com/pando-dev/pando/internal/linux"
)

// The source of a branch goes on in a fork of its process, and fork(2) hands on less
// than all that the kernel holds for a process. The interpreter takes its file locks
// and interval timers again, opens its files again at their offsets, and works in
// the same directory; whether the locks are there is looked at from outside. What
// can't be had again is found here, in what the kernel says of the process, and
// refuses the branch by name.

// unkept makes sure that a fork of the interpreter, and a source that goes on, would
// have all that the kernel holds for it. It returns what its descriptors are, and the
// file locks of each. The caller looks at maps of memory with unkeptMemory.
func (c *liveCell) unkept(kind cell.Kind) (files map[int]string, locks map[int][]string, err error) {
	pid, goesOn := c.prog.proc.PID, kind == cell.Conflict
	files, err = openFiles(pid)
	if err != nil {
		return nil, nil, err
	}
	var lost []string
	add := func(format string, args ...any) { lost = append(lost, fmt.Sprintf(format, args...)) }
	status, err := os.ReadFile(procPath(pid, "status"))
	if err != nil {
		return nil, nil, unseenOf(err)
	}
	for _, s := range pendingSignals(status) {
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
	if goesOn {
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
			case goesOn && !c.owns(files[fd]):
				outside = true
			}
			locks[fd] = append(locks[fd], l)
		}
		if outside {
			add("its lock on %s, which is not a file of the cell alone", files[fd])
		}
		if goesOn && fd > interpreterFDs {
			if s := c.unkeptFile(fd, files[fd], info); s != "" {
				add("%s", s)
			}
		}
	}
	return files, locks, obstructed(kind, interp.Obstacles{Unkept: lost})
}

// interpreterFDs is the last of the descriptors that are the interpreter's own.
const interpreterFDs = 3

// unkeptFile says what a source that goes on would not have of one descriptor, ""
// if it has all of it.
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
	if unix.Lstat(procPath(pid, "root"+what), &again) != nil || again.Dev != st.Dev || again.Ino != st.Ino {
		return fmt.Sprintf("%s (descriptor %d), which cannot be opened again by that name", what, fd)
	}
	return ""
}

// unkeptMemory names memory that a fork does not get (MADV_DONTFORK). It reads all of
// the process's page tables, and so is called while the source still runs.
func (c *liveCell) unkeptMemory(kind cell.Kind) error {
	b, err := os.ReadFile(procPath(c.prog.proc.PID, "smaps"))
	if err != nil {
		return nil // a kernel without it
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
	return obstructed(kind, interp.Obstacles{Unkept: lost})
}

// memoryForked makes sure that the source's fork has all of its memory. The list of
// mappings is read of both, which does not take as long as unkeptMemory: that is asked
// when a mapping of the source is none of its fork's, which may be for other reasons.
func (b *branching) memoryForked() error {
	var seen [2][]mapping
	for i, pid := range []int{b.t.prog.PID, b.self.c.init.PID} {
		text, err := os.ReadFile(procPath(pid, "maps"))
		if err != nil {
			return unseenOf(err)
		}
		seen[i] = mappings(text)
	}
	for _, m := range seen[0] {
		if !slices.ContainsFunc(seen[1], m.isIn) {
			return b.old.unkeptMemory(cell.Conflict)
		}
	}
	return nil
}

// mapping is a line of /proc/PID/maps.
type mapping struct {
	start, end uint64
	what       string // permissions, offset, file
	grows      bool   // the heap, or the stack
}

// isIn reports whether a fork's mapping o is the mapping m of what was forked. A heap or
// stack may have grown since.
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

// owns reports whether a file lies where the cell alone has files: what is locked
// there is locked against processes of the cell only.
func (c *liveCell) owns(path string) bool {
	owned, longest := below(path, "/dev/shm"), 0
	for _, m := range c.w.Spec.Mounts {
		if below(path, m.Target) && len(m.Target) > longest && m.Kind != cell.Link && m.Kind != cell.Protect {
			owned, longest = m.Owned || m.Kind == cell.Overlay || m.Kind == cell.Tmpfs, len(m.Target)
		}
	}
	return owned
}

// unwaited are children of the interpreter that have ended and wait for it to take
// their exit status. An interpreter that is the first process of its cell is given
// those of others, too: they have a session of their own.
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
		list = append(list, strconv.Itoa(innerPID(child))+" "+strings.TrimSpace(string(name)))
	}
	return list
}

// statFields are those of /proc/PID/stat behind the name: state, parent, group, session.
func statFields(pid int) []string {
	b, _ := os.ReadFile(procPath(pid, "stat"))
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
}

// locksOf are the locks that a descriptor's fdinfo shows: kind, access, first byte and
// last, without what differs from process to process.
func locksOf(info []byte) (list []string) {
	for l := range bytes.Lines(info) { // lock: 1: POSIX ADVISORY WRITE 17 fe:00:4711 0 EOF
		if f := strings.Fields(string(l)); len(f) >= 9 && f[0] == "lock:" {
			list = append(list, strings.Join([]string{f[2], f[4], f[len(f)-2], f[len(f)-1]}, " "))
		}
	}
	return list
}

// locksAgain makes sure that a process has the locks that another had.
func locksAgain(pid int, had map[int][]string, files map[int]string) error {
	for _, fd := range slices.Sorted(maps.Keys(had)) {
		info, err := os.ReadFile(procPath(pid, "fdinfo/"+strconv.Itoa(fd)))
		has := locksOf(info)
		for _, l := range had[fd] {
			if err != nil || !slices.Contains(has, l) {
				return cell.Errorf(cell.Conflict, "namespace.Branch", "let go of the lock before, or "+cell.ForkSandbox,
					"cannot branch the cell: its interpreter did not take its lock on %s again (%s)", files[fd], l)
			}
		}
	}
	return nil
}

// pendingSignals names the signals that were sent to a process and that it has blocked.
// Others reach it before it is held.
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

// afterLine is what stands behind the first words of a line.
func afterLine(text []byte, words string) string {
	for l := range bytes.Lines(text) {
		if rest, ok := strings.CutPrefix(string(l), words); ok {
			return rest
		}
	}
	return ""
}

// boundSockets are the sockets in a process's network namespace that have a name in the
// file system and take what is sent to it: their paths by what a descriptor is called.
func boundSockets(pid int) map[string]string {
	b, _ := os.ReadFile(procPath(pid, "net/unix"))
	list := map[string]string{}
	for l := range bytes.Lines(b) { // Num: RefCount Protocol Flags Type St Inode Path
		f := strings.Fields(string(l))
		if len(f) < 8 || strings.HasPrefix(f[7], "@") { // no name, or one that is in no directory
			continue
		}
		flags, _ := strconv.ParseUint(f[3], 16, 32)
		if flags&(1<<16) != 0 || f[4] == "0002" { // it listens, or takes datagrams
			list["socket:["+f[6]+"]"] = strings.Join(f[7:], " ")
		}
	}
	return list
}
