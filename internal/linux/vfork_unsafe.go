package linux

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// vforkClone3 is clone3(2) for a child that shares memory and stack with this
// thread, which stands still until the child executes something or ends.
func vforkClone3(args, size uintptr) (pid, errno uintptr)

// The runtime lets the other goroutines have this thread's turn meanwhile, as in any
// long system call: a child that is stopped (by a process in its cell) holds up this
// goroutine and nothing else.
//
//go:linkname entersyscall runtime.entersyscall
func entersyscall()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()

// shareAndRun is forkAndRun for a child that shares our memory until it
// executes its program (CLONE_VM|CLONE_VFORK): nothing of it is copied. The
// out-of-memory killer passes over such a child, so that a cell at its limit
// does not take its keeper along. The child writes to the script's own results
// and to the stack below this function, and to nothing else; between entersyscall
// and exitsyscall nothing may grow the stack.
//
//go:noinline
//go:norace
//go:nocheckptr
func shareAndRun(args *cloneArgs, ops []op, report, gate uintptr) (pid uintptr, errno syscall.Errno) {
	var all, old uint64 = ^uint64(0), 0
	// No signal may reach a handler of the Go runtime in the child.
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&old)), 8, 0, 0)
	entersyscall()
	pid, e := vforkClone3(uintptr(unsafe.Pointer(args)), unsafe.Sizeof(*args))
	if pid == 0 {
		runScript(ops, report, gate)
	}
	exitsyscall()
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&old)), 0, 8, 0, 0)
	return pid, syscall.Errno(e)
}
