package linux

import (
	"os"

	"golang.org/x/sys/unix"
)

// TunPath is where TUN devices are made.
const TunPath = "/dev/net/tun"

// OpenTun makes a TUN interface in the network namespace of this thread. Its
// packets are read from and written to the file, which doesn't block: one IP
// packet each, with nothing before it. The interface lives as long as the file.
// path is TunPath or a name of the same device.
func OpenTun(path, name string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: TunPath, Err: err}
	}
	r, err := unix.NewIfreq(name)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, r); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("TUNSETIFF", err)
	}
	return os.NewFile(uintptr(fd), "tun"), nil
}

// TunNode returns a device file of TUNs (O_PATH) that any process that receives it may
// open, through /proc/self/fd. The host's own file may be root's alone, and a keeper that
// root starts has no privileges. The opened device is useful only in a network namespace in
// which the process may make interfaces. The file is on a small unattached file system that
// vanishes with it. It needs root.
func TunNode() (*os.File, error) {
	// The first open of the device loads the kernel's module, if it is one.
	if f, err := os.OpenFile(TunPath, os.O_RDWR, 0); err != nil {
		return nil, err
	} else if err := f.Close(); err != nil {
		return nil, err
	}
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, os.NewSyscallError("fsconfig", err)
	}
	at, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsmount", err)
	}
	defer unix.Close(at)
	if err := unix.Mknodat(at, "tun", unix.S_IFCHR|0o600, int(unix.Mkdev(10, 200))); err != nil {
		return nil, os.NewSyscallError("mknod", err)
	}
	if err := unix.Fchmodat(at, "tun", 0o666, 0); err != nil { // whatever the umask is
		return nil, os.NewSyscallError("chmod", err)
	}
	fd, err := unix.Openat(at, "tun", unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, os.NewSyscallError("open", err)
	}
	return os.NewFile(uintptr(fd), "tun"), nil
}
