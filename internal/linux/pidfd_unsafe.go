package linux

import (
	"os"
	"syscall"
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

// pidfdAbout describes a living process (Linux 6.13): ESRCH if it is gone, ENOTTY on an older kernel.
func pidfdAbout(fd int) (info pidfdInfo, err error) {
	info.mask = 1 // PIDFD_INFO_PID
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), pidfdGetInfo, uintptr(unsafe.Pointer(&info))); e != 0 {
		return info, e
	}
	return info, nil
}

// ExitOfHandle is ExitStatus of a descriptor.
func ExitOfHandle(fd int) (syscall.WaitStatus, bool) {
	info := pidfdInfo{mask: pidfdInfoExit}
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	return syscall.WaitStatus(info.exit), e == 0 && info.mask&pidfdInfoExit != 0
}

func pidfdExit(f *os.File) (ws syscall.WaitStatus, ok bool) {
	c, err := f.SyscallConn()
	if err != nil {
		return 0, false
	}
	if cerr := c.Control(func(fd uintptr) { ws, ok = ExitOfHandle(int(fd)) }); cerr != nil {
		return 0, false
	}
	return ws, ok
}
