package doctor

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux/kvm"
)

// forMachines is what the findings of this file are for.
const forMachines = "microVM cells (a preview)"

// machineLimit is how long the machine that KVM is tried with may run. It needs
// some milliseconds.
const machineLimit = 2 * time.Second

// emulator is the program that runs virtual machines.
const emulator = "qemu-system-x86_64"

// machines says what a host has of what cells in virtual machines need.
func (x *examination) machines(v kvm.Verdict) {
	from := len(x.out.Checks)
	const adds = "microVM cells, when this pando has them"
	d := x.host.distribution()
	if p := x.host.program(emulator); p != "" {
		x.add("qemu", ok, p, "", "")
	} else {
		x.add("qemu", missing, "there is no "+emulator, adds, d.install(d.qemu, "the package that has "+emulator))
	}
	switch k, found := x.host.guestKernel(); {
	case !found:
		x.add("guest kernel", missing, "there is no kernel in /boot with modules for virtual machines in /lib/modules", adds, d.install(d.kernel, "a kernel with its modules"))
	case k.refused:
		x.add("guest kernel", missing, "you may not read "+k.image, adds, "sudo chmod a+r "+k.image+" (again when it was updated)")
	default:
		x.add("guest kernel", ok, k.image+", with the modules of "+k.modules, "", "")
	}
	if v.State == kvm.Works {
		x.add("kvm", ok, v.Why+"; "+v.Means(), "", "")
	} else {
		x.add("kvm", missing, v.Why+"; "+v.Means(), "speed", x.host.kvmFix(v, x.root))
	}
	for i := range x.out.Checks[from:] {
		x.out.Checks[from+i].For = forMachines
	}
	x.out.Checks[len(x.out.Checks)-1].Verdict = string(v.State)
}

// kvmFix is what can be done about a verdict.
func (h host) kvmFix(v kvm.Verdict, root bool) string {
	inside := h.container()
	switch {
	case v.State == kvm.Works:
		return ""
	case !v.Capable():
		return "nothing has to be done; for speed, switch virtualisation on in this machine's firmware or, if it is a virtual machine itself, nested virtualisation where it is configured"
	case inside != "" && (v.State == kvm.Absent || v.State == kvm.NoAccess && root):
		return "start the container with --device " + kvm.Device
	case v.State == kvm.Absent:
		return "sudo modprobe " + cmp.Or(map[string]string{"vmx": "kvm_intel", "svm": "kvm_amd"}[v.CPU], "kvm") + " (if it refuses, virtualisation is switched off in the firmware)"
	case v.State == kvm.NoAccess:
		const then = ", then log in again and run pando daemon stop"
		if group := h.deviceGroup(); group != "" {
			return "sudo usermod -aG " + group + " $USER" + then
		}
		return "sudo chgrp kvm " + kvm.Device + " && sudo chmod 660 " + kvm.Device + " && sudo usermod -aG kvm $USER" + then
	}
	return "see what the kernel says (sudo dmesg | grep -i kvm), and whether another hypervisor holds the processor's virtualisation"
}

// deviceGroup is the group that may use the device; "" if it is its owner's alone.
func (h host) deviceGroup() string {
	st, err := os.Stat(h.root + kvm.Device)
	if err != nil || st.Mode()&0o060 != 0o060 {
		return ""
	}
	s, is := st.Sys().(*syscall.Stat_t)
	if !is || s.Gid == 0 {
		return ""
	}
	for l := range strings.Lines(h.read("/etc/group")) {
		if f := strings.Split(strings.TrimSpace(l), ":"); len(f) == 4 && f[2] == strconv.Itoa(int(s.Gid)) {
			return f[0]
		}
	}
	return ""
}

// program finds an executable file where distributions have them; "" if there is
// none.
func (h host) program(name string) string {
	for _, d := range []string{"/usr/bin", "/usr/local/bin", "/bin"} {
		p := filepath.Join(d, name)
		if st, err := os.Stat(h.root + p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return p
		}
	}
	return ""
}

// distribution is how packages are installed on a host, and what ours are called.
type distribution struct {
	command      string // of its package manager
	qemu, kernel string
}

// distributions are those whose packages we know, by their ID in os-release(5).
// Their kernels for virtual machines are preferred, where there are such: they are
// smaller.
var distributions = map[string]distribution{
	"debian": {"sudo apt-get install", "qemu-system-x86", "linux-image-cloud-amd64"},
	"ubuntu": {"sudo apt-get install", "qemu-system-x86", "linux-image-virtual"},
	"fedora": {"sudo dnf install", "qemu-system-x86", "kernel-core"},
	"arch":   {"sudo pacman -S", "qemu-system-x86", "linux"},
	"alpine": {"sudo apk add", "qemu-system-x86_64", "linux-virt"},
}

// distribution reads which one this is, or which one it says it is like. Red Hat's
// are like Fedora, and their QEMU has neither the machine that we need nor its name.
func (h host) distribution() distribution {
	fields := map[string]string{}
	for l := range strings.Lines(h.read("/etc/os-release")) {
		if k, v, is := strings.Cut(strings.TrimSpace(l), "="); is {
			fields[k] = strings.Trim(v, `"'`)
		}
	}
	if d, is := distributions[fields["ID"]]; is {
		return d
	}
	like := strings.Fields(fields["ID_LIKE"])
	if fields["ID"] == "rhel" || slices.Contains(like, "rhel") {
		return distribution{}
	}
	for _, id := range like {
		if d, is := distributions[id]; is {
			return d
		}
	}
	return distribution{}
}

// install is the command that installs a package; where it isn't known, what to
// look for.
func (d distribution) install(name, otherwise string) string {
	if d.command == "" {
		return "install " + otherwise + " with your distribution's package manager"
	}
	return d.command + " " + name
}

// guestKernel is a kernel of the host's packages with the modules that a virtual
// machine needs.
type guestKernel struct {
	release        string
	image, modules string // paths
	refused        bool   // the image can't be read by who asks
}

// needed are the drivers that a guest can't do without, as modules or built in.
var needed = []string{"virtio_mmio", "virtio_console", "fuse"}

// guestKernel finds the kernel for virtual machines: one that can be read before one
// that can't, one made for virtual machines before others, the newest of those.
func (h host) guestKernel() (guestKernel, bool) {
	var all []guestKernel
	for _, dir := range []string{"/lib/modules", "/usr/lib/modules"} {
		entries, err := os.ReadDir(h.root + dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			k := guestKernel{release: e.Name(), modules: filepath.Join(dir, e.Name())}
			_, flavour, _ := cutLast(k.release, "-")
			for _, image := range []string{"/boot/vmlinuz-" + k.release, filepath.Join(k.modules, "vmlinuz"), "/boot/vmlinuz-" + flavour} {
				if st, err := os.Stat(h.root + image); err == nil && st.Mode().IsRegular() {
					k.image = image
					break
				}
			}
			if k.image == "" || !h.has(k.modules, needed) || slices.ContainsFunc(all, func(o guestKernel) bool { return o.release == k.release }) {
				continue
			}
			k.refused = unix.Access(h.root+k.image, unix.R_OK) != nil
			all = append(all, k)
		}
	}
	if len(all) == 0 {
		return guestKernel{}, false
	}
	return slices.MaxFunc(all, func(a, b guestKernel) int {
		return cmp.Or(rank(!a.refused)-rank(!b.refused), rank(a.small())-rank(b.small()), compareReleases(a.release, b.release))
	}), true
}

// small reports whether a kernel was made for virtual machines.
func (k guestKernel) small() bool {
	return strings.Contains(k.release, "-cloud-") || strings.HasSuffix(k.release, "-virt") || strings.HasSuffix(k.release, "-kvm")
}

func rank(b bool) int {
	if b {
		return 1
	}
	return 0
}

// has reports whether a directory of modules has all of these, or its kernel has
// them built in.
func (h host) has(modules string, names []string) bool {
	there := map[string]bool{}
	for _, list := range []string{"modules.builtin", "modules.dep"} {
		for l := range strings.Lines(h.read(filepath.Join(modules, list))) {
			path, _, _ := strings.Cut(strings.TrimSpace(l), ":")
			name, _, _ := strings.Cut(filepath.Base(path), ".")
			there[strings.ReplaceAll(name, "-", "_")] = true
		}
	}
	return !slices.ContainsFunc(names, func(n string) bool { return !there[n] })
}

// compareReleases compares two releases of kernels: numbers by their value.
func compareReleases(a, b string) int {
	split := func(s string) []string {
		return strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(".-+_", r) })
	}
	return slices.CompareFunc(split(a), split(b), func(x, y string) int {
		m, err := strconv.Atoi(x)
		n, nerr := strconv.Atoi(y)
		if err == nil && nerr == nil {
			return cmp.Compare(m, n)
		}
		return strings.Compare(x, y)
	})
}

// cutLast is strings.Cut at the last sep.
func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
