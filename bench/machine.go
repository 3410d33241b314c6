package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
)

// Machine is where it was measured.
type Machine struct {
	CPU        string     `json:"cpu"`
	Cores      int        `json:"cores"`
	Memory     int64      `json:"memory"` // bytes
	Kernel     string     `json:"kernel"`
	System     string     `json:"system"`
	Arch       string     `json:"arch"`
	FileSystem string     `json:"file_system"` // of the directory measured in
	Journal    *bool      `json:"journal"`     // whether an ext4 has one; null for others
	Root       bool       `json:"root"`
	Load       [3]float64 `json:"load"` // before anything was done
}

func thisMachine(dir string) Machine {
	m := Machine{CPU: "unknown", Cores: linux.CPUs(), System: "unknown", Root: os.Geteuid() == 0, Load: load(), FileSystem: fileSystem(dir)}
	m.Journal = journal(dir, m.FileSystem)
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel, m.Arch = unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:])
	}
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) == nil {
		m.Memory = int64(si.Totalram) * int64(si.Unit)
	}
	if v := field("/proc/cpuinfo", "model name", ":"); v != "" {
		m.CPU = v
	}
	if v := field("/etc/os-release", "PRETTY_NAME", "="); v != "" {
		m.System = strings.Trim(v, `"`)
	}
	return m
}

// field returns the value of the first line of a file with that key.
func field(path, key, sep string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for _, l := range strings.Split(string(b), "\n") {
		if k, v, ok := strings.Cut(l, sep); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func load() (l [3]float64) {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return l
	}
	fmt.Sscan(string(b), &l[0], &l[1], &l[2])
	return l
}

// fileSystem names the type of the file system that a path is on: that of the
// longest mount point above it.
func fileSystem(path string) string {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "unknown"
	}
	best, kind := "", "unknown"
	for _, l := range strings.Split(string(b), "\n") {
		f := strings.Fields(l)
		if len(f) < 3 || len(f[1]) < len(best) {
			continue
		}
		if f[1] == "/" || path == f[1] || strings.HasPrefix(path, f[1]+"/") {
			best, kind = f[1], f[2]
		}
	}
	return kind
}

// slowInodes is what every result from an ext4 without a journal says. (The
// kernel's fs/ext4/ialloc.c: recently_deleted, find_inode_bit.)
const slowInodes = "this ext4 has no journal: before it gives out an inode it looks at each one deleted in the last minutes, so that making files after many were deleted is slow, for pando and peers alike; measure with --dir on another file system"

// journal tells whether an ext4 has a journal, by what the kernel says of the
// task that writes it.
func journal(dir, kind string) *bool {
	if kind != "ext4" {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil
	}
	device, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return nil
	}
	b, err := os.ReadFile(filepath.Join("/sys/fs/ext4", filepath.Base(device), "journal_task"))
	if err != nil {
		return nil
	}
	has := strings.TrimSpace(string(b)) != "<none>"
	return &has
}

// cpuTime is what /proc/stat says of all processors together, in its ticks.
type cpuTime struct{ total, stolen int64 }

func stealTime() (t cpuTime) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t
	}
	line, _, _ := strings.Cut(string(b), "\n")
	for i, f := range strings.Fields(line) {
		if i == 0 || i > 8 { // guest time is counted in user time already
			continue
		}
		n, _ := strconv.ParseInt(f, 10, 64)
		t.total += n
		if i == 8 {
			t.stolen = n
		}
	}
	return t
}

// since returns how many percent were stolen since then.
func (t cpuTime) since(then cpuTime) float64 {
	if t.total <= then.total {
		return 0
	}
	return round(100 * float64(t.stolen-then.stolen) / float64(t.total-then.total))
}
