package doctor

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/linux/kvm"
	"github.com/pando-dev/pando/internal/need"
)

// modules are what a kernel's directory says of modules that suffice.
const modules = "kernel/drivers/virtio/virtio_mmio.ko.xz: kernel/drivers/virtio/virtio.ko.xz\nkernel/drivers/char/virtio_console.ko.xz:\n"

// withKernel adds a kernel with its modules to a host's files.
func withKernel(files map[string]string, release, image string) map[string]string {
	files[image] = "kernel"
	files["/lib/modules/"+release+"/modules.dep"] = modules
	files["/lib/modules/"+release+"/modules.builtin"] = "kernel/fs/fuse/fuse.ko\n"
	return files
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
		x := &examination{host: machine(t, "6.1.0", map[string]string{"/etc/os-release": c.release})}
		x.add("something else", ok, "", "", "")
		x.machines(kvm.Verdict{State: kvm.Works, Why: "one ran"})
		f := x.out.Checks
		if len(f) != 4 || f[1].Name != "qemu" || f[1].Status != missing || f[1].Fix != c.qemu || f[2].Name != "guest kernel" || f[2].Status != missing || f[2].Fix != c.kernel {
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

// A kernel counts with its modules alone; the one made for virtual machines is used,
// then the newest by its numbers.
func TestGuestKernelIsChosen(t *testing.T) {
	for _, c := range []struct {
		name  string
		files func() map[string]string
		want  string
	}{
		{"none", func() map[string]string { return map[string]string{} }, ""},
		{"no modules", func() map[string]string { return map[string]string{"/boot/vmlinuz-6.1.0-9-amd64": "kernel"} }, ""},
		{"no image", func() map[string]string {
			return map[string]string{"/lib/modules/6.1.0-9-amd64/modules.dep": modules, "/lib/modules/6.1.0-9-amd64/modules.builtin": "kernel/fs/fuse/fuse.ko"}
		}, ""},
		{"modules that do not suffice", func() map[string]string {
			return map[string]string{"/boot/vmlinuz-6.1.0-9-amd64": "kernel", "/lib/modules/6.1.0-9-amd64/modules.dep": modules}
		}, ""},
		{"the newest by number", func() map[string]string {
			return withKernel(withKernel(map[string]string{}, "6.1.0-9-amd64", "/boot/vmlinuz-6.1.0-9-amd64"), "6.1.0-10-amd64", "/boot/vmlinuz-6.1.0-10-amd64")
		}, "/boot/vmlinuz-6.1.0-10-amd64"},
		{"the cloud's", func() map[string]string {
			return withKernel(withKernel(map[string]string{}, "6.1.0-9-cloud-amd64", "/boot/vmlinuz-6.1.0-9-cloud-amd64"), "6.1.0-10-amd64", "/boot/vmlinuz-6.1.0-10-amd64")
		}, "/boot/vmlinuz-6.1.0-9-cloud-amd64"},
		{"beside its modules", func() map[string]string {
			return withKernel(map[string]string{}, "6.15.2-arch1-1", "/lib/modules/6.15.2-arch1-1/vmlinuz")
		}, "/lib/modules/6.15.2-arch1-1/vmlinuz"},
		{"by its flavour", func() map[string]string {
			return withKernel(map[string]string{}, "6.12.30-0-virt", "/boot/vmlinuz-virt")
		}, "/boot/vmlinuz-virt"},
	} {
		k, found := machine(t, "", c.files()).guestKernel()
		if k.image != c.want || found != (c.want != "") {
			t.Errorf("%s: %+v, %v", c.name, k, found)
		}
	}
}

// A kernel that only root may read, as Ubuntu installs it, is named with its remedy.
func TestGuestKernelThatIsRefused(t *testing.T) {
	need.User(t)
	x := &examination{host: machine(t, "", withKernel(map[string]string{}, "6.8.0-45-generic", "/boot/vmlinuz-6.8.0-45-generic"))}
	if err := os.Chmod(x.host.root+"/boot/vmlinuz-6.8.0-45-generic", 0); err != nil {
		t.Fatal(err)
	}
	x.machines(kvm.Verdict{State: kvm.Works})
	if f := x.out.Checks[1]; f.Status != missing || !strings.HasPrefix(f.Fix, "sudo chmod a+r /boot/vmlinuz-6.8.0-45-generic") {
		t.Errorf("%+v", f)
	}
}

// Where both are there, they are named, and nothing is to be done.
func TestMachinesAreThere(t *testing.T) {
	files := withKernel(map[string]string{"/usr/bin/qemu-system-x86_64": ""}, "6.1.0-9-cloud-amd64", "/boot/vmlinuz-6.1.0-9-cloud-amd64")
	x := &examination{host: machine(t, "", files)}
	if err := os.Chmod(x.host.root+"/usr/bin/qemu-system-x86_64", 0o755); err != nil {
		t.Fatal(err)
	}
	x.machines(kvm.Verdict{State: kvm.Works})
	for i, found := range []string{"/usr/bin/qemu-system-x86_64", "/boot/vmlinuz-6.1.0-9-cloud-amd64, with the modules of /lib/modules/6.1.0-9-cloud-amd64"} {
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
	if os.Getgid() == 0 { // a device of root's group is nobody's
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
		{"held by another", kvm.Verdict{State: kvm.Hollow, CPU: "vmx"}, nil, 0, true, "another hypervisor"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := machine(t, "", c.files)
			if c.mode != 0 {
				if err := os.Chmod(filepath.Join(h.root, kvm.Device), c.mode); err != nil {
					t.Fatal(err)
				}
			}
			x := &examination{host: h, root: c.root}
			x.machines(c.v)
			f := x.out.Checks[len(x.out.Checks)-1]
			if f.Name != "kvm" || f.Status != missing || f.Verdict != string(c.v.State) || !strings.Contains(f.Found, "emulated") || f.Adds == "" || !strings.Contains(f.Fix, c.fix) {
				t.Errorf("%+v, want fix %q", f, c.fix)
			}
		})
	}
}

// Where the processor has no virtualisation, nobody is sent to get at the device.
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
