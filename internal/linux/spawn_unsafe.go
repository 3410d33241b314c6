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

// gateFD is what a child reads from at a gate.
const gateFD = 98

// These are no system calls: opReport makes the child send its probes and
// captures, opExit ends it, opGate makes it wait, opMatch compares memory.
const (
	opReport = ^uintptr(0)
	opExit   = ^uintptr(0) - 1
	opGate   = ^uintptr(0) - 3
	opMatch  = ^uintptr(0) - 4
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
	PIDNS    int      // pidfd of a process; the child gets its pid namespace. 0 for our own
	CgroupFD *os.File // CLONE_INTO_CGROUP (v2); nil to stay
	// Share lets the child share this process's memory until it executes its program. That
	// is faster than copying it, and holds the calling thread for as long. A process that
	// may inspect such a child may inspect this process: see PR_SET_DUMPABLE.
	Share bool
	// Gate is called when the child waits at its gate: it goes on if Gate
	// returns nil, else it is ended, and Spawn fails with that error. pid is the
	// child's; with Share it is not known yet, and 0.
	Gate func(pid int) error
}

// Spawn forks and lets the child run script, which must end by executing
// something. It returns when the program has been executed or the child has
// failed (*ScriptError). The caller must be the only one that waits for the
// child, and must wait for it.
//
// The child is a plain copy-on-write fork of this process, or one that shares
// its memory (Share), made without the Go runtime knowing; in it only runScript
// runs, which makes raw system calls and touches nothing but the script.
func Spawn(script *Script, opt SpawnOptions) (c *Child, err error) {
	if opt.PIDNS == 0 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		return spawn(script, opt)
	}
	elsewhere(func() {
		if serr := unix.Setns(opt.PIDNS, unix.CLONE_NEWPID); serr != nil {
			err = os.NewSyscallError("setns pid", serr)
			return
		}
		c, err = spawn(script, opt)
	})
	return c, err
}

func spawn(script *Script, opt SpawnOptions) (*Child, error) {
	r, w, err := reportPipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	defer w.Close()

	var gate [2]*os.File
	gateNumber := ^uintptr(0)
	if script.Gated {
		if gate[0], gate[1], err = reportPipe(); err != nil {
			return nil, err
		}
		defer gate[1].Close()
		gate[0], err = Raise(gate[0]) // the child's: where it has the report's number, that takes its place
		if err != nil {
			return nil, err
		}
		defer gate[0].Close()
		gateNumber = gate[0].Fd()
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
	c := &Child{}
	pass := func() error {
		if opt.Gate != nil {
			pid := 0
			if !opt.Share {
				pid = c.PID
			}
			if err := opt.Gate(pid); err != nil {
				return err
			}
		}
		_, err := gate[1].Write([]byte{1})
		return err
	}
	var pid uintptr
	var errno syscall.Errno
	report := func() error { return c.readReport(r, script, pass) }
	if opt.Share {
		args.flags |= unix.CLONE_VM | unix.CLONE_VFORK
		if script.Gated { // it comes back from its gate before we come back from clone3
			told := make(chan error, 1)
			go func() {
				err := c.readReport(r, script, pass)
				if err != nil {
					gate[1].Close() // nothing comes any more: it ends
				}
				told <- err
			}()
			report = func() error { return <-told }
		}
		pid, errno = shareAndRun(&args, script.ops, w.Fd(), gateNumber)
	} else {
		pid, errno = forkAndRun(&args, script.ops, w.Fd(), gateNumber)
	}
	runtime.KeepAlive(script)
	runtime.KeepAlive(opt)
	w.Close()
	if errno != 0 {
		report() // no child writes one: it is empty
		return nil, os.NewSyscallError("clone3", errno)
	}
	c.PID, c.PIDFD = int(pid), os.NewFile(uintptr(pidfd), "pidfd")
	// Other children are given it: it must be above their own numbers.
	if f, err := Raise(c.PIDFD); err == nil {
		c.PIDFD = f
	}
	if err := report(); err != nil {
		c.Kill()
		c.Wait()
		c.PIDFD.Close()
		return nil, err
	}
	return c, nil
}

// readReport reads until the child has executed its program (end of file) or
// said what failed.
func (c *Child) readReport(r *os.File, script *Script, pass func() error) error {
	var b []byte
	// more makes sure that n bytes are there, unless the report ends before.
	more := func(n int) (bool, error) {
		for len(b) < n {
			buf := make([]byte, 4096)
			k, err := r.Read(buf)
			b = append(b, buf[:k]...)
			if err == io.EOF {
				return false, nil
			}
			if err != nil {
				return false, err
			}
		}
		return true, nil
	}
	done := false
	for {
		if ok, err := more(16); err != nil {
			return err
		} else if !ok {
			break
		}
		i, errno := word(b), unix.Errno(word(b[8:]))
		b = b[16:]
		switch {
		case i == reportDone:
			done = true
		case i == reportGate:
			if err := pass(); err != nil {
				return err
			}
		case i >= uintptr(len(script.ops)):
			return errors.New("cannot read the child's report")
		case script.ops[i].mode == capture:
			if ok, err := more(int(errno)); err != nil || !ok {
				return errors.Join(errors.New("cannot read the child's report"), err)
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
func forkAndRun(args *cloneArgs, ops []op, report, gate uintptr) (pid uintptr, errno syscall.Errno) {
	var all, old uint64 = ^uint64(0), 0
	// No signal may reach a handler of the Go runtime in the child.
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&old)), 8, 0, 0)
	pid, _, errno = syscall.RawSyscall6(unix.SYS_CLONE3, uintptr(unsafe.Pointer(args)), unsafe.Sizeof(*args), 0, 0, 0, 0)
	if pid != 0 || errno != 0 {
		syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&old)), 0, 8, 0, 0)
		return pid, errno
	}
	runScript(ops, report, gate)
	return 0, 0 // not reached
}

// reportDone in place of an index says that the program is about to be
// executed, reportGate that the child waits at its gate.
const (
	reportDone = ^uintptr(0) - 2
	reportGate = ^uintptr(0) - 5
)

// runScript executes the ops in the child. It must not call anything that
// may grow the stack, allocate or be preempted.
//
//go:nosplit
//go:norace
//go:nocheckptr
func runScript(ops []op, report, gate uintptr) {
	var rec [2]uintptr
	var empty uint64
	if report != reportFD {
		syscall.RawSyscall(unix.SYS_DUP3, report, reportFD, unix.O_CLOEXEC)
	}
	if gate != ^uintptr(0) {
		syscall.RawSyscall(unix.SYS_DUP3, gate, gateFD, unix.O_CLOEXEC)
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
		if o.needs != 0 && ops[o.needs-1].errno != 0 {
			continue
		}
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
		if o.nr == opGate {
			rec[0], rec[1] = reportGate, 0
			syscall.RawSyscall(syscall.SYS_WRITE, reportFD, uintptr(unsafe.Pointer(&rec)), 16)
			n, _, e := syscall.RawSyscall(syscall.SYS_READ, gateFD, uintptr(unsafe.Pointer(&rec)), 1)
			for e == syscall.EINTR {
				n, _, e = syscall.RawSyscall(syscall.SYS_READ, gateFD, uintptr(unsafe.Pointer(&rec)), 1)
			}
			if n != 1 || e != 0 {
				break // it was not let through
			}
			continue
		}
		if o.nr == opMatch {
			same := true
			for k := uintptr(0); k < o.args[3]; k++ {
				have, mask, want := o.args[0]+k, o.args[1]+k, o.args[2]+k // addresses
				differ := **(**byte)(unsafe.Pointer(&have)) ^ **(**byte)(unsafe.Pointer(&want))
				same = same && differ&**(**byte)(unsafe.Pointer(&mask)) == 0
			}
			if same {
				continue
			}
			rec[0], rec[1] = uintptr(i), 0
			syscall.RawSyscall(syscall.SYS_WRITE, reportFD, uintptr(unsafe.Pointer(&rec)), 16)
			break
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
					break // no parent waits for this child: it died before it could ask to follow
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
		for e == syscall.EINTR && o.nr != unix.SYS_CLOSE { // a freeze or a stop interrupts a receive with a time limit, signal(7)
			r, _, e = syscall.RawSyscall6(o.nr, a[0], a[1], a[2], a[3], a[4], a[5])
		}
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
