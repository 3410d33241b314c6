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
	"github.com/pando-dev/pando/internal/backend/kept"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/linux"
)

// Name is the backend's word.
const Name = "namespace"

// IDRange is how many users a cell has when pando runs as root.
const IDRange = 65536

// Config says where a Backend works.
type Config struct {
	Keepers      string // directory of sockets and locks
	Scratch      string // empty directory, covered by mount points in private namespaces
	Installation string // names our cgroups: letters and digits
	IDBase       int    // first host id of the range that cells of root use
	Log          *slog.Logger
	Above        *Above // nil: commands run on the host's kernel
}

// Above is what a backend adds whose cells are those of this one, with a kernel
// of their own in them (see Stage). Its driver wraps Driver, and unpacks Inner.
type Above struct {
	Backend   string   // its word
	Isolation []string // what it puts between commands and the cell, for the assurance
	PIDs      func(asked int64) (cgroup int64)
	// Memory is what a cell may take of the host, in bytes, whose own kernel sees to it
	// that its commands take no more than was asked for. nil: that is the cgroup's.
	Memory func(asked int64) (cgroup int64)
	UserNS int    // how many user namespaces it makes in one cell
	Link   string // how a cell that talks is connected, and not otherwise: "veth", "socket"; "": by what there is
	// Open says what its driver gets for a cell.
	Open func(spec *cell.Spec) (Opened, error)
}

// Opened is what a driver that wraps Driver gets for a cell, before all else.
type Opened struct {
	Files []*os.File      // closed when they are sent
	More  json.RawMessage // its own
	// Isolation is what this cell has beside Above.Isolation.
	Isolation []string
	Warm      *cell.Warmth // of the interpreter that the cell has from the beginning
}

// Inner is how a cell reaches a driver that wraps Driver: what it wraps gets Wire,
// and the files after the first Files.
type Inner struct {
	Wire  json.RawMessage `json:"wire"`
	Spec  cell.Spec       `json:"spec"`
	Talks bool            `json:"talks,omitempty"` // it gets an interface
	Files int             `json:"files"`
	More  json.RawMessage `json:"more,omitempty"`
}

// name is the backend's word.
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
	host    *kept.Host
	cgroups *linux.Cgroups
	noCg    string // why there are no cgroups
	// landlock: the kernel has it.
	landlock bool

	mu      sync.Mutex // guards what follows
	ns      *linux.MountNS
	keepers *os.File
	tun     *os.File // made on first use, see tunNode
}

// New returns the backend. It starts nothing.
func New(cfg Config) *Backend {
	b := &Backend{cfg: cfg, root: os.Geteuid() == 0, landlock: cfg.Above == nil && linux.LandlockABI() > 0}
	b.host = &kept.Host{Backend: cfg.name(), Dir: cfg.Keepers, Log: cfg.Log, Attr: b.keeperAttr, Ahead: 1, FromMemory: !b.landlock}
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

// Warm starts a keeper ahead.
func (b *Backend) Warm() { b.host.Fill() }

// Close lets go of everything; cells live on.
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

// pruneCgroups removes the installation's directories, unless cells live on.
func (b *Backend) pruneCgroups() {
	if b.cgroups == nil {
		return
	}
	if g, err := b.cgroups.Attach(keepersName); err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), pruneGrace)
		defer cancel()
		g.Remove(ctx) // a Conflict when a keeper lives
	}
	b.cgroups.Prune()
}

// pruneGrace is how long keepers that were sent away may take to be gone.
const pruneGrace = 500 * time.Millisecond

// keeperAttr clones a keeper into a user namespace: as root with a range of
// ids that are nobody on the host, else with the caller's own id alone.
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

// keepersName is the cgroup that all keepers live in, beside those of their
// cells: what ends the daemon's cgroup doesn't reach it, and (on v2) a keeper
// may move what it forks from there into its cells'.
const keepersName = "keepers"

// keepersCgroup returns the directory for CLONE_INTO_CGROUP, nil where there
// is none; then keepers stay with the daemon.
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
		b.keepers.Close() // it was empty, and somebody tidied up
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
	b.dress(i)
	return i, nil
}

// dress adds what this backend knows of an instance.
func (b *Backend) dress(i *kept.Instance) {
	i.Refine = confine.Refine
	i.Forks = b
	i.AfterRemove = func(ctx context.Context, last bool) error { return b.dropCgroups(ctx, i.Cell, i.Family, last) }
}

// Living implements backend.Backend.
func (b *Backend) Living(ctx context.Context) ([]cell.Held, error) { return b.host.Living(ctx) }

// Leftovers implements backend.Backend: locks, sockets and cgroups of keepers
// that are gone. Mounts, namespaces and processes can't be left over: they
// end with the keeper.
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
		// Those of a fork stay as long as its family: somebody may be about to
		// make it, or a trunk lives on in it.
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
		return nil // never made, or gone
	}
	return g.Remove(ctx)
}
