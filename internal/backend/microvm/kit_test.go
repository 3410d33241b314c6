package microvm

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/isolation/guestkernel"
	"github.com/pando-dev/pando/internal/linux/kvm"
	"github.com/pando-dev/pando/internal/vmm"
)

// kernelCopy is the host's kernel under a name of the test's, with its modules.
func kernelCopy(t *testing.T, b *Backend, mode fs.FileMode) (image, modules string) {
	t.Helper()
	k, err := b.Kernel("")
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(k.Image)
	if err != nil {
		t.Fatal(err)
	}
	image = filepath.Join(t.TempDir(), "bzImage")
	if err := os.WriteFile(image, content, mode); err != nil {
		t.Fatal(err)
	}
	return image, k.Modules
}

// A kernel that only its owner may read, as Ubuntu's, is copied for the machine's
// program, which is no user of the host, and nothing that is made has the mask of
// the daemon. Machines boot it, and their cells say which it was.
func TestKernelThatWasAskedFor(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	cache := filepath.Join(t.TempDir(), "cache")
	b := New(machines(t, cache))
	defer b.Close()
	image, modules := kernelCopy(t, b, 0o600)
	asked := image + ":" + modules
	i, err := b.Create(t.Context(), cell.Spec{
		ID: cell.NewID(), Hostname: "kernel", Workdir: "/", User: cell.User{UID: os.Getuid(), GID: os.Getgid(), Name: "u", Home: "/"}, Limits: cell.Limits{Disk: 1 << 20}, Sized: true, Kernel: asked,
		Mounts: []cell.Mount{{Kind: cell.Tmpfs, Target: "/run"}, {Kind: cell.Tmpfs, Target: "/tmp"}, {Kind: cell.Tmpfs, Target: "/usr"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer i.Remove(t.Context(), "the test ended")
	k, err := b.tools(t.Context(), asked)
	if err != nil {
		t.Fatal(err)
	}
	if k.kernel.Image != image || k.image == image {
		t.Errorf("it boots %s, which is %s", k.kernel.Image, k.image)
	}
	if is := strings.Join(i.Assurance().Isolation, ", "); !strings.Contains(is, k.kernel.Version) || !strings.Contains(is, "QEMU "+k.program.Version) {
		t.Errorf("its isolation is %s", is)
	}
	err = filepath.WalkDir(cache, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == cache {
			return err
		}
		st, err := e.Info()
		if want := fs.FileMode(0o644) | st.Mode()&0o111; err == nil && (st.Mode().Perm()&want != want || e.IsDir() && st.Mode().Perm() != 0o755) {
			t.Errorf("%s is %v", path, st.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Whatever is wrong with a kernel is said before anything is made.
func TestKernelThatCannotBoot(t *testing.T) {
	b := New(machines(t, t.TempDir()))
	defer b.Close()
	image, modules := kernelCopy(t, b, 0o644)
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("no kernel ", 1000)), 0o644); err != nil {
		t.Fatal(err)
	}
	few := t.TempDir()
	if err := os.WriteFile(filepath.Join(few, "modules.builtin"), []byte("kernel/fs/fuse/fuse.ko\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		asked string
		kind  cell.Kind
		says  string
	}{
		{image + ":" + modules, "", ""},
		{text, cell.Invalid, "no kernel for x86-64"},
		{image + "-none", cell.NotFound, "no such file"},
		{image + ":" + t.TempDir(), cell.NotFound, "without its modules"},
		{image + ":" + few, cell.NotFound, "no module virtio"},
		{"bzImage", cell.Invalid, "no absolute path"},
	} {
		err := b.CheckKernel(c.asked)
		if cell.KindOf(err) != c.kind || err != nil && (!strings.Contains(err.Error(), c.says) || cell.HintOf(err) == "") {
			t.Errorf("%s: %v (%s), hint %q", c.asked, err, cell.KindOf(err), cell.HintOf(err))
		}
	}
}

// Machines run in hardware where that was found to work: the program gets the device
// with its files and finds it by its name, and cells and images say so. Elsewhere
// they are emulated.
func TestAccelerator(t *testing.T) {
	for _, c := range []struct {
		state kvm.State
		accel vmm.Accel
		words string
	}{{kvm.Works, vmm.KVM, "with KVM"}, {kvm.Hollow, vmm.Emulated, "emulated"}, {kvm.Refused, vmm.Emulated, "emulated"}} {
		cfg := machines(t, t.TempDir())
		cfg.KVM = func() kvm.Verdict { return kvm.Verdict{State: c.state} }
		if f, err := os.OpenFile(kvm.Device, os.O_RDWR, 0); err == nil {
			f.Close()
		} else if c.accel == vmm.KVM {
			continue // there is no device to give
		}
		b := New(cfg)
		defer b.Close()
		o, err := b.open(&cell.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		k, err := b.tools(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		made, _, err := newMachine(guestkernel.Made{Files: o.Files, More: k.made})
		if err != nil {
			t.Fatal(err)
		}
		defer made.Close()
		m := made.(*machine)
		kernel := m.files[fileKernel]
		args, files, jail, err := m.command(&vmm.Spec{Kernel: kernel, Initramfs: kernel, Accel: m.accel, CPUs: 1, Memory: 128 << 20, Monitor: kernel})
		if err != nil {
			t.Fatal(err)
		}
		at := slices.Index(args, "-accel")
		if m.accel != c.accel || at < 0 || strings.HasPrefix(args[at+1], "kvm") != (c.accel == vmm.KVM) {
			t.Errorf("%s: accelerator %s, %q", c.state, m.accel, args)
		}
		if last := len(files) - 1; c.accel == vmm.KVM && (files[last] != m.files[fileDevice] || jail.Links[kvm.Device] != fmt.Sprintf("/proc/self/fd/%d", 3+last)) || c.accel != vmm.KVM && len(jail.Links) > 0 {
			t.Errorf("%s: the device is one of %d files, and %v", c.state, len(files), jail.Links)
		}
		var st, device unix.Stat_t
		if err := unix.Fstat(int(m.files[fileDevice].Fd()), &st); err != nil {
			t.Fatal(err)
		}
		if err := unix.Stat(kvm.Device, &device); err == nil && (st.Rdev == device.Rdev) != (c.accel == vmm.KVM) {
			t.Errorf("%s: the file is %d:%d", c.state, unix.Major(st.Rdev), unix.Minor(st.Rdev))
		}
		if os.Geteuid() == 0 && c.accel == vmm.KVM && st.Mode&0o666 != 0o666 {
			t.Errorf("no process of a cell may open a file with mode %o", st.Mode)
		}
		if len(o.Isolation) != 1 || !strings.HasSuffix(o.Isolation[0], c.words+")") {
			t.Errorf("%s: its isolation is %q", c.state, o.Isolation)
		}
		needs, err := b.needs()
		if err != nil || needs["accelerator"] != string(c.accel) || (needs["processor"] != "") != (c.accel == vmm.KVM) {
			t.Errorf("%s: images need %v, %v", c.state, needs, err)
		}
	}
}
