package namespace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cleanup"
	"github.com/pando-dev/pando/internal/keeper/client"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/linux"
)

// The daemon's side of forks: what needs the host's privileges, as in Create.

// forked is what the daemon prepares for a fork.
type forked struct {
	w     wire
	a     cell.Assurance
	files []*os.File
	watch *proto.Watch
	dirs  []*os.File // of watch
}

// cell returns the request for the cell, and its files.
func (f *forked) cell(spec cell.Spec) (n proto.NewCell, files []*os.File, err error) {
	n = proto.NewCell{Cell: spec.ID, Network: spec.Network, Note: client.Describe(f.a), Watch: f.watch}
	n.Spec, err = json.Marshal(f.w)
	return n, slices.Concat(f.files, f.dirs), err
}

func (f *forked) close() {
	closeFiles(f.files)
	closeFiles(f.dirs)
}

// prepare makes the cgroups and mounts of a fork. parent is the list of mounts of the cell that
// is forked.
func (b *Backend) prepare(ctx context.Context, family cell.ID, forkParent []cell.Mount, spec cell.Spec, keeperPID int, undo *cleanup.Stack) (_ *forked, err error) {
	f := &forked{a: cell.Assurance{Backend: Name, Network: "none"}}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	spec.Family = family
	f.w = wire{Spec: spec, Scratch: b.cfg.Scratch, Landlock: b.landlock, Talks: spec.Network != nil}
	f.w.Spec.Network = nil // only for the gateway
	if !f.w.Landlock {
		f.a.Downgrades = append(f.a.Downgrades, "no Landlock in this kernel: files are protected by mounts alone")
	}
	if err := b.limit(ctx, &f.w, &f.a, undo); err != nil {
		return nil, err
	}
	if f.files, err = b.openMounts(&f.w, keeperPID, privateMounts(forkParent, spec.Mounts)); err != nil {
		return nil, err
	}
	if f.w.Talks {
		if t := b.tunNode(); t != nil {
			at := len(f.files)
			f.w.Tun, f.files = &at, append(f.files, t)
		}
	}
	entry, err := b.enterFiles(&f.w)
	if err != nil {
		return nil, err
	}
	f.files = append(f.files, entry.files...)
	// One exchange makes the cell. The keeper verifies the isolation.
	b.expect(&f.a, f.w.Talks)
	var lim cell.AppliedLimit
	if lim, f.watch, f.dirs, err = client.WatchDisk(spec, b.readable(keeperPID)); err != nil {
		return nil, err
	}
	f.a.Limits = append(f.a.Limits, lim)
	if f.watch != nil {
		f.watch.Quiet = true
		if !b.root { // the keeper is of the same user
			f.watch.Paths = spec.Writes
		}
	}
	return f, nil
}

// fork makes a fork of a sealed instance.
func (b *Backend) fork(ctx context.Context, of *client.Instance, spec cell.Spec) (_ *client.Instance, err error) {
	var undo cleanup.Stack
	defer undo.OnError(ctx, &err)
	forkParent, err := of.Mounts(ctx)
	if err != nil {
		return nil, err
	}
	family := of.Family
	if family == "" {
		family = of.Cell
	}
	f, err := b.prepare(ctx, family, forkParent, spec, of.KeeperPID(), &undo)
	if err != nil {
		return nil, err
	}
	defer f.close()
	n, files, err := f.cell(spec)
	if err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	// The request is not cancelled: after a cancelled one the caller would not know what the
	// keeper has made.
	if _, err := client.Ask(context.WithoutCancel(ctx), of.Client, proto.Fork, proto.NewFork{Of: of.Cell, NewCell: n}, files...); err != nil {
		return nil, err
	}
	i := of.Relative(spec.ID, f.a)
	b.attachHooks(i)
	i.Lower = b.lower(spec)
	undo.Add("remove the fork", func(ctx context.Context) error { return i.Remove(ctx, "it could not be completed") })
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return i, nil
}

// lower returns a function that lowers limits of a fork by its cgroup.
func (b *Backend) lower(spec cell.Spec) func(name string, l cell.Limits) error {
	return func(name string, l cell.Limits) error {
		if b.cgroups == nil {
			return cell.Errorf(cell.Unsupported, "namespace.Limit", "", "cannot lower the limit on %s: there are no cgroups", name)
		}
		g, err := b.cgroups.Attach(cgroupName(spec.ID, spec.Family))
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
				return cell.Errorf(cell.Unsupported, "namespace.Limit", "", "cannot lower the limit on %s: %s", name, u.Reason)
			}
		}
		return nil
	}
}

// expect records in a the isolation that the keeper verifies for each fork.
func (b *Backend) expect(a *cell.Assurance, talks bool) {
	made := madeCell{Namespaces: map[string]string{}, UserNS: "own"}
	for _, n := range []string{"mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		made.Namespaces[n] = "own"
	}
	b.measure(a, &made)
}

// branch makes branches of an instance. Everything that can be prepared before the source stops is
// prepared before.
func (b *Backend) branch(ctx context.Context, of *client.Instance, br cell.Branching) (made []*client.Instance, pause cell.Pause, err error) {
	var undo cleanup.Stack
	defer undo.OnError(ctx, &err)
	of.Changed() // another daemon may have branched it
	forkParent, err := of.Mounts(ctx)
	if err != nil {
		return nil, pause, err
	}
	pid := of.KeeperPID()
	family := of.Family
	if family == "" {
		family = of.Cell
	}
	branches := make([]*forked, len(br.Cells))
	var self *forked
	defer func() {
		for _, f := range append(branches, self) {
			if f != nil {
				f.close()
			}
		}
	}()
	x, err := of.Client.Session(ctx)
	if err != nil {
		return nil, pause, err
	}
	defer x.Close()
	// Obstacles are reported before anything is made.
	if _, err := client.Ask(ctx, x, proto.Branch, proto.OfCell{Cell: of.Cell}); err != nil {
		return nil, pause, err
	}
	for n, spec := range br.Cells {
		if branches[n], err = b.prepare(ctx, family, forkParent, spec, pid, &undo); err != nil {
			return nil, pause, err
		}
	}
	if self, err = b.self(forkParent, br.Self, of, pid); err != nil {
		return nil, pause, err
	}
	n, files, err := self.cell(br.Self)
	if err != nil {
		return nil, pause, err
	}
	if _, err := client.Ask(ctx, x, proto.Source, n, files...); err != nil {
		return nil, pause, err
	}
	for n, f := range branches {
		n, files, err := f.cell(br.Cells[n])
		if err != nil {
			return nil, pause, err
		}
		if _, err := client.Ask(ctx, x, proto.BranchTo, n, files...); err != nil {
			return nil, pause, err
		}
	}
	// From here on the exchange is completed even if ctx is cancelled.
	wait := context.WithoutCancel(ctx)
	if _, err := client.Ask(wait, x, proto.Hold, proto.None{}); err != nil {
		return nil, pause, err
	}
	if br.Paused != nil {
		err = br.Paused()
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		client.Ask(wait, x, proto.GiveUp, proto.None{})
		return nil, pause, err
	}
	if pause, err = client.Ask(wait, x, proto.GoOn, proto.None{}); err != nil {
		return nil, pause, err
	}
	of.Changed()
	if _, err := client.Ask(wait, x, proto.Complete, proto.None{}); err != nil {
		return nil, pause, err
	}
	undo.Add("remove the branches", func(ctx context.Context) error {
		var errs []error
		for _, i := range made {
			errs = append(errs, i.Remove(ctx, "it could not be completed"))
		}
		return errors.Join(errs...)
	})
	for n, f := range branches {
		i := of.Relative(br.Cells[n].ID, f.a)
		b.attachHooks(i)
		made = append(made, i)
	}
	return made, pause, nil
}

// self prepares the mounts with which the source of a branch continues.
func (b *Backend) self(forkParent []cell.Mount, spec cell.Spec, of *client.Instance, keeperPID int) (_ *forked, err error) {
	f := &forked{w: wire{Spec: spec, Scratch: b.cfg.Scratch, Landlock: b.landlock, Talks: spec.Network != nil}, a: of.Known}
	f.w.Spec.Network, f.w.Spec.Family = nil, of.Family
	f.files, err = b.openMounts(&f.w, keeperPID, privateMounts(forkParent, spec.Mounts))
	if err == nil {
		_, f.watch, f.dirs, err = client.WatchDisk(spec, b.readable(keeperPID))
	}
	if err != nil {
		f.close()
		return nil, err
	}
	return f, nil
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
	a, b, ok := strings.Cut(name, "_")
	if !ok {
		b = a
	}
	return cell.ID(a), cell.ID(b)
}

// dropCgroups removes the cgroup of a cell. With the last cell of a family it removes those of
// all its fork parents.
func (b *Backend) dropCgroups(ctx context.Context, id, family cell.ID, last bool) error {
	if family == "" {
		family = id
	}
	err := b.dropCgroup(ctx, cgroupName(id, family))
	if !last {
		if cell.KindOf(err) == cell.Conflict { // a fork parent lives in it
			return nil
		}
		return err
	}
	if b.cgroups == nil {
		return err
	}
	names, lerr := b.cgroups.Leftovers()
	errs := []error{err, lerr}
	for _, n := range names {
		if _, f := cgroupOf(n); f == family && n != keepersName {
			errs = append(errs, b.dropCgroup(ctx, n))
		}
	}
	return errors.Join(slices.DeleteFunc(errs, func(e error) bool { return e == nil })...)
}
