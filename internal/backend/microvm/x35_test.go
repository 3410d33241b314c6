package microvm

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/linux/kvm"
	"github.com/pando-dev/pando/internal/vmm"
)

// fakeProgram writes a program that says what the probe asks of QEMU.
func fakeProgram(t *testing.T, dir, version string) string {
	t.Helper()
	path := filepath.Join(dir, machineProgram)
	script := "#!/bin/sh\ncase $1 in --version) echo QEMU emulator version " + version + ";; -L) echo " + dir + ";; esac\n"
	files := map[string]string{path + ".new": script}
	for _, f := range []string{"bios-microvm.bin", "linuxboot_dma.bin", "kvmvapic.bin"} {
		files[filepath.Join(dir, f)] = f
	}
	for name, text := range files {
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(path+".new", path); err != nil { // as package managers do
		t.Fatal(err)
	}
	return path
}

// A QEMU that is installed, or replaced, while the daemon runs is used, and so is KVM when
// it has come: nothing of an earlier look stays.
func TestX35InstalledProgramIsSeen(t *testing.T) {
	dir, cache := t.TempDir(), t.TempDir()
	v := kvm.Verdict{State: kvm.Absent}
	b := New(Config{
		Config: isolation.Config{Keepers: t.TempDir(), Scratch: t.TempDir(), Installation: "x35"},
		Path:   dir, Cache: cache, Guest: filepath.Join(dir, "guest"), KVM: func() kvm.Verdict { return v },
	})
	defer b.Close()
	path := filepath.Join(dir, machineProgram)
	if p, err := b.Program(t.Context()); err == nil && p.Path == path {
		t.Fatalf("it found %s, which is not there", path)
	}
	b.tools(t.Context(), "") // as a cell asks; what it lacks is seen below

	fakeProgram(t, dir, "8.1.0")
	if p, err := b.Program(t.Context()); err != nil || p.Path != path || p.Version != "8.1.0" {
		t.Errorf("installed: %s is not what is found (%v)", path, err)
	}
	b.tools(t.Context(), "") // the kernel of this host may be missing, and the guest is
	if b.runner == nil || b.runner.program.Version != "8.1.0" || b.runner.accel != vmm.Emulated {
		t.Fatal("installed: cells don't run with it, emulated")
	}
	was := b.runner
	b.tools(t.Context(), "")
	if b.runner != was {
		t.Error("it is made anew though nothing has changed")
	}

	v.State = kvm.Works
	fakeProgram(t, dir, "9.2.0")
	b.tools(t.Context(), "")
	if b.runner.program.Version != "9.2.0" || b.runner.accel != vmm.KVM {
		t.Errorf("replaced: cells run with version %s, %s", b.runner.program.Version, b.runner.accel)
	}
}
