package guest

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// trimUnit is the allocation unit of gVisor, in bytes.
const trimUnit = 2 << 20

// trim returns the zero pages, unit by unit: reading a page allocates its whole unit. The
// result is their size in bytes.
func (s span) trim() (given uintptr) {
	page := uintptr(os.Getpagesize())
	give := func(from, to uintptr) {
		if from < to {
			unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
			given += to - from
		}
	}
	for at := s.from; at < s.to; {
		end, zero := min(s.to, (at/trimUnit+1)*trimUnit), at
		for p := at; p < end; p += page {
			if !isZero(p, page) {
				give(zero, p)
				zero = p + page
			}
		}
		give(zero, end)
		at = end
	}
	return given
}

// isZero reports whether n bytes at an address are all zero; n is a multiple of 8.
func isZero(at, n uintptr) bool {
	for _, w := range unsafe.Slice(*(**uint64)(unsafe.Pointer(&at)), n/8) {
		if w != 0 {
			return false
		}
	}
	return true
}
