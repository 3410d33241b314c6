package doctor

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux/kvm"
	"github.com/pando-dev/pando/internal/vmm"
	"github.com/pando-dev/pando/internal/vmm/boot"
)

// forMachines is what the findings of this file are for.
const forMachines = "microVM cells"

// machineLimit is how long the machine that KVM is tried with may run. It needs
// some milliseconds.
const machineLimit = 2 * time.Second

// Machines is what a host has of what cells in virtual machines need.
type Machines interface {
	// Program is what runs machines. It fails with cell.Unavailable where it isn't
	// there, and with cell.Unsupported where it can't be.
	Program(ctx context.Context) (*vmm.Program, error)
	// Kernel is what machines boot, for "" the one that is chosen unless another is
	// asked for. It fails with cell.NotFound and cell.Denied.
	Kernel(asked string) (*boot.Kernel, error)
}

// machines says what a host has of what cells in virtual machines need.
func (x *examination) machines(ctx context.Context) {
	if x.cfg.Machines == nil {
		return
	}
	from := len(x.out.Checks)
	const adds = "cells with a Linux of their own: --backend microvm"
	d := x.host.distribution()
	if p, err := x.cfg.Machines.Program(ctx); err == nil {
		x.add("qemu", ok, p.Path+", version "+p.Version, "", "")
	} else {
		fix := cell.HintOf(err)
		if cell.KindOf(err) == cell.Unavailable {
			fix = d.install(d.qemu, "the package that has qemu-system-x86_64")
		}
		x.add("qemu", missing, err.Error(), adds, fix)
	}
	if k, err := x.cfg.Machines.Kernel(""); err == nil {
		x.add("guest kernel", ok, k.Image+", with the modules of "+k.Modules, "", "")
	} else {
		fix := cell.HintOf(err)
		if cell.KindOf(err) == cell.NotFound {
			fix = d.install(d.kernel, "a kernel with its modules") + " (it need not be booted), or name one with --kernel"
		}
		x.add("guest kernel", missing, err.Error(), adds, fix)
	}
	v := x.cfg.KVM()
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
	case v.State == kvm.Refused:
		return "pando daemon stop, and no PANDO_KVM=off where it is started next"
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

// distribution is how packages are installed on a host, and what ours are called.
type distribution struct {
	command      string // of its package manager
	qemu, kernel string
}

// distributions are the supported ones, by their ID in os-release(5), with their packages.
// Kernels for virtual machines come first where a distribution has them, because they are
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
