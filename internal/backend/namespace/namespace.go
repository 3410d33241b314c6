// Package namespace is the backend of Linux namespaces: user, mount, pid,
// network, ipc, uts and cgroup namespaces, a root file system of its own,
// dropped capabilities, Landlock, seccomp, cgroups. It needs no root and no
// set-up.
//
// It has two sides. The daemon's (this file, create.go, probe.go) makes
// cgroups and, as root, the mounts that need the host's privileges. The
// keeper's (driver.go, rootfs.go, command.go, canary.go) lives in the
// family's user namespace and makes the cell:
//
//	daemon: Create ── cgroup, mounts ──▶ keeper: Driver.Create ── firstProcess
//	daemon: Start ────────────────────▶ keeper: Driver.Start ─── command, canaries
package namespace

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/keeper/client"
	"github.com/pando-dev/pando/internal/linux"
)

// Name is the name of the backend.
const Name = "namespace"

// IDRange is the number of user IDs in a cell if pando runs as root.
const IDRange = 65536

// Config configures a Backend.
type Config struct {
	Keepers      string // directory of sockets and locks
	Scratch      string // empty directory, covered by mount points in private namespaces
	Installation string // names our cgroups: letters and digits
	IDBase       int    // first host id of the range that cells of root use
	Log          *slog.Logger
	Above        *Above // nil: commands run on the host's kernel
}

// Above configures a backend that runs a kernel of its own inside cells of this backend (see
// Stage). Its driver wraps Driver, and unpacks Inner.
type Above struct {
	Backend   string   // backend name
	Isolation []string // further isolation between commands and the cell, for the assurance
	PIDs      func(asked int64) (cgroup int64)
	// Memory returns the memory limit of the cgroup, in bytes, if the cell's own kernel limits
	// its commands. nil: the cgroup limits them.
	Memory func(asked int64) (cgroup int64)
	UserNS int    // number of user namespaces that it makes in one cell
	Link   string // required kind of link: "veth" or "socket"; "" is any
	// Open returns what the driver gets for a cell.
	Open func(spec *cell.Spec) (Opened, error)
}

// Opened is what a driver that wraps Driver gets for a cell.
type Opened struct {
	Files []*os.File      // closed after they are sent
	More  json.RawMessage // defined by the driver
	// Isolation is the cell's isolation beside Above.Isolation.
	Isolation []string
	Warm      *cell.Warmth // of the interpreter that the cell has from the start
}

// Inner is the request to a driver that wraps Driver. The wrapped driver gets Wire and the
// files after the first Files.
type Inner struct {
	Wire  json.RawMessage `json:"wire"`
	Spec  cell.Spec       `json:"spec"`
	Talks bool            `json:"talks,omitempty"` // the cell gets an interface
	Files int             `json:"files"`
	More  json.RawMessage `json:"more,omitempty"`
}

// name returns the backend's name.
func (c *Config) name() string {
	if c.Above != nil {
		return c.Above.Backend
	}
	return Name
}

// Backend runs cells in namespaces.
type Backend struct {
	cfg     Config
	root    bool
	host    *client.Host
	cgroups *linux.Cgroups
	noCg    string // why there are no cgroups
	// landlock reports whether the kernel has Landlock.
	landlock bool

	mu      sync.Mutex // guards the fields below
	ns      *linux.MountNS
	keepers *os.File
	tun     *os.File // created on first use, see tunNode
}

// New returns the backend. It starts nothing.
func New(cfg Config) *Backend {
	b := &Backend{cfg: cfg, root: os.Geteuid() == 0, landlock: cfg.Above == nil && linux.LandlockABI() > 0}
	b.host = &client.Host{Backend: cfg.name(), Dir: cfg.Keepers, Log: cfg.Log, Attr: b.keeperAttr, Ahead: 1, FromMemory: !b.landlock, Measure: b.measured}
	g, err := linux.FindCgroups(cfg.Installation)
	switch {
	case err != nil:
		b.noCg = err.Error()
	case g.Caps().Group != "":
		b.noCg = g.Caps().Group
	default:
		b.cgroups = g
	}
	return b
}

// Name implements backend.Backend.
func (b *Backend) Name() string { return b.cfg.name() }

// Warm starts a spare keeper.
func (b *Backend) Warm() { b.host.Fill() }

// Close releases all resources. Cells live on.
func (b *Backend) Close() {
	b.host.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ns != nil {
		b.ns.Close()
		b.ns = nil
	}
	if b.keepers != nil {
		b.keepers.Close()
		b.keepers = nil
	}
	if b.tun != nil {
		b.tun.Close()
		b.tun = nil
	}
	b.pruneCgroups()
}

// pruneCgroups removes the installation's cgroups, unless cells live on.
func (b *Backend) pruneCgroups() {
	if b.cgroups == nil {
		return
	}
	if g, err := b.cgroups.Attach(keepersName); err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), pruneGrace)
		defer cancel()
		g.Remove(ctx) // fails with Conflict while a keeper lives
	}
	b.cgroups.Prune()
}

// pruneGrace is the time limit for dismissed keepers to end.
const pruneGrace = 500 * time.Millisecond

// keeperAttr returns the attributes to clone a keeper into a user namespace. As root the keeper
// has a range of IDs that no user of the host has, else only the caller's own ID.
func (b *Backend) keeperAttr() (*syscall.SysProcAttr, error) {
	attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, Setsid: true}
	if f := b.keepersCgroup(); f != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, int(f.Fd())
	}
	if b.root {
		m := []syscall.SysProcIDMap{{ContainerID: 0, HostID: b.cfg.IDBase, Size: IDRange}}
		attr.UidMappings, attr.GidMappings, attr.GidMappingsEnableSetgroups = m, m, true
		attr.Credential = &syscall.Credential{Uid: 0, Gid: 0}
		return attr, nil
	}
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
	for c := range linux.LastCap() + 1 {
		attr.AmbientCaps = append(attr.AmbientCaps, uintptr(c))
	}
	return attr, nil
}

// keepersName is the cgroup of all keepers, beside those of their cells. The end of the
// daemon's cgroup does not end them. On v2 a keeper may move its children from there into its
// cells' cgroups.
const keepersName = "keepers"

// keepersCgroup returns the directory for CLONE_INTO_CGROUP. It is nil without cgroups; then
// keepers stay in the daemon's.
func (b *Backend) keepersCgroup() *os.File {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cgroups == nil {
		return nil
	}
	if b.keepers != nil {
		if !linux.Gone(b.keepers) {
			return b.keepers
		}
		b.keepers.Close() // it was empty and was removed
		b.keepers = nil
	}
	g, _, err := b.cgroups.Create(keepersName, linux.CgroupLimits{})
	if cell.KindOf(err) == cell.Exists {
		g, err = b.cgroups.Attach(keepersName)
	}
	if err != nil {
		b.cfg.Log.Warn("cannot make a cgroup for keepers", "error", err)
		return nil
	}
	if b.root {
		if err := b.cgroups.DelegateProcs(b.cfg.IDBase, b.cfg.IDBase); err != nil {
			b.cfg.Log.Warn("cannot delegate cgroups to keepers", "error", err)
		}
	}
	e, err := g.Entry()
	if err != nil {
		return nil
	}
	b.keepers, e.Into = e.Into, nil
	e.Close()
	return b.keepers
}

// Attach implements backend.Backend.
func (b *Backend) Attach(ctx context.Context, id, family cell.ID) (backend.Instance, error) {
	i, err := b.host.Attach(ctx, id, family)
	if err != nil {
		return nil, err
	}
	b.attachHooks(i)
	return i, nil
}

// attachHooks sets the functions of an instance that this backend implements.
func (b *Backend) attachHooks(i *client.Instance) {
	i.Refine = confine.Refine
	i.MakeFork, i.MakeBranches = b.fork, b.branch
	i.AfterRemove = func(ctx context.Context, last bool) error { return b.dropCgroups(ctx, i.Cell, i.Family, last) }
}

// Living implements backend.Backend.
func (b *Backend) Living(ctx context.Context) ([]cell.Held, error) { return b.host.Living(ctx) }

// Leftovers implements backend.Backend. It removes locks, sockets and cgroups of keepers that
// have ended. Mounts, namespaces and processes end with their keeper.
func (b *Backend) Leftovers(ctx context.Context, dry bool) ([]string, error) {
	found, err := b.host.Leftovers(dry)
	if err != nil {
		return found, err
	}
	if b.cgroups == nil {
		return found, nil
	}
	names, err := b.cgroups.Leftovers()
	if err != nil {
		return found, err
	}
	for _, n := range names {
		// A fork's cgroup stays while its family lives: the fork may be about to start, or a
		// fork parent may live in it.
		if _, family := cgroupOf(n); n == keepersName || b.host.Alive(family) {
			continue
		}
		found = append(found, "cgroup "+n)
		if !dry {
			if err := b.dropCgroup(ctx, n); err != nil {
				return found, err
			}
		}
	}
	return found, nil
}

func (b *Backend) dropCgroup(ctx context.Context, name string) error {
	if b.cgroups == nil {
		return nil
	}
	g, err := b.cgroups.Attach(name)
	if err != nil || g == nil {
		return nil // never made, or removed
	}
	return g.Remove(ctx)
}
