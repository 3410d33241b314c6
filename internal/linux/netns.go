package linux

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// InNetNS runs f on a thread that is in the network namespace of the process
// behind pidfd, or with pidfd 0 in a new one, which lives as long as something
// holds it: a socket that f made, or a process. The thread is thrown away: a
// keeper could not bring it back to the host's namespace, where it has no
// rights.
func InNetNS(pidfd int, f func() error) error {
	return onThrownAway(func() error {
		if pidfd == 0 {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return os.NewSyscallError("unshare net", err)
			}
			return f()
		}
		if err := unix.Setns(pidfd, unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns net", err)
		}
		return f()
	})
}

// onThrownAway runs f on a thread that ends with it, and that is never the
// process's first: that one can't end, and would show f's namespaces as the
// process's own ever after.
func onThrownAway(f func() error) error {
	errc := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			errc <- f()
			return // locked: the thread ends, too
		}
		errc <- onThrownAway(f) // on another, as this one is taken
		runtime.UnlockOSThread()
	}()
	return <-errc
}

// InterfaceIndex is the number of an interface of this thread's namespace.
func InterfaceIndex(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq(name)
	if err != nil {
		return 0, err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, r); err != nil {
		return 0, os.NewSyscallError("SIOCGIFINDEX", err)
	}
	return int(r.Uint32()), nil
}

// HasIPv6 reports whether this kernel speaks IPv6.
func HasIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}
