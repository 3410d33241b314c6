package isolation

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

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cleanup"
	"github.com/pando-dev/pando/internal/keeper/client"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/linux"
)

// Create is as backend.Backend says. The backend adds what its cells can do beside this.
func (h *Host) Create(ctx context.Context, spec cell.Spec) (_ *client.Instance, err error) {
	family := spec.ID // the keeper is named after the family
	if spec.Family != "" {
		family = spec.Family
	}
	if h.keepers.Alive(family) {
		return nil, cell.Errorf(cell.Exists, "isolation.Create", "", "cell %s is alive already", spec.ID)
	}
	var undo cleanup.Stack
	defer undo.OnError(ctx, &err)

	a := cell.Assurance{Backend: h.cfg.Backend, Network: "none"}
	w := wire{Spec: spec, Scratch: h.cfg.Scratch, Landlock: h.landlock && spec.Top() == nil, Talks: spec.Network != nil}
	w.Spec.Network = nil // only for the gateway
	if h.cfg.Above != nil {
		w.Staged = true
		w.UserNS, w.Link = h.cfg.Above.UserNS, h.cfg.Above.Link
	}
	switch {
	case w.Landlock || h.cfg.Above != nil:
	case h.landlock:
		a.Downgrades = append(a.Downgrades, "no Landlock, since it writes to the root directory: files are protected by mounts alone")
	default:
		a.Downgrades = append(a.Downgrades, "no Landlock in this kernel: files are protected by mounts alone")
	}
	k, err := h.keepers.Take()
	if err != nil {
		return nil, explainKeeper(err)
	}
	undo.Add("end the keeper", func(context.Context) error {
		k.Kill()
		if cell.KindOf(err) != cell.Exists { // on Exists the files belong to another keeper
			h.keepers.Release(family)
		}
		return nil
	})
	conn, err := h.keepers.Assign(k, family)
	if err != nil {
		return nil, err
	}
	// The keeper has the cell from here on, so its cgroups are not garbage: one that is there was left
	// by a daemon that was killed after an earlier keeper had ended.
	err = h.limit(ctx, &w, &a, &undo)
	if cell.KindOf(err) == cell.Exists {
		if err = h.endCgroup(ctx, cgroupName(spec.ID, spec.Family)); err == nil {
			err = h.limit(ctx, &w, &a, &undo)
		}
	}
	if err != nil {
		return nil, err
	}
	undo.Add("end what runs", func(context.Context) error { // a cgroup with processes cannot be removed
		k.Kill()
		return nil
	})
	files, err := h.openMounts(&w, k.PID, nil)
	defer func() { CloseFiles(files) }()
	if err != nil {
		return nil, err
	}
	if w.Talks && w.Link == "" {
		if f := h.tunNode(); f != nil {
			at := len(files)
			w.Tun, files = &at, append(files, f)
		}
	}
	entry, err := h.enterFiles(&w)
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
	if h.cfg.Above != nil {
		above, err = h.cfg.Above.Open(&w.Spec)
		defer CloseFiles(above.Files)
		if err != nil {
			return nil, err
		}
		if body, err = json.Marshal(Inner{Wire: body, Spec: w.Spec, Talks: w.Talks, Files: len(above.Files), More: above.More}); err != nil {
			return nil, err
		}
		all = append(slices.Clip(above.Files), all...)
		a.Isolation = slices.Concat(h.cfg.Above.Isolation, above.Isolation)
	}
	lim, watch, dirs, err := client.WatchDisk(spec, h.readable(k.PID))
	if err != nil {
		return nil, err
	}
	defer CloseFiles(dirs)
	a.Limits = append(a.Limits, lim)
	n := proto.NewCell{Cell: spec.ID, Spec: body, Network: spec.Network, Warmth: above.Warm, Watch: watch}
	i, err := h.keepers.Make(ctx, conn, family, n, a, append(all, dirs...)...)
	if err != nil {
		return nil, err
	}
	h.Hook(i)
	return i, nil
}

// openMounts opens, as root, the mounts that only root can open: id-mapped views of the
// caller's files, and overlays that the cell's own IDs cannot create. mine selects the private
// mounts of a fork; nil selects all.
func (h *Host) openMounts(w *wire, keeperPID int, mine []bool) (files []*os.File, err error) {
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
	if !h.root {
		return nil, nil
	}
	ns, err := h.mountNS()
	if err != nil {
		return nil, err
	}
	ids, err := os.Open(procPath(keeperPID, "ns/user"))
	if err != nil {
		return nil, err
	}
	defer ids.Close()
	o := opener{ns: ns, ids: ids, mounts: w.Spec.Mounts}
	defer o.close()
	for i, m := range w.Spec.Mounts {
		if madeInside(m) || mine != nil && !mine[i] {
			continue
		}
		f, err := o.open(i)
		if err != nil {
			return files, err
		}
		w.Mounts[i].File = len(files)
		files = append(files, f)
	}
	return files, nil
}

// An opener opens the mounts of one cell.
type opener struct {
	ns     *linux.MountNS
	ids    *os.File // as for openMount
	mounts []cell.Mount
	parts  map[int]*os.File // by number in mounts: those that were opened with another one
}

// open is openMount for one of the mounts. What is a part of an overlay is opened with its other parts: the overlay can be
// mounted once.
func (o *opener) open(i int) (*os.File, error) {
	m := o.mounts[i]
	if m.Part == "" {
		return openMount(o.ns, m, o.ids)
	}
	if f := o.parts[i]; f != nil {
		delete(o.parts, i)
		return f, nil
	}
	whole, err := openMount(o.ns, m, o.ids)
	if err != nil {
		return nil, err
	}
	var at []int
	var folders []string
	for k, x := range o.mounts {
		if x.Part != "" && x.Upper == m.Upper {
			at, folders = append(at, k), append(folders, x.Part)
		}
	}
	files, err := o.ns.Parts(whole, folders)
	if err != nil {
		return nil, cannotMount(m, err)
	}
	if o.parts == nil {
		o.parts = map[int]*os.File{}
	}
	for k, f := range files {
		o.parts[at[k]] = f
	}
	f := o.parts[i]
	delete(o.parts, i)
	return f, nil
}

func (o *opener) close() {
	for _, f := range o.parts {
		f.Close()
	}
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

func (h *Host) enterFiles(w *wire) (e openedEntry, err error) {
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
func (h *Host) mountNS() (*linux.MountNS, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ns == nil {
		ns, err := linux.NewMountNS(h.cfg.Scratch, h.cfg.IDBase)
		if err != nil {
			return nil, err
		}
		h.ns = ns
	}
	return h.ns, nil
}

// openMount returns a detached mount. ids is the user namespace with the IDs on disk (as root).
// It is nil if the caller is in that namespace.
func openMount(ns *linux.MountNS, m cell.Mount, ids *os.File) (*os.File, error) {
	f, err := makeMount(ns, m, ids)
	if err == nil {
		return f, nil
	}
	return nil, cannotMount(m, err)
}

func cannotMount(m cell.Mount, err error) error {
	kind, hint := cell.Unsupported, "run `pando doctor`"
	if errors.Is(err, os.ErrNotExist) {
		kind, hint = cell.NotFound, "check that the source of the mount exists"
	}
	return cell.Errorf(kind, "isolation.Create", hint, "cannot mount %s: %w", m.Target, err)
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
			Lower: append(slices.Clone(m.Lower), m.Source), Top: m.Upper, Upper: "fs", Work: "work",
			UserXAttr: ids == nil, Plain: true, IDMap: ids,
		})
	case cell.Overlay:
		return ns.Overlay(linux.OverlayOptions{
			Lower: m.Lower, Top: filepath.Dir(m.Upper), Upper: filepath.Base(m.Upper), Work: filepath.Base(m.Work),
			UserXAttr: ids == nil, Plain: m.Plain, IDMap: ids,
		})
	}
	return nil, fmt.Errorf("cannot make a mount of kind %q", m.Kind)
}

// limit applies the cell's limits. It records in a what applies them and which are missing.
func (h *Host) limit(ctx context.Context, w *wire, a *cell.Assurance, undo *cleanup.Stack) error {
	l := w.Spec.Limits
	want := linux.CgroupLimits{Memory: l.Memory, PIDs: l.PIDs, CPUs: l.CPUs}
	if h.cfg.Above != nil && l.PIDs > 0 {
		want.PIDs = h.cfg.Above.PIDs(l.PIDs)
	}
	if h.cfg.Above != nil && h.cfg.Above.Memory != nil && l.Memory > 0 {
		want.Memory = h.cfg.Above.Memory(l.Memory)
	}
	var missing map[string]string
	if h.cgroups != nil {
		name := cgroupName(w.Spec.ID, w.Spec.Family)
		create := h.cgroups.Create
		if name != string(w.Spec.ID) {
			create = h.cgroups.CreateAside
		}
		g, unapplied, err := create(name, want)
		if err != nil {
			return fmt.Errorf("cannot make the cell's cgroup: %w", err)
		}
		undo.Add("remove the cgroup", g.Remove)
		if h.root {
			if err := g.Delegate(h.cfg.IDBase, h.cfg.IDBase); err != nil {
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
		if h.cgroups == nil {
			why, lacks = h.noCg, true
		}
		if lacks && x.name == "pids" {
			// A user namespace counts its own processes.
			w.MaxProcs, lim.How, lacks = l.PIDs, "RLIMIT_NPROC of the user namespace", false
		}
		if x.name == "pids" && h.cfg.Above != nil {
			lim.How, lacks, w.MaxProcs = "RLIMIT_NPROC of the cell's own kernel", false, 0
		}
		if x.name == "memory" && h.cfg.Above != nil && h.cfg.Above.Memory != nil {
			lim.How, lacks = "cgroup of the cell's own kernel", false
		}
		if lacks {
			if asked {
				return cell.Errorf(cell.Unsupported, "isolation.Create", "leave out --"+x.name+", or run `pando doctor` to see what would make it work",
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
func (h *Host) readable(keeperPID int) func(string) (*os.File, error) {
	if !h.root {
		return client.OpenDir
	}
	return func(path string) (*os.File, error) {
		ns, err := h.mountNS()
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
func (h *Host) measured(a *cell.Assurance, raw json.RawMessage) error {
	var made Made
	if err := json.Unmarshal(raw, &made); err != nil {
		return err
	}
	h.measure(a, &made)
	return nil
}

// measure compares the cell's namespaces with those of this process and records the result in
// a.
func (h *Host) measure(a *cell.Assurance, made *Made) {
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
	if h.root {
		a.IDs = fmt.Sprintf("%d ids from %d, id-mapped layers", IDRange, h.cfg.IDBase)
	} else {
		a.IDs = "the caller's id alone"
		a.Downgrades = append(a.Downgrades, "one user only: chown, setuid programs and package managers that need root don't work")
	}
}

// explainKeeper explains why no keeper can be cloned.
func explainKeeper(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return cell.Errorf(cell.Unsupported, "isolation.Create", "run `pando doctor`: it prints the remedy for this host",
			"cannot make a user namespace: this host allows no more of them (user.max_user_namespaces)")
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EACCES) {
		return cell.Errorf(cell.Unsupported, "isolation.Create", "run `pando doctor`: it prints the remedy for this host",
			"cannot make a user namespace: %w", err)
	}
	return err
}
