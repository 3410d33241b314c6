package linux

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pidfdInfo is struct pidfd_info of linux/pidfd.h, in its first version.
type pidfdInfo struct {
	mask, cgroup                                                      uint64
	pid, tgid, ppid, ruid, rgid, euid, egid, suid, sgid, fsuid, fsgid uint32
	exit                                                              int32
}

const (
	pidfdGetInfo  = 0xc040ff0b // PIDFD_GET_INFO: _IOWR(0xff, 11, struct pidfd_info)
	pidfdInfoExit = 1 << 3     // PIDFD_INFO_EXIT
)

func pidfdExit(f *os.File) (int32, bool) {
	info := pidfdInfo{mask: pidfdInfoExit}
	c, err := f.SyscallConn()
	if err != nil {
		return 0, false
	}
	var errno unix.Errno
	if err := c.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	}); err != nil || errno != 0 || info.mask&pidfdInfoExit == 0 {
		return 0, false
	}
	return info.exit, true
}
