package doctor

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// whatHost names the distribution, and what it runs in.
func whatHost() string {
	name := "Linux"
	if f, err := os.Open("/etc/os-release"); err == nil {
		defer f.Close()
		sc := bufio.NewScanner(f)
		for sc.Scan() {
			if v, ok := strings.CutPrefix(sc.Text(), "PRETTY_NAME="); ok {
				name = strings.Trim(v, `"`)
			}
		}
	}
	if c := container(); c != "" {
		return name + " in a " + c + " container"
	}
	if strings.Contains(strings.ToLower(kernel()), "microsoft") {
		return name + " in WSL"
	}
	return name
}

// container names the container this runs in, if it can be told.
func container() string {
	for file, name := range map[string]string{"/.dockerenv": "Docker", "/run/.containerenv": "Podman"} {
		if _, err := os.Stat(file); err == nil {
			return name
		}
	}
	if b, err := os.ReadFile("/proc/1/environ"); err == nil {
		for _, kv := range strings.Split(string(b), "\x00") {
			if v, ok := strings.CutPrefix(kv, "container="); ok {
				return v
			}
		}
	}
	if b, err := os.ReadFile("/proc/1/cgroup"); err == nil && strings.Contains(string(b), "/kubepods") {
		return "Kubernetes"
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
func kvm() string {
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
	if !virtualisation() {
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

// virtualisation reports whether the processor says that it has VT-x, AMD-V
// or (on arm64) is reached through the kernel's own hypervisor mode.
func virtualisation() bool {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return false
	}
	for _, l := range strings.Split(string(b), "\n") {
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
	return ""
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
