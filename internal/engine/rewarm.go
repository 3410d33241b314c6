package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/live"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
)

// ensureWarm returns a template that is warm: one that went cold is warmed again
// from what was recorded of it, its source as it was then.
func (e *Engine) ensureWarm(ctx context.Context, name string, out func(api.StreamLine)) (state.Template, error) {
	t, err := e.reg.Template(name)
	if err != nil {
		return t, err
	}
	if now, changed := changedSince(&t.Program); changed {
		return t, changedParent(&t, "its interpreter "+t.Program.Path, t.Program.Sum, now)
	}
	if e.alive.HasInterp(t.Cell) {
		return t, nil
	}
	release, err := e.claimTemplate(name, "warm")
	if err != nil {
		return t, err
	}
	defer release()
	if t, err = e.reg.Template(name); err != nil || e.alive.HasInterp(t.Cell) {
		return t, err
	}
	if len(t.Unkept) > 0 {
		return t, cell.Errorf(cell.Conflict, "engine.template", "build it anew, with them: pando template build "+t.Name,
			"cannot warm template %s again: the values of %s look like secrets and are in no record", t.Name, join(t.Unkept))
	}
	next, err := e.rewarm(ctx, t, out)
	if err != nil && ctx.Err() == nil {
		t.Failed = err.Error()
		if cerr := e.reg.Commit(&t); cerr != nil {
			e.log.Error("cannot record a template", "template", name, "error", cerr)
		}
	}
	return next, err
}

// changedParent is why what was built on something can't be made again.
func changedParent(t *state.Template, what string, was, now cell.Digest) error {
	found := now.String()
	if now.IsZero() {
		found = "nothing"
	}
	return cell.Errorf(cell.Corrupt, "engine.template", "build it anew: pando template build "+t.Name,
		"cannot fork template %s: %s is not what it was built from: expected %s, found %s", t.Name, what, was, found)
}

// rewarm makes a template's cell again, from the base and with the set-up that
// are recorded. Cells that were forked from the old one keep it.
func (e *Engine) rewarm(ctx context.Context, t state.Template, out func(api.StreamLine)) (state.Template, error) {
	was, err := e.reg.Cell(t.Cell)
	if err != nil {
		return t, err
	}
	base, err := e.reg.Numbered(was.ID, 1)
	if err != nil {
		return t, err
	}
	if err := e.sameParent(ctx, &t, &base); err != nil {
		return t, err
	}
	backend, err := e.backend(was.Backend)
	if err != nil {
		return t, err
	}
	p := &templatePlan{req: t.Spec, run: &runPlan{source: was.Source, backend: backend}, warm: cell.Warm{Kind: warmKind(t.Spec.Warm), Setup: t.Spec.Setup, Ready: t.Spec.Ready, Timeout: live.WarmTimeout, ToFork: true}}
	if t.Spec.Timeout != "" {
		if p.warm.Timeout, err = policy.ParseTimeout(t.Spec.Timeout); err != nil {
			return t, err
		}
	}
	if p.whole, err = e.capturesOn(ctx, backend); err != nil {
		return t, err
	}
	b := &build{e: e, p: p, out: out, began: time.Now(), again: &t, notes: t.Notes}
	b.report("warming again", fmt.Sprintf("template %s is cold: %s; its source as it was %s", t.Name, orElse(was.Cause, "it was not used"), t.Built.Format(time.DateTime)))
	ctx, cancel := e.bound(ctx)
	defer cancel()
	err = b.makeAgain(ctx, &was, &base)
	var next state.Template
	if err == nil {
		next, err = b.publish(ctx)
	}
	if err != nil {
		b.undo(ctx)
		return t, err
	}
	return next, nil
}

// sameParent makes sure that what a template was built on is what it was.
func (e *Engine) sameParent(ctx context.Context, t *state.Template, base *state.Checkpoint) error {
	p, err := e.providerOf(base.State.Provider)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("its workspace %s@%d", t.Name, base.Number)
	if !haveLayers(p, base.State) {
		return changedParent(t, what, base.Tree, cell.Digest{})
	}
	tree, err := p.Walk(ctx, base.State, e.cfg.Objects)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return cell.Errorf(cell.Corrupt, "engine.template", "build it anew: pando template build "+t.Name,
			"cannot fork template %s: %s can't be read: expected %s, found: %w", t.Name, what, base.Tree, err)
	}
	if d := tree.Digest(); d != base.Tree {
		return changedParent(t, what, base.Tree, d)
	}
	return nil
}

// makeAgain is make from what was recorded.
func (b *build) makeAgain(ctx context.Context, was *state.Cell, base *state.Checkpoint) error {
	e := b.e
	x := b.execution(ctx)
	b.x = x
	defer x.made.End()
	c := &x.c
	c.NoSource, c.Image, c.ImageID, c.ImageKey, c.Provider, c.WhyNot, c.LeftOut, c.ImportKey, c.KnownHead, c.Agent = was.NoSource, was.Image, was.ImageID, was.ImageKey, was.Provider, was.WhyNot, was.LeftOut, was.ImportKey, was.KnownHead, was.Agent
	c.Setup = was.Setup
	x.before = state.Checkpoint{ID: cell.NewCheckpointID(), Cell: c.ID, Number: c.Next, Kind: state.KindBase, Created: time.Now().UTC(), State: base.State, Tree: base.Tree, Content: base.Content}
	c.Next++
	c.Head = x.before.ID
	if err := e.reg.Commit(c, &x.before); err != nil {
		return err
	}
	p, err := e.providerOf(c.Provider)
	if err != nil {
		return err
	}
	if err := e.ownLayers(ctx, c, p, nil); err != nil {
		return err
	}
	if _, _, err := e.govern.Lend(c, c.Setup.Handles); err != nil {
		return err
	}
	if err := e.begin(ctx, c, p, &x.before); err != nil {
		return err
	}
	if err := e.refit(c, p, &x.before); err != nil {
		return err
	}
	if err := e.reg.Commit(c, &x.before); err != nil {
		return err
	}
	inst, err := e.alive.Activate(ctx, c)
	if err != nil {
		return err
	}
	if err := e.govern.Equip(ctx, c, inst, c.Agent); err != nil {
		return err
	}
	env := cell.CommandEnv(e.govern.Env(c), b.p.req.Env, c.Setup.User, false, "")
	paths, err := b.p.programs(func(name string) ([]string, error) { return cell.Candidates(name, env, c.Source), nil })
	if err != nil {
		return err
	}
	return b.warm(ctx, inst, cell.Process{Args: b.p.command(), Env: env, Path: orPaths(b.again.Paths, paths), Workdir: c.Source})
}

func orPaths(known, other []string) []string {
	if len(known) > 0 {
		return known
	}
	return other
}
