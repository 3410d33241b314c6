package spawn

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cleanup"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// Fork makes new cells from a checkpoint: their files are its files, their
// processes none. Nothing is copied; each writes into a layer of its own. Of a cell in which
// something runs, its files of now are forked when they are asked for alone.
func (m *Manager) Fork(ctx context.Context, id cell.ID, req api.ForkRequest) (res api.ForkResult, err error) {
	const opName = "spawn.Fork"
	count := max(req.Count, 1)
	if req.Count < 0 || count > MaxFork {
		return api.ForkResult{}, cell.Errorf(cell.Invalid, opName, fmt.Sprintf("ask for 1 to %d", MaxFork), "cannot make %d cells", req.Count)
	}
	want, err := termsOf(req.Certify, req.AtFork)
	if err != nil {
		return api.ForkResult{}, err
	}
	if req.Turn != 0 {
		if req.Number != 0 {
			return api.ForkResult{}, cell.Errorf(cell.Invalid, opName, "name the turn or the checkpoint", "cannot fork: both a turn and a checkpoint are named")
		}
		at, err := m.reg.AtTurn(id, req.Turn)
		if err != nil {
			return api.ForkResult{}, err
		}
		req.Number = at.Number
	}
	defer m.cfg.Pin()()
	var made []*child // in which something goes on
	err = m.live.Within(ctx, id, "fork", func(run cell.RunID) (err error) {
		res, made, err = m.fork(ctx, id, req, want, count, run)
		return err
	})
	res.Notes = append(res.Notes, m.serve(ctx, made)...)
	return res, err
}

// fork is Fork for a caller with the cell's lock: a run, or "".
func (m *Manager) fork(ctx context.Context, id cell.ID, req api.ForkRequest, want terms, count int, within cell.RunID) (res api.ForkResult, made []*child, err error) {
	const opName = "spawn.Fork"
	began := time.Now()
	src, err := m.live.Usable(id)
	if err != nil {
		return api.ForkResult{}, nil, err
	}
	var k state.Checkpoint
	if req.Number > 0 {
		k, err = m.reg.Numbered(src.ID, req.Number)
	} else {
		if inst := m.live.Instance(src.ID); inst != nil && !req.Files {
			if within != "" {
				return api.ForkResult{}, nil, cell.Errorf(cell.Conflict, opName, "wait until it has ended, or "+m.forkFiles(&src), "cannot fork %s: run %s is under way in it", src.Title(), within)
			}
			if !backend.NothingRuns(ctx, inst) {
				return api.ForkResult{}, nil, cell.Errorf(cell.Unsupported, opName, m.branchOrFiles(ctx, &src),
					"cannot fork %s: it has processes, and a fork of files would leave their memory behind", src.Title())
			}
		}
		k, err = m.cfg.Settle(ctx, &src, state.KindFork, within)
	}
	if err != nil {
		return api.ForkResult{}, nil, err
	}
	if k.Gone {
		return api.ForkResult{}, nil, cell.Errorf(cell.NotFound, opName, "pando history "+src.Title()+" shows those that are there", "checkpoint %s@%d was removed: it expired, was given up, or made room", src.Title(), k.Number)
	}
	if _, err := m.cfg.Tree(ctx, &k); err != nil {
		return api.ForkResult{}, nil, err
	}
	if err := m.cfg.MayFork(&src, count); err != nil {
		return api.ForkResult{}, nil, err
	}
	if k.Memory != nil && !req.Files {
		return m.forkMemory(ctx, &src, &k, req.Name, count, want, began)
	}
	if err := want.filesAlone(fmt.Sprintf("%s@%d", src.Title(), k.Number)); err != nil {
		return api.ForkResult{}, nil, err
	}
	names, named, err := m.claimNumbered(src.Title(), src.Title()+"-fork-", req.Name, count)
	if err != nil {
		return api.ForkResult{}, nil, err
	}
	defer named()
	parts := []string{"files"}
	if k.Home != nil {
		parts = append(parts, "home")
	}
	if len(src.Services) > 0 {
		parts = append(parts, "what its services keep")
	}
	took := listed(parts)
	setup, built := src.Setup, m.reg.Built(src.ID)
	if built { // a template that was built has what its steps wrote to the image
		setup.Mounts = m.cfg.Stacked(&src)
	}
	lost := dropped(&src, built, k.Home != nil)
	var objects []any
	var cells []*state.Cell
	var ids []string
	var undo cleanup.Stack
	defer undo.OnError(ctx, &err)
	now := time.Now().UTC()
	for _, name := range names {
		ch := newChild(&src, &k, nil)
		c, first := ch.c, ch.first
		if err := c.To(cell.Idle); err != nil { // it has files alone
			return api.ForkResult{}, nil, err
		}
		if err := m.beginHome(ctx, c, &k); err != nil {
			return api.ForkResult{}, nil, err
		}
		first.Home = k.Home
		undo.Add("drop the home of a new cell", func(context.Context) error { m.dropFiles(c); return nil })
		c.Name, c.Created, c.Of, c.Setup, c.Maker = name, now, "", setup, m.cfg.Maker(ctx)
		c.Guest = c.Guest || m.cfg.Confined(ctx)
		first.Created = now
		copies, err := m.cfg.CopyServices(&src, &k, c, first)
		if err != nil {
			return api.ForkResult{}, nil, err
		}
		objects = append(append(objects, c, first), copies...)
		if kept := m.cfg.Caches(src.ID, c.ID, false); kept != nil && k.ID == src.Head {
			objects = append(objects, kept)
		}
		cells = append(cells, c)
		ids = append(ids, string(c.ID))
	}
	if run, ok := m.pendingOf(&k); ok {
		if err := run.Decide(cell.Forked, "forked as "+several(names), "user"); err != nil {
			return api.ForkResult{}, nil, err
		}
		objects = append(objects, run)
	}
	in, sealed := m.cfg.Stage(ctx, "record")
	d, err := m.cfg.SealFork(in, &src, &k, ids, objects...)
	if sealed(err); err != nil {
		return api.ForkResult{}, nil, err
	}
	res = api.ForkResult{Took: fmt.Sprintf("%s as of %s@%d", took, src.Title(), k.Number), Dropped: lost,
		TookMS: ms(time.Since(began)), Receipt: d.String()}
	for _, c := range cells {
		res.Cells = append(res.Cells, m.cfg.View(c))
	}
	return res, nil, nil
}

// beginHome gives a new cell the home of the checkpoint that it begins at, if that has one.
func (m *Manager) beginHome(ctx context.Context, c *state.Cell, k *state.Checkpoint) error {
	if k.Home == nil {
		return nil
	}
	p, err := m.cfg.Provider(c.Provider)
	if err != nil {
		return err
	}
	g, err := p.Begin(ctx, *k.Home, workspace.Entry{Type: workspace.Folder, Mode: 0o700, MTime: time.Now().UnixNano()}, "")
	if err != nil {
		return durable.Full(err)
	}
	c.Home = &g
	return nil
}

// forkMemory makes cells that go on at a checkpoint with memory.
func (m *Manager) forkMemory(ctx context.Context, src *state.Cell, k *state.Checkpoint, name string, count int, want terms, began time.Time) (api.ForkResult, []*child, error) {
	with := ""
	if len(src.Services) > 0 {
		with = tookServices
	}
	took := with + fmt.Sprintf("memory, files, home and /tmp as of %s@%d", src.Title(), k.Number)
	b := &branching{m: m, began: began, count: count, src: *src, terms: want, copied: true, act: state.BatchFork, took: took, at: *k}
	res := api.ForkResult{Took: took}
	names, done, err := m.claimNumbered(src.Title(), src.Title()+"-fork-", name, count)
	if err != nil {
		return res, nil, err
	}
	defer done()
	promised, err := m.promise(count, true)
	if err != nil {
		return res, nil, err
	}
	defer promised()
	if b.p, err = m.cfg.Provider(src.Provider); err != nil {
		return res, nil, err
	}
	tree, err := m.cfg.Tree(ctx, k)
	if err != nil {
		return res, nil, err
	}
	res.Notes = Unjoined(b.p, tree, "a copy")
	t, err := m.snapshotAt(ctx, b.p, k)
	if err != nil {
		return res, nil, err
	}
	defer t.forget()
	if err := b.copies(ctx, t, names, tree.Root); err != nil {
		return res, nil, err
	}
	for _, ch := range b.all {
		res.Cells = append(res.Cells, m.cfg.Brief(ch.c))
	}
	res.Inherited, res.Renewed = generators(b.all)
	res.Dropped, res.TookMS, res.Receipt = droppedByCopy, ms(time.Since(began)), b.receipt
	return res, b.all, nil
}

// droppedByCopy is what a cell that goes on at a checkpoint with memory has not.
const droppedByCopy = "connections to others, terminals"

// pendingOf returns the run of which k is the pending result.
func (m *Manager) pendingOf(k *state.Checkpoint) (*state.Run, bool) {
	of := m.reg.FilesOf(*k)
	k = &of
	if k.Run == "" || k.Kind != state.KindAfter {
		return nil, false
	}
	r, err := m.reg.Run(k.Run)
	if err != nil || (r.Verdict != cell.Pending && r.Verdict != cell.Forked) {
		return nil, false
	}
	return &r, true
}

// dropped says what a fork of files does not take along. A cell of a template that was built by steps
// has in its layers what these wrote to the image.
func dropped(c *state.Cell, built, withHome bool) string {
	lost := []string{"memory", "processes"}
	if !withHome {
		lost = append(lost, "home")
	}
	lost = append(lost, "/tmp")
	if !built && image.RootOf(c.Setup.Mounts) != "/" {
		lost = append(lost, "what was written to the image")
	}
	return listed(lost)
}

// listed is a list in words.
func listed(list []string) string {
	last := len(list) - 1
	if last == 0 {
		return list[0]
	}
	return strings.Join(list[:last], ", ") + " and " + list[last]
}

// forkFiles says how the files of a cell can be forked now.
func (m *Manager) forkFiles(c *state.Cell) string {
	if m.live.AtRest(c.ID) {
		return "fork its files: pando fork " + c.Title()
	}
	return "fork its files as they are now: pando fork --files " + c.Title()
}

// branchOrFiles is forkFiles of a cell that runs, with the branch where that can be had.
func (m *Manager) branchOrFiles(ctx context.Context, c *state.Cell) string {
	i := m.reg.Interp(c.ID)
	captured, err := m.Captures(ctx, c)
	if c.Volume > 0 || err != nil || !captured && (i == nil || i.Ended != "") {
		return m.forkFiles(c)
	}
	return "branch it: pando branch " + c.Title() + "; or " + m.forkFiles(c)
}

// orFiles adds to the refusal of a branch what always can be had, unless its hint names it.
func (m *Manager) orFiles(id cell.ID, err error) error {
	k, hint := cell.KindOf(err), cell.HintOf(err)
	c, cerr := m.reg.Cell(id)
	if cerr != nil || strings.Contains(hint, "pando fork") || k != cell.Unsupported && !strings.HasSuffix(hint, cell.ForkSandbox) {
		return err
	}
	if hint != "" {
		hint += "; or "
	}
	return cell.Errorf(k, "spawn.Branch", hint+m.forkFiles(&c), "%w", err)
}
