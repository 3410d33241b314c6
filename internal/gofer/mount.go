package gofer

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// Mount mounts files at target, a directory, with flags as mount(2) has them
// (MS_NOSUID, …), and returns what Relay carries messages of. Nothing answers
// before that. The kernel checks permissions, for all users.
func Mount(target string, flags uintptr) (dev *os.File, err error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		hint := ""
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
			hint = "load the kernel's module fuse"
		}
		return nil, cell.Errorf(cell.Unsupported, "gofer.Mount", hint, "cannot mount files: /dev/fuse: %w", err)
	}
	opts := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,default_permissions,allow_other,max_read=%d", fd, os.Getuid(), os.Getgid(), maxData)
	if err := unix.Mount("pando", target, "fuse", flags, opts); err != nil {
		unix.Close(fd)
		return nil, &os.PathError{Op: "mount", Path: target, Err: err}
	}
	// Only now: who waits for a device of no mount yet is never woken (Linux 6.1).
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

// ReadAhead lets the kernel read up to a message's size ahead below target; it
// needs /sys. Without, it reads 128 KiB ahead.
func ReadAhead(target string) error {
	var st unix.Stat_t
	if err := unix.Stat(target, &st); err != nil {
		return &os.PathError{Op: "stat", Path: target, Err: err}
	}
	path := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(st.Dev), unix.Minor(st.Dev))
	return os.WriteFile(path, []byte(fmt.Sprint(maxData>>10)), 0)
}
