package doctor

import (
	"errors"
	"os"
	"path/filepath"
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

// wsl reports whether this is Windows' subsystem for Linux, whose kernels say so.
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

const (
	kvmAbsent   = "there is no /dev/kvm"
	kvmDenied   = "you may not open /dev/kvm"
	kvmHollow   = "/dev/kvm exists, but the processor offers no virtualisation behind it: a virtual machine would not boot"
	kvmUnusable = "/dev/kvm can't be used"
)

// kvm says why hardware virtualisation can't be used; "" when it can. A
// device alone proves nothing: the processor must offer it, and the kernel
// must make a machine.
func (h host) kvm() string {
	fd, err := unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return kvmAbsent
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return kvmDenied
	case err != nil:
		return kvmUnusable + ": " + err.Error()
	}
	defer unix.Close(fd)
	if !h.virtualises() {
		return kvmHollow
	}
	const createVM = 0xAE01 // KVM_CREATE_VM
	vm, err := unix.IoctlRetInt(fd, createVM)
	if err != nil {
		return kvmUnusable + ": " + err.Error()
	}
	unix.Close(vm)
	return ""
}

// virtualises reports whether the processor says that it has VT-x or AMD-V, or
// (on arm64) is reached through the kernel's own hypervisor mode.
func (h host) virtualises() bool {
	for l := range strings.Lines(h.read("/proc/cpuinfo")) {
		k, v, _ := strings.Cut(l, ":")
		if k = strings.TrimSpace(k); k != "flags" && k != "Features" {
			continue
		}
		for _, f := range strings.Fields(v) {
			if f == "vmx" || f == "svm" {
				return true
			}
		}
	}
	return isARM64
}

func kvmFix(why string) string {
	switch why {
	case kvmAbsent:
		return "load the kernel's module (sudo modprobe kvm_intel, or kvm_amd); in a virtual machine, switch nested virtualisation on"
	case kvmDenied:
		return "sudo usermod -aG kvm $USER, then log in again"
	case kvmHollow:
		return "switch nested virtualisation on where this virtual machine is configured"
	}
	return "see what the kernel says (sudo dmesg | grep -i kvm), and whether another hypervisor holds the processor's virtualisation"
}

func lookPath(names ...string) string {
	for _, n := range names {
		for _, d := range []string{"/usr/bin", "/usr/local/bin", "/bin"} {
			p := filepath.Join(d, n)
			if st, err := os.Stat(p); err == nil && st.Mode()&0o111 != 0 {
				return p
			}
		}
	}
	return ""
}
