package spawn

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
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// BuildTemplate makes a template, or makes one anew: a cell as for a run, in
// which an interpreter is warmed and sealed. A template of that name stays what
// it was until the new one is complete; when building fails nothing remains of
// the new one. seen is asked when nothing else changes the template any more; its error refuses it.
func (m *Manager) BuildTemplate(ctx context.Context, req api.TemplateRequest, out func(api.StreamLine), seen func() error) (api.Template, error) {
	p, d, err := m.planTemplate(ctx, req)
	if err != nil {
		return api.Template{}, err
	}
	release, err := m.claimTemplate(req.Name, "build")
	if err != nil {
		return api.Template{}, err
	}
	defer release()
	if err := seen(); err != nil {
		return api.Template{}, err
	}
	b := &build{m: m, p: p, draft: d, out: out, began: time.Now()}
	if req.DryRun {
		return b.dryRun(ctx)
	}
	ctx, done, err := m.cfg.MayBuild(ctx, req.Name)
	if err != nil {
		return api.Template{}, err
	}
	defer done()
	ctx, cancel := m.cfg.Bound(ctx)
	defer cancel()
	in, made := m.cfg.Stage(ctx, "make")
	err = b.make(in)
	if made(err); err == nil {
		in, published := m.cfg.Stage(ctx, "publish")
		_, err = b.publish(in)
		published(err)
	}
	if err != nil {
		b.undo(ctx)
		switch {
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case cell.HintOf(err) == "":
			err = durable.Full(err)
		}
		return api.Template{}, err
	}
	release()
	m.FillPools()
	return m.Template(req.Name)
}

// build is a template on its way.
type build struct {
	m     *Manager
	p     *templatePlan
	draft Draft // of a new one
	out   func(api.StreamLine)
	began time.Time

	again  *state.Template // what is warmed again; nil for a new one
	c      state.Cell
	at     state.Checkpoint // that forks begin on, as far as it is there
	paths  []string
	warmth cell.Warmth
	prog   state.Program
	notes  []string

	assurance *state.Assurance // of an image's cell, which is gone
	published bool             // its template is the one of its name
}

func (b *build) report(step, note string) {
	if b.out != nil {
		b.out(api.StreamLine{Progress: &api.Progress{Step: step, Note: note}})
	}
}

// begin makes the record of the template's cell.
func (b *build) begin(backend string) {
	b.c = state.Cell{ID: cell.NewID(), State: cell.Creating, Backend: backend, Created: time.Now().UTC(), Next: 1, Template: b.p.req.Name}
}

func (b *build) dryRun(ctx context.Context) (api.Template, error) {
	b.begin(b.draft.Facts().Backend.Name())
	defer b.draft.Begin(ctx, &b.c)()
	if err := b.draft.Look(); err != nil {
		return api.Template{}, err
	}
	if _, err := b.p.programs(b.draft.Programs); err != nil {
		return api.Template{}, err
	}
	spec, unkept := b.m.keepable(b.p.req)
	facts := b.draft.Facts()
	t := state.Template{Name: spec.Name, Spec: spec, Unkept: unkept, Notes: facts.Notes}
	v := b.m.view(&t)
	v.Policy = facts.Policy.String()
	return v, nil
}

// make brings the template's cell to the state in which it can be forked.
func (b *build) make(ctx context.Context) (err error) {
	m, d := b.m, b.draft
	b.begin(d.Facts().Backend.Name())
	defer d.Begin(ctx, &b.c)()
	if err := m.space.KeepReserve(); err != nil {
		return durable.Full(err)
	}
	b.c.Maker = m.cfg.Maker(ctx)
	if old, err := m.reg.Template(b.p.req.Name); err == nil {
		b.c.Replaces = old.Cell
	}
	if err := m.reg.Commit(&b.c); err != nil { // what a crash leaves of it is known by this
		return err
	}
	b.report("preparing", "")
	if err := d.Look(); err != nil {
		return err
	}
	b.report("importing", b.c.Source)
	if b.at, err = d.Import(); err != nil {
		return err
	}
	prov, err := m.cfg.Provider(b.c.Provider)
	if err != nil {
		return err
	}
	if err := m.homeLayers(ctx, &b.c, prov, nil); err != nil {
		return err
	}
	if err := d.SetUp(); err != nil {
		return err
	}
	if err := m.reg.Commit(&b.c, &b.at); err != nil {
		return err
	}
	inst, err := m.live.Activate(ctx, &b.c)
	if err != nil {
		return err
	}
	proc, err := d.Start(ctx, inst)
	if err != nil {
		return err
	}
	b.notes = append(b.notes, d.Facts().Notes...)
	if proc.Path, err = b.p.programs(d.Programs); err != nil {
		return err
	}
	return b.warm(ctx, inst, proc)
}

// warm starts the interpreter, waits until it is ready, and seals it.
func (b *build) warm(ctx context.Context, inst backend.Instance, proc cell.Process) (err error) {
	if b.p.image {
		return b.warmImage(ctx, inst, proc)
	}
	w, err := backend.WarmerOf(inst)
	if err != nil {
		return err
	}
	b.report("warming", b.p.req.Warm)
	spec := b.p.warm
	spec.Process, b.paths = proc, proc.Path
	if spec.Kind == cell.WarmCommand {
		spec.Name = strings.TrimSpace(b.p.req.Warm)
	}
	if b.warmth, err = w.Warm(ctx, spec, b.m.cfg.OutputTo(b.out)); err != nil {
		return b.unforkable(err)
	}
	if b.prog, err = b.m.programAt(b.c.Setup.Mounts, proc.Path); err != nil {
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
	m, c := b.m, &b.c
	p, err := m.cfg.Provider(c.Provider)
	if err != nil {
		return err
	}
	began := time.Now()
	k := state.Checkpoint{ID: cell.NewCheckpointID(), Cell: c.ID, Number: c.Next, Parent: c.Head, Kind: state.KindTemplate, Created: began.UTC()}
	if k.State, err = p.Freeze(ctx, *c.Gen); err != nil {
		return err
	}
	t, err := m.cfg.TreeAbove(ctx, p, &k, c.Gen.Base)
	if err != nil {
		return err
	}
	if k.Tree, err = m.cfg.PutTree(t); err != nil {
		return err
	}
	if looks, err := m.looksOfState(ctx, k.State); err == nil {
		m.mu.Lock()
		m.sights[c.ID] = sight{looks, time.Now()}
		m.mu.Unlock()
	}
	k.Content, k.TookMS = t.ContentDigest(), ms(time.Since(began))
	c.Next++
	c.Head = k.ID
	b.at = k
	return nil
}

// homeLayers gives a cell a home and a /tmp that can be forked: over those of
// another, or empty ones.
func (m *Manager) homeLayers(ctx context.Context, c *state.Cell, p workspace.Provider, of *state.Cell) error {
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
			return durable.Full(err)
		}
		*own.to = &g
	}
	if of != nil {
		return nil
	}
	at := p.Mount(*c.Tmp, "/tmp")
	if err := os.Chmod(writable(&at), 0o777|os.ModeSticky); err != nil {
		return err
	}
	at = p.Mount(*c.Home, "/")
	return m.cfg.FillHome(c, writable(&at))
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
	m, c := b.m, &b.c
	spec, unkept := m.keepable(b.p.req)
	t := state.Template{Name: spec.Name, Cell: c.ID, Spec: spec, Unkept: unkept, Built: time.Now().UTC(), TookMS: ms(time.Since(b.began)),
		Version: b.warmth.Version, Program: b.prog, Paths: b.paths, Slow: b.warmth.Slow, Notes: b.notes, Inherited: b.warmth.Inherited}
	first, err := m.reg.Numbered(c.ID, 1)
	if err != nil {
		return t, err
	}
	if t.Digest, err = templateDigest(spec, first.Tree, c.Image+c.ImageID, b.prog.Sum, b.warmth.Version); err != nil {
		return t, err
	}
	old, had := m.reg.Template(t.Name)
	if had == nil {
		t.Forks = old.Forks
	}
	if err := c.To(cell.Idle); err != nil {
		return t, err
	}
	if !b.p.image {
		if err := c.To(cell.Running); err != nil {
			return t, err
		}
	}
	batch := state.Batch{Act: state.BatchBuild, Template: t.Name, Digest: t.Digest.String(), Interpreter: b.warmth.Version, Program: b.prog.Sum.String(), From: b.at.Point(), Assurance: b.assurance}
	if b.again != nil {
		batch.Act, t.Built, t.Unkept = state.BatchWarm, b.again.Built, b.again.Unkept
	}
	if inst := m.live.Instance(c.ID); inst != nil {
		a := state.AssuranceOf(inst.Assurance())
		batch.Assurance = &a
	}
	receipt, err := m.cfg.Evidence.CommitBatch(ctx, fmt.Sprintf("%s/%s/%d", c.ID, batch.Act, b.began.UnixNano()), c, batch, c, &b.at, &t,
		&state.Interp{Cell: c.ID, Kind: b.warmth.Kind, Version: b.warmth.Version, Started: b.warmth.Started, Depth: b.warmth.Depth})
	if err != nil {
		return t, err
	}
	b.published = true
	m.live.PutSealed(c, b.p.image)
	t.Receipt = receipt()
	m.mu.Lock()
	delete(m.measured, t.Name)
	m.mu.Unlock()
	if !b.p.image {
		m.live.FollowDeaths(c.Keeper())
	}
	if had == nil && old.Cell != c.ID {
		m.Drain(ctx, t.Name, "its template was built anew")
		if err := m.removeCell(context.WithoutCancel(ctx), old.Cell); err != nil {
			m.log.Warn("cannot remove the cell of a template that was built anew", "template", t.Name, "error", err)
		}
	}
	m.mu.Lock()
	m.poolOf(t.Name, t.Cell)
	m.mu.Unlock()
	return t, m.reg.Commit(&t)
}

// undo takes away what was made of a template that failed. One that was published is the one of its name:
// what fails afterwards does not undo it.
func (b *build) undo(ctx context.Context) {
	if b.published {
		return
	}
	ctx = context.WithoutCancel(ctx)
	m, c := b.m, b.c
	if err := m.live.Deactivate(ctx, c.ID, "its template failed"); err != nil {
		m.log.Warn("cannot take down the cell of a template that failed", "cell", c.ID, "error", err)
	}
	c.Head = ""
	m.cfg.RemoveUnmade(c)
}
