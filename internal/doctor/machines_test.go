package doctor

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux/kvm"
	"github.com/pando-dev/pando/internal/vmm"
	"github.com/pando-dev/pando/internal/vmm/boot"
)

// found are machines of which this is there, or not.
type found struct {
	program *vmm.Program
	kernel  *boot.Kernel
	err     error // of what is not there
}

func (f found) Program(context.Context) (*vmm.Program, error) {
	if f.program == nil {
		return nil, f.err
	}
	return f.program, nil
}

func (f found) Kernel(string) (*boot.Kernel, error) {
	if f.kernel == nil {
		return nil, f.err
	}
	return f.kernel, nil
}

// nothing is a host without QEMU and kernels.
type nothing struct{}

func (nothing) Program(context.Context) (*vmm.Program, error) {
	return nil, cell.Errorf(cell.Unavailable, "", "install QEMU", "cannot find QEMU")
}

func (nothing) Kernel(string) (*boot.Kernel, error) {
	return nil, cell.Errorf(cell.NotFound, "", "install a kernel", "cannot find a kernel")
}

func examined(h host, m Machines, v kvm.Verdict) *examination {
	return &examination{cfg: &Config{Machines: m, KVM: func() kvm.Verdict { return v }}, host: h}
}

// What microVM cells need and the host lacks is named as its distribution names it,
// and every line says what it is for.
func TestMachinesNamePackages(t *testing.T) {
	for _, c := range []struct{ release, qemu, kernel string }{
		{"ID=debian\n", "sudo apt-get install qemu-system-x86", "sudo apt-get install linux-image-cloud-amd64"},
		{"ID=ubuntu\nID_LIKE=debian\n", "sudo apt-get install qemu-system-x86", "sudo apt-get install linux-image-virtual"},
		{"ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", "sudo apt-get install qemu-system-x86", "sudo apt-get install linux-image-virtual"},
		{"ID=fedora\n", "sudo dnf install qemu-system-x86", "sudo dnf install kernel-core"},
		{"ID=arch\n", "sudo pacman -S qemu-system-x86", "sudo pacman -S linux"},
		{"ID=alpine\n", "sudo apk add qemu-system-x86_64", "sudo apk add linux-virt"},
		{"ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", "install the package that has qemu-system-x86_64 with your distribution's package manager", "install a kernel with its modules with your distribution's package manager"},
		{"", "install the package that has qemu-system-x86_64 with your distribution's package manager", "install a kernel with its modules with your distribution's package manager"},
	} {
		x := examined(machine(t, "6.1.0", map[string]string{"/etc/os-release": c.release}), nothing{}, kvm.Verdict{State: kvm.Works, Why: "one ran"})
		x.add("something else", ok, "", "", "")
		x.machines(t.Context())
		f := x.out.Checks
		if len(f) != 4 || f[1].Name != "qemu" || f[1].Status != missing || f[1].Fix != c.qemu || f[2].Name != "guest kernel" || f[2].Status != missing || f[2].Fix != c.kernel+" (it need not be booted), or name one with --kernel" {
			t.Errorf("%q: %+v", c.release, f)
		}
		if f[0].For != "" || f[1].For != forMachines || f[2].For != forMachines || f[3].For != forMachines {
			t.Errorf("%q: what they are for: %+v", c.release, f)
		}
		if f[3].Name != "kvm" || f[3].Status != ok || f[3].Verdict != "works" {
			t.Errorf("%q: %+v", c.release, f[3])
		}
	}
}

// What is there and can't be used has its own remedy, and not a package.
func TestMachinesThatCannotBe(t *testing.T) {
	for _, kind := range []cell.Kind{cell.Denied, cell.Unsupported, cell.Invalid} {
		x := examined(machine(t, "", map[string]string{"/etc/os-release": "ID=debian\n"}), found{err: cell.Errorf(kind, "", "the remedy", "cannot use it")}, kvm.Verdict{State: kvm.Works})
		x.machines(t.Context())
		for i := range 2 {
			if f := x.out.Checks[i]; f.Status != missing || f.Found != "cannot use it" || f.Fix != "the remedy" || f.Adds == "" {
				t.Errorf("%s: %+v", kind, f)
			}
		}
	}
}

// Where both are there, they are named, and nothing is to be done.
func TestMachinesAreThere(t *testing.T) {
	x := examined(machine(t, "", nil), found{program: &vmm.Program{Path: "/usr/bin/qemu-system-x86_64", Version: "7.2.22"}, kernel: &boot.Kernel{Image: "/boot/vmlinuz-6.1", Modules: "/lib/modules/6.1"}}, kvm.Verdict{State: kvm.Works})
	x.machines(t.Context())
	for i, found := range []string{"/usr/bin/qemu-system-x86_64, version 7.2.22", "/boot/vmlinuz-6.1, with the modules of /lib/modules/6.1"} {
		if f := x.out.Checks[i]; f.Status != ok || f.Found != found || f.Fix != "" || f.Adds != "" {
			t.Errorf("%+v", f)
		}
	}
}

// Whatever is found of KVM, its word is there, what it means, and what can be done
// about it on this kind of host.
func TestF56KVMHasARemedy(t *testing.T) {
	group := "kvm:x:" + strconv.Itoa(os.Getgid()) + ":\n"
	shared := "usermod -aG kvm"
	if os.Getgid() == 0 { // a device of root's group has no other group
		shared = "chgrp kvm"
	}
	for _, c := range []struct {
		name  string
		v     kvm.Verdict
		files map[string]string
		mode  os.FileMode
		root  bool
		fix   string
	}{
		{"absent", kvm.Verdict{State: kvm.Absent, CPU: "svm"}, nil, 0, false, "sudo modprobe kvm_amd"},
		{"absent in a container", kvm.Verdict{State: kvm.Absent, CPU: "vmx"}, map[string]string{"/.dockerenv": ""}, 0, true, "--device /dev/kvm"},
		{"its group's", kvm.Verdict{State: kvm.NoAccess, CPU: "vmx"}, map[string]string{"/dev/kvm": "", "/etc/group": group}, 0o660, false, shared},
		{"its owner's alone", kvm.Verdict{State: kvm.NoAccess, CPU: "vmx"}, map[string]string{"/dev/kvm": "", "/etc/group": group}, 0o600, false, "chgrp kvm"},
		{"not for this container", kvm.Verdict{State: kvm.NoAccess, CPU: "vmx"}, map[string]string{"/.dockerenv": "", "/dev/kvm": ""}, 0o660, true, "--device /dev/kvm"},
		{"switched off", kvm.Verdict{State: kvm.Refused, CPU: "vmx"}, nil, 0, true, "PANDO_KVM"},
		{"held by another", kvm.Verdict{State: kvm.Hollow, CPU: "vmx"}, nil, 0, true, "another hypervisor"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := machine(t, "", c.files)
			if c.mode != 0 {
				if err := os.Chmod(filepath.Join(h.root, kvm.Device), c.mode); err != nil {
					t.Fatal(err)
				}
			}
			x := examined(h, nothing{}, c.v)
			x.root = c.root
			x.machines(t.Context())
			f := x.out.Checks[len(x.out.Checks)-1]
			if f.Name != "kvm" || f.Status != missing || f.Verdict != string(c.v.State) || !strings.Contains(f.Found, "emulated") || f.Adds == "" || !strings.Contains(f.Fix, c.fix) {
				t.Errorf("%+v, want fix %q", f, c.fix)
			}
		})
	}
}

// Where the processor has no virtualisation, no hint asks for rights on the device.
func TestKVMWithoutProcessor(t *testing.T) {
	for _, s := range []kvm.State{kvm.Absent, kvm.NoAccess, kvm.Hollow} {
		v := kvm.Verdict{State: s}
		if v.Capable() {
			t.Skip("needs an x86 processor")
		}
		if fix := (host{}).kvmFix(v, false); !strings.HasPrefix(fix, "nothing has to be done") {
			t.Errorf("%s: %s", s, fix)
		}
	}
}
