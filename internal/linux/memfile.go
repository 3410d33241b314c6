package linux

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// MemoryFile makes an empty file in memory that can be sealed. One that is executed is
// executable.
func MemoryFile(name string, executable bool) (*os.File, error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	if executable {
		flags |= unix.MFD_EXEC
	}
	fd, err := unix.MemfdCreate(name, flags)
	if err == unix.EINVAL && executable { // before Linux 6.3 there is no MFD_EXEC, and no need for it
		fd, err = unix.MemfdCreate(name, flags&^unix.MFD_EXEC)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// AllSeals are the seals of a file in memory that can't change any more.
const AllSeals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE

// Seal makes a file in memory immutable.
func Seal(f *os.File) error {
	return seal(f, func() { time.Sleep(50 * time.Millisecond) })
}

// sealTries bounds how often a file that is in use is tried to be sealed. With what the kernel
// itself waits, it is some seconds.
const sealTries = 25

// seal is Seal. wait is called between two tries.
//
// The kernel refuses with EBUSY while anything else holds a page of the file: a writer's
// mapping, and for a moment also the kernel where it moves pages (compaction) or has yet to put
// them on its lists. It waits for that itself, but for some 75 ms only, which a loaded machine
// exceeds (memfd_wait_for_pins in mm/memfd.c).
func seal(f *os.File, wait func()) (err error) {
	for n := range sealTries {
		if n > 0 {
			wait()
		}
		if _, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, AllSeals); err != unix.EBUSY && err != unix.EINTR {
			break
		}
	}
	return os.NewSyscallError("seal", err)
}
