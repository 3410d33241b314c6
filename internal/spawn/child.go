package spawn

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/pando-dev/pando/api"
	"golang.org/x/sync/errgroup"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cleanup"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// child is one new cell on its way.
type child struct {
	c        *state.Cell
	first    *state.Checkpoint
	w        backend.Warmer
	made     time.Time
	hit      bool
	lendings []*state.Lending
	cert     cell.Certificate
	depth    int
	interp   *state.Interp // nil: it has none
	err      error
	res      api.WarmFork
	terms    terms
	ahead    bool // no request has it yet: its limits are the template's
}

// newChild is a new cell that goes on where src was at a checkpoint. shared is the record that it
// has in common with the others.
func newChild(src *state.Cell, at *state.Checkpoint, shared *state.Shared) *child {
	c := &state.Cell{
		ID: cell.NewID(), State: cell.Running, Source: src.Source, NoSource: src.NoSource, Guest: src.Guest, Backend: src.Backend, Image: src.Image, ImageID: src.ImageID, ImageKey: src.ImageKey,
		Next: 2, Parent: &state.Origin{Cell: src.ID, Checkpoint: at.ID}, Provider: src.Provider, WhyNot: src.WhyNot, LeftOut: src.LeftOut,
		ImportKey: src.ImportKey, Known: src.Known, Agreed: src.Agreed, Apart: src.Apart, With: src.With, Contents: src.Contents, KnownAt: src.KnownAt, KnownHeads: src.KnownHeads, Repositories: src.Repositories, Taken: src.Taken, SSHAgent: src.SSHAgent, Agent: src.Agent, Offline: src.Offline, Of: src.Of, Setup: src.Setup,
		Services: src.Services, // those of the source, for their names, until it is recorded: see Config.CopyServices
	}
	if shared != nil {
		c.Shared, c.Setup = shared.Digest, shared.Setup
	}
	first := &state.Checkpoint{ID: cell.NewCheckpointID(), Cell: c.ID, Number: 1, Parent: at.ID, Kind: state.KindFork, State: at.State, Tree: at.Tree, Content: at.Content}
	c.Head = first.ID
	return &child{c: c, first: first, made: time.Now()}
}

// FilesOf is a new cell with the files of a checkpoint of src, and its first checkpoint. It has no name and no state yet.
func FilesOf(src *state.Cell, at *state.Checkpoint) (*state.Cell, *state.Checkpoint) {
	ch := newChild(src, at, nil)
	ch.c.Of = ""
	return ch.c, ch.first
}

// serve starts the services of new cells in which something goes on, and connects them. It returns what failed, in words.
func (m *Manager) serve(ctx context.Context, made []*child) (notes []string) {
	errs := make([]error, len(made))
	var all errgroup.Group
	all.SetLimit(copiesAtOnce)
	for i, ch := range made {
		if len(ch.c.Services) > 0 {
			all.Go(func() error { errs[i] = m.serveOne(ctx, ch); return nil })
		}
	}
	all.Wait()
	for i, err := range errs {
		if err != nil {
			notes = append(notes, fmt.Sprintf("%s goes on without its services, which start when it was at rest: %v", made[i].c.Title(), err))
		}
	}
	return notes
}

func (m *Manager) serveOne(ctx context.Context, ch *child) error {
	release, err := m.live.Lock(ctx, ch.c.ID, "start services")
	if err != nil {
		return err
	}
	defer release()
	return m.cfg.Serve(ctx, ch.c, ch.w)
}

// A strategy says how new cells come to life at the state that they begin on.
type strategy interface {
	// layers gives a cell layers of its own over that state.
	layers(context.Context, *state.Cell) error
	// start makes the keeper's cell, which waits to be adopted; nil if it is made later, with others.
	start(context.Context, *child, cell.Spec) (backend.Warmer, error)
}

// begin makes a cell that is complete but for its identity. When it fails, nothing of it is left.
func (m *Manager) begin(ctx context.Context, ch *child, p workspace.Provider, how strategy) (err error) {
	c := ch.c
	failpoint.Step("make the folder of a new cell")
	if err := os.Mkdir(m.private(c.ID), 0o700); err != nil {
		return durable.Full(err)
	}
	var undo cleanup.Stack
	defer undo.OnError(ctx, &err)
	undo.Add("drop the files of a new cell", func(context.Context) error { m.dropFiles(c); return nil })
	if err := how.layers(ctx, c); err != nil {
		return err
	}
	spec, err := m.cfg.ForkSpec(c, p)
	if err != nil {
		return err
	}
	if spec.Network, err = m.cfg.Rules(c); err != nil {
		return err
	}
	failpoint.Step("start a new cell")
	ch.w, err = how.start(ctx, ch, spec)
	return err
}

// dropChild takes a cell away that no record names.
func (m *Manager) dropChild(ctx context.Context, ch *child, cause string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup.Grace)
	defer cancel()
	if err := ch.w.Remove(ctx, cause); err != nil {
		m.log.Warn("cannot remove a new cell", "cell", ch.c.ID, "error", err)
	}
	m.dropFiles(ch.c)
}

func (m *Manager) dropFiles(c *state.Cell) {
	if err := m.space.RemoveFolder(c.ID); err != nil {
		m.log.Warn("cannot remove the files of a new cell", "cell", c.ID, "error", err)
	}
	for _, g := range c.Gens() {
		m.space.DropLayer(c.Provider, g.Layer)
	}
}

// adopt gives a new cell its identity.
func (m *Manager) adopt(ctx context.Context, ch *child, name string, began time.Time) error {
	c := ch.c
	c.Name, c.Created, c.Maker = name, began.UTC(), m.cfg.Maker(ctx)
	ch.first.Created = c.Created
	if now := c.Limits(); ch.ahead && now != c.Setup.Limits {
		if err := ch.w.Limit(ctx, now); err != nil {
			return err
		}
	}
	a := cell.Adoption{Hostname: c.Hostname(), Env: map[string]string{"PANDO_CELL": name}, Strict: ch.terms.strict}
	var err error
	if ch.lendings, err = m.cfg.LendFork(c, &a); err != nil {
		return err
	}
	a.First = ch.terms.first(c.Setup.Env, a.Env, c)
	failpoint.Step("adopt a new cell")
	if ch.cert, err = ch.w.Adopt(ctx, a); err == nil && ch.terms.strict {
		err = cell.Uncertified(ch.cert.Inherited())
	}
	return m.adoptError(ch.terms, err)
}

// record makes new cells durable, all at once and with the receipt that is owed, and has them be
// alive. What it returns writes the receipt. Nothing reaches a cell between the two.
func (m *Manager) record(ctx context.Context, key string, of *state.Cell, batch state.Batch, made []*child, objects ...any) (seal func() string, err error) {
	for _, ch := range made {
		for _, l := range ch.lendings {
			objects = append(objects, l)
		}
		objects = append(objects, ch.c, ch.first)
		if k := m.cfg.Caches(of.ID, ch.c.ID, true); k != nil {
			objects = append(objects, k)
		}
		if ch.interp != nil {
			objects = append(objects, ch.interp)
		}
		batch.Cells = append(batch.Cells, state.BatchCell{Cell: string(ch.c.ID), Name: ch.c.Name, Ahead: ch.hit, Certificate: &ch.cert})
	}
	for _, ch := range made { // what is recorded as running and does not live yet would be woken, a second time
		unlock, err := m.cfg.Locks.TryAcquire(ch.c.ID, "begin")
		if err != nil {
			return nil, err
		}
		defer unlock()
	}
	failpoint.Step("record new cells")
	if seal, err = m.cfg.Evidence.CommitBatch(ctx, key, of, batch, objects...); err != nil {
		return nil, err
	}
	for _, ch := range made {
		m.live.Add(ch.c, ch.w, ch.interp)
	}
	for _, ch := range made {
		m.equip(ctx, ch.c, ch.w)
	}
	return seal, nil
}

// equip gives a cell that lives anew what it has beside its gateway, if it talks.
func (m *Manager) equip(ctx context.Context, c *state.Cell, inst backend.Instance) {
	if !c.Talks() {
		return
	}
	if err := m.cfg.Equip(ctx, c, inst, c.SSHAgent); err != nil {
		m.log.Warn("cannot lend a cell keys of SSH", "cell", c.ID, "error", err)
	}
}
