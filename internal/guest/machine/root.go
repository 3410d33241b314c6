package machine

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A mount is a file system that the kernel makes.
type mount struct {
	fstype, target string
	flags          uintptr
	data           string
}

// kernelFiles mounts the file systems that the first process needs. The kernel may have mounted
// its devices already.
func kernelFiles() error {
	for _, m := range []mount{
		{"proc", "/proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sysfs", "/sys", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"devtmpfs", "/dev", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=0755"},
	} {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		if err := m.mount(""); err != nil && !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return nil
}

func (m mount) mount(root string) error {
	if err := unix.Mount(m.fstype, filepath.Join(root, m.target), m.fstype, m.flags, m.data); err != nil {
		return &os.PathError{Op: "mount " + m.fstype, Path: m.target, Err: err}
	}
	return nil
}

// A device is a node in /dev.
type device struct {
	name         string
	major, minor uint32
}

// devices are the devices of every cell, accessible to all users.
var devices = []device{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
}

// links are the symlinks in /dev, by name.
var links = [][2]string{
	{"ptmx", "pts/ptmx"}, {"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"},
}

// inside mounts /proc, /sys and /dev below a cell's root. /sys is optional.
func inside(root string) error {
	for _, m := range []mount{
		{"proc", "/proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sysfs", "/sys", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RDONLY, ""},
		{"tmpfs", "/dev", unix.MS_NOSUID, "mode=0755,size=64k"},
	} {
		os.Mkdir(root+m.target, 0o755) // if it fails, the mount reports the error
		if err := m.mount(root); err != nil && !(m.fstype == "sysfs" && errors.Is(err, unix.ENOENT)) {
			return err
		}
	}
	if err := fillDev(root + "/dev"); err != nil {
		return err
	}
	for _, m := range []mount{
		{"devpts", "/dev/pts", unix.MS_NOSUID | unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"},
		{"tmpfs", "/dev/shm", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
	} {
		if err := m.mount(root); err != nil {
			return err
		}
	}
	if err := RunDir(root); err != nil {
		return err
	}
	return os.NewSyscallError("protect /dev", unix.Mount("", root+"/dev", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID, ""))
}

// fillDev creates everything in /dev except mounts. confine.CoverProc uses the empty directory
// to cover parts of /proc.
func fillDev(dev string) error {
	for _, d := range devices {
		at := filepath.Join(dev, d.name)
		if err := unix.Mknod(at, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return &os.PathError{Op: "mknod", Path: at, Err: err}
		}
		if err := os.Chmod(at, 0o666); err != nil { // independent of the umask
			return err
		}
	}
	for _, d := range []struct {
		name string
		mode os.FileMode
	}{{".empty", 0o555}, {"pts", 0o755}, {"shm", 0o777 | os.ModeSticky}} {
		if err := os.Mkdir(filepath.Join(dev, d.name), d.mode); err != nil {
			return err
		}
	}
	for _, l := range links {
		if err := os.Symlink(l[1], filepath.Join(dev, l[0])); err != nil {
			return err
		}
	}
	return nil
}

// switchRoot makes dir, a mount point, the root. pivot_root(2) cannot leave an initramfs.
func switchRoot(dir string) error {
	if err := unix.Chdir(dir); err != nil {
		return os.NewSyscallError("chdir", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return os.NewSyscallError("move the root", err)
	}
	if err := unix.Chroot("."); err != nil {
		return os.NewSyscallError("chroot", err)
	}
	return os.NewSyscallError("chdir", unix.Chdir("/"))
}
