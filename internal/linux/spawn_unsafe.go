package linux

import (
	"errors"
	"io"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reportFD is where a child writes what became of its script. Raise keeps the
// parent's files away from it.
const reportFD = 99

// These are no system calls: opReport makes the child send its probes and
// captures, opExit ends it.
const (
	opReport = ^uintptr(0)
	opExit   = ^uintptr(0) - 1
)

func (s *Script) address(b []byte) uintptr {
	if len(b) == 0 {
		return 0
	}
	s.keep = append(s.keep, b)
	return uintptr(unsafe.Pointer(&b[0]))
}

func (s *Script) addressOfWords(w []uintptr) uintptr {
	s.keep = append(s.keep, w)
	return uintptr(unsafe.Pointer(&w[0]))
}

// AddressOf makes v part of the script's memory and returns its address. v
// must be a pointer to plain data.
func AddressOf[T any](s *Script, v *T) uintptr {
	s.keep = append(s.keep, v)
	return uintptr(unsafe.Pointer(v))
}

// Child is a spawned process. Its script has come to its end: the program
// runs.
type Child struct {
	PID      int // in the caller's pid namespace
	PIDFD    *os.File
	Probes   []Outcome
	Captured map[string]string // by path
}

// SpawnOptions says how a child is forked.
type SpawnOptions struct {
	Flags    uintptr  // CLONE_NEW*
	PIDNS    int      // pidfd of a process whose pid namespace the child shall be in; 0 for our own
	CgroupFD *os.File // CLONE_INTO_CGROUP (v2); nil to stay
}

// Spawn forks and lets the child run script, which must end by executing
// something. It returns when the program has been executed or the child has
// failed (*ScriptError). The caller must be the only one that waits for the
// child, and must wait for it.
//
// The child is a plain copy-on-write fork of this process, made without the
// Go runtime knowing; in it only runScript runs, which makes raw system calls
// and touches nothing but the script.
func Spawn(script *Script, opt SpawnOptions) (*Child, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	r, w, err := reportPipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	defer w.Close()

	if opt.PIDNS != 0 {
		if err := unix.Setns(opt.PIDNS, unix.CLONE_NEWPID); err != nil {
			return nil, os.NewSyscallError("setns pid", err)
		}
		defer func() {
			if restoreErr := leavePIDNS(); restoreErr != nil {
				// The thread would fork into the wrong namespace: end it with its goroutine.
				runtime.LockOSThread()
			}
		}()
	}

	var pidfd int32 = -1
	args := cloneArgs{
		flags:      uint64(opt.Flags) | unix.CLONE_PIDFD,
		pidfd:      uint64(uintptr(unsafe.Pointer(&pidfd))),
		exitSignal: uint64(unix.SIGCHLD),
	}
	if opt.CgroupFD != nil {
		args.flags |= unix.CLONE_INTO_CGROUP
		args.cgroup = uint64(opt.CgroupFD.Fd())
	}
	pid, errno := forkAndRun(&args, script.ops, w.Fd())
	runtime.KeepAlive(script)
	runtime.KeepAlive(opt)
	if errno != 0 {
		return nil, os.NewSyscallError("clone3", errno)
	}
	w.Close()
	c := &Child{PID: int(pid), PIDFD: os.NewFile(uintptr(pidfd), "pidfd")}
	if err := c.readReport(r, script); err != nil {
		c.Kill()
		c.Wait()
		c.PIDFD.Close()
		return nil, err
	}
	return c, nil
}

// readReport reads until the child has executed its program (end of file) or
// said what failed.
func (c *Child) readReport(r *os.File, script *Script) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	done := false
	for len(b) >= 16 {
		i, errno := word(b), unix.Errno(word(b[8:]))
		b = b[16:]
		switch {
		case i == reportDone:
			done = true
		case i >= uintptr(len(script.ops)):
			return errors.New("cannot read the child's report")
		case script.ops[i].mode == capture:
			if int(errno) > len(b) {
				return errors.New("cannot read the child's report")
			}
			if c.Captured == nil {
				c.Captured = map[string]string{}
			}
			c.Captured[script.ops[i].name] = string(b[:errno])
			b = b[errno:]
		case script.ops[i].mode == record:
			c.Probes = append(c.Probes, Outcome{script.ops[i].name, errno})
		default:
			return &ScriptError{script.ops[i].name, errno}
		}
	}
	if !done {
		return &ScriptError{"set-up ended early", unix.ECHILD}
	}
	return nil
}

func word(b []byte) uintptr {
	var v uint64
	for i := range 8 {
		v |= uint64(b[i]) << (8 * i)
	}
	return uintptr(v)
}

// Kill sends SIGKILL to exactly this process, never to a later one with its
// number.
func (c *Child) Kill() error { return c.Signal(unix.SIGKILL) }

// Signal sends sig to the process.
func (c *Child) Signal(sig unix.Signal) error {
	return unix.PidfdSendSignal(int(c.PIDFD.Fd()), sig, nil, 0)
}

// Wait waits for the end and returns status and usage.
func (c *Child) Wait() (syscall.WaitStatus, syscall.Rusage, error) {
	var ws syscall.WaitStatus
	var ru syscall.Rusage
	for {
		_, err := syscall.Wait4(c.PID, &ws, 0, &ru)
		if err != syscall.EINTR {
			return ws, ru, err
		}
	}
}

// cloneArgs is struct clone_args of clone3(2).
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal uint64
	stack, stackSize, tls, setTID, setTIDSize     uint64
	cgroup                                        uint64
}

// forkAndRun forks; the child never returns from it.
//
//go:noinline
//go:norace
//go:nocheckptr
func forkAndRun(args *cloneArgs, ops []op, report uintptr) (pid uintptr, errno syscall.Errno) {
	var all, old uint64 = ^uint64(0), 0
	// No signal may reach a handler of the Go runtime in the child.
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&old)), 8, 0, 0)
	pid, _, errno = syscall.RawSyscall6(unix.SYS_CLONE3, uintptr(unsafe.Pointer(args)), unsafe.Sizeof(*args), 0, 0, 0, 0)
	if pid != 0 || errno != 0 {
		syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&old)), 0, 8, 0, 0)
		return pid, errno
	}
	runScript(ops, report)
	return 0, 0 // not reached
}

// reportDone in place of an index says that the program is about to be
// executed.
const reportDone = ^uintptr(0) - 2

// runScript executes the ops in the child. It must not call anything that
// may grow the stack, allocate or be preempted.
//
//go:nosplit
//go:norace
//go:nocheckptr
func runScript(ops []op, report uintptr) {
	var rec [2]uintptr
	var empty uint64
	if report != reportFD {
		syscall.RawSyscall(unix.SYS_DUP3, report, reportFD, unix.O_CLOEXEC)
	}
	// Handlers of the Go runtime become defaults, and signals may arrive again.
	var act [4]uint64 // struct sigaction: SIG_DFL
	for sig := uintptr(1); sig < 65; sig++ {
		syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0)
	}
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&empty)), 0, 8, 0, 0)

	var worst syscall.Errno // of execs: "not executable" tells more than "not there"
	for i := 0; i < len(ops); i++ {
		o := &ops[i]
		if o.nr == opReport {
			for j := 0; j < i; j++ {
				if ops[j].mode == record {
					rec[0], rec[1] = uintptr(j), ops[j].errno
					syscall.RawSyscall(syscall.SYS_WRITE, reportFD, uintptr(unsafe.Pointer(&rec)), 16)
				}
				if ops[j].mode == capture && ops[j].errno == 0 {
					rec[0], rec[1] = uintptr(j), ops[j].result
					syscall.RawSyscall(syscall.SYS_WRITE, reportFD, uintptr(unsafe.Pointer(&rec)), 16)
					buf := ops[j].args[1] // of read
					if ops[j].nr == unix.SYS_READLINKAT {
						buf = ops[j].args[2]
					}
					syscall.RawSyscall(syscall.SYS_WRITE, reportFD, buf, ops[j].result)
				}
			}
			continue
		}
		if o.nr == opExit {
			rec[0], rec[1] = reportDone, 0
			syscall.RawSyscall(syscall.SYS_WRITE, reportFD, uintptr(unsafe.Pointer(&rec)), 16)
			for {
				syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
			}
		}
		if o.nr == unix.SYS_EXECVE || o.nr == unix.SYS_EXECVEAT {
			if worst == 0 {
				rec[0], rec[1] = reportDone, 0
				_, _, e := syscall.RawSyscall(syscall.SYS_WRITE, reportFD, uintptr(unsafe.Pointer(&rec)), 16)
				if e != 0 {
					break // nobody waits for this child: its parent died before it could ask to follow
				}
				worst = syscall.ENOENT
			}
		}
		var a [6]uintptr
		for k := 0; k < 6; k++ {
			a[k] = o.args[k]
			if o.slots&(1<<k) != 0 {
				a[k] = ops[o.args[k]].result
			}
		}
		r, _, e := syscall.RawSyscall6(o.nr, a[0], a[1], a[2], a[3], a[4], a[5])
		o.result, o.errno = r, uintptr(e)
		if o.mode == mustFail {
			refused := false
			for w := o.want; w != 0; w >>= 8 {
				refused = refused || (e != 0 && uint64(e) == w&0xff)
			}
			if refused {
				continue
			}
		} else if e == 0 {
			continue
		}
		if o.mode == tryNext && (e == syscall.ENOENT || e == syscall.ENOTDIR || e == syscall.EACCES || e == syscall.ELOOP || e == syscall.ENAMETOOLONG) {
			if e == syscall.EACCES {
				worst = e
			}
			continue
		}
		if o.mode == mustWork || o.mode == mustFail || o.mode == tryNext {
			if worst != 0 && e == syscall.ENOENT {
				e = worst
			}
			rec[0], rec[1] = uintptr(i), uintptr(e)
			syscall.RawSyscall(syscall.SYS_WRITE, reportFD, uintptr(unsafe.Pointer(&rec)), 16)
			break
		}
	}
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 127, 0, 0)
	}
}
