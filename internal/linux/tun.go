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

// TunNode returns a device file of TUNs (O_PATH) that everybody may open to
// whom it is passed, through /proc/self/fd: the host's own may be root's alone,
// and a keeper of root's is nobody. What it opens is worth something only in a
// network namespace in which it may make interfaces. The file is on a small file
// system that nobody sees and that vanishes with it. It needs root.
func TunNode() (*os.File, error) {
	// The kernel's module is loaded, if it is one, by whoever opens the device.
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
