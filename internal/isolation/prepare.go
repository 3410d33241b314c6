package isolation

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cleanup"
	"github.com/pando-dev/pando/internal/keeper/client"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/linux"
)

// Prepared is what the daemon prepares for a cell that is forked: what needs the host's
// privileges, as in Create.
type Prepared struct {
	Known cell.Assurance

	w     wire
	files []*os.File
	watch *proto.Watch
	dirs  []*os.File // of watch
}

// Request returns the request to make the cell Pending, and its files.
func (f *Prepared) Request(spec cell.Spec) (n proto.NewCell, files []*os.File, err error) {
	n = proto.NewCell{Cell: spec.ID, Network: spec.Network, Note: client.Describe(f.Known), Watch: f.watch}
	n.Spec, err = json.Marshal(f.w)
	return n, slices.Concat(f.files, f.dirs), err
}

// Close closes the files.
func (f *Prepared) Close() {
	CloseFiles(f.files)
	CloseFiles(f.dirs)
}

// Prepare makes the cgroups and mounts of a fork of a cell.
func (h *Host) Prepare(ctx context.Context, of *client.Instance, spec cell.Spec, undo *cleanup.Stack) (_ *Prepared, err error) {
	if spec.Top() != nil {
		return nil, cell.Errorf(cell.Unsupported, "isolation.Prepare", "wait until the image is made", "cannot copy cell %s with its processes: it makes an image", spec.ID)
	}
	mounts, err := of.Mounts(ctx)
	if err != nil {
		return nil, err
	}
	f := &Prepared{Known: cell.Assurance{Backend: h.cfg.Backend, Network: "none"}}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	spec.Family = cmp.Or(of.Family, of.Cell)
	f.w = wire{Spec: spec, Scratch: h.cfg.Scratch, Landlock: h.landlock, Talks: spec.Network != nil}
	f.w.Spec.Network = nil // only for the gateway
	if !f.w.Landlock {
		f.Known.Downgrades = append(f.Known.Downgrades, "no Landlock in this kernel: files are protected by mounts alone")
	}
	if err := h.limit(ctx, &f.w, &f.Known, undo); err != nil {
		return nil, err
	}
	if f.files, err = h.openMounts(&f.w, of.KeeperPID(), privateMounts(mounts, spec.Mounts)); err != nil {
		return nil, err
	}
	if f.w.Talks {
		if t := h.tunNode(); t != nil {
			at := len(f.files)
			f.w.Tun, f.files = &at, append(f.files, t)
		}
	}
	entry, err := h.enterFiles(&f.w)
	if err != nil {
		return nil, err
	}
	f.files = append(f.files, entry.files...)
	// One exchange makes the cell. The keeper verifies the isolation.
	h.expect(&f.Known, f.w.Talks)
	var lim cell.AppliedLimit
	if lim, f.watch, f.dirs, err = client.WatchDisk(spec, h.readable(of.KeeperPID())); err != nil {
		return nil, err
	}
	f.Known.Limits = append(f.Known.Limits, lim)
	if f.watch != nil {
		f.watch.Quiet = true
		if !h.root { // the keeper is of the same user
			f.watch.Paths = spec.Writes
		}
	}
	return f, nil
}

// Lower returns a function that lowers limits of a fork by its cgroup.
func (h *Host) Lower(spec cell.Spec) func(name string, l cell.Limits) error {
	return func(name string, l cell.Limits) error {
		if h.cgroups == nil {
			return cell.Errorf(cell.Unsupported, "isolation.Limit", "", "cannot lower the limit on %s: there are no cgroups", name)
		}
		g, err := h.cgroups.Attach(cgroupName(spec.ID, spec.Family))
		if err != nil {
			return fmt.Errorf("cannot find the fork's cgroup: %w", err)
		}
		want := linux.CgroupLimits{}
		switch name {
		case "memory":
			want.Memory = l.Memory
		case "pids":
			want.PIDs = l.PIDs
		case "cpus":
			want.CPUs = l.CPUs
		}
		for _, u := range g.Limit(want) {
			if u.Limit != "swap" {
				return cell.Errorf(cell.Unsupported, "isolation.Limit", "", "cannot lower the limit on %s: %s", name, u.Reason)
			}
		}
		return nil
	}
}

// expect records in a the isolation that the keeper verifies for each fork.
func (h *Host) expect(a *cell.Assurance, talks bool) {
	made := Made{Namespaces: map[string]string{}, UserNS: "own"}
	for _, n := range []string{"mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		made.Namespaces[n] = "own"
	}
	h.measure(a, &made)
}

// PrepareSource prepares the mounts with which the source of a branch continues.
func (h *Host) PrepareSource(ctx context.Context, of *client.Instance, spec cell.Spec) (*Prepared, error) {
	mounts, err := of.Mounts(ctx)
	if err != nil {
		return nil, err
	}
	f := &Prepared{w: wire{Spec: spec, Scratch: h.cfg.Scratch, Landlock: h.landlock, Talks: spec.Network != nil}, Known: of.Known}
	f.w.Spec.Network, f.w.Spec.Family = nil, of.Family
	f.files, err = h.openMounts(&f.w, of.KeeperPID(), privateMounts(mounts, spec.Mounts))
	if err == nil {
		_, f.watch, f.dirs, err = client.WatchDisk(spec, h.readable(of.KeeperPID()))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
