package linux

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Disconnect dissolves the connection of a socket, as connect(2) does when it is
// told no family: the other end of a TCP connection sees a reset.
func Disconnect(fd int) error {
	to := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&to)), unsafe.Sizeof(to))
	if errno != 0 {
		return errno
	}
	return nil
}
