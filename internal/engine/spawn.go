package engine

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/govern"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/live"
	"github.com/pando-dev/pando/internal/run"
	"github.com/pando-dev/pando/internal/spawn"
	"github.com/pando-dev/pando/internal/state"
)

// newSpawn makes the manager of forks, branches and templates.
func (e *Engine) newSpawn() *spawn.Manager {
	return spawn.New(spawn.Config{
		Registry: e.reg, Locks: &e.locks, Log: e.log, Redactor: &redactor, Home: e.cfg.Home, Objects: e.cfg.Objects, Pool: e.cfg.Pool,
		Live: e.alive, Space: e.gc, Evidence: e.evidence, Backend: e.backend, Provider: e.providerOf, Life: e.life, Work: e.background,
		Host: func() (spawn.Needs, error) { return e.hostHas() }, Pin: func() func() { return e.pins.Begin().End }, Caps: e.caps, Bound: e.bound, Stage: stage,

		Maker: makerOf, Confined: func(ctx context.Context) bool { return viewOf(ctx).isConfined() }, MayBuild: e.mayBuild,
		RunIn: e.runNow,
		Settle: func(ctx context.Context, c *state.Cell, kind string, within cell.RunID) (state.Checkpoint, error) {
			return e.settleWith(ctx, c, state.Checkpoint{Kind: kind}, within, false)
		},
		Plan: e.planDraft, Tree: e.tree, TreeAbove: e.treeAbove, GetTree: e.trees.get, PutTree: e.trees.put, Begin: e.begin, Affordable: affordable,

		Caches: e.caches.Inherit, ForkSpec: e.forkSpec, Specify: e.specify, Refit: e.refit, ClearOverlays: e.clearOverlays, Overlays: e.overlays, Stacked: e.stackedOf, BranchMounts: e.branchMounts,
		FillHome: e.fillHome, MoveOwn: e.moveOwn, FileOf: fileOf,
		MayStart: e.govern.MayStart, MayFork: e.govern.MayFork, Spend: e.govern.Spend, Rules: e.govern.ForkGovernance, LendFork: e.govern.LendFork, Equip: e.govern.Equip, Env: e.govern.Env,
		KeepablePolicy: func(text string) (string, bool, error) { return govern.Keepable(&redactor, text) },
		Lend: func(c *state.Cell) error {
			_, _, err := e.govern.Lend(c, c.Setup.Handles)
			return err
		},
		Beside: func(ctx context.Context, c *state.Cell, do func(map[string]cell.CheckpointID, func()) error) error {
			return e.besideServices(ctx, c, true, do)
		}, CopyServices: e.copyServices, Serve: e.serveCopy,
		EvalOf: live.EvalOf, OutputTo: live.OutputTo, WarmTimeout: live.WarmTimeout,
		Remove: e.remove, RemoveCells: e.removeCells, RemoveUnmade: e.removeUnmade,
		RemoveNew: func(ctx context.Context, ids []cell.ID) error {
			return e.operate(ctx, opRemove, removeArgs{Cells: ids}, func(ctx context.Context) error { return e.doRemoveAll(ctx, ids) })
		},
		View: e.cellView, Brief: e.briefView, Failure: e.failure, SealFork: e.sealFork,
	})
}

// sealFork commits a fork of files with its receipt.
func (e *Engine) sealFork(ctx context.Context, src *state.Cell, at *state.Checkpoint, children []string, objects ...any) (cell.Digest, error) {
	act := state.ActOn(src, "fork", cell.Forked, "")
	act.Run, act.From, act.Children = string(at.Run), at.Point(), children
	key := fmt.Sprintf("%s/fork/%d", src.ID, time.Now().UnixNano())
	for _, o := range objects { // a run of a child names the receipt of the fork
		if c, ok := o.(*state.Cell); ok && slices.Contains(children, string(c.ID)) {
			c.Batch = key
		}
	}
	return e.evidence.Seal(ctx, key, act, objects...)
}

// mayBuild refuses to build what the caller may not: another template of that name
// in the place of one that is not theirs, or one more cell than they may have.
// The name is claimed.
func (e *Engine) mayBuild(ctx context.Context, name string) (context.Context, func(), error) {
	v := viewOf(ctx)
	n := 1
	if old, err := e.reg.Template(name); err == nil {
		if !v.sees(old.Cell) {
			return ctx, nil, cell.Errorf(cell.Exists, "engine.BuildTemplate", "choose another name", "cannot build template %s: template %s exists", name, name)
		}
		if l := e.reg.Lease(old.Cell); v != nil && l != nil && l.Owner == v.token {
			n = 0 // it takes its place
		}
	}
	return v.making(ctx, n, nil)
}

// draft is the cell of a template, made as one for a run.
type draft struct {
	x   *execution
	c   *state.Cell
	ctx context.Context
}

func (e *Engine) planDraft(ctx context.Context, req api.RunRequest) (spawn.Draft, error) {
	empty := ""
	if req.From == "" {
		empty = emptyWorkspace
	}
	p, err := e.All().planFrom(req, empty)
	if err != nil {
		return nil, err
	}
	if err := viewOf(ctx).samePaths(p); err != nil {
		return nil, err
	}
	p.confined = viewOf(ctx).isConfined()
	if err := p.ownMachine(); err != nil {
		return nil, err
	}
	return &draft{x: &execution{e: e, p: p, run: &state.Run{}}}, nil
}

func (d *draft) Facts() spawn.Facts {
	return spawn.Facts{Backend: d.x.p.backend, Policy: d.x.p.policy.Digest(), Notes: slices.Concat(d.x.run.Notes, d.x.p.notes)}
}

func (d *draft) Begin(ctx context.Context, c *state.Cell) (done func()) {
	x := d.x
	d.ctx, d.c, x.made = ctx, c, x.e.pins.Begin()
	x.l = run.Unwatched(ctx)
	c.Source, c.NoSource, c.Image, c.Guest = x.p.source, x.p.from != "", x.p.image.String(), x.p.confined
	return x.made.End
}

// on does a part of the work on the cell as it is now.
func (d *draft) on(work func() error) error {
	d.x.c = *d.c
	err := work()
	*d.c = d.x.c
	return err
}

func (d *draft) Look() error { return d.on(func() error { return d.x.planImage(d.ctx) }) }

func (d *draft) Import() (state.Checkpoint, error) {
	err := d.on(func() error {
		if err := d.x.source(d.ctx); err != nil {
			return err
		}
		return d.x.firstCheckpoint()
	})
	return d.x.before, err
}

func (d *draft) SetUp() error {
	return d.on(func() error {
		d.x.nameOutside()
		return d.x.setUp()
	})
}

func (d *draft) Programs(name string) ([]string, error) {
	workdir := d.x.workdir()
	if d.x.before.ID != "" {
		workdir = d.x.resolvedWorkdir()
	}
	return d.x.plan.LookPath(name, workdir)
}

func (d *draft) Start(ctx context.Context, inst backend.Instance) (cell.Process, error) {
	x := d.x
	env := cell.CommandEnv(x.e.govern.Env(d.c), x.p.policy.Env, d.c.Setup.User, false, "")
	return cell.Process{Args: x.p.req.Command, Env: env, Workdir: x.resolvedWorkdir()}, x.e.govern.Equip(ctx, d.c, inst, govern.AgentOf(x.p.req.CallerEnv))
}

// fileOf is where the file that a path of the cell leads to lies on the host.
func fileOf(mounts []cell.Mount, at string) (string, bool) {
	_, disk, ok := govern.OnHost(mounts, at)
	if root := image.RootOf(mounts); !ok || root != "/" {
		return disk, ok
	}
	real, err := filepath.EvalSymlinks(disk)
	return real, err == nil
}
