// Package vmmtest is the conformance suite of drivers of machine monitors: it tests one against
// the contract of package vmm. Its machines run their own guest (in testdata/guest), which
// counts over 64 MiB, so that memory of more than one instant is detected.
package vmmtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/testenv"
	"github.com/pando-dev/pando/internal/vmm"
	"github.com/pando-dev/pando/internal/vmm/boot"
)

// memory is the memory of the suite's machines in bytes, except in some heavy tests.
const memory = 256 << 20

// patience is the time limit of each wait in the suite.
const patience = 60 * time.Second

// caseLimit is the time limit of one case; some start a dozen machines. A busy host emulates
// them ten times as slowly.
const caseLimit = 5 * patience

// Run runs all tests.
func Run(t *testing.T, d vmm.Driver, accel vmm.Accel) {
	s := newSuite(t, d, accel)
	for _, x := range []struct {
		name string
		f    func(*bench)
	}{
		{"Boots", testBoots}, {"StandsStill", testStandsStill}, {"D35Copies", testCopies}, {"D35Takes", testTakes}, {"D36Writes", testWrites}, {"D41TakesAgain", testTakesAgain}, {"MovesWhole", testMovesWhole},
		{"Misfits", testMisfits},
		{"Panics", testPanics}, {"Quits", testQuits}, {"Killed", testKilled}, {"Invalid", testInvalid},
	} {
		t.Run(x.name, func(t *testing.T) { x.f(s.bench(t)) })
	}
}

// suite is shared by all machines of a run.
type suite struct {
	driver    vmm.Driver
	accel     vmm.Accel
	program   *vmm.Program
	kernel    string
	initramfs *os.File
}

func newSuite(t testing.TB, d vmm.Driver, accel vmm.Accel) *suite {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p, err := d.Probe(ctx)
	if err != nil {
		t.Skipf("needs a machine monitor: %v", err)
	}
	k := Kernel(t)
	modules, err := k.Load(append(d.Modules(&vmm.Spec{}), "virtio_net")...)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.MemfdCreate("initramfs", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "initramfs")
	t.Cleanup(func() { f.Close() })
	if err := boot.Write(f, guest(t), modules); err != nil {
		t.Fatal(err)
	}
	return &suite{driver: d, accel: accel, program: p, kernel: k.Image, initramfs: f}
}

// Kernel returns a kernel for machines, or skips: the kernel of PANDO_KERNEL with the modules
// of PANDO_MODULES, or one of the host's packages.
func Kernel(t testing.TB) *boot.Kernel {
	t.Helper()
	if image := os.Getenv("PANDO_KERNEL"); image != "" {
		k, err := boot.Open(image, os.Getenv("PANDO_MODULES"))
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	k, err := boot.Find(boot.Images, boot.Modules)
	if err != nil {
		t.Skip("needs a kernel for machines: PANDO_KERNEL and PANDO_MODULES, or the package linux-image-cloud-amd64")
	}
	return k
}

// guest builds the guest's program.
func guest(t testing.TB) []byte {
	t.Helper()
	to := filepath.Join(t.TempDir(), "guest")
	cmd := exec.Command(testenv.Program(t, "go"), "build", "-trimpath", "-ldflags", "-s -w", "-o", to, "github.com/pando-dev/pando/internal/vmm/vmmtest/testdata/guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the guest: %v\n%s", err, out)
	}
	b, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// bench holds the machines of one test.
type bench struct {
	testing.TB
	*suite
	ctx  context.Context
	size int64 // memory size of its machines
}

func (s *suite) bench(t testing.TB) *bench {
	ctx, cancel := context.WithTimeout(context.Background(), caseLimit)
	t.Cleanup(cancel)
	return &bench{TB: t, suite: s, ctx: ctx, size: memory}
}

func (k *bench) must(err error) {
	k.Helper()
	if err != nil {
		k.Fatal(err)
	}
}

// ram creates memory for a machine.
func (k *bench) ram() *os.File {
	k.Helper()
	fd, err := unix.MemfdCreate("ram", unix.MFD_CLOEXEC)
	k.must(err)
	f := os.NewFile(uintptr(fd), "ram")
	k.Cleanup(func() { f.Close() })
	k.must(f.Truncate(k.size))
	return f
}

// spec returns a machine of the suite. start adds what belongs to one machine alone.
func (k *bench) spec(ram *os.File) *vmm.Spec {
	return &vmm.Spec{CPUs: 1, Memory: k.size, RAM: ram, Accel: k.accel}
}

// child starts a machine with copied memory that waits to be loaded.
func (k *bench) child(ram *os.File) *box {
	k.Helper()
	s := k.spec(ram)
	s.Private, s.Incoming = true, true
	return k.start(s)
}

// parent starts a machine that counts in a memory.
func (k *bench) parent(ram *os.File) *box {
	k.Helper()
	b := k.start(k.spec(ram))
	b.ask("count", "counting")
	b.counts()
	return b
}

// saved stops a machine and returns its device state.
func (b *box) saved() []byte {
	b.Helper()
	b.must(b.m.Stop(b.ctx))
	var devices bytes.Buffer
	b.must(b.m.Save(b.ctx, &devices))
	return devices.Bytes()
}

// load loads device state into a machine, and continues it.
func (b *box) load(devices []byte) {
	b.Helper()
	b.must(b.m.Load(b.ctx, bytes.NewReader(devices)))
	b.state(vmm.Stopped)
	b.must(b.m.Continue(b.ctx))
}

// state fails unless the machine has a state.
func (b *box) state(want vmm.State) {
	b.Helper()
	got, err := b.m.Status(b.ctx)
	b.must(err)
	if got != want {
		b.Fatalf("the machine is %s, want %s", got, want)
	}
}

// counts waits until the guest has counted twice more, and fails if its counters ever differed.
func (b *box) counts() (n int) {
	b.Helper()
	first := -1
	for end := time.Now().Add(patience); time.Now().Before(end); {
		var apart int
		_, err := fmt.Sscan(b.say("tell"), &n, &apart)
		b.must(err)
		if apart != 0 {
			b.Fatalf("after %d rounds %d pages were of another instant", n, apart)
		}
		if first < 0 {
			first = n
		}
		if n >= first+2 {
			return n
		}
		time.Sleep(2 * time.Millisecond)
	}
	b.Fatal("it does not count")
	return 0
}

var errFull = errors.New("this is all it takes")
