package linux

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Files of cgroups are opened, read and written with bare calls: a cell needs
// dozens of them before its first instruction, and os.File would double that.

// cgroupFile opens one file of a cgroup and never creates one.
func cgroupFile(dir, file string, flags int) (int, error) {
	path := filepath.Join(dir, file)
	fd, err := retried(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, 0) })
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// retried repeats a call while signals interrupt it. A new memory limit, which
// may have to reclaim, is interrupted by those of Go's own scheduler.
func retried(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}

// readCgroup reads one file, without the newline at its end.
func readCgroup(dir, file string) (string, error) {
	fd, err := cgroupFile(dir, file, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return readAll(fd, file)
}

// readAll reads fd from its start. The kernel gives out these files in whole
// lines, so that a short read need not be the end.
func readAll(fd int, file string) (string, error) {
	var first [4096]byte
	buffer, at := first[:], 0
	for {
		n, err := retried(func() (int, error) { return unix.Pread(fd, buffer[at:], int64(at)) })
		if err != nil {
			return "", &os.PathError{Op: "read", Path: file, Err: err}
		}
		if at += n; n == 0 {
			return strings.TrimSpace(string(buffer[:at])), nil
		}
		if at == len(buffer) {
			buffer = append(buffer, make([]byte, len(buffer))...)
		}
	}
}

// writeCgroup writes text to one file in one call, as the kernel wants it.
func writeCgroup(dir, file, text string) error {
	fd, err := cgroupFile(dir, file, unix.O_WRONLY|unix.O_TRUNC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return writeAll(fd, file, text)
}

func writeAll(fd int, file, text string) error {
	_, err := retried(func() (int, error) { return unix.Write(fd, []byte(text)) })
	if err != nil {
		return &os.PathError{Op: "write", Path: file, Err: err}
	}
	return nil
}

// setCgroup writes a limit, reads it back, and returns "" or why it does not
// hold.
func setCgroup(dir, file, text string, holds func(string) bool) string {
	fd, err := cgroupFile(dir, file, unix.O_RDWR|unix.O_TRUNC)
	if err == nil {
		defer unix.Close(fd)
		err = writeAll(fd, file, text)
	}
	if err != nil {
		return fmt.Sprintf("cannot write %s: %v", file, plain(err))
	}
	got, err := readAll(fd, file)
	if err != nil {
		return fmt.Sprintf("cannot read %s back: %v", file, plain(err))
	}
	if !holds(got) {
		return fmt.Sprintf("%s is %s after %s was written", file, got, text)
	}
	return ""
}

// plain removes the path from an error that names its file already.
func plain(err error) error {
	if p, ok := err.(*os.PathError); ok {
		return p.Err
	}
	return err
}
