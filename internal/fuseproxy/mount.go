package fuseproxy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// Mount mounts files at target, a directory, with flags as in mount(2) (MS_NOSUID, …). It
// returns the device for a Courier. No request is answered before that. The kernel checks
// permissions, for all users.
func Mount(target string, flags uintptr) (dev *os.File, err error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		hint := ""
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
			hint = "load the kernel's module fuse"
		}
		return nil, cell.Errorf(cell.Unsupported, "fuseproxy.Mount", hint, "cannot mount files: /dev/fuse: %w", err)
	}
	opts := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,default_permissions,allow_other,max_read=%d", fd, os.Getuid(), os.Getgid(), maxData)
	if err := unix.Mount("pando", target, "fuse", flags, opts); err != nil {
		unix.Close(fd)
		return nil, &os.PathError{Op: "mount", Path: target, Err: err}
	}
	// Only now the device can be polled: Go's poller tries once.
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

// Settle must be called by a Go program that is the courier of its own files, before it opens a
// file below target. Go's runtime polls each file that it opens, in a call that it does not
// treat as blocking, and the kernel asks the server. With all Go processors in such calls the
// program would deadlock. The kernel asks only once.
func Settle(target string) error {
	found := errors.New("found")
	err := filepath.WalkDir(target, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		if poll(path, unix.O_RDONLY) != nil {
			return nil
		}
		return found
	})
	if errors.Is(err, found) {
		return nil
	}
	path := filepath.Join(target, HiddenPrefix+"poll")
	if err := poll(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL); err != nil {
		return err
	}
	return unix.Unlink(path)
}

func poll(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0o600)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return os.NewSyscallError("poll", err)
}
