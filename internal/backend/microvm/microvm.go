// Package microvm is the backend of virtual machines: each cell has its own Linux kernel. It
// needs QEMU and a kernel from the host's packages, and no root. Without hardware
// virtualisation (package kvm) the machine is emulated.
//
// A microVM cell is a cell in namespaces with a machine in it: namespaces, mounts, cgroups, disk
// limit and link are package isolation's. Two programs run on its stage:
//
//	QEMU         the machine: a kernel of the host, and an initramfs with pando-guest
//	             as its first process (packages vmm, guest, guest/machine)
//	pando-guest  as fuseproxy: it serves the cell's files to that kernel (package fuseproxy)
//
//	daemon: Create ── isolation.Host.Create ──▶ keeper: guestkernel.Driver.Create ── machine.Boot: fuseproxy, QEMU
//	daemon: Start ─────────────────────────────▶ keeper: guestkernel.Driver.Start ─── guest.Client.Start
package microvm

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/isolation/guestkernel"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/linux/kvm"
	"github.com/pando-dev/pando/internal/vmm"
	"github.com/pando-dev/pando/internal/vmm/qemu"
)

// Name is the name of the backend.
const Name = "microvm"

// Config configures a Backend.
type Config struct {
	isolation.Config
	Guest  string             // path of pando-guest
	Path   string             // search path of programs, as in PATH, before the usual directories
	Cache  string             // directory for files made from the host's packages
	Kernel string             // default kernel, as in cell.Spec; "" for the best of the host's packages
	KVM    func() kvm.Verdict // whether machines run in hardware; nil: this host is asked
	// Unrecorded copies machines' memory during the pause, as on kernels that cannot record
	// writes.
	Unrecorded bool
}

// kvmLimit is the time limit for the machine that tests KVM. It needs some milliseconds.
const kvmLimit = 2 * time.Second

// Backend runs cells in virtual machines.
type Backend struct {
	*isolation.Host
	cfg      Config
	driver   vmm.Driver
	memories *memories

	mu     sync.Mutex      // guards the fields below
	stamp  string          // parts that runner and kits were made from
	runner *runner         // nil until it is made
	kits   map[string]*kit // by the kernel that was asked for
}

// New returns the backend. It starts nothing.
func New(cfg Config) *Backend {
	if cfg.KVM == nil {
		cfg.KVM = func() kvm.Verdict { return kvm.Look(kvm.This(kvmLimit)) }
	}
	b := &Backend{cfg: cfg, memories: newMemories(), driver: &qemu.Driver{Find: func() string { return find(machineProgram, cfg.Path) }}}
	cfg.Backend, cfg.Above = Name, &isolation.Above{
		Open: b.open,
		PIDs: func(int64) int64 { return machineThreads }, Memory: func(asked int64) int64 { return 2*(asked+kernelMemory) + ownMemory }, Link: "socket",
	}
	b.Host = isolation.NewHost(cfg.Config)
	return b
}

// machineProgram is the program that runs machines.
const machineProgram = "qemu-system-x86_64"

// find returns the path of a program, or its name if it is not found.
func find(name, path string) string {
	for _, dir := range append(filepath.SplitList(path), "/usr/local/bin", "/usr/bin") {
		p := filepath.Join(dir, name)
		if st, err := os.Stat(p); filepath.IsAbs(p) && err == nil && st.Mode()&0o111 != 0 && !st.IsDir() {
			return p
		}
	}
	return name
}

const (
	// defaultMemory is the default memory of a cell's commands, in bytes.
	defaultMemory = 1 << 30
	// kernelMemory is the machine's additional memory for its kernel and the guest, in bytes.
	kernelMemory = 128 << 20
	// ownMemory is the memory for the program that runs the machine, and for the fuseproxy, in
	// bytes. A copy needs memory twice for its first write to a page: the kernel fills the hole
	// in the mapped file before it copies the page.
	ownMemory = 256 << 20
)

// machineThreads is the maximum number of threads of a machine and its fuseproxy on the host. The
// cell's own kernel limits the cell's processes.
const machineThreads = 512

// Probe implements backend.Backend.
func (b *Backend) Probe(ctx context.Context) (backend.Caps, error) {
	caps, err := b.Host.Probe(ctx)
	if err != nil {
		return caps, err
	}
	if _, err := os.Stat(b.cfg.Guest); err != nil {
		return caps, cell.Errorf(cell.Unsupported, "microvm.Probe", "build it with `make`, or install it beside pando", "cannot find %s: %w", b.cfg.Guest, err)
	}
	if _, err := b.tools(ctx, ""); err != nil {
		return caps, err
	}
	caps.MemoryLimit, caps.ProcessLimit = "", ""
	caps.Fork, caps.LiveBranch = whole, whole
	caps.Landlock = "a machine's files say what can be written"
	return caps, nil
}

// whole is the reason why interpreters are not forked.
const whole = "a whole machine is copied, by its memory"

// Create implements backend.Backend.
func (b *Backend) Create(ctx context.Context, spec cell.Spec) (backend.Instance, error) {
	k, err := b.tools(ctx, spec.Kernel)
	if err != nil {
		return nil, err
	}
	if m := spec.Limits.Memory; !slices.Contains(spec.Asked, "memory") && (m == 0 || m > defaultMemory) {
		spec.Limits.Memory = defaultMemory
	}
	spec.Mounts = append([]cell.Mount(nil), spec.Mounts...)
	spec.Mounts = append(spec.Mounts,
		cell.Mount{Kind: cell.Bind, Source: b.cfg.Guest, Target: guestkernel.GuestPath, ReadOnly: true, Why: "guest"},
		cell.Mount{Kind: cell.Bind, Source: k.root, Target: programDir, ReadOnly: true, Why: "machine"})
	i, err := b.Host.Create(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("cannot make a microVM cell: %w", err)
	}
	b.images().Hook(i)
	return i, nil
}

// programDir is the directory in the cell's mount namespace with QEMU's files, before they move
// to the stage.
const programDir = "/run/pando-machine"

// The files for a cell's driver.
const (
	fileKernel = iota
	fileInitramfs
	fileProxy
	fileDevice // /dev/kvm; for emulation /dev/null
	filesGiven
)

// Attach implements backend.Backend.
func (b *Backend) Attach(ctx context.Context, id, family cell.ID) (backend.Instance, error) {
	i, err := b.Host.Attach(ctx, id, family)
	if err != nil {
		return nil, err
	}
	b.images().Hook(i)
	return i, nil
}

// Driver is the keeper's side of the backend.
type Driver struct{ *guestkernel.Driver }

// Listen implements server.Listener. A machine's Linux does not see listeners on the host.
func (d *Driver) Listen(id cell.ID, path string) (net.Listener, error) {
	return d.ListenInside(id, path)
}

// bootPatience is the time limit for a machine to boot. An emulated one that should take two
// seconds may hang.
const bootPatience = 20 * time.Second

// NewDriver prepares what all cells of a keeper share.
func NewDriver() (server.Driver, error) {
	d, err := guestkernel.New(guestkernel.Kind{Name: Name, Title: "the machine", Files: filesGiven, Images: len(imageNames), Introduced: true, Rehearses: true, Patience: bootPatience, Again: 2, New: newMachine})
	if err != nil {
		return nil, err
	}
	return &Driver{d}, nil
}

// triedGrace is the time limit for a guest to report packets without a route.
const triedGrace = 2 * time.Second

// Tried implements server.Observer. The machine's kernel counts.
func (d *Driver) Tried(id cell.ID) int64 {
	g := d.Guest(id)
	if g == nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), triedGrace)
	defer cancel()
	n, _ := g.Tried(ctx) // on an error the count is unknown
	return n
}

// MissingCalls implements server.Observer: machines have Linux.
func (d *Driver) MissingCalls(cell.ID) map[string]int64 { return nil }
