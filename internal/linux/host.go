package linux

import (
	"bufio"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// CPUs returns the number of processors that this process may use.
func CPUs() int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) == nil && set.Count() > 0 {
		return set.Count()
	}
	return runtime.NumCPU()
}

var bootID = sync.OnceValue(func() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
})

// BootID names the time since this host was started (random(4)); "" where it can't be read.
func BootID() string { return bootID() }

// Memory returns the host's memory in bytes: the part that programs can still get, and all
// of it (proc_meminfo(5)).
func Memory() (available, total int64, err error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		name, rest, _ := strings.Cut(sc.Text(), ":")
		n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "MemAvailable":
			available = n << 10
		case "MemTotal":
			total = n << 10
		}
	}
	return available, total, nil
}

// FreeIDRange returns the first id of a range of size host ids that no user of this host
// has and that /etc/subuid and /etc/subgid assign to no user.
func FreeIDRange(size int) int {
	const first, last = 0x6A000000, 0x7F000000
	var taken [][2]int
	for _, f := range []string{"/etc/subuid", "/etc/subgid", "/etc/passwd", "/etc/group"} {
		taken = append(taken, idRanges(f)...)
	}
candidates:
	for base := first; base < last; base += size {
		for _, t := range taken {
			if base < t[0]+t[1] && t[0] < base+size {
				continue candidates
			}
		}
		return base
	}
	return first
}

// idRanges reads lines "name:first:count" (subuid) or "name:x:id:" (passwd).
func idRanges(path string) (out [][2]int) {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		p := strings.Split(sc.Text(), ":")
		if len(p) < 3 {
			continue
		}
		n, err := strconv.Atoi(p[2])
		if err != nil {
			continue
		}
		if first, err := strconv.Atoi(p[1]); err == nil && strings.Contains(path, "sub") {
			out = append(out, [2]int{first, n})
		} else {
			out = append(out, [2]int{n, 1})
		}
	}
	return out
}

// ProbeOverlay tries an overlay mount with layers in dir, as the namespace backend makes
// it, and returns the reason when it fails, or "". For an ordinary user the keepers make
// the mount, in their own user namespace; only the file system is probed then. One call
// at a time may use dir.
func ProbeOverlay(dir string, root bool, scratch string) string {
	if !root {
		return probeUserOverlay(dir)
	}
	if err := RemoveProbe(dir); err != nil {
		return err.Error()
	}
	defer RemoveProbe(dir)
	tmp := filepath.Join(dir, "probe")
	for _, d := range []string{"lower", "top/fs", "top/work"} {
		if err := os.MkdirAll(filepath.Join(tmp, d), 0o755); err != nil {
			return err.Error()
		}
	}
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return err.Error()
	}
	ns, err := NewMountNS(scratch, 0)
	if err != nil {
		return "mounting is not allowed here: " + err.Error()
	}
	defer ns.Close()
	f, err := ns.Overlay(OverlayOptions{Lower: []string{filepath.Join(tmp, "lower")}, Top: filepath.Join(tmp, "top"), Upper: "fs", Work: "work"})
	if err != nil {
		return "overlayfs can't be mounted on the file system of " + dir + ": " + err.Error()
	}
	defer f.Close()
	if err := os.WriteFile("/proc/self/fd/"+strconv.Itoa(int(f.Fd()))+"/probe", []byte("x"), 0o600); err != nil {
		return "overlayfs is read-only on the file system of " + dir + ": " + err.Error()
	}
	return ""
}

// RemoveProbe removes what ProbeOverlay left in dir when its process was killed.
func RemoveProbe(dir string) error { return os.RemoveAll(filepath.Join(dir, "probe")) }

// probeUserOverlay rejects the file systems that cannot hold a writable layer.
func probeUserOverlay(dir string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err.Error()
	}
	switch st.Type {
	case unix.OVERLAYFS_SUPER_MAGIC:
		return dir + " is on an overlay file system itself, which can't hold a writable layer"
	case unix.NFS_SUPER_MAGIC:
		return dir + " is on NFS, which can't hold a writable layer"
	case 0x65735546: // FUSE
		return dir + " is on a FUSE file system, which can't hold a writable layer"
	case unix.ECRYPTFS_SUPER_MAGIC:
		return dir + " is on eCryptfs, which can't hold a writable layer"
	}
	// user.* attributes hold overlay's marks.
	f, err := os.Create(filepath.Join(dir, "probe"))
	if err != nil {
		return err.Error()
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := unix.Fsetxattr(int(f.Fd()), "user.pando.probe", []byte("x"), 0); err != nil {
		return dir + " is on a file system without user attributes: " + err.Error()
	}
	return ""
}
