package linux

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// userOnly is UFFD_USER_MODE_ONLY: what everybody may ask for. Recording writes
// doesn't depend on who writes.
const userOnly = 1

// UserfaultOf returns a userfaultfd of another process's memory. The kernel makes one
// only for who asks, so one of its threads is stopped for some 100 µs and made to ask;
// we take what it got, and have the thread close its own. That thread's registers,
// signals and interrupted call are as before. It must not be the first thread: whoever
// waits for that process's end would hear of the stop.
//
// It needs the right to trace that process, and fails with ENOSYS where this isn't
// written for the processor, with EPERM if the process is traced or may not ask.
func UserfaultOf(pid int) (*os.File, error) {
	type result struct {
		f   *os.File
		err error
	}
	done := make(chan result, 1)
	go func() {
		// Tracing is a thread's business. It ends here, and whatever it traces then
		// is let go.
		runtime.LockOSThread()
		f, err := userfaultOf(pid)
		done <- result{f, err}
	}()
	r := <-done
	if r.err != nil {
		return nil, fmt.Errorf("cannot make process %d ask for a userfaultfd: %w", pid, r.err)
	}
	return r.f, nil
}

func userfaultOf(pid int) (_ *os.File, err error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(pidfd)
	b, err := borrow(pid)
	if err != nil {
		return nil, err
	}
	defer func() {
		if back := b.giveBack(); err == nil {
			err = back
		}
	}()
	theirs, err := b.call(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|userOnly)
	if err != nil {
		return nil, os.NewSyscallError("userfaultfd", err)
	}
	fd, err := unix.PidfdGetfd(pidfd, int(theirs), 0)
	if _, gone := b.call(unix.SYS_CLOSE, theirs); err == nil && gone != nil {
		unix.Close(fd)
		err = gone
	}
	if err != nil {
		return nil, os.NewSyscallError("pidfd_getfd", err)
	}
	return os.NewFile(uintptr(fd), "userfaultfd"), nil
}
