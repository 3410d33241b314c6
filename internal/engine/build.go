package engine

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/govern"
	"github.com/pando-dev/pando/internal/live"
	"github.com/pando-dev/pando/internal/run"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// BuildTemplate makes a template, or makes one anew: a cell as for a run, in
// which an interpreter is warmed and sealed. A template of that name stays what
// it was until the new one is complete; when building fails nothing remains of
// the new one.
func (e *Engine) BuildTemplate(ctx context.Context, req api.TemplateRequest, out func(api.StreamLine), seen ...Seen) (_ api.Template, err error) {
	if !req.DryRun {
		var a *act
		ctx, a = e.act(ctx, "template", "")
		defer func() {
			if t, err := e.reg.Template(req.Name); err == nil {
				a.cell = t.Cell
			}
			a.over(&err)
		}()
	}
	p, err := e.planTemplate(req)
	if err != nil {
		return api.Template{}, err
	}
	if err := viewOf(ctx).samePaths(p.run); err != nil {
		return api.Template{}, err
	}
	p.run.confined = viewOf(ctx).isConfined()
	if err := p.run.ownMachine(); err != nil {
		return api.Template{}, err
	}
	release, err := e.claimTemplate(req.Name, "build")
	if err != nil {
		return api.Template{}, err
	}
	defer release()
	if err := unless(func() string { return e.templateTag(req.Name) }, seen); err != nil {
		return api.Template{}, err
	}
	b := &build{e: e, p: p, out: out, began: time.Now()}
	if req.DryRun {
		return b.dryRun(ctx)
	}
	ctx, done, err := e.mayBuild(ctx, req.Name)
	if err != nil {
		return api.Template{}, err
	}
	defer done()
	ctx, cancel := e.bound(ctx)
	defer cancel()
	in, made := stage(ctx, "make")
	err = b.make(in)
	if made(err); err == nil {
		in, published := stage(ctx, "publish")
		_, err = b.publish(in)
		published(err)
	}
	if err != nil {
		b.undo(ctx)
		switch {
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case cell.HintOf(err) == "":
			err = full(err)
		}
		return api.Template{}, err
	}
	release()
	e.fillPools()
	return e.Template(req.Name)
}

// mayBuild refuses to build what the caller may not: another template of that name
// in the place of one that is not theirs, or one more cell than they may have.
// The caller holds the claim on the name.
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

// bound returns a context that ends with the request and with the daemon.
func (e *Engine) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	c, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.life, func() { cancel(context.Cause(e.life)) })
	return c, func() {
		stop()
		cancel(nil)
	}
}

// build is a template on its way.
type build struct {
	e     *Engine
	p     *templatePlan
	out   func(api.StreamLine)
	began time.Time

	again  *state.Template // what is warmed again; nil for a new one
	x      *execution
	paths  []string
	warmth cell.Warmth
	prog   state.Program
	notes  []string

	assurance *state.Assurance // of a whole template's cell, which is gone
}

func (b *build) report(step, note string) {
	if b.out != nil {
		b.out(api.StreamLine{Progress: &api.Progress{Step: step, Note: note}})
	}
}

// execution is what a run would be that works in the template's cell.
func (b *build) execution(ctx context.Context) *execution {
	p := b.p.run
	x := &execution{e: b.e, p: p, l: run.Unwatched(ctx), run: &state.Run{}, made: b.e.pins.Begin()}
	x.c = state.Cell{ID: cell.NewID(), State: cell.Creating, Source: p.source, NoSource: p.from != "", Backend: p.backend.Name(),
		Image: p.image.String(), Created: time.Now().UTC(), Next: 1, Template: b.p.req.Name, Guest: p.confined}
	return x
}

func (b *build) dryRun(ctx context.Context) (api.Template, error) {
	b.x = b.execution(ctx)
	defer b.x.made.End()
	if err := b.x.planImage(ctx); err != nil {
		return api.Template{}, err
	}
	if _, err := b.p.programs(func(name string) ([]string, error) { return b.x.plan.LookPath(name, b.x.workdir()) }); err != nil {
		return api.Template{}, err
	}
	spec, unkept := keepable(b.p.req)
	t := state.Template{Name: spec.Name, Spec: spec, Unkept: unkept, Notes: append(b.x.run.Notes, b.p.run.notes...)}
	v := b.e.templateView(&t)
	v.Policy = b.p.run.policy.Digest().String()
	return v, nil
}

// make brings the template's cell to the state in which it can be forked.
func (b *build) make(ctx context.Context) error {
	e := b.e
	x := b.execution(ctx)
	b.x = x
	defer x.made.End()
	if err := e.gc.KeepReserve(); err != nil {
		return full(err)
	}
	x.c.Maker = makerOf(ctx)
	if old, err := e.reg.Template(b.p.req.Name); err == nil {
		x.c.Replaces = old.Cell
	}
	if err := e.reg.Commit(&x.c); err != nil { // what a crash leaves of it is known by this
		return err
	}
	var err error
	b.report("preparing", "")
	if err = x.planImage(ctx); err != nil {
		return err
	}
	b.report("importing", x.p.source)
	if err := x.source(ctx); err != nil {
		return err
	}
	if err := x.firstCheckpoint(); err != nil {
		return err
	}
	x.c.Parent = nil
	prov, err := e.providerOf(x.c.Provider)
	if err != nil {
		return err
	}
	if err := e.ownLayers(ctx, &x.c, prov, nil); err != nil {
		return err
	}
	x.nameOutside()
	if err := x.setUp(); err != nil {
		return err
	}
	if err := e.reg.Commit(&x.c, &x.before); err != nil {
		return err
	}
	inst, err := e.alive.Activate(ctx, &x.c)
	if err != nil {
		return err
	}
	if err := e.govern.Equip(ctx, &x.c, inst, govern.AgentOf(x.p.req.CallerEnv)); err != nil {
		return err
	}
	b.notes = append(append(b.notes, x.run.Notes...), x.p.notes...)
	env := cell.CommandEnv(e.govern.Env(&x.c), x.p.policy.Env, x.c.Setup.User, false, "")
	path, err := b.p.programs(func(name string) ([]string, error) { return x.plan.LookPath(name, x.resolvedWorkdir()) })
	if err != nil {
		return err
	}
	return b.warm(ctx, inst, cell.Process{Args: x.p.req.Command, Env: env, Path: path, Workdir: x.resolvedWorkdir()})
}

// warm starts the interpreter, waits until it is ready, and seals it.
func (b *build) warm(ctx context.Context, inst backend.Instance, proc cell.Process) (err error) {
	if b.p.whole {
		return b.warmWhole(ctx, inst, proc)
	}
	w, err := live.Warmer(inst)
	if err != nil {
		return err
	}
	b.report("warming", b.p.req.Warm)
	spec := b.p.warm
	spec.Process, b.paths = proc, proc.Path
	if spec.Kind == cell.WarmCommand {
		spec.Name = strings.TrimSpace(b.p.req.Warm)
	}
	if b.warmth, err = w.Warm(ctx, spec, live.OutputTo(b.out)); err != nil {
		return b.unforkable(err)
	}
	if b.prog, err = programAt(b.x.c.Setup.Mounts, proc.Path); err != nil {
		return err
	}
	b.report("sealing", b.warmth.Version)
	if b.warmth, err = w.Seal(ctx); err != nil {
		return b.unforkable(err)
	}
	return b.seal(ctx)
}

// seal makes what the set-up wrote the state that forks begin on.
func (b *build) seal(ctx context.Context) error {
	e, c := b.e, &b.x.c
	p, err := e.providerOf(c.Provider)
	if err != nil {
		return err
	}
	began := time.Now()
	k := state.Checkpoint{ID: cell.NewCheckpointID(), Cell: c.ID, Number: c.Next, Parent: c.Head, Kind: state.KindTemplate, Created: began.UTC()}
	if k.State, err = p.Freeze(ctx, *c.Gen); err != nil {
		return err
	}
	t, err := e.treeAbove(ctx, p, &k, c.Gen.Base)
	if err != nil {
		return err
	}
	if k.Tree, err = e.trees.put(t); err != nil {
		return err
	}
	if looks, err := e.looksOfState(ctx, k.State); err == nil {
		e.mu.Lock()
		e.sights[c.ID] = sight{looks, time.Now()}
		e.mu.Unlock()
	}
	k.Content, k.TookMS = t.ContentDigest(), ms(time.Since(began))
	c.Next++
	c.Head = k.ID
	b.x.before = k
	return nil
}

// ownLayers gives a cell a home and a /tmp that can be forked: over those of
// another, or empty ones.
func (e *Engine) ownLayers(ctx context.Context, c *state.Cell, p workspace.Provider, of *state.Cell) error {
	for _, own := range []struct {
		to   **workspace.Generation
		mode uint32
	}{{&c.Home, 0o700}, {&c.Tmp, 0o1777}} {
		var base workspace.State
		if of != nil {
			base = sealedState(p, own.to, c, of)
		}
		g, err := p.Begin(ctx, base, workspace.Entry{Type: workspace.Folder, Mode: own.mode, MTime: time.Now().UnixNano()}, "")
		if err != nil {
			return full(err)
		}
		*own.to = &g
	}
	if of != nil {
		return nil
	}
	m := p.Mount(*c.Tmp, "/tmp")
	if err := os.Chmod(writable(&m), 0o777|os.ModeSticky); err != nil {
		return err
	}
	m = p.Mount(*c.Home, "/")
	return e.fillHome(c, writable(&m))
}

// sealedState is the state that a fork's home or /tmp begins on.
func sealedState(p workspace.Provider, to **workspace.Generation, c, of *state.Cell) workspace.State {
	g := of.Tmp
	if to == &c.Home {
		g = of.Home
	}
	return frozen(p, g)
}

// frozen is the state that a generation is which nothing writes to any more.
func frozen(p workspace.Provider, g *workspace.Generation) workspace.State {
	if !p.Mounts() { // each layer is whole
		return workspace.State{Provider: p.Name(), Layers: []string{g.Layer}}
	}
	return workspace.State{Provider: p.Name(), Layers: append(slices.Clone(g.Base.Layers), g.Layer)}
}

// publish makes the new template the one of its name, and its receipt.
func (b *build) publish(ctx context.Context) (state.Template, error) {
	e, c := b.e, &b.x.c
	spec, unkept := keepable(b.p.req)
	t := state.Template{Name: spec.Name, Cell: c.ID, Spec: spec, Unkept: unkept, Built: time.Now().UTC(), TookMS: ms(time.Since(b.began)),
		Version: b.warmth.Version, Program: b.prog, Paths: b.paths, Slow: b.warmth.Slow, Notes: b.notes, Inherited: b.warmth.Inherited}
	first, err := e.reg.Numbered(c.ID, 1)
	if err != nil {
		return t, err
	}
	if t.Digest, err = templateDigest(spec, first.Tree, c.Image+c.ImageID, b.prog.Sum, b.warmth.Version); err != nil {
		return t, err
	}
	old, had := e.reg.Template(t.Name)
	if had == nil {
		t.Forks = old.Forks
	}
	if err := c.To(cell.Idle); err != nil {
		return t, err
	}
	if !b.p.whole {
		if err := c.To(cell.Running); err != nil {
			return t, err
		}
	}
	act := evidence.Build
	if b.again != nil {
		act, t.Built, t.Unkept = evidence.Warm, b.again.Built, b.again.Unkept
	}
	pred := evidence.BatchOf(c, act, point(&b.x.before))
	pred.Template, pred.Digest, pred.Interpreter, pred.Program, pred.Assurance = t.Name, t.Digest.String(), b.warmth.Version, b.prog.Sum.String(), b.assurance
	if inst := e.alive.Instance(c.ID); inst != nil {
		a := state.AssuranceOf(inst.Assurance())
		pred.Assurance = &a
	}
	receipt, err := e.evidence.CommitBatch(ctx, fmt.Sprintf("%s/%s/%d", c.ID, act, b.began.UnixNano()), pred, c, &b.x.before, &t,
		&state.Interp{Cell: c.ID, Kind: b.warmth.Kind, Version: b.warmth.Version, Started: b.warmth.Started, Depth: b.warmth.Depth})
	if err != nil {
		return t, err
	}
	d, err := receipt()
	if err != nil {
		return t, err
	}
	t.Receipt = d.String()
	e.alive.PutInterp(c.ID, live.Interp{Template: t.Name, Keeper: c.Keeper(), Sealed: true, Image: b.p.whole, Used: time.Now()})
	e.mu.Lock()
	delete(e.measured, t.Name)
	e.mu.Unlock()
	if !b.p.whole {
		e.alive.FollowDeaths(c.Keeper())
	}
	if had == nil && old.Cell != c.ID {
		e.drain(ctx, t.Name, "its template was built anew")
		if err := e.removeCell(context.WithoutCancel(ctx), old.Cell); err != nil {
			e.log.Warn("cannot remove the cell of a template that was built anew", "template", t.Name, "error", err)
		}
	}
	e.mu.Lock()
	e.poolOf(t.Name, t.Cell)
	e.mu.Unlock()
	return t, e.reg.Commit(&t)
}

// undo takes away what was made of a template that failed.
func (b *build) undo(ctx context.Context) {
	if b.x == nil {
		return
	}
	ctx = context.WithoutCancel(ctx)
	e, c := b.e, b.x.c
	if err := e.alive.Deactivate(ctx, c.ID, "its template failed"); err != nil {
		e.log.Warn("cannot take down the cell of a template that failed", "cell", c.ID, "error", err)
	}
	c.Head = ""
	e.removeUnmade(c)
}
