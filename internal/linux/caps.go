package linux

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// LastCap is the highest capability this kernel knows.
func LastCap() int {
	b, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
			return n
		}
	}
	return unix.CAP_LAST_CAP
}

// KeepCaps makes the child, and what it executes, have the capabilities in keep (a
// bit set) and no others ever; last is the highest that this kernel knows. The
// ambient ones are what a user other than root has them by after an exec.
func (s *Script) KeepCaps(keep uint64, last int) {
	for c := 0; c <= last; c++ {
		if keep&(1<<c) == 0 {
			s.Call("drop capability", unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		}
	}
	s.Call("clear ambient capabilities", unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	s.capset(keep, keep)
	for c := 0; c <= last; c++ {
		if keep&(1<<c) != 0 {
			s.Call("keep capability", unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, c, 0, 0)
		}
	}
}

// SetCaps sets the effective and permitted capabilities, and empties the
// inheritable ones.
func (s *Script) SetCaps(keep uint64) { s.capset(keep, 0) }

func (s *Script) capset(keep, inherit uint64) {
	head := AddressOf(s, &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3})
	data := AddressOf(s, &[2]unix.CapUserData{
		{Effective: uint32(keep), Permitted: uint32(keep), Inheritable: uint32(inherit)},
		{Effective: uint32(keep >> 32), Permitted: uint32(keep >> 32), Inheritable: uint32(inherit >> 32)},
	})
	s.Call("capset", unix.SYS_CAPSET, head, data)
}

// NoNewPrivs makes sure that no exec can give the child more than it has.
func (s *Script) NoNewPrivs() {
	s.Call("no_new_privs", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// Limit sets both the soft and the hard resource limit.
func (s *Script) Limit(name string, resource int, soft, hard uint64) {
	s.Call("limit "+name, unix.SYS_PRLIMIT64, 0, resource, AddressOf(s, &unix.Rlimit{Cur: soft, Max: hard}), 0)
}

// IgnoreSIGCHLD lets the kernel reap the child's children; it survives an exec.
func (s *Script) IgnoreSIGCHLD() {
	act := AddressOf(s, &[4]uint64{1}) // struct sigaction: SIG_IGN
	s.Call("ignore SIGCHLD", unix.SYS_RT_SIGACTION, int(unix.SIGCHLD), act, 0, 8)
}

// Loopback brings the interface lo up.
func (s *Script) Loopback() {
	fd := s.Call("socket", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	req := make([]byte, 40) // struct ifreq
	copy(req, "lo")
	req[16] = unix.IFF_UP | unix.IFF_RUNNING
	s.Call("bring lo up", unix.SYS_IOCTL, fd, unix.SIOCSIFFLAGS, req)
	s.Call("close", unix.SYS_CLOSE, fd)
}
