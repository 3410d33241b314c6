package linux

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// SameDirectory reports whether the absolute path dir names the same directory, or file, in
// the mount namespace and root of process pid as in this process: the same device and
// inode, with the same file systems mounted in it, but for those in the directories own. A
// path that is missing for both is the same. It fails when the process has ended, and when
// this process may not look (proc(5), /proc/PID/root).
func SameDirectory(pid int, dir string, own ...string) (bool, error) {
	proc := fmt.Sprintf("/proc/%d", pid)
	theirNS, err := os.Readlink(proc + "/ns/mnt")
	if err != nil {
		return false, err
	}
	ourNS, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return false, err
	}
	root, err := os.Open(proc + "/root")
	if err != nil {
		return false, err
	}
	defer root.Close()
	there, err := identity(int(root.Fd()), "/")
	if err != nil {
		return false, err
	}
	here, err := identity(unix.AT_FDCWD, "/")
	if err != nil {
		return false, err
	}
	if theirNS == ourNS && there == here {
		return true, nil
	}
	if there, err = identity(int(root.Fd()), dir); err != nil {
		return false, err
	}
	if here, err = identity(unix.AT_FDCWD, dir); err != nil || here != there {
		return false, err
	}
	if here == (fileIdentity{}) {
		return true, nil
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false, err
	}
	theirs, err := mountsBelow(proc, real, own)
	if err != nil {
		return false, err
	}
	ours, err := mountsBelow("/proc/self", real, own)
	return slices.Equal(theirs, ours), err
}

// OpenInRoot opens an absolute path in the root of process pid, and follows no symlink. The
// process may have put one there; below /proc/PID/root, an absolute one leads to a file of this
// process's root.
func OpenInRoot(pid int, path string, flags int) (*os.File, error) {
	root, err := os.OpenFile(fmt.Sprintf("/proc/%d/root", pid), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	fd, err := OpenBelow(int(root.Fd()), strings.TrimLeft(path, "/"), beneath(flags))
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: Abridged(path), Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// fileIdentity is the zero value for a file that does not exist.
type fileIdentity struct{ dev, ino uint64 }

// identity looks a path up; with a descriptor, symbolic links are followed as if its
// directory was the root (openat2(2), RESOLVE_IN_ROOT).
func identity(root int, path string) (fileIdentity, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC}
	if root != unix.AT_FDCWD {
		how.Resolve = unix.RESOLVE_IN_ROOT
	}
	fd, err := unix.Openat2(root, path, &how)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return fileIdentity{}, nil
	}
	if err != nil {
		return fileIdentity{}, &os.PathError{Op: "openat2", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fileIdentity{}, &os.PathError{Op: "fstat", Path: path, Err: err}
	}
	return fileIdentity{st.Dev, st.Ino}, nil
}

// mountsBelow lists the mounts in a directory, each as device, root and mount point
// (proc_pid_mountinfo(5)), sorted, without those in the directories but. The paths have no
// symbolic links.
func mountsBelow(proc, dir string, but []string) ([]string, error) {
	f, err := os.Open(proc + "/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	within := func(path, dir string) bool {
		return strings.HasPrefix(path+"/", strings.TrimSuffix(filepath.Clean(dir), "/")+"/")
	}
	var list []string
	for s := bufio.NewScanner(f); ; {
		if !s.Scan() {
			slices.Sort(list)
			return list, s.Err()
		}
		w := strings.Fields(s.Text())
		if len(w) < 5 {
			continue
		}
		at := mountPath.Replace(w[4])
		if at != dir && within(at, dir) && !slices.ContainsFunc(but, func(d string) bool { return within(at, d) }) {
			list = append(list, strings.Join(w[2:5], " "))
		}
	}
}

// mountPath undoes the escapes of mountinfo.
var mountPath = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
