// Package volume keeps directories of limited size: an ext4 file system in a
// sparse file, mounted over the directory. It needs root, a loop device and
// mke2fs.
//
// The volume of "cells/c-1" is the file "cells/c-1.volume". A mount belongs to
// the mount namespace of the process that opened the volume and ends with it;
// the loop device goes with the last mount. What a volume holds needs no
// journal: it is thrown away with the cell, or copied out of it.
package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
)

// Min is the smallest volume, in bytes.
const Min = 4 << 20

// Suffix is what the name of a volume's file ends in.
const Suffix = ".volume"

// Lacks says why there can be no volumes here; empty when there can.
func Lacks() string {
	if os.Geteuid() != 0 {
		return "only root can mount a file system of a limited size"
	}
	if _, err := mke2fs(); err != nil {
		return "mke2fs is not installed (package e2fsprogs)"
	}
	f, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "no loop devices: " + err.Error()
	}
	f.Close()
	return ""
}

func mke2fs() (string, error) {
	for _, p := range []string{"/usr/sbin/mke2fs", "/sbin/mke2fs"} {
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
	}
	return "", os.ErrNotExist
}

// Make makes the volume of dir, of size bytes, and opens it. dir is created.
func Make(ctx context.Context, dir string, size int64) (err error) {
	if size < Min {
		return cell.Errorf(cell.Invalid, "volume.Make", "ask for more", "a disk of %d bytes is too small to hold a file system; the least is %d", size, Min)
	}
	tool, err := mke2fs()
	if err != nil {
		return err
	}
	file := dir + Suffix
	failpoint.Step("make a volume")
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = f.Truncate(size)
	f.Close()
	defer func() {
		if err != nil {
			Remove(dir)
		}
	}()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, tool, "-q", "-F", "-t", "ext4", "-O", "^has_journal,^resize_inode", "-m", "0",
		"-E", "lazy_itable_init=1,nodiscard,root_owner=0:0", file)
	cmd.Env = []string{"MKE2FS_CONFIG=/dev/null", "PATH=/usr/sbin:/sbin:/usr/bin:/bin"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot make a file system: %w: %s", err, strings.TrimSpace(string(out)))
	}
	failpoint.Step("open a volume")
	if err := Open(dir); err != nil {
		return err
	}
	failpoint.Step("empty a volume")
	return os.Remove(filepath.Join(dir, "lost+found"))
}

// Open mounts the volume of dir, unless it is mounted. If mounts of an earlier process still
// use the volume elsewhere, Open mounts the same file system again.
func Open(dir string) error {
	open, err := IsOpen(dir)
	if err != nil && !os.IsNotExist(err) || open {
		return err
	}
	file, err := os.OpenFile(dir+Suffix, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	dev, err := attached(file)
	if err == nil && dev == nil {
		dev, err = attach(file)
	}
	if err != nil {
		return err
	}
	defer dev.Close() // the mount holds the device; it goes when the mount goes
	err = unix.Mount(dev.Name(), dir, "ext4", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, "")
	if err != nil {
		return fmt.Errorf("cannot mount the volume of %s: %w", dir, err)
	}
	return nil
}

// IsOpen reports whether the volume of dir is mounted.
func IsOpen(dir string) (bool, error) {
	var in, up unix.Stat_t
	if err := unix.Lstat(dir, &in); err != nil {
		return false, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	if err := unix.Lstat(filepath.Dir(dir), &up); err != nil {
		return false, &os.PathError{Op: "stat", Path: filepath.Dir(dir), Err: err}
	}
	return in.Dev != up.Dev, nil
}

// fullBelow is how much space, in bytes, a file system that had to refuse
// something may say is left.
const fullBelow = 64 << 10

// Full reports whether the file system of dir has no room for anything more.
func Full(dir string) bool {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return false
	}
	return int64(st.Bavail)*st.Bsize < fullBelow || (st.Files > 0 && st.Ffree == 0)
}

// Exists reports whether dir has a volume.
func Exists(dir string) bool {
	_, err := os.Lstat(dir + Suffix)
	return err == nil
}

// Remove closes the volume of dir and removes it, with dir itself. That there
// is none is no error.
func Remove(dir string) error {
	for {
		open, err := IsOpen(dir)
		if err != nil || !open {
			break
		}
		failpoint.Step("unmount a volume")
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("cannot unmount the volume of %s: %w", dir, err)
		}
	}
	failpoint.Step("remove a volume")
	err := os.Remove(dir)
	if os.IsNotExist(err) {
		err = nil
	}
	if ferr := os.Remove(dir + Suffix); ferr != nil && !os.IsNotExist(ferr) {
		err = errors.Join(err, ferr)
	}
	return err
}

// attached returns the loop device that is backed by file, nil if none.
func attached(file *os.File) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	// The kernel lists those in use; their names there may be of another
	// mount namespace, so the devices themselves are asked.
	used, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, u := range used {
		name := "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(u)))
		dev, err := os.OpenFile(name, os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
		if err == nil && info.Inode == st.Ino && info.Device == st.Dev {
			return dev, nil
		}
		dev.Close()
	}
	return nil, nil
}

// attach gives file a loop device that goes away with its last user.
func attach(file *os.File) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for range 64 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, os.NewSyscallError("LOOP_CTL_GET_FREE", err)
		}
		dev, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Fd: uint32(file.Fd()), Size: 0, Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &config)
		if err == nil {
			return dev, nil
		}
		dev.Close()
		if err != unix.EBUSY { // another process was quicker: the next
			return nil, os.NewSyscallError("LOOP_CONFIGURE", err)
		}
	}
	return nil, errors.New("cannot get a loop device: all are taken as soon as they are free")
}
