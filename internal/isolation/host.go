// Package isolation is what backends share that have their cells in namespaces: mounts, cgroups,
// the first process, the link to the gateway, canaries. It needs no root and no set-up. No
// backend imports another; what two share is here.
//
// It has two halves. The daemon's (Host) makes cgroups and, as root, the mounts that need the
// host's privileges. The keeper's (Driver) lives in the family's user namespace and makes the
// cell:
//
//	daemon: Host.Create ── cgroup, mounts ──▶ keeper: Driver.Create ── firstProcess
//	daemon: Start ──────────────────────────▶ keeper: Driver.Start ─── command, canaries
//
// Two ways lead further. A backend with a kernel of its own (Above) runs it on a Stage beside
// the cell, each program in a Jail: see package guestkernel. A backend that forks interpreters
// has Host.Prepare and Driver.Pending make all of a cell but its process:
//
//	daemon: Host.Prepare ── cgroup, mounts ──▶ keeper: Driver.Pending, a fork, Pending.Inhabit
package isolation

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/keeper/client"
	"github.com/pando-dev/pando/internal/linux"
)

// IDRange is the number of user IDs in a cell if pando runs as root.
const IDRange = 65536

// Config configures a Host.
type Config struct {
	Backend      string // name of the backend, which sets it
	Keepers      string // directory of sockets and locks
	Scratch      string // empty directory, covered by mount points in private namespaces
	Installation string // names our cgroups: letters and digits
	IDBase       int    // first host id of the range that cells of root use
	Log          *slog.Logger
	Above        *Above // nil: commands run on the host's kernel; the backend sets it
}

// Above configures a backend that runs a kernel of its own inside cells (see Stage). Its driver
// wraps Driver, and unpacks Inner.
type Above struct {
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

// Host is the daemon's half. A backend embeds it for most of backend.Backend, and wraps Create
// and Attach.
type Host struct {
	cfg     Config
	root    bool
	keepers *client.Host
	cgroups *linux.Cgroups
	noCg    string // why there are no cgroups
	// landlock reports whether the kernel has Landlock.
	landlock bool

	mu    sync.Mutex // guards the fields below
	ns    *linux.MountNS
	group *os.File // cgroup of the keepers
	tun   *os.File // created on first use, see tunNode
}

// NewHost returns the daemon's half. It starts nothing.
func NewHost(cfg Config) *Host {
	h := &Host{cfg: cfg, root: os.Geteuid() == 0, landlock: cfg.Above == nil && linux.LandlockABI() > 0}
	h.keepers = &client.Host{Backend: cfg.Backend, Dir: cfg.Keepers, Log: cfg.Log, Attr: h.keeperAttr, Ahead: 1, FromMemory: !h.landlock, Measure: h.measured}
	g, err := linux.FindCgroups(cfg.Installation)
	switch {
	case err != nil:
		h.noCg = err.Error()
	case g.Caps().Group != "":
		h.noCg = g.Caps().Group
	default:
		h.cgroups = g
	}
	return h
}

// Name implements backend.Backend.
func (h *Host) Name() string { return h.cfg.Backend }

// Warm starts a spare keeper.
func (h *Host) Warm() { h.keepers.Fill() }

// Close releases all resources. Cells live on.
func (h *Host) Close() {
	h.keepers.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ns != nil {
		h.ns.Close()
		h.ns = nil
	}
	if h.group != nil {
		h.group.Close()
		h.group = nil
	}
	if h.tun != nil {
		h.tun.Close()
		h.tun = nil
	}
	h.pruneCgroups()
}

// pruneCgroups removes the installation's cgroups, unless cells live on.
func (h *Host) pruneCgroups() {
	if h.cgroups == nil {
		return
	}
	if g, err := h.cgroups.Attach(keepersName); err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), pruneGrace)
		defer cancel()
		g.Remove(ctx) // fails with Conflict while a keeper lives
	}
	h.cgroups.Prune()
}

// pruneGrace is the time limit for dismissed keepers to end.
const pruneGrace = 500 * time.Millisecond

// keeperAttr returns the attributes to clone a keeper into a user namespace. As root the keeper
// has a range of IDs that no user of the host has, else only the caller's own ID.
func (h *Host) keeperAttr() (*syscall.SysProcAttr, error) {
	attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, Setsid: true}
	if f := h.keepersCgroup(); f != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, int(f.Fd())
	}
	if h.root {
		m := []syscall.SysProcIDMap{{ContainerID: 0, HostID: h.cfg.IDBase, Size: IDRange}}
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
func (h *Host) keepersCgroup() *os.File {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cgroups == nil {
		return nil
	}
	if h.group != nil {
		if !linux.Gone(h.group) {
			return h.group
		}
		h.group.Close() // it was empty and was removed
		h.group = nil
	}
	g, _, err := h.cgroups.Create(keepersName, linux.CgroupLimits{})
	if cell.KindOf(err) == cell.Exists {
		g, err = h.cgroups.Attach(keepersName)
	}
	if err != nil {
		h.cfg.Log.Warn("cannot make a cgroup for keepers", "error", err)
		return nil
	}
	if h.root {
		if err := h.cgroups.DelegateProcs(h.cfg.IDBase, h.cfg.IDBase); err != nil {
			h.cfg.Log.Warn("cannot delegate cgroups to keepers", "error", err)
		}
	}
	e, err := g.Entry()
	if err != nil {
		return nil
	}
	h.group, e.Into = e.Into, nil
	e.Close()
	return h.group
}

// Attach is as backend.Backend says. The backend adds what its cells can do beside this.
func (h *Host) Attach(ctx context.Context, id, family cell.ID) (*client.Instance, error) {
	i, err := h.keepers.Attach(ctx, id, family)
	if err != nil {
		return nil, err
	}
	h.Hook(i)
	return i, nil
}

// Hook sets the functions of an instance that all these backends have.
func (h *Host) Hook(i *client.Instance) {
	i.Refine = confine.Refine
	i.AfterRemove = func(ctx context.Context, last bool) error { return h.dropCgroups(ctx, i.Cell, i.Family, last) }
}

// Living implements backend.Backend.
func (h *Host) Living(ctx context.Context) ([]cell.Held, error) { return h.keepers.Living(ctx) }

// Leftovers implements backend.Backend. It removes locks, sockets and cgroups of keepers that
// have ended. Mounts, namespaces and processes end with their keeper.
func (h *Host) Leftovers(ctx context.Context, dry bool) ([]string, error) {
	found, err := h.keepers.Leftovers(dry)
	if err != nil {
		return found, err
	}
	if h.cgroups == nil {
		return found, nil
	}
	names, err := h.cgroups.Leftovers()
	if err != nil {
		return found, err
	}
	for _, n := range names {
		// A fork's cgroup stays while its family lives: the fork may be about to start, or a
		// fork parent may live in it.
		if _, family := cgroupOf(n); n == keepersName || h.keepers.Alive(family) {
			continue
		}
		found = append(found, "cgroup "+n)
		if !dry {
			if err := h.dropCgroup(ctx, n); err != nil {
				return found, err
			}
		}
	}
	return found, nil
}

func (h *Host) dropCgroup(ctx context.Context, name string) error {
	if h.cgroups == nil {
		return nil
	}
	g, err := h.cgroups.Attach(name)
	if err != nil || g == nil {
		return nil // never made, or removed
	}
	return g.Remove(ctx)
}

// endCgroup ends the processes in a cgroup that has no keeper, and removes it.
func (h *Host) endCgroup(ctx context.Context, name string) error {
	g, err := h.cgroups.Attach(name)
	if cell.KindOf(err) == cell.NotFound {
		return nil // removed meanwhile
	}
	if err == nil {
		if err = g.Kill(ctx); err == nil {
			err = g.Remove(ctx)
		}
	}
	if err != nil {
		return cell.Errorf(cell.Unavailable, "isolation.endCgroup", "see what runs in it: systemd-cgls, or its cgroup.procs", "cannot remove what an earlier keeper left: %w", err)
	}
	return nil
}

// cgroupName returns the name of a cell's cgroup. A fork's cgroup also names the family.
func cgroupName(id, family cell.ID) string {
	if family == "" || family == id {
		return string(id)
	}
	return string(id) + "_" + string(family)
}

// cgroupOf parses a name made by cgroupName.
func cgroupOf(name string) (id, family cell.ID) {
	own, of, forked := strings.Cut(name, "_")
	if !forked {
		of = own
	}
	return cell.ID(own), cell.ID(of)
}

// dropCgroups removes the cgroup of a cell. With the last cell of a family it removes those of
// all its fork parents.
func (h *Host) dropCgroups(ctx context.Context, id, family cell.ID, last bool) error {
	if family == "" {
		family = id
	}
	err := h.dropCgroup(ctx, cgroupName(id, family))
	if !last {
		if cell.KindOf(err) == cell.Conflict { // a fork parent lives in it
			return nil
		}
		return err
	}
	if h.cgroups == nil {
		return err
	}
	names, lerr := h.cgroups.Leftovers()
	errs := []error{err, lerr}
	for _, n := range names {
		if _, f := cgroupOf(n); f == family && n != keepersName {
			errs = append(errs, h.dropCgroup(ctx, n))
		}
	}
	return errors.Join(slices.DeleteFunc(errs, func(e error) bool { return e == nil })...)
}
