package linux

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of linux/userfaultfd.h.
const (
	userfaultAPI      = 0xc018aa3f // UFFDIO_API: _IOWR(0xAA, 0x3f, struct uffdio_api)
	userfaultRegister = 0xc020aa00 // UFFDIO_REGISTER: _IOWR(0xAA, 0, struct uffdio_register)
	userfaultForget   = 0x8010aa01 // UFFDIO_UNREGISTER: _IOR(0xAA, 1, struct uffdio_range)
	userfaultVersion  = 0xaa
	userfaultWrites   = 1 << 15 // UFFD_FEATURE_WP_ASYNC
	userfaultProtect  = 1 << 1  // UFFDIO_REGISTER_MODE_WP
)

// RecordWrites makes a fresh userfaultfd record writes without stopping any: a write to a
// protected page continues at once and removes the page's protection (see ScanPages). It
// needs Linux 6.7; earlier ones return EINVAL.
func RecordWrites(userfault *os.File) error {
	api := struct{ api, features, ioctls uint64 }{userfaultVersion, userfaultWrites, 0}
	return ioctlOf(userfault, "UFFDIO_API", userfaultAPI, unsafe.Pointer(&api))
}

// RecordWritesTo registers addresses with a userfaultfd of RecordWrites. Nothing in
// there is protected yet. All of it ends when the last descriptor is closed.
func RecordWritesTo(userfault *os.File, start, end uint64) error {
	r := struct{ start, len, mode, ioctls uint64 }{start, end - start, userfaultProtect, 0}
	return ioctlOf(userfault, "UFFDIO_REGISTER", userfaultRegister, unsafe.Pointer(&r))
}

// ForgetWritesTo undoes RecordWritesTo, of a part of it or all. The process can change
// nothing about its mappings meanwhile, and waits in page faults.
func ForgetWritesTo(userfault *os.File, start, end uint64) error {
	r := struct{ start, len uint64 }{start, end - start}
	return ioctlOf(userfault, "UFFDIO_UNREGISTER", userfaultForget, unsafe.Pointer(&r))
}

func ioctlOf(f *os.File, name string, request uintptr, arg unsafe.Pointer) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var errno unix.Errno
	if err := c.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(arg))
	}); err != nil {
		return err
	}
	if errno != 0 {
		return os.NewSyscallError(name, errno)
	}
	return nil
}
