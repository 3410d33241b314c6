package linux

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Script is a list of raw system calls, prepared in Go and executed in a
// forked child where no Go code may run (see Spawn). It is how a child joins
// namespaces, builds a root file system, drops its privileges and executes a
// program.
//
// A call must succeed unless it is marked otherwise; the first that fails ends
// the child, and Spawn reports its name and error. The result of a call can be
// an argument of later ones (Slot).
type Script struct {
	// Gated scripts may have a Gate. It is set before anything is added.
	Gated bool
	// Slack is how late timers of what is executed may be; 0 is the kernel's default.
	Slack time.Duration

	ops  []op
	keep []any // memory the ops point into
}

// op is one system call. It is read in the child, so it holds no pointers
// that Go would have to follow.
type op struct {
	nr     uintptr
	args   [6]uintptr
	want   uint64 // mustFail: up to eight errnos, one byte each
	slots  uint8  // bit i: args[i] is the index of an earlier op, and stands for its result
	mode   uint8
	needs  Slot    // the index of an earlier op, plus 1: without its success this one is left out; 0: always
	result uintptr // in the child: what the call returned
	errno  uintptr
	name   string
}

const (
	mustWork = iota
	mayFail  // go on whatever happens
	record   // go on, and keep the errno for Report
	mustFail // a canary: the call must be refused
	capture  // a read: go on, and keep the bytes for Report
	tryNext  // an exec: go on if the file is not there or not executable
)

// Slot stands for the result of an earlier call of the same script.
type Slot int

// Call adds a system call. Arguments are integers, uintptr, Slot, string
// (passed as a NUL-terminated address), []byte (address of the first byte),
// or nil.
func (s *Script) Call(name string, nr uintptr, args ...any) Slot {
	return s.add(mustWork, name, nr, args...)
}

// Try adds a call that may fail.
func (s *Script) Try(name string, nr uintptr, args ...any) Slot {
	return s.add(mayFail, name, nr, args...)
}

// Refused adds a call that must fail with one of errnos (at most eight): a
// canary. When it works, or fails otherwise, the script ends there.
func (s *Script) Refused(name string, errnos []unix.Errno, nr uintptr, args ...any) Slot {
	at := s.add(mustFail, name, nr, args...)
	for i, e := range errnos {
		s.ops[at].want |= uint64(e) << (8 * i)
	}
	return at
}

// Probe adds a call that never ends the script. Report sends its outcome to the parent.
func (s *Script) Probe(name string, nr uintptr, args ...any) Slot {
	return s.add(record, name, nr, args...)
}

func (s *Script) add(mode uint8, name string, nr uintptr, args ...any) Slot {
	o := op{nr: nr, mode: mode, name: name}
	for i, a := range args {
		switch v := a.(type) {
		case nil:
		case int:
			o.args[i] = uintptr(v)
		case int32:
			o.args[i] = uintptr(v)
		case int64:
			o.args[i] = uintptr(v)
		case uint16:
			o.args[i] = uintptr(v)
		case uint32:
			o.args[i] = uintptr(v)
		case uint64:
			o.args[i] = uintptr(v)
		case uintptr:
			o.args[i] = v
		case Slot:
			o.args[i] = uintptr(v)
			o.slots |= 1 << i
		case string:
			o.args[i] = s.cstring(v)
		case []byte:
			o.args[i] = s.address(v)
		default:
			panic(fmt.Sprintf("linux.Script: argument of type %T", a))
		}
	}
	s.ops = append(s.ops, o)
	return Slot(len(s.ops) - 1)
}

// Len is the number of calls.
func (s *Script) Len() int { return len(s.ops) }

func (s *Script) cstring(v string) uintptr {
	b := make([]byte, len(v)+1)
	copy(b, v)
	return s.address(b)
}

// AtCWD is AT_FDCWD as an argument of a call.
const AtCWD = uintptr(math.MaxUint64 - 99)

// Stdio makes the three files the child's standard streams and closes every
// other descriptor except those in keep, which stay where they are. All must
// have been raised above the low numbers (see Raise).
func (s *Script) Stdio(files [3]*os.File, keep ...*os.File) {
	for i, f := range files {
		if f != nil {
			s.Call("dup3", unix.SYS_DUP3, int(f.Fd()), i, 0)
		} else {
			s.Try("close", unix.SYS_CLOSE, i)
		}
	}
	s.CloseOthers(3, keep...)
}

// CloseOthers closes all descriptors from first on, except keep, the report
// pipe and the gate.
func (s *Script) CloseOthers(first int, keep ...*os.File) {
	nums := []int{reportFD}
	if s.Gated {
		nums = append(nums, gateFD)
	}
	for _, f := range keep {
		nums = append(nums, int(f.Fd()))
	}
	for i := range nums { // insertion sort: the list is short
		for j := i; j > 0 && nums[j-1] > nums[j]; j-- {
			nums[j-1], nums[j] = nums[j], nums[j-1]
		}
	}
	from := first
	for _, n := range nums {
		if n > from {
			s.Call("close_range", unix.SYS_CLOSE_RANGE, from, n-1, 0)
		}
		if n >= from {
			from = n + 1
		}
	}
	s.Call("close_range", unix.SYS_CLOSE_RANGE, from, uintptr(math.MaxUint32), 0)
}

// WriteTo adds a write of text to an open descriptor.
func (s *Script) WriteTo(name string, fd int, text string) {
	b := []byte(text)
	s.Call(name, unix.SYS_WRITE, fd, b, len(b))
}

// WriteFile opens path, writes text and closes it.
func (s *Script) WriteFile(path, text string) {
	fd := s.Call("open "+path, unix.SYS_OPENAT, AtCWD, path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	b := []byte(text)
	s.Call("write "+path, unix.SYS_WRITE, fd, b, len(b))
	s.Call("close", unix.SYS_CLOSE, fd)
}

// Mkdir makes a directory; it may exist.
func (s *Script) Mkdir(path string, mode uint32) {
	s.Try("mkdir "+path, unix.SYS_MKDIRAT, AtCWD, path, mode)
}

// Symlink makes path a symlink to target; something may be there already.
func (s *Script) Symlink(target, path string) {
	s.Try("symlink "+path, unix.SYS_SYMLINKAT, target, AtCWD, path)
}

// Mount is mount(2).
func (s *Script) Mount(source, target, fstype string, flags uintptr, data string) {
	var d any
	if data != "" {
		d = data
	}
	s.Call("mount "+target, unix.SYS_MOUNT, source, target, fstype, flags, d)
}

// OpenPlain opens path (O_PATH), which must be there and be reached without
// any symlink.
func (s *Script) OpenPlain(path string) Slot {
	how := make([]byte, 24) // struct open_how {flags, mode, resolve uint64}
	putUint64(how[0:], unix.O_PATH|unix.O_CLOEXEC)
	putUint64(how[16:], unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS)
	return s.Call("open "+path, unix.SYS_OPENAT2, AtCWD, path, how, len(how))
}

// In opens the directory of path without following any symlink, lets act make path's last
// component in it, and closes it. A directory that another user may have written to must
// be entered only like this: a symlink in it could lead anywhere, also to files that are
// about to be removed.
func (s *Script) In(path string, act func(dir Slot, name string)) {
	dir, name := filepath.Split(path)
	at := s.OpenPlain(filepath.Clean(dir))
	act(at, name)
	s.Call("close", unix.SYS_CLOSE, at)
}

// Attach moves the detached mount fd (a number, or a Slot) to target, which must exist and be
// reached without any symlink.
func (s *Script) Attach(fd any, target string) {
	at := s.OpenPlain(target)
	s.Call("attach "+target, unix.SYS_MOVE_MOUNT, fd, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	s.Call("close", unix.SYS_CLOSE, at)
}

// FSMount makes a detached mount of a new file system. Its namespaces are those of the
// child at this place of the script.
func (s *Script) FSMount(fstype string, attr int) Slot {
	fs := s.Call("open "+fstype, unix.SYS_FSOPEN, fstype, unix.FSOPEN_CLOEXEC)
	s.Call("make "+fstype, unix.SYS_FSCONFIG, fs, unix.FSCONFIG_CMD_CREATE, nil, nil, 0)
	at := s.Call("mount "+fstype, unix.SYS_FSMOUNT, fs, unix.FSMOUNT_CLOEXEC, attr)
	s.Call("close", unix.SYS_CLOSE, fs)
	return at
}

// Report sends the outcome of every Probe so far to the parent. It must stand
// before the descriptors it needs are gone and after the last Probe.
func (s *Script) Report() {
	s.ops = append(s.ops, op{nr: opReport, name: "report"})
}

// Capture reads up to max bytes of path as the child sees it and hands them
// to the parent at the next Report.
func (s *Script) Capture(path string, max int) {
	fd := s.Call("open "+path, unix.SYS_OPENAT, AtCWD, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	b := make([]byte, max)
	s.ops = append(s.ops, op{nr: unix.SYS_READ, mode: capture, name: path, args: [6]uintptr{uintptr(fd), s.address(b), uintptr(max)}, slots: 1})
	s.Call("close", unix.SYS_CLOSE, fd)
}

// CaptureRead reads up to max bytes of an open file and hands them to the parent
// at the next Report, under a name.
func (s *Script) CaptureRead(name string, fd Slot, max int) {
	b := make([]byte, max)
	s.ops = append(s.ops, op{nr: unix.SYS_READ, mode: capture, name: name, args: [6]uintptr{uintptr(fd), s.address(b), uintptr(max)}, slots: 1})
}

// CaptureLink hands what a symlink says, as the child sees it, to the parent
// at the next Report.
func (s *Script) CaptureLink(path string, max int) {
	b := make([]byte, max)
	s.ops = append(s.ops, op{nr: unix.SYS_READLINKAT, mode: capture, name: path, args: [6]uintptr{AtCWD, s.cstring(path), s.address(b), uintptr(max)}})
}

// Gate holds the child until SpawnOptions.Gate lets it go on. Everything that it
// had to report before is known there.
func (s *Script) Gate() { s.ops = append(s.ops, op{nr: opGate, name: "gate"}) }

// Match compares the memory of buf, which an earlier call has filled, with want
// where the bits of mask are set. When they differ, the script ends there like
// at a canary that was not refused.
func (s *Script) Match(name string, buf, mask, want []byte) {
	s.ops = append(s.ops, op{nr: opMatch, name: name, args: [6]uintptr{s.address(buf), s.address(mask), s.address(want), uintptr(len(want))}})
}

// Exit ends the child without executing anything: the script was all it had
// to do.
func (s *Script) Exit() { s.ops = append(s.ops, op{nr: opExit, name: "exit"}) }

// Exec adds one execve per candidate path; the first that exists wins. When
// none does, the child fails with the most telling error.
func (s *Script) Exec(candidates []string, args, env []string) {
	s.timers()
	argv, envp := s.vector(args), s.vector(env)
	for i, c := range candidates {
		mode := uint8(tryNext)
		if i == len(candidates)-1 {
			mode = mustWork
		}
		s.add(mode, ExecOp+c, unix.SYS_EXECVE, c, argv, envp)
	}
}

// ExecFD executes the open file fd.
func (s *Script) ExecFD(fd int, args, env []string) {
	s.timers()
	s.Call(ExecOp, unix.SYS_EXECVEAT, fd, "", s.vector(args), s.vector(env), unix.AT_EMPTY_PATH)
}

// timers sets the timer slack of the program that is executed, which would otherwise
// inherit that of its parent (see CoarseTimers). On other kernels it does nothing: gVisor's
// does not know this call, and reports its use.
func (s *Script) timers() {
	if s.Slack == 0 && !coarse.Load() {
		return
	}
	s.Try("timers", unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, int(cmp.Or(s.Slack, defaultSlack).Nanoseconds()), 0, 0, 0)
}

// ExecOp begins the name of the calls that execute the program, so that a
// ScriptError can tell a missing program from a set-up that failed.
const ExecOp = "exec "

func (s *Script) vector(list []string) uintptr {
	ptrs := make([]uintptr, len(list)+1)
	for i, v := range list {
		ptrs[i] = s.cstring(v)
	}
	return s.addressOfWords(ptrs)
}

// ScriptError says which call of a script failed.
type ScriptError struct {
	Call  string
	Errno unix.Errno
}

func (e *ScriptError) Error() string {
	if e.Errno == 0 {
		return e.Call + ": was not refused"
	}
	return fmt.Sprintf("%s: %v", e.Call, e.Errno)
}

// Unwrap returns the errno.
func (e *ScriptError) Unwrap() error { return e.Errno }

// IsExec reports whether the program itself could not be executed.
func (e *ScriptError) IsExec() bool { return strings.HasPrefix(e.Call, ExecOp) }

// Outcome is what a Probe found.
type Outcome struct {
	Name  string
	Errno unix.Errno // 0: the call worked
}

func putUint64(b []byte, v uint64) {
	for i := range 8 {
		b[i] = byte(v >> (8 * i))
	}
}
