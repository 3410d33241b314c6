package linux

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// LandlockABI returns the version of Landlock that is on, 0 when none is.
func LandlockABI() int {
	v, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if e != 0 {
		return 0
	}
	return int(v)
}

// landlockCreate makes a ruleset, closed on exec. Fields that an older kernel
// does not know are zero then, which it accepts.
func landlockCreate(handled, scoped uint64) (int, error) {
	attr := struct{ fs, net, scoped uint64 }{handled, 0, scoped}
	fd, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if e != 0 {
		return -1, e
	}
	return int(fd), nil
}

func landlockAdd(ruleset, fd int, rights uint64) error {
	attr := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)} // packed in C: 12 bytes are read
	_, _, e := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&attr)), 0, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// Restrict puts the calling thread alone, and what it forks and executes from
// now on, into a new domain. The caller has locked the goroutine to its thread
// and set no_new_privs.
func (r *LandlockRuleset) Restrict() error {
	if _, _, e := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, r.File.Fd(), 0, 0); e != 0 {
		return e
	}
	return nil
}
