package namespace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/backend/kept"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cleanup"
	"github.com/pando-dev/pando/internal/keeper"
	"github.com/pando-dev/pando/internal/linux"
)

// The daemon's side of forks: as with Create, what needs the host's privilege.

// forked is what a fork gets beside the keeper's work.
type forked struct {
	w     wire
	a     cell.Assurance
	files []*os.File
	dirs  []*os.File // that count against its limit on disk
}

func (f *forked) close() {
	closeFiles(f.files)
	closeFiles(f.dirs)
}

// prepare makes cgroups and mounts of a fork in the family of an instance whose
// mounts are given.
func (b *Backend) prepare(ctx context.Context, family cell.ID, trunk []cell.Mount, spec cell.Spec, keeperPID int, undo *cleanup.Stack) (_ *forked, err error) {
	f := &forked{a: cell.Assurance{Backend: Name, Network: "none"}}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	spec.Family = family
	f.w = wire{Spec: spec, Scratch: b.cfg.Scratch, Landlock: b.landlock, Talks: spec.Network != nil}
	f.w.Spec.Network = nil // the gateway's alone
	if !f.w.Landlock {
		f.a.Downgrades = append(f.a.Downgrades, "no Landlock in this kernel: files are protected by mounts alone")
	}
	if err := b.limit(ctx, &f.w, &f.a, undo); err != nil {
		return nil, err
	}
	if f.files, err = b.openMounts(&f.w, keeperPID, own(trunk, spec.Mounts)); err != nil {
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
	return f, nil
}

// Fork implements kept.Forking.
func (b *Backend) Fork(ctx context.Context, of *kept.Instance, spec cell.Spec) (_ *kept.Instance, err error) {
	var undo cleanup.Stack
	defer undo.OnError(ctx, &err)
	trunk, err := of.Mounts(ctx)
	if err != nil {
		return nil, err
	}
	pid, err := of.KeeperPID(ctx)
	if err != nil {
		return nil, err
	}
	family := of.Family
	if family == "" {
		family = of.Cell
	}
	f, err := b.prepare(ctx, family, trunk, spec, pid, &undo)
	if err != nil {
		return nil, err
	}
	defer f.close()
	body, err := json.Marshal(f.w)
	if err != nil {
		return nil, err
	}
	// It is complete when the keeper has made it: one exchange. What it is apart
	// from, the keeper has looked at.
	b.expect(&f.a, f.w.Talks)
	lim, dirs, err := kept.DiskWatch(spec, b.readable(pid))
	if err != nil {
		return nil, err
	}
	defer closeFiles(dirs)
	f.a.Limits = append(f.a.Limits, lim)
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	// What the keeper has begun is waited for, though nobody wants it any more:
	// who gave up would not know what it has made.
	resp, err := of.Client.Do(context.WithoutCancel(ctx), keeper.Request{Op: "fork", Trunk: of.Cell, Cell: spec.ID, Spec: body, Network: spec.Network, Note: kept.Describe(f.a)}, f.files...)
	if err != nil {
		return nil, err
	}
	i := of.Relative(spec.ID, f.a)
	b.dress(i)
	i.Lower = b.lower(spec)
	undo.Add("remove the fork", func(ctx context.Context) error { return i.Remove(ctx, "it could not be completed") })
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	var made madeCell
	if err := json.Unmarshal(resp.Measured, &made); err != nil {
		return nil, err
	}
	if err := b.watch(ctx, i, spec, dirs, true); err != nil {
		return nil, err
	}
	return i, nil
}

// lower lowers limits of a fork by its cgroup.
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

// expect says of a fork what its keeper has made sure of.
func (b *Backend) expect(a *cell.Assurance, talks bool) {
	made := madeCell{Namespaces: map[string]string{}, UserNS: "own"}
	for _, n := range []string{"mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		made.Namespaces[n] = "own"
	}
	b.measure(a, &made)
}

// Branch implements kept.Forking. All that can be made before the source stands
// still is made before.
func (b *Backend) Branch(ctx context.Context, of *kept.Instance, br cell.Branching) (made []*kept.Instance, pause cell.Pause, err error) {
	var undo cleanup.Stack
	defer undo.OnError(ctx, &err)
	of.Changed() // it may have been branched by another daemon
	trunk, err := of.Mounts(ctx)
	if err != nil {
		return nil, pause, err
	}
	pid, err := of.KeeperPID(ctx)
	if err != nil {
		return nil, pause, err
	}
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
	// What stands in the way is refused before anything is made.
	if _, err := x.Do(ctx, keeper.Request{Op: "branch", Cell: of.Cell}); err != nil {
		return nil, pause, err
	}
	for n, spec := range br.Cells {
		if branches[n], err = b.prepare(ctx, family, trunk, spec, pid, &undo); err != nil {
			return nil, pause, err
		}
		b.expect(&branches[n].a, branches[n].w.Talks)
		lim, dirs, err := kept.DiskWatch(spec, b.readable(pid))
		branches[n].dirs = dirs
		if err != nil {
			return nil, pause, err
		}
		branches[n].a.Limits = append(branches[n].a.Limits, lim)
	}
	if self, err = b.self(trunk, br.Self, of, pid); err != nil {
		return nil, pause, err
	}
	body, err := json.Marshal(self.w)
	if err != nil {
		return nil, pause, err
	}
	if _, err := x.Do(ctx, keeper.Request{Op: "source", Spec: body, Note: kept.Describe(of.Known)}, self.files...); err != nil {
		return nil, pause, err
	}
	for n, f := range branches {
		body, err := json.Marshal(f.w)
		if err != nil {
			return nil, pause, err
		}
		if _, err := x.Do(ctx, keeper.Request{Op: "fork", Cell: br.Cells[n].ID, Spec: body, Network: br.Cells[n].Network, Note: kept.Describe(f.a)}, f.files...); err != nil {
			return nil, pause, err
		}
	}
	// From here on it is waited for what comes of it, though nobody wants it any
	// more.
	wait := context.WithoutCancel(ctx)
	if _, err := x.Do(wait, keeper.Request{Op: "hold"}); err != nil {
		return nil, pause, err
	}
	if br.Paused != nil {
		err = br.Paused()
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		x.Do(wait, keeper.Request{Op: "give up"})
		return nil, pause, err
	}
	resp, err := x.Do(wait, keeper.Request{Op: "go on"})
	if err != nil {
		return nil, pause, err
	}
	if resp.Pause != nil {
		pause = *resp.Pause
	}
	of.Changed()
	if _, err := x.Do(wait, keeper.Request{Op: "complete"}); err != nil {
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
		b.dress(i)
		made = append(made, i)
	}
	for n, f := range branches {
		if err := b.watch(ctx, made[n], br.Cells[n], f.dirs, true); err != nil {
			return nil, pause, err
		}
	}
	if _, err := kept.WatchDisk(ctx, of.Client, br.Self, b.readable(pid)); err != nil {
		return nil, pause, err
	}
	return made, pause, nil
}

// self is what a source that is branched goes on with: its mounts, and nothing
// else that is new.
func (b *Backend) self(trunk []cell.Mount, spec cell.Spec, of *kept.Instance, keeperPID int) (_ *forked, err error) {
	f := &forked{w: wire{Spec: spec, Scratch: b.cfg.Scratch, Landlock: b.landlock, Talks: spec.Network != nil}}
	f.w.Spec.Network, f.w.Spec.Family = nil, of.Family
	if f.files, err = b.openMounts(&f.w, keeperPID, own(trunk, spec.Mounts)); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// watch has the keeper account for what a fork writes.
func (b *Backend) watch(ctx context.Context, i *kept.Instance, spec cell.Spec, dirs []*os.File, quiet bool) error {
	if len(dirs) == 0 {
		return nil
	}
	req := keeper.WatchRequest{Limit: spec.Limits.Disk, Exact: slices.Contains(spec.Asked, "disk"), Quiet: quiet}
	if !b.root { // the keeper is of the same user
		req.Paths = spec.Writes
	}
	_, err := i.Client.Do(ctx, keeper.Request{Op: "watch", Cell: spec.ID, Watch: &req}, dirs...)
	return err
}

// cgroupName is that of a cell's cgroups. Those of forks name their family, so
// that it can be told whose they are.
func cgroupName(id, family cell.ID) string {
	if family == "" || family == id {
		return string(id)
	}
	return string(id) + "_" + string(family)
}

// cgroupOf reads a name that cgroupName made.
func cgroupOf(name string) (id, family cell.ID) {
	a, b, ok := strings.Cut(name, "_")
	if !ok {
		b = a
	}
	return cell.ID(a), cell.ID(b)
}

// dropCgroups removes those of a cell; with the last of a family, those of all
// whose trunks lived on after them.
func (b *Backend) dropCgroups(ctx context.Context, id, family cell.ID, last bool) error {
	if family == "" {
		family = id
	}
	err := b.dropCgroup(ctx, cgroupName(id, family))
	if !last {
		if cell.KindOf(err) == cell.Conflict { // something was forked from it
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
