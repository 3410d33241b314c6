package linux

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What PAGEMAP_SCAN knows of a page (linux/fs.h).
const (
	PageWritten = 1 << 1 // not write-protected by a userfaultfd
	PageFile    = 1 << 2 // a file's, or shared
	PagePresent = 1 << 3
	PageSwapped = 1 << 4
	PageZero    = 1 << 5 // the page of zeros that the kernel shows where nothing was written
)

// PageRange is a run of pages of a process, from Start to before End.
type PageRange struct {
	Start, End uint64
	What       uint64
}

// PageScan says which pages are meant: those that are all of All, none of None, and
// one of Any.
type PageScan struct {
	All, None, Any uint64
	// Protect write-protects every page that is found, in the same step, so that a later
	// write is found again. It needs a userfaultfd of that memory with recorded writes.
	Protect bool
}

// scanArg is struct pm_scan_arg of linux/fs.h.
type scanArg struct {
	size, flags, start, end, walkEnd      uint64
	vec                                   unsafe.Pointer // of 64 bits wherever pando is built
	vecLen, maxPages                      uint64
	inverted, mask, anyOfMask, returnMask uint64
}

const (
	pagemapScan    = 0xc0606610 // PAGEMAP_SCAN: _IOWR('f', 16, struct pm_scan_arg)
	scanProtect    = 1 << 0     // PM_SCAN_WP_MATCHING
	scanWrittenToo = 1 << 1     // PM_SCAN_CHECK_WPASYNC: fail where writes aren't recorded
)

// ScanPages fills to with pages between two addresses, in their order, and returns
// how many ranges these are and the address at which to go on. pagemap is
// /proc/PID/pagemap. It needs Linux 6.7; earlier ones say ENOTTY.
func ScanPages(pagemap *os.File, start, end uint64, s PageScan, to []PageRange) (n int, next uint64, err error) {
	a := scanArg{
		start: start, end: end, vec: unsafe.Pointer(unsafe.SliceData(to)), vecLen: uint64(len(to)),
		inverted: s.None, mask: s.All | s.None, anyOfMask: s.Any,
		returnMask: PageFile, // the same for all that are found, so that they are one range
	}
	if s.None|s.Any == 0 { // they may be anything else
		a.returnMask = s.All
	}
	a.size = uint64(unsafe.Sizeof(a))
	if s.Protect {
		a.flags |= scanProtect
	}
	if s.All&PageWritten != 0 {
		a.flags |= scanWrittenToo
	}
	c, err := pagemap.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var r uintptr
	var errno unix.Errno
	if err := c.Control(func(fd uintptr) {
		r, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, pagemapScan, uintptr(unsafe.Pointer(&a)))
	}); err != nil {
		return 0, 0, err
	}
	if errno != 0 {
		return 0, 0, os.NewSyscallError("PAGEMAP_SCAN", errno)
	}
	return int(r), a.walkEnd, nil
}
