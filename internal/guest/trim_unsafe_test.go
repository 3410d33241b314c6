package guest

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

func spanOf(b []byte) span {
	at := uintptr(unsafe.Pointer(&b[0]))
	return span{at, at + uintptr(len(b))}
}

func mincore(b, resident []byte) error {
	_, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&resident[0])))
	if e != 0 {
		return e
	}
	return nil
}
