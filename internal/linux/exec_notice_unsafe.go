package linux

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// setFilter is seccomp(SECCOMP_SET_MODE_FILTER).
func setFilter(flags, address uintptr) error {
	if _, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, address); e != 0 {
		return e
	}
	return nil
}

// messageWithFile makes a message with one byte and a file in the script's memory, and returns its address.
func messageWithFile(s *Script, fd int) uintptr {
	payload, rights := []byte{0}, unix.UnixRights(fd)
	iov := &unix.Iovec{Base: &payload[0]}
	iov.SetLen(1)
	m := &unix.Msghdr{Iov: iov, Control: &rights[0]}
	m.SetIovlen(1)
	m.SetControllen(len(rights))
	s.keep = append(s.keep, payload, rights, iov)
	return AddressOf(s, m)
}

// struct seccomp_notif and seccomp_notif_resp of linux/seccomp.h.
type (
	seccompNotice struct {
		id         uint64
		pid, flags uint32
		nr         int32
		arch       uint32
		at         uint64
		args       [6]uint64
		_          [4096 - 80]byte // what a newer kernel adds
	}
	seccompAnswer struct {
		id    uint64
		val   int64
		error int32
		flags uint32
	}
)

const (
	noticeValid    = 0x40082102 // SECCOMP_IOCTL_NOTIF_ID_VALID
	noticeSetFlags = 0x40082104 // SECCOMP_IOCTL_NOTIF_SET_FLAGS
)

// An ExecListener receives notices of processes that wait for their execve. It serves one goroutine. While it is
// open every such call waits for an answer; when it is closed they fail with ENOSYS.
type ExecListener struct {
	fd     int
	notice seccompNotice
}

// NewExecListener takes the listener of a script.
func NewExecListener(fd int) *ExecListener {
	// The waiting process is woken on the processor of the answer (Linux 6.6).
	unix.Syscall(unix.SYS_IOCTL, uintptr(fd), noticeSetFlags, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
	return &ExecListener{fd: fd}
}

// Receive returns the next notice, which is there when the listener can be read. ENOENT: the process has been
// killed meanwhile.
func (l *ExecListener) Receive() (n ExecNotice, err error) {
	l.notice = seccompNotice{}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&l.notice))); e != 0 {
		return n, e
	}
	q := &l.notice
	n = ExecNotice{id: q.id, TID: int(q.pid), path: q.args[0], Call: ExecCall{At: q.at, Words: q.args[1], Vars: q.args[2]}}
	if int(q.nr) == unix.SYS_EXECVEAT {
		n.path, n.Call.Words, n.Call.Vars = q.args[1], q.args[2], q.args[3]
	}
	return n, nil
}

// Valid reports whether the process of a notice still waits: what was read of its number before is of that process.
func (l *ExecListener) Valid(n ExecNotice) bool {
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), noticeValid, uintptr(unsafe.Pointer(&n.id)))
	return e == 0
}

// Continue lets the process go on with its call.
func (l *ExecListener) Continue(n ExecNotice) {
	a := seccompAnswer{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&a)))
}
