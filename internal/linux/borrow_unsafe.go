//go:build amd64

package linux

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// signals reads or writes which signals the thread blocks.
func (b *borrowed) signals(request uintptr, mask *uint64) error {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, request, uintptr(b.tid), unsafe.Sizeof(*mask), uintptr(unsafe.Pointer(mask)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
