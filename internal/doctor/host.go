package doctor

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// host is what can be read of a machine: its files below root, and its kernel.
type host struct {
	root   string // "" is this one
	kernel string // its release
}

func (h host) read(path string) string {
	b, err := os.ReadFile(h.root + path)
	if err != nil {
		return ""
	}
	return string(b)
}

// sysctl is the value of a setting of the kernel, "" if there is none.
func (h host) sysctl(name string) string { return strings.TrimSpace(h.read("/proc/sys/" + name)) }

// name names the distribution, and what it runs in.
func (h host) name() string {
	name := "Linux"
	for l := range strings.Lines(h.read("/etc/os-release")) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(l), "PRETTY_NAME="); ok {
			name = strings.Trim(v, `"`)
		}
	}
	if c := h.container(); c != "" {
		return name + " in a " + c + " container"
	}
	if h.wsl() {
		return name + " in WSL"
	}
	return name
}

// wsl reports whether this is Windows' subsystem for Linux, by the kernel's release.
func (h host) wsl() bool { return strings.Contains(strings.ToLower(h.kernel), "microsoft") }

// container names the container this runs in, if it can be told.
func (h host) container() string {
	if strings.Contains(h.read("/proc/1/cgroup"), "/kubepods") {
		return "Kubernetes"
	}
	for _, c := range []struct{ file, name string }{{"/.dockerenv", "Docker"}, {"/run/.containerenv", "Podman"}} {
		if _, err := os.Stat(h.root + c.file); err == nil {
			return c.name
		}
	}
	for kv := range strings.SplitSeq(h.read("/proc/1/environ"), "\x00") {
		if v, ok := strings.CutPrefix(kv, "container="); ok {
			return v
		}
	}
	return ""
}

// reflink tries to share a file's data in dir.
func reflink(dir string) bool {
	a, err := os.CreateTemp(dir, "probe-")
	if err != nil {
		return false
	}
	defer os.Remove(a.Name())
	defer a.Close()
	b, err := os.CreateTemp(dir, "probe-")
	if err != nil {
		return false
	}
	defer os.Remove(b.Name())
	defer b.Close()
	a.WriteString("shared")
	return unix.IoctlFileClone(int(b.Fd()), int(a.Fd())) == nil
}
