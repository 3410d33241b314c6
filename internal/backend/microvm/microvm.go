// Package microvm is the backend of virtual machines: each cell has a Linux of its
// own. It needs QEMU and a kernel from the host's packages, and no root; where the
// processor's virtualisation can't be had (package kvm), the machine is emulated.
//
// A microVM cell is a namespace cell with a machine in it (packages namespace and
// staged), so namespaces, mounts, cgroups, disk limit and link are package namespace's.
// On its stage run two programs:
//
//	QEMU         the machine: a kernel of the host's, an initramfs of ours whose first
//	             process is pando-guest (packages vmm, guest, guest/machine)
//	pando-guest  as gofer: it serves the cell's files to that kernel (package gofer)
//
//	daemon: Create ── namespace.Create ──▶ keeper: staged.Driver.Create ── machine.Boot: gofer, QEMU
//	daemon: Start ────────────────────────▶ keeper: staged.Driver.Start ─── guest.Client.Start
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
	"github.com/pando-dev/pando/internal/backend/kept"
	"github.com/pando-dev/pando/internal/backend/namespace"
	"github.com/pando-dev/pando/internal/backend/staged"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper"
	"github.com/pando-dev/pando/internal/linux/kvm"
	"github.com/pando-dev/pando/internal/vmm"
	"github.com/pando-dev/pando/internal/vmm/qemu"
)

// Name is the backend's word.
const Name = "microvm"

// Config says where a Backend works.
type Config struct {
	namespace.Config
	Guest  string             // path of pando-guest
	Path   string             // where programs are looked for, as in PATH; the usual places besides
	Cache  string             // a folder for what is made of the host's packages
	Kernel string             // what machines boot for which no kernel is asked, as cell.Spec has it; "" for the best of the host's packages
	KVM    func() kvm.Verdict // whether machines run in hardware; nil: this host is asked
	// Unrecorded has machines' memory taken while they stand still, as on kernels that
	// can't record what is written meanwhile.
	Unrecorded bool
}

// kvmLimit is how long the machine that KVM is tried with may run. It needs some
// milliseconds.
const kvmLimit = 2 * time.Second

// Backend runs cells in virtual machines.
type Backend struct {
	*namespace.Backend
	cfg      Config
	driver   vmm.Driver
	memories *memories

	mu     sync.Mutex      // guards what follows
	stamp  string          // what of the host runner and kits were made from
	runner *runner         // nil until it is there
	kits   map[string]*kit // by the kernel that was asked for
}

// New returns the backend. It starts nothing.
func New(cfg Config) *Backend {
	if cfg.KVM == nil {
		cfg.KVM = func() kvm.Verdict { return kvm.Look(kvm.This(kvmLimit)) }
	}
	b := &Backend{cfg: cfg, memories: newMemories(), driver: &qemu.Driver{Find: func() string { return find(machineProgram, cfg.Path) }}}
	cfg.Above = &namespace.Above{
		Backend: Name, Open: b.open,
		PIDs: func(int64) int64 { return machineThreads }, Memory: func(asked int64) int64 { return 2*(asked+kernelMemory) + ownMemory }, Link: "socket",
	}
	b.Backend = namespace.New(cfg.Config)
	return b
}

// machineProgram is what runs machines.
const machineProgram = "qemu-system-x86_64"

// find looks for a program; its name, where it is nowhere.
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
	// defaultMemory is how much a cell's commands have, in bytes, unless it is said.
	defaultMemory = 1 << 30
	// kernelMemory is what the machine has beside: for its kernel and the guest.
	kernelMemory = 128 << 20
	// ownMemory is what the program that runs the machine needs, and the gofer. A copy
	// needs memory twice where it writes first: the kernel fills a hole of the file that
	// is mapped before it copies the page.
	ownMemory = 256 << 20
)

// machineThreads is how many threads a machine and its gofer have at most on the
// host. How many processes the cell has is its own kernel's business.
const machineThreads = 512

// Probe implements backend.Backend.
func (b *Backend) Probe(ctx context.Context) (backend.Caps, error) {
	caps, err := b.Backend.Probe(ctx)
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
	caps.Memory = ""
	caps.Fork, caps.LiveBranch = whole, whole
	caps.Landlock = "a machine's files say what can be written"
	return caps, nil
}

// whole is why no interpreter alone is forked here.
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
		cell.Mount{Kind: cell.Bind, Source: b.cfg.Guest, Target: staged.GuestPath, ReadOnly: true, Why: "guest"},
		cell.Mount{Kind: cell.Bind, Source: k.root, Target: programDir, ReadOnly: true, Why: "machine"})
	i, err := b.Backend.Create(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("cannot make a microVM cell: %w", err)
	}
	return b.dress(i), nil
}

// Where a cell's mount namespace has QEMU's files until they are on the stage.
const programDir = "/run/pando-machine"

// The files that a cell's driver gets.
const (
	fileKernel = iota
	fileInitramfs
	fileGofer
	fileDevice // /dev/kvm; where machines are emulated, /dev/null
	filesGiven
)

// Attach implements backend.Backend.
func (b *Backend) Attach(ctx context.Context, id, family cell.ID) (backend.Instance, error) {
	i, err := b.Backend.Attach(ctx, id, family)
	if err != nil {
		return nil, err
	}
	return b.dress(i), nil
}

// dress adds what this backend can do beside package namespace.
func (b *Backend) dress(i backend.Instance) backend.Instance {
	k := i.(*kept.Instance)
	k.Memory = b.images()
	return k
}

// Driver is the keeper's side.
type Driver struct{ *staged.Driver }

// Listen implements keeper.Listener: a machine's Linux does not see what listens on the
// host's.
func (d *Driver) Listen(id cell.ID, path string) (net.Listener, error) {
	return d.ListenInside(id, path)
}

// bootPatience is how long a machine may take to boot. An emulated one that is to
// take two seconds may never come to an end.
const bootPatience = 20 * time.Second

// NewDriver prepares what all cells of a keeper share.
func NewDriver() (keeper.Driver, error) {
	d, err := staged.New(staged.Kind{Name: Name, Title: "the machine", Files: filesGiven, Images: len(imageNames), Introduced: true, Rehearses: true, Patience: bootPatience, Again: 2, New: newMachine})
	if err != nil {
		return nil, err
	}
	return &Driver{d}, nil
}

// triedGrace is how long a guest may take to say who was looked for in vain.
const triedGrace = 2 * time.Second

// Tried implements keeper.Seeker: what the machine's kernel counts.
func (d *Driver) Tried(id cell.ID) int64 {
	g := d.Guest(id)
	if g == nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), triedGrace)
	defer cancel()
	n, _ := g.Tried(ctx) // or it was lost meanwhile, and nobody knows
	return n
}
