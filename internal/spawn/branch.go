package spawn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// What branches of a cell have, and have not.
const tookLive = "memory, files, home and /tmp of one instant"

// tookServices is before that where the source has services.
const tookServices = "what its services keep, "

// Branch forks a cell's interpreter in the middle of its life. Until then its
// files are a checkpoint of it; the source and the branches go on over them, each
// in layers of its own. When it fails, the source goes on where it was.
func (m *Manager) Branch(ctx context.Context, id cell.ID, req api.BranchRequest) (res api.BranchResult, err error) {
	const opName = "spawn.Branch"
	began := time.Now()
	res = api.BranchResult{Source: string(id), Cells: []api.Cell{}, Dropped: []string{}, Took: tookLive}
	count := max(req.Count, 1)
	if req.Count < 0 || count > MaxFork {
		return res, cell.Errorf(cell.Invalid, opName, fmt.Sprintf("ask for 1 to %d", MaxFork), "cannot make %d cells", req.Count)
	}
	want, err := termsOf(req.Certify, req.AtFork)
	if err != nil {
		return res, err
	}
	defer func() { err = m.orFiles(id, err) }()
	if err := m.still(ctx, id); err != nil { // before it is waited for
		return res, err
	}
	release, err := m.live.Lock(ctx, id, "branch")
	if err != nil {
		return res, err
	}
	release = sync.OnceFunc(release)
	defer release()
	defer m.cfg.Pin()()
	if err := m.still(ctx, id); err != nil {
		return res, err
	}
	inst, let := m.live.Ref(id)
	defer let()
	b := &branching{m: m, began: began, count: count, terms: want}
	if err := b.check(ctx, id, inst); err != nil {
		return res, err
	}
	notes := b.links()
	carryOut := b.carryOut
	if b.copied {
		carryOut = b.copyOut
	}
	names, done, err := m.claimBranches(&b.src, req.Name, count)
	if err != nil {
		return res, err
	}
	defer done()
	promised, err := m.promise(count, b.copied)
	if err != nil {
		return res, err
	}
	defer promised()
	err = m.cfg.Beside(ctx, &b.src, func(at map[string]cell.CheckpointID, goOn func()) error {
		b.services, b.goOn = at, goOn
		return carryOut(ctx, names)
	})
	res.PauseMS = ms(b.pause.Gap) // the source stood still, whatever came of it
	if err != nil {
		return res, err
	}
	release() // the source goes on meanwhile
	notes = append(notes, m.serve(ctx, b.all)...)
	for _, ch := range b.all {
		res.Cells = append(res.Cells, m.cfg.Brief(ch.c))
		res.Depth = ch.depth
	}
	if len(b.src.Services) > 0 {
		res.Took = tookServices + res.Took
	}
	res.Checkpoint, res.MemoryTaken, res.Receipt = b.at.Number, b.at.MemoryTaken, b.receipt
	res.Inherited, res.Renewed = generators(b.all)
	res.Notes = notes
	res.Dropped = append(res.Dropped, b.pause.Dropped...)
	for _, ch := range b.all {
		for _, d := range ch.cert.Dropped {
			if !slices.Contains(res.Dropped, d) {
				res.Dropped = append(res.Dropped, d)
			}
		}
	}
	res.TookMS = ms(time.Since(began))
	return res, nil
}

// still refuses what needs a cell in which nothing but its interpreter works. Where
// all that runs is captured, commands may, too, but for a run: its end decides what
// becomes of the cell.
func (m *Manager) still(ctx context.Context, id cell.ID) error {
	c, err := m.live.Usable(id)
	if err != nil {
		return err
	}
	captured, err := m.Captures(ctx, &c)
	if err != nil {
		return err
	}
	if run := m.cfg.RunIn(id); run != "" {
		return cell.Errorf(cell.Conflict, "spawn.Branch", "wait until it has ended, or end it: pando stop "+c.Title(),
			"cannot branch %s: run %s is under way in it", c.Title(), run)
	}
	if command, runs := m.live.RunsCommand(id); runs && !captured {
		return cell.Errorf(cell.Conflict, "spawn.Branch", "wait until it has ended, or "+m.forkFiles(&c),
			"cannot branch %s: the command %s is under way in it", c.Title(), cell.Clip(strings.Join(command, " ")))
	}
	return nil
}

// claimBranches is claimNames for branches: CELL-b1, CELL-b2.
func (m *Manager) claimBranches(src *state.Cell, asked string, count int) ([]string, func(), error) {
	if asked != "" {
		return m.claimNames(src.Title(), asked, count)
	}
	return m.claimNumbered(src.Title(), src.Title()+"-b", "", count)
}

// branching is one request for branches on its way.
type branching struct {
	m      *Manager
	began  time.Time
	count  int
	src    state.Cell // as it goes on
	p      workspace.Provider
	w      backend.Warmer
	terms  terms
	copied bool   // the cell is copied with all that runs in it, and not its interpreter forked
	act    string // "": a branch
	took   string
	interp state.Interp // zero: there is none
	shared *state.Shared
	at     state.Checkpoint // of the source's files, as the branches begin
	// services are the checkpoints of what the source's services keep, by name; goOn lets these go on
	services map[string]cell.CheckpointID
	goOn     func()
	all      []*child
	modes    map[string]uint32 // of the tops of its layers, as they were when layers were made over them
	pause    cell.Pause
	receipt  string
}

func (b *branching) check(ctx context.Context, id cell.ID, inst backend.Instance) (err error) {
	const opName = "spawn.Branch"
	m := b.m
	if b.src, err = m.live.Usable(id); err != nil {
		return err
	}
	c := &b.src
	if b.copied, err = m.Captures(ctx, c); err != nil {
		return err
	}
	i := m.reg.Interp(id)
	if i != nil && (i.Ended == "" || !b.copied) {
		b.interp = *i
	}
	switch {
	case b.copied && inst == nil:
		return cell.Errorf(cell.Conflict, opName, m.forkFiles(c), "cannot branch %s: nothing runs in it", c.Title())
	case !b.copied && (i == nil || inst == nil || i.Ended != ""):
		why := "it has no interpreter, and of a cell of backend " + c.Backend + " only that can be branched"
		if i != nil {
			why = "its interpreter is gone (" + cmp.Or(i.Ended, c.Cause, state.PutToRest) + ")"
		}
		hint := m.forkFiles(c)
		switch {
		case inst != nil && !backend.NothingRuns(ctx, inst):
			hint += "; or begin anew in a cell that is branched with all that runs: --backend gvisor, or --backend microvm"
		case i == nil:
			hint = "evaluate something in it first (pando eval " + c.Title() + " CODE), or " + hint
		}
		return cell.Errorf(cell.Conflict, opName, hint, "cannot branch %s: %s", c.Title(), why)
	case c.State == cell.Paused:
		return cell.Errorf(cell.Conflict, opName, "run `pando resume "+c.Title()+"` first", "cannot branch %s: it is paused", c.Title())
	case c.Volume > 0:
		return cell.Errorf(cell.Unsupported, opName, m.forkFiles(c)+"; or work in a cell without --disk", "cannot branch %s: it has a disk of its own (--disk), and its files there cannot be copied in the same moment", c.Title())
	}
	back, err := m.cfg.Backend(c.Backend)
	if err != nil {
		return err
	}
	caps, err := m.cfg.Caps(ctx, back)
	if err != nil {
		return err
	}
	if caps.LiveBranch != "" && !b.copied {
		return cell.Errorf(cell.Unsupported, opName, cell.Isolated, "cannot branch %s: %s", c.Title(), caps.LiveBranch)
	}
	if b.w, err = backend.WarmerOf(inst); err != nil {
		return err
	}
	if b.p, err = m.cfg.Provider(c.Provider); err != nil {
		return err
	}
	if n := len(c.Gen.Base.Layers); b.p.Mounts() && n >= maxBranchLayers {
		return cell.Errorf(cell.Unsupported, opName, "go on in a fork of its files: pando stop "+c.Title()+", then pando fork "+c.Title(),
			"cannot branch %s: its files are %d layers, and no more can be put on each other", c.Title(), n)
	}
	return m.cfg.MayFork(c, b.count)
}

// links notes the hard links that come apart, as of the newest checkpoint of which the
// tree is known: what the workspace is now is not read for it.
func (b *branching) links() []string {
	where := "the source or a branch"
	if b.copied {
		where = "a branch"
	}
	for id := b.src.Head; id != ""; {
		k, err := b.m.reg.Checkpoint(id)
		if err != nil {
			return nil
		}
		if !k.Tree.IsZero() {
			if t, err := b.m.cfg.GetTree(k.Tree); err == nil {
				return Unjoined(b.p, t, where)
			}
		}
		id = k.Parent
	}
	return nil
}

// maxBranchLayers is how many layers a workspace may have below a branch. What
// lives can't have its layers merged.
const maxBranchLayers = 150

// carryOut branches, and records what came of it.
func (b *branching) carryOut(ctx context.Context, names []string) (err error) {
	m := b.m
	if err := m.LayHome(ctx, &b.src, b.p); err != nil {
		return err
	}
	in, prepared := m.cfg.Stage(ctx, "prepare")
	spec, err := b.prepare(in, names)
	if prepared(err); err != nil {
		b.dropFiles()
		return err
	}
	args := b.args()
	finish, err := m.beginBranch(args)
	if err != nil {
		b.dropFiles()
		return err
	}
	failpoint.Step("branch an interpreter")
	in, paused := m.cfg.Stage(ctx, "pause and copy")
	ws, pause, err := b.w.Branch(in, spec)
	b.pause = pause
	b.goOn()
	paused(err)
	if err != nil && pause.Gap == 0 {
		b.dropFiles()
		return errors.Join(err, finish())
	}
	if err != nil { // the source has gone on, and no branch beside it
		for _, ch := range b.all {
			m.dropFiles(ch.c)
		}
		b.all = nil
		err = cell.Errorf(cell.KindOf(err), "spawn.Branch", cell.HintOf(err), "%w; %s itself goes on, and where it was branched is its checkpoint %d", err, b.src.Title(), b.at.Number)
		return errors.Join(err, b.record(ctx, args.over()))
	}
	if st, err := b.w.Warmth(ctx); err == nil {
		for _, ch := range b.all {
			ch.depth = st.Depth
		}
	}
	for i, ch := range b.all {
		ch.w = ws[i]
	}
	in, adopted := m.cfg.Stage(ctx, "adopt")
	aerr := b.adopt(in, names)
	adopted(aerr)
	if aerr != nil {
		for _, ch := range b.all {
			m.dropChild(ctx, ch, "its batch could not be adopted")
		}
		b.all = nil
	}
	in, recorded := m.cfg.Stage(ctx, "record")
	err = b.record(in, args.over())
	if recorded(err); err != nil {
		for _, ch := range b.all {
			m.dropChild(ctx, ch, "it could not be recorded")
		}
		return errors.Join(err, aerr)
	}
	return aerr
}

// LayHome makes home and /tmp of an ordinary cell layers, on which others can begin.
// They move while they are in use: what has them open keeps them. c is committed.
func (m *Manager) LayHome(ctx context.Context, c *state.Cell, p workspace.Provider) error {
	for _, to := range []func(*state.Cell) **workspace.Generation{func(c *state.Cell) **workspace.Generation { return &c.Home }, func(c *state.Cell) **workspace.Generation { return &c.Tmp }} {
		next := *c
		if *to(&next) != nil {
			continue
		}
		g, err := p.Begin(ctx, workspace.State{}, workspace.Entry{Type: workspace.Folder, Mode: 0o700}, "")
		if err != nil {
			return durable.Full(err)
		}
		*to(&next) = &g
		if err := m.reg.Commit(&next); err != nil { // a daemon that finds this moves it
			return err
		}
		if err := m.cfg.MoveOwn(&next, p); err != nil {
			return errors.Join(err, m.reg.Commit(c))
		}
		*c = next
	}
	return nil
}

// next makes layers over those that a cell has now, which become immutable.
func (b *branching) next(ctx context.Context, of *state.Cell, to *state.Cell) error {
	for _, g := range []struct {
		from *workspace.Generation
		to   **workspace.Generation
	}{{of.Gen, &to.Gen}, {of.Home, &to.Home}, {of.Tmp, &to.Tmp}} {
		base := frozen(b.p, g.from)
		was := b.p.Mount(*g.from, "/")
		like, err := topOf(writable(&was))
		if err != nil {
			return err
		}
		if b.modes == nil {
			b.modes = map[string]uint32{}
		}
		b.modes[writable(&was)] = like.Mode
		begin := base
		if !b.p.Mounts() {
			begin = workspace.State{} // it is copied in the pause
		}
		n, err := b.p.Begin(ctx, begin, like, "")
		if err != nil {
			return durable.Full(err)
		}
		n.Base = base
		*g.to = &n
	}
	return nil
}

// topOf is what the top directory of a layer looks like.
func topOf(dir string) (workspace.Entry, error) {
	f, err := os.OpenFile(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return workspace.Entry{}, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return workspace.Entry{}, err
	}
	top := workspace.Entry{Type: workspace.Folder, Mode: st.Mode & 0o7777, MTime: st.Mtim.Nano()}
	top.XAttrs, err = workspace.ReadXAttrs(int(f.Fd()), workspace.KeptXAttr)
	return top, err
}

// prepare makes all that can be made before the pause.
func (b *branching) prepare(ctx context.Context, names []string) (out cell.Branching, err error) {
	m, was := b.m, b.src
	b.at = state.Checkpoint{ID: cell.NewCheckpointID(), Cell: was.ID, Number: was.Next, Parent: was.Head, Kind: state.KindBranch, Created: time.Now().UTC(),
		State: frozen(b.p, was.Gen), Under: "its interpreter, which went on", Services: b.services}
	self := was
	self.Gen, self.Home, self.Tmp = nil, nil, nil
	self.Next++
	self.Head = b.at.ID
	if layered(was.Setup.Mounts) {
		self.Roots++
		self.Shared, self.Setup.Mounts = cell.Digest{}, m.cfg.BranchMounts(&was)
	}
	b.src = self
	if err := b.next(ctx, &was, &b.src); err != nil {
		return out, err
	}
	if out.Self, err = m.cfg.ForkSpec(&b.src, b.p); err != nil {
		return out, err
	}
	if b.shared, _, err = m.sharedOf(&b.src); err != nil {
		return out, err
	}
	how := &pausing{b: b, was: &was}
	for range names {
		ch := newChild(&b.src, &b.at, b.shared)
		ch.terms, ch.c.Family, ch.c.Maker = b.terms, b.src.Keeper(), m.cfg.Maker(ctx)
		if err := m.begin(ctx, ch, b.p, how); err != nil {
			return out, err
		}
		b.all = append(b.all, ch)
	}
	out.Cells = how.specs
	out.Paused = func() error { return b.paused(ctx, &was) }
	return out, nil
}

// layered reports whether a cell has layers over its image or caches: they are in its own
// folder.
func layered(mounts []cell.Mount) bool {
	return slices.ContainsFunc(mounts, func(m cell.Mount) bool {
		return m.Kind == cell.Cache || m.Role == cell.RoleImage && m.Kind == cell.Overlay
	})
}

// pausing prepares cells that are all made in one pause of their source.
type pausing struct {
	b     *branching
	was   *state.Cell // the source
	specs []cell.Spec
}

// layers implements strategy.
func (s *pausing) layers(ctx context.Context, c *state.Cell) error { return s.b.next(ctx, s.was, c) }

// start implements strategy.
func (s *pausing) start(_ context.Context, _ *child, spec cell.Spec) (backend.Warmer, error) {
	s.specs = append(s.specs, spec)
	return nil, nil
}

// paused is what is done while the source stands still: with layers, seeing that
// their tops are as they were; with copies, copying.
func (b *branching) paused(ctx context.Context, was *state.Cell) error {
	cells := []*state.Cell{&b.src}
	for _, ch := range b.all {
		cells = append(cells, ch.c)
	}
	for i, from := range []*workspace.Generation{was.Gen, was.Home, was.Tmp} {
		old := b.p.Mount(*from, "/")
		var top workspace.Entry
		if b.p.Mounts() {
			var err error
			if top, err = topOf(writable(&old)); err != nil {
				return err
			}
			if top.Mode != b.modes[writable(&old)] { // what is mounted over it goes by that
				return cell.Errorf(cell.Conflict, "spawn.Branch", "try again", "cannot branch %s: the mode of a folder of it has just been changed", b.src.Title())
			}
		}
		for _, c := range cells {
			now := b.p.Mount(*[]*workspace.Generation{c.Gen, c.Home, c.Tmp}[i], "/")
			if !b.p.Mounts() {
				if err := workspace.CopyTree(ctx, writable(&old), writable(&now), workspace.CopyOptions{}); err != nil {
					return durable.Full(err)
				}
				continue
			}
			if err := redress(writable(&now), top); err != nil {
				return err
			}
		}
	}
	return nil
}

// redress makes a layer's top as old as the one below it.
func redress(dir string, top workspace.Entry) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return err
	}
	if st.Mtim.Nano() == top.MTime {
		return nil
	}
	return os.Chtimes(dir, time.Time{}, time.Unix(0, top.MTime))
}

// dropFiles takes away what was prepared for a branch that did not come to be.
func (b *branching) dropFiles() {
	for _, ch := range b.all {
		b.m.dropFiles(ch.c)
	}
	for _, g := range b.src.Gens() {
		if was, err := b.m.reg.Cell(b.src.ID); err == nil && !slices.ContainsFunc(was.Gens(), func(o *workspace.Generation) bool { return o.Layer == g.Layer }) {
			b.m.space.DropLayer(b.src.Provider, g.Layer)
		}
	}
}

// adopt gives the branches their identities; all or none.
func (b *branching) adopt(ctx context.Context, names []string) error {
	errs := make([]error, len(b.all))
	var all sync.WaitGroup
	for i, ch := range b.all {
		all.Go(func() { errs[i] = b.m.adopt(ctx, ch, names[i], b.began) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// record makes the source's new state and its branches durable.
func (b *branching) record(ctx context.Context, more ...any) error {
	m, src := b.m, &b.src
	batch := state.Batch{Act: cmp.Or(b.act, state.BatchBranch), Template: b.interp.Template, CellName: src.Name, Interpreter: b.interp.Version, Took: cmp.Or(b.took, tookLive),
		From: &state.Point{Checkpoint: string(b.at.ID), Number: b.at.Number}, PauseMS: ms(b.pause.Gap), MemoryTaken: b.at.MemoryTaken} // nothing waits for its digests
	key := fmt.Sprintf("%s/%s/%d", src.ID, batch.Act, b.began.UnixNano())
	for _, ch := range b.all {
		copies, err := m.cfg.CopyServices(src, &b.at, ch.c, ch.first)
		if err != nil {
			return err
		}
		more = append(more, copies...)
		if b.copied {
			ch.c.Batch = key
		} else {
			ch.interp = &state.Interp{Cell: ch.c.ID, Kind: b.interp.Kind, Version: b.interp.Version, Started: ch.c.Created, Depth: ch.depth, Template: b.interp.Template, Batch: key}
		}
	}
	seal, err := m.record(ctx, key, src, batch, b.all, append(more, src, &b.at, b.shared)...)
	if err != nil {
		return err
	}
	b.receipt = seal()
	at, firsts := b.at.ID, make([]cell.CheckpointID, len(b.all))
	for i, ch := range b.all {
		firsts[i] = ch.first.ID
	}
	m.cfg.Work(func(ctx context.Context) { m.digestBranch(ctx, at, firsts) })
	return nil
}

// digestBranch computes the digests of the state that branches began on.
func (m *Manager) digestBranch(ctx context.Context, at cell.CheckpointID, firsts []cell.CheckpointID) {
	defer m.cfg.Pin()()
	k, err := m.reg.Checkpoint(at)
	if err == nil {
		_, err = m.headTree(ctx, &k)
	}
	if err != nil {
		if ctx.Err() == nil {
			m.log.Warn("cannot compute the digest of a branch", "checkpoint", at, "error", err)
		}
		return
	}
	var objects []any
	for _, id := range firsts {
		if f, err := m.reg.Checkpoint(id); err == nil && f.Tree.IsZero() && !f.Gone {
			f.Tree, f.Content = k.Tree, k.Content
			objects = append(objects, &f)
		}
	}
	if len(objects) > 0 {
		if err := m.reg.Commit(objects...); err != nil {
			m.log.Warn("cannot record digests", "error", err)
		}
	}
}

// headTree is tree, at the cost of what the topmost layer changed where that
// can be had.
func (m *Manager) headTree(ctx context.Context, k *state.Checkpoint) (*workspace.Tree, error) {
	if k.Tree.IsZero() {
		if p, err := m.cfg.Provider(k.State.Provider); err == nil && p.Mounts() && len(k.State.Layers) > 1 {
			base := workspace.State{Provider: k.State.Provider, Layers: k.State.Layers[:len(k.State.Layers)-1]}
			t, err := m.cfg.TreeAbove(ctx, p, k, base)
			if err != nil {
				return nil, err
			}
			if k.Tree, err = m.cfg.PutTree(t); err != nil {
				return nil, err
			}
			k.Content = t.ContentDigest()
			return t, m.reg.Commit(k)
		}
	}
	return m.cfg.Tree(ctx, k)
}
