package namespace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cleanup"
	"github.com/pando-dev/pando/internal/keeper/client"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/linux"
)

// Create implements backend.Backend.
func (b *Backend) Create(ctx context.Context, spec cell.Spec) (_ backend.Instance, err error) {
	family := spec.ID // the keeper is named after the family
	if spec.Family != "" {
		family = spec.Family
	}
	if b.host.Alive(family) {
		return nil, cell.Errorf(cell.Exists, "namespace.Create", "", "cell %s is alive already", spec.ID)
	}
	var undo cleanup.Stack
	defer undo.OnError(ctx, &err)

	a := cell.Assurance{Backend: b.cfg.name(), Network: "none"}
	w := wire{Spec: spec, Scratch: b.cfg.Scratch, Landlock: b.landlock, Talks: spec.Network != nil}
	w.Spec.Network = nil // only for the gateway
	if b.cfg.Above != nil {
		w.Staged = true
		w.UserNS, w.Link = b.cfg.Above.UserNS, b.cfg.Above.Link
	}
	if !w.Landlock && b.cfg.Above == nil {
		a.Downgrades = append(a.Downgrades, "no Landlock in this kernel: files are protected by mounts alone")
	}
	k, err := b.host.Take()
	if err != nil {
		return nil, explainKeeper(err)
	}
	undo.Add("end the keeper", func(context.Context) error {
		k.Kill()
		if cell.KindOf(err) != cell.Exists { // on Exists the files belong to another keeper
			b.host.Release(family)
		}
		return nil
	})
	conn, err := b.host.Assign(k, family)
	if err != nil {
		return nil, err
	}
	// The keeper has the cell from here on, so its cgroups are not garbage.
	if err := b.limit(ctx, &w, &a, &undo); err != nil {
		return nil, err
	}
	undo.Add("end what runs", func(context.Context) error { // a cgroup with processes cannot be removed
		k.Kill()
		return nil
	})
	files, err := b.openMounts(&w, k.PID, nil)
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if err != nil {
		return nil, err
	}
	if w.Talks && w.Link == "" {
		if f := b.tunNode(); f != nil {
			at := len(files)
			w.Tun, files = &at, append(files, f)
		}
	}
	entry, err := b.enterFiles(&w)
	if err != nil {
		return nil, err
	}
	defer entry.Close()
	body, err := json.Marshal(w)
	if err != nil {
		return nil, err
	}
	all := append(files, entry.files...)
	var above Opened
	if b.cfg.Above != nil {
		above, err = b.cfg.Above.Open(&w.Spec)
		defer closeFiles(above.Files)
		if err != nil {
			return nil, err
		}
		if body, err = json.Marshal(Inner{Wire: body, Spec: w.Spec, Talks: w.Talks, Files: len(above.Files), More: above.More}); err != nil {
			return nil, err
		}
		all = append(slices.Clip(above.Files), all...)
		a.Isolation = slices.Concat(b.cfg.Above.Isolation, above.Isolation)
	}
	lim, watch, dirs, err := client.WatchDisk(spec, b.readable(k.PID))
	if err != nil {
		return nil, err
	}
	defer closeFiles(dirs)
	a.Limits = append(a.Limits, lim)
	n := proto.NewCell{Cell: spec.ID, Spec: body, Network: spec.Network, Warmth: above.Warm, Watch: watch}
	i, err := b.host.Make(ctx, conn, family, n, a, append(all, dirs...)...)
	if err != nil {
		return nil, err
	}
	b.attachHooks(i)
	return i, nil
}

// openMounts opens, as root, the mounts that only root can open: id-mapped views of the
// caller's files, and overlays that the cell's own IDs cannot create. mine selects the private
// mounts of a fork; nil selects all.
func (b *Backend) openMounts(w *wire, keeperPID int, mine []bool) (files []*os.File, err error) {
	w.Mounts = make([]mount, len(w.Spec.Mounts))
	for i, m := range w.Spec.Mounts {
		if mine != nil && !mine[i] {
			w.Mounts[i].File = -1
			continue
		}
		w.Mounts[i] = mount{File: -1, Dir: isDir(m)}
		if m.Kind == cell.Cache {
			if err := os.MkdirAll(filepath.Join(m.Upper, "fs"), 0o755); err != nil {
				return nil, err
			}
			if err := os.MkdirAll(filepath.Join(m.Upper, "work"), 0o700); err != nil {
				return nil, err
			}
		}
	}
	if !b.root {
		return nil, nil
	}
	ns, err := b.mountNS()
	if err != nil {
		return nil, err
	}
	ids, err := os.Open(procPath(keeperPID, "ns/user"))
	if err != nil {
		return nil, err
	}
	defer ids.Close()
	for i, m := range w.Spec.Mounts {
		if madeInside(m) || mine != nil && !mine[i] {
			continue
		}
		f, err := openMount(ns, m, ids)
		if err != nil {
			return files, err
		}
		w.Mounts[i].File = len(files)
		files = append(files, f)
	}
	return files, nil
}

// openedEntry is the files for entering a cgroup, in the order of wire.
type openedEntry struct {
	all   *linux.CgroupEntry
	files []*os.File
}

func (e openedEntry) Close() {
	if e.all != nil {
		e.all.Close()
	}
}

func (b *Backend) enterFiles(w *wire) (e openedEntry, err error) {
	if w.Cgroup == nil {
		return e, nil
	}
	if e.all, err = w.Cgroup.Cgroup().Entry(); err != nil {
		return e, err
	}
	if e.all.Into != nil {
		w.Into = true
		e.files = append(e.files, e.all.Into)
	}
	w.Tasks = len(e.all.Tasks)
	e.files = append(e.files, e.all.Tasks...)
	return e, nil
}

// mountNS returns the namespace for mounts, created on first use.
func (b *Backend) mountNS() (*linux.MountNS, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ns == nil {
		ns, err := linux.NewMountNS(b.cfg.Scratch, b.cfg.IDBase)
		if err != nil {
			return nil, err
		}
		b.ns = ns
	}
	return b.ns, nil
}

// openMount returns a detached mount. ids is the user namespace with the IDs on disk (as root).
// It is nil if the caller is in that namespace.
func openMount(ns *linux.MountNS, m cell.Mount, ids *os.File) (*os.File, error) {
	f, err := makeMount(ns, m, ids)
	if err == nil {
		return f, nil
	}
	kind, hint := cell.Unsupported, "run `pando doctor`"
	if errors.Is(err, os.ErrNotExist) {
		kind, hint = cell.NotFound, "check that the source of the mount exists"
	}
	return nil, cell.Errorf(kind, "namespace.Create", hint, "cannot mount %s: %w", m.Target, err)
}

func makeMount(ns *linux.MountNS, m cell.Mount, ids *os.File) (*os.File, error) {
	attr := linux.MountAttr{NoSUID: true, NoDev: true, ReadOnly: m.ReadOnly}
	switch m.Kind {
	case cell.Bind:
		if m.Owned {
			attr.IDMap = ids
		}
		return ns.Bind(m.Source, attr)
	case cell.Cache:
		return ns.Overlay(linux.OverlayOptions{
			Lower: []string{m.Source}, Top: m.Upper, Upper: "fs", Work: "work",
			UserXAttr: ids == nil, IDMap: ids,
		})
	case cell.Overlay:
		return ns.Overlay(linux.OverlayOptions{
			Lower: m.Lower, Top: filepath.Dir(m.Upper), Upper: filepath.Base(m.Upper), Work: filepath.Base(m.Work),
			UserXAttr: ids == nil, IDMap: ids,
		})
	}
	return nil, fmt.Errorf("cannot make a mount of kind %q", m.Kind)
}

// limit applies the cell's limits. It records in a what applies them and which are missing.
func (b *Backend) limit(ctx context.Context, w *wire, a *cell.Assurance, undo *cleanup.Stack) error {
	l := w.Spec.Limits
	want := linux.CgroupLimits{Memory: l.Memory, PIDs: l.PIDs, CPUs: l.CPUs}
	if b.cfg.Above != nil && l.PIDs > 0 {
		want.PIDs = b.cfg.Above.PIDs(l.PIDs)
	}
	if b.cfg.Above != nil && b.cfg.Above.Memory != nil && l.Memory > 0 {
		want.Memory = b.cfg.Above.Memory(l.Memory)
	}
	var missing map[string]string
	if b.cgroups != nil {
		name := cgroupName(w.Spec.ID, w.Spec.Family)
		create := b.cgroups.Create
		if name != string(w.Spec.ID) {
			create = b.cgroups.CreateAside
		}
		g, unapplied, err := create(name, want)
		if err != nil {
			return fmt.Errorf("cannot make the cell's cgroup: %w", err)
		}
		undo.Add("remove the cgroup", g.Remove)
		if b.root {
			if err := g.Delegate(b.cfg.IDBase, b.cfg.IDBase); err != nil {
				return err
			}
		}
		place := g.Place()
		w.Cgroup = &place
		missing = map[string]string{}
		for _, u := range unapplied {
			missing[u.Limit] = u.Reason
		}
	}
	for _, x := range []struct {
		name, group, applied string
		set                  bool
	}{
		{"memory", "memory", strconv.FormatInt(l.Memory, 10), l.Memory > 0},
		{"pids", "pids", strconv.FormatInt(l.PIDs, 10), l.PIDs > 0},
		{"cpus", "cpu", strconv.FormatFloat(l.CPUs, 'g', -1, 64), l.CPUs > 0},
	} {
		if !x.set {
			continue
		}
		lim := cell.AppliedLimit{Name: x.name, Applied: x.applied, How: "cgroup"}
		asked := slices.Contains(w.Spec.Asked, x.name)
		if asked {
			lim.Asked = x.applied
		}
		why, lacks := missing[x.group]
		if b.cgroups == nil {
			why, lacks = b.noCg, true
		}
		if lacks && x.name == "pids" {
			// A user namespace counts its own processes.
			w.MaxProcs, lim.How, lacks = l.PIDs, "RLIMIT_NPROC of the user namespace", false
		}
		if x.name == "pids" && b.cfg.Above != nil {
			lim.How, lacks, w.MaxProcs = "RLIMIT_NPROC of the cell's own kernel", false, 0
		}
		if x.name == "memory" && b.cfg.Above != nil && b.cfg.Above.Memory != nil {
			lim.How, lacks = "cgroup of the cell's own kernel", false
		}
		if lacks {
			if asked {
				return cell.Errorf(cell.Unsupported, "namespace.Create", "leave out --"+x.name+", or run `pando doctor` to see what would make it work",
					"cannot limit %s: %s", x.name, why)
			}
			lim.Applied, lim.How = "", ""
			a.Downgrades = append(a.Downgrades, fmt.Sprintf("%s is not limited: %s", x.name, why))
		}
		a.Limits = append(a.Limits, lim)
	}
	if why, lacks := missing["swap"]; lacks {
		a.Downgrades = append(a.Downgrades, "memory is limited, swap is not: "+why)
	}
	return nil
}

// readable returns a function that opens directories for the keeper. As root it opens them
// id-mapped to the keeper's IDs.
func (b *Backend) readable(keeperPID int) func(string) (*os.File, error) {
	if !b.root {
		return client.OpenDir
	}
	return func(path string) (*os.File, error) {
		ns, err := b.mountNS()
		if err != nil {
			return nil, err
		}
		ids, err := os.Open(procPath(keeperPID, "ns/user"))
		if err != nil {
			return nil, err
		}
		defer ids.Close()
		return ns.Bind(path, linux.MountAttr{ReadOnly: true, NoSUID: true, NoDev: true, IDMap: ids})
	}
}

// measured adds to a what the keeper measured of a cell.
func (b *Backend) measured(a *cell.Assurance, raw json.RawMessage) error {
	var made madeCell
	if err := json.Unmarshal(raw, &made); err != nil {
		return err
	}
	b.measure(a, &made)
	return nil
}

// measure compares the cell's namespaces with those of this process and records the result in
// a.
func (b *Backend) measure(a *cell.Assurance, made *madeCell) {
	names := map[string]string{"mnt": "mount", "pid": "pid", "net": "network", "ipc": "ipc", "uts": "uts", "cgroup": "cgroup", "user": "user"}
	made.Namespaces["user"] = made.UserNS
	if made.Link != "" {
		a.Network = "gateway over " + made.Link
	}
	if made.Untold != "" {
		a.Downgrades = append(a.Downgrades, "executions of denied programs are not recorded: "+made.Untold)
	}
	for _, n := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		ours, err := os.Readlink("/proc/self/ns/" + n)
		if err == nil && made.Namespaces[n] != "" && made.Namespaces[n] != ours {
			a.Isolation = append(a.Isolation, names[n]+" namespace")
		} else {
			a.Downgrades = append(a.Downgrades, "shares the host's "+names[n]+" namespace")
		}
	}
	if b.root {
		a.IDs = fmt.Sprintf("%d ids from %d, id-mapped layers", IDRange, b.cfg.IDBase)
	} else {
		a.IDs = "the caller's id alone"
		a.Downgrades = append(a.Downgrades, "one user only: chown, setuid programs and package managers that need root don't work")
	}
}

// explainKeeper explains why no keeper can be cloned.
func explainKeeper(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return cell.Errorf(cell.Unsupported, "namespace.Create", "run `pando doctor`: it prints the remedy for this host",
			"cannot make a user namespace: this host allows no more of them (user.max_user_namespaces)")
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EACCES) {
		return cell.Errorf(cell.Unsupported, "namespace.Create", "run `pando doctor`: it prints the remedy for this host",
			"cannot make a user namespace: %w", err)
	}
	return err
}
