package spawn

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// ensureWarm returns a template that is warm: one that went cold is warmed again
// from what was recorded of it, its source as it was then.
func (m *Manager) ensureWarm(ctx context.Context, name string, out func(api.StreamLine)) (state.Template, error) {
	t, err := m.reg.Template(name)
	if err != nil {
		return t, err
	}
	if now, changed := changedSince(&t.Program); changed {
		return t, changedParent(&t, "its interpreter "+t.Program.Path, t.Program.Sum, now)
	}
	if m.live.HasInterp(t.Cell) {
		return t, nil
	}
	release, err := m.claimTemplate(name, "warm")
	if err != nil {
		return t, err
	}
	defer release()
	if t, err = m.reg.Template(name); err != nil || m.live.HasInterp(t.Cell) {
		return t, err
	}
	if len(t.Unkept) > 0 {
		return t, cell.Errorf(cell.Conflict, "spawn.template", "build it anew, with them: pando template build "+t.Name,
			"cannot warm template %s again: the values of %s look like secrets and are in no record", t.Name, several(t.Unkept))
	}
	next, err := m.rewarm(ctx, t, out)
	if err != nil && ctx.Err() == nil {
		t.Failed = err.Error()
		if cerr := m.reg.Commit(&t); cerr != nil {
			m.log.Error("cannot record a template", "template", name, "error", cerr)
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
	return cell.Errorf(cell.Corrupt, "spawn.template", "build it anew: pando template build "+t.Name,
		"cannot fork template %s: %s is not what it was built from: expected %s, found %s", t.Name, what, was, found)
}

// rewarm makes a template's cell again, from the base and with the set-up that
// are recorded. Cells that were forked from the old one keep it.
func (m *Manager) rewarm(ctx context.Context, t state.Template, out func(api.StreamLine)) (state.Template, error) {
	was, err := m.reg.Cell(t.Cell)
	if err != nil {
		return t, err
	}
	base, err := m.reg.Numbered(was.ID, 1)
	if err != nil {
		return t, err
	}
	if err := m.sameParent(ctx, &t, &base); err != nil {
		return t, err
	}
	on, err := m.cfg.Backend(was.Backend)
	if err != nil {
		return t, err
	}
	p, err := m.planWarm(t.Spec)
	if err != nil {
		return t, err
	}
	if p.image, err = m.capturesOn(ctx, on); err != nil {
		return t, err
	}
	b := &build{m: m, p: p, out: out, began: time.Now(), again: &t, notes: t.Notes}
	b.report("warming again", fmt.Sprintf("template %s is cold: %s; it is made again of the source as imported on %s", t.Name, cmp.Or(was.Cause, "it was not used"), t.Built.Format(time.DateTime)))
	ctx, cancel := m.cfg.Bound(ctx)
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
func (m *Manager) sameParent(ctx context.Context, t *state.Template, base *state.Checkpoint) error {
	p, err := m.cfg.Provider(base.State.Provider)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("its workspace %s@%d", t.Name, base.Number)
	have, err := p.Layers()
	if err != nil || slices.ContainsFunc(base.State.Layers, func(l string) bool { return !slices.Contains(have, l) }) {
		return changedParent(t, what, base.Tree, cell.Digest{})
	}
	tree, err := p.Walk(ctx, base.State, m.cfg.Objects)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return cell.Errorf(cell.Corrupt, "spawn.template", "build it anew: pando template build "+t.Name,
			"cannot fork template %s: %s can't be read: expected %s, found: %w", t.Name, what, base.Tree, err)
	}
	if d := tree.Digest(); d != base.Tree {
		return changedParent(t, what, base.Tree, d)
	}
	return nil
}

// makeAgain is make from what was recorded.
func (b *build) makeAgain(ctx context.Context, was *state.Cell, base *state.Checkpoint) error {
	m := b.m
	defer m.cfg.Pin()()
	b.begin(was.Backend)
	c := &b.c
	c.Source, c.NoSource, c.Guest, c.Image, c.ImageID, c.ImageKey, c.Provider, c.WhyNot, c.LeftOut, c.ImportKey, c.KnownHeads, c.Repositories, c.With, c.SSHAgent = was.Source, was.NoSource, was.Guest, was.Image, was.ImageID, was.ImageKey, was.Provider, was.WhyNot, was.LeftOut, was.ImportKey, was.KnownHeads, was.Repositories, was.With, was.SSHAgent
	c.Setup = was.Setup
	b.at = state.Checkpoint{ID: cell.NewCheckpointID(), Cell: c.ID, Number: c.Next, Kind: state.KindBase, Created: time.Now().UTC(), State: base.State, Tree: base.Tree, Content: base.Content}
	c.Next++
	c.Head = b.at.ID
	if err := m.reg.Commit(c, &b.at); err != nil {
		return err
	}
	p, err := m.cfg.Provider(c.Provider)
	if err != nil {
		return err
	}
	if err := m.homeLayers(ctx, c, p, nil); err != nil {
		return err
	}
	if err := m.cfg.Lend(c); err != nil {
		return err
	}
	if err := m.cfg.Begin(ctx, c, p, &b.at); err != nil {
		return err
	}
	if err := m.cfg.Refit(c, p, &b.at); err != nil {
		return err
	}
	if err := m.reg.Commit(c, &b.at); err != nil {
		return err
	}
	inst, err := m.live.Activate(ctx, c)
	if err != nil {
		return err
	}
	if err := m.cfg.Equip(ctx, c, inst, c.SSHAgent); err != nil {
		return err
	}
	env := cell.CommandEnv(m.cfg.Env(c), b.p.req.Env, c.Setup.User, false, "")
	paths := b.again.Paths
	if len(paths) == 0 {
		if paths, err = b.p.programs(func(name string) ([]string, error) { return cell.Candidates(name, env, c.Source), nil }); err != nil {
			return err
		}
	}
	return b.warm(ctx, inst, cell.Process{Args: b.p.command(), Env: env, Path: paths, Workdir: c.Source})
}
