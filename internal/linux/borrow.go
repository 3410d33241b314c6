package linux

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// borrowing makes a thread of another process run calls for f, and resumes it.
func borrowing(pid int, f func(*borrowed) error) error {
	done := make(chan error, 1)
	go func() {
		// A tracer is a thread. This one ends here, which releases whatever it traces.
		runtime.LockOSThread()
		b, err := borrow(pid)
		if err == nil {
			err = f(b)
			if back := b.giveBack(); err == nil {
				err = back
			}
		}
		done <- err
	}()
	return <-done
}

// MapBlank makes another process map new memory, private and without huge pages, at ranges
// of its addresses, in place of the old mappings. Requirements and errors are those of
// UserfaultOf.
func MapBlank(pid int, ranges []PageRange) error {
	err := borrowing(pid, func(b *borrowed) error {
		for _, r := range ranges {
			_, err := b.call(unix.SYS_MMAP, r.Start, r.End-r.Start, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED|unix.MAP_NORESERVE, ^uint64(0), 0)
			if err != nil {
				return os.NewSyscallError("mmap", err)
			}
			if _, err = b.call(unix.SYS_MADVISE, r.Start, r.End-r.Start, unix.MADV_NOHUGEPAGE); err != nil && err != unix.EINVAL { // a kernel without any
				return os.NewSyscallError("madvise", err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot make process %d map memory: %w", pid, err)
	}
	return nil
}
