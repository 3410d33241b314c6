package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cleanup"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/live"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// What forks of a template have, and have not.
const (
	tookMemory    = "memory, files, home and /tmp as they were when the template was sealed"
	droppedByFork = "connections, terminals, processes beside the interpreter, credentials' placeholders: each has its own"
)

// warmParent is a warm template, with what its forks have in common.
type warmParent struct {
	e      *Engine
	t      state.Template
	c      state.Cell
	at     state.Checkpoint
	p      workspace.Provider
	w      backend.Warmer
	root   workspace.Entry // of the workspace
	shared *state.Shared
	known  bool                  // shared is in the registry
	depth  int                   // of its interpreter
	whole  *instant              // of a template that is an image; then w is nil
	join   []workspace.LinkGroup // joined in each fork
	apart  []string              // notes of those that are not
}

// warmParent returns what a template's forks need, of one that is warm.
func (e *Engine) warmParent(ctx context.Context, t state.Template) (*warmParent, error) {
	par := &warmParent{e: e, t: t}
	inst := e.alive.Instance(t.Cell)
	var err error
	if par.c, err = e.reg.Cell(t.Cell); err != nil {
		return nil, err
	}
	whole := e.hasImage(&par.c)
	if inst == nil && !whole {
		return nil, cell.Errorf(cell.Conflict, "engine.ForkTemplate", "try again", "cannot fork template %s: it went cold in this moment", t.Name)
	}
	if !whole {
		if par.w, err = live.Warmer(inst); err != nil {
			return nil, err
		}
	}
	if par.p, err = e.providerOf(par.c.Provider); err != nil {
		return nil, err
	}
	if par.at, err = e.reg.Checkpoint(par.c.Head); err != nil {
		return nil, err
	}
	if whole {
		if par.whole, err = e.wholeOf(&t, &par.c, &par.at); err != nil {
			return nil, err
		}
	}
	if i := e.reg.Interp(par.c.ID); i != nil {
		par.depth = i.Depth
	}
	tree, err := e.tree(ctx, &par.at)
	if err != nil {
		return nil, err
	}
	par.root = tree.Root
	if err := par.links(tree); err != nil {
		return nil, err
	}
	par.shared, par.known, err = e.sharedOf(&par.c)
	return par, err
}

// links chooses the hard links of the workspace that hold in forks. What was captured
// with a kernel of its own has the files open that it began with: nothing is joined there.
func (par *warmParent) links(tree *workspace.Tree) (err error) {
	if !par.p.Mounts() || len(tree.Links) == 0 {
		return nil
	}
	names, bytes := workspace.MaxForkedNames, joinedBytes(&par.c, workspace.MaxForkedBytes)
	if par.whole != nil {
		names, bytes = 0, 0
	}
	join, rest, err := tree.Joinable(names, bytes)
	par.join, par.apart = join, comeApart(rest, "a fork")
	return err
}

// layer makes a writable layer for a fork, in which the links that par.links chose hold.
func (par *warmParent) layer(ctx context.Context, c *state.Cell) error {
	g, err := par.p.Begin(ctx, par.at.State, par.root, "")
	if err != nil {
		return full(err)
	}
	c.Gen = &g
	return full(par.p.Join(ctx, g, par.join))
}

// mute reports whether nothing can be evaluated in forks: what was kept warm is a
// program that isn't asked anything.
func (par *warmParent) mute() bool {
	return par.whole != nil && warmKind(par.t.Spec.Warm) == cell.WarmCommand && par.t.Spec.Ready != ""
}

// sharedOf is the record that forks of a cell have in common, and whether it is
// in the registry.
func (e *Engine) sharedOf(c *state.Cell) (*state.Shared, bool, error) {
	s, err := sharedAs(c, e.stackedOf(c))
	if err != nil {
		return nil, false, err
	}
	return s, e.reg.HasShared(s.Digest), nil
}

// sharedAs is that record for cells with these mounts.
func sharedAs(c *state.Cell, mounts []cell.Mount) (*state.Shared, error) {
	s := &state.Shared{Setup: c.Setup, LeftOut: c.LeftOut}
	s.Setup.Mounts = mounts
	b, err := json.Marshal(s)
	s.Digest = cell.Sum(b)
	return s, err
}

// child is one fork on its way.
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
	ahead    bool // made for nobody yet: its limits are the template's
}

// makeChild makes a fork that is complete but for its identity, which it waits for if
// it is made ahead.
func (e *Engine) makeChild(ctx context.Context, par *warmParent, ahead bool) (_ *child, err error) {
	var undo cleanup.Stack
	defer undo.OnError(ctx, &err)
	c := &state.Cell{
		ID: cell.NewID(), State: cell.Running, Source: par.c.Source, NoSource: par.c.NoSource, Guest: par.c.Guest, Backend: par.c.Backend, Image: par.c.Image, ImageID: par.c.ImageID, ImageKey: par.c.ImageKey,
		Family: par.c.Keeper(), Next: 2, Parent: &state.Origin{Cell: par.c.ID, Checkpoint: par.at.ID}, Provider: par.c.Provider, WhyNot: par.c.WhyNot, LeftOut: par.c.LeftOut,
		ImportKey: par.c.ImportKey, Known: par.c.Known, KnownAt: par.c.KnownAt, KnownHead: par.c.KnownHead, Agent: par.c.Agent, Shared: par.shared.Digest, Setup: par.shared.Setup,
	}
	if !ahead {
		c.Maker = makerOf(ctx) // its limits are its maker's
	}
	private := e.private(c.ID)
	failpoint.Step("make the folder of a fork")
	if err := os.Mkdir(private, 0o700); err != nil {
		return nil, full(err)
	}
	if par.whole != nil {
		c.Family = "" // a keeper of its own
	}
	undo.Add("remove the fork's folder", func(context.Context) error { return e.gc.RemoveFolder(c.ID) })
	undo.Add("drop the fork's layers", func(context.Context) error {
		for _, g := range c.Gens() {
			e.gc.DropLayer(c.Provider, g.Layer)
		}
		return nil
	})
	ch := &child{c: c, made: time.Now(), depth: par.depth + 1, ahead: ahead}
	if par.whole != nil {
		ch.w, err = par.makeCopy(ctx, c, ahead)
	} else {
		ch.w, err = par.makeFork(ctx, c)
	}
	if err != nil {
		return nil, err
	}
	ch.first = &state.Checkpoint{ID: cell.NewCheckpointID(), Cell: c.ID, Number: 1, Parent: par.at.ID, Kind: state.KindFork,
		State: par.at.State, Tree: par.at.Tree, Content: par.at.Content}
	c.Head = ch.first.ID
	return ch, nil
}

// makeFork forks the template's interpreter.
func (par *warmParent) makeFork(ctx context.Context, c *state.Cell) (backend.Warmer, error) {
	e := par.e
	if err := par.layer(ctx, c); err != nil {
		return nil, err
	}
	if err := e.ownLayers(ctx, c, par.p, &par.c); err != nil {
		return nil, err
	}
	mounts, err := e.forkMounts(c, par.p)
	if err != nil {
		return nil, err
	}
	spec := e.spec(c, mounts)
	if spec.Network, err = e.govern.ForkGovernance(c); err != nil {
		return nil, err
	}
	failpoint.Step("fork an interpreter")
	return par.w.Fork(ctx, spec)
}

// forkMounts are a fork's mounts: those of its parent, with layers of its own in
// the places that can be written.
func (e *Engine) forkMounts(c *state.Cell, p workspace.Provider) ([]cell.Mount, error) {
	mounts := slices.Clone(c.Setup.Mounts)
	caches := 0
	for i := range mounts {
		m := &mounts[i]
		switch {
		case m.Role == cell.RoleWorkspace:
			*m = p.Mount(*c.Gen, m.Target)
		case m.Role == cell.RoleHome:
			*m = ownMount(m, p, c.Home, "")
		case m.Role == cell.RoleTmp:
			*m = ownMount(m, p, c.Tmp, "")
		case m.Kind == cell.Cache:
			m.Upper = cachePath(e.private(c.ID), c.Roots, caches)
			caches++
			if c.Roots > 0 { // a branch that was given up has left one that was mounted
				if err := workspace.RemoveTree(m.Upper); err != nil {
					return nil, err
				}
			}
		}
	}
	if err := e.layImage(c, mounts); err != nil {
		return nil, err
	}
	return mounts, full(e.govern.CopyTalk(c, mounts))
}

// dropChild takes a fork away that no record names.
func (e *Engine) dropChild(ctx context.Context, ch *child, cause string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup.Grace)
	defer cancel()
	if err := ch.w.Remove(ctx, cause); err != nil {
		e.log.Warn("cannot remove a fork", "cell", ch.c.ID, "error", err)
	}
	e.dropFiles(ch.c)
}

func (e *Engine) dropFiles(c *state.Cell) {
	if err := e.gc.RemoveFolder(c.ID); err != nil {
		e.log.Warn("cannot remove the files of a fork", "cell", c.ID, "error", err)
	}
	for _, g := range c.Gens() {
		e.gc.DropLayer(c.Provider, g.Layer)
	}
}

// adopt gives a fork its identity.
func (e *Engine) adopt(ctx context.Context, ch *child, name string, began time.Time) error {
	c := ch.c
	c.Name, c.Created, c.Maker = name, began.UTC(), makerOf(ctx)
	ch.first.Created = c.Created
	if now := c.Limits(); ch.ahead && now != c.Setup.Limits {
		if err := ch.w.Limit(ctx, now); err != nil {
			return err
		}
	}
	a := cell.Adoption{Hostname: hostname(c), Env: map[string]string{"PANDO_CELL": name}, Strict: ch.terms.strict}
	var err error
	if ch.lendings, err = e.govern.LendFork(c, &a); err != nil {
		return err
	}
	a.First = ch.terms.first(c.Setup.Env, a.Env, c)
	failpoint.Step("adopt a fork")
	if ch.cert, err = ch.w.Adopt(ctx, a); err == nil && ch.terms.strict {
		err = cell.Uncertified(ch.cert.Inherited())
	}
	return ch.terms.adoptError(err)
}

// ForkTemplate makes cells out of a template, and evaluates or runs something
// in each. One that fails does not fail the others: its error is in its place.
func (e *Engine) ForkTemplate(ctx context.Context, name string, req api.WarmForkRequest, out func(api.StreamLine)) (_ api.WarmForkResult, err error) {
	f := &forking{e: e, req: req, out: out, began: time.Now()}
	if !req.DryRun {
		var a *act
		ctx, a = e.act(ctx, "fork", "")
		defer func() {
			if f.par != nil {
				a.backend = f.par.c.Backend
			}
			a.say(attribute.String("pando.template", name), attribute.Int("pando.forks", len(f.res.Forks)), attribute.Int("pando.pool.hits", f.res.Hits))
			a.over(&err)
		}()
	}
	f.res = api.WarmForkResult{Template: name, Forks: []api.WarmFork{}, Took: tookMemory, Dropped: droppedByFork}
	if err := f.check(name); err != nil {
		return f.res, err
	}
	ctx, cancel := e.bound(ctx)
	defer cancel()
	defer e.pins.Begin().End()
	defer e.forkBegins()()
	release, err := f.reserve(name, e.isWhole(name))
	if err != nil {
		return f.res, err
	}
	defer release()
	if out != nil {
		out(api.StreamLine{Needs: &f.res.Needs})
	}
	if req.DryRun {
		return f.res, nil
	}
	err = f.once(ctx, name)
	if err != nil && f.keeperLost(ctx) {
		err = f.once(ctx, name)
	}
	return f.res, err
}

// once makes the forks, of a template that is warm or is warmed for it.
func (f *forking) once(ctx context.Context, name string) error {
	e := f.e
	in, warm := stage(ctx, "warm")
	t, err := e.ensureWarm(in, name, f.out)
	if warm(err); err != nil {
		return err
	}
	if f.par, err = e.warmParent(ctx, t); err != nil {
		return err
	}
	if f.par.whole != nil {
		f.res.Dropped = droppedByCopy
	}
	f.res.Notes = f.par.apart
	if err := e.govern.MayFork(&f.par.c, f.count); err != nil {
		return err
	}
	fitted, err := f.fit(ctx, name)
	if err != nil {
		return err
	}
	defer fitted()
	names, done, err := e.claimNames(name, f.req.Name, f.count)
	if err != nil {
		return err
	}
	defer done()
	return f.carryOut(ctx, names)
}

// keeperLost reports whether no fork could be made because the template's keeper
// was gone, which nobody had noted before. The template is cold then.
func (f *forking) keeperLost(ctx context.Context) bool {
	if f.par == nil || f.par.whole != nil || f.res.ReadyMS != 0 || ctx.Err() != nil || !live.Dead(ctx, f.par.w) {
		return false
	}
	f.e.alive.InterpEnded(f.par.c.ID, live.KeeperLost)
	return true
}

// forking is one request for forks on its way.
type forking struct {
	e     *Engine
	req   api.WarmForkRequest
	out   func(api.StreamLine)
	began time.Time
	count int
	ev    cell.Eval
	limit time.Duration // of the command
	terms terms
	par   *warmParent
	all   []*child
	said  sync.Mutex // held while a line is said
	res   api.WarmForkResult
}

func (f *forking) check(name string) (err error) {
	const opName = "engine.ForkTemplate"
	f.count = max(f.req.Count, 1)
	if f.req.Count < 0 || f.count > maxFork {
		return cell.Errorf(cell.Invalid, opName, fmt.Sprintf("ask for 1 to %d", maxFork), "cannot make %d cells", f.req.Count)
	}
	if f.req.Eval != "" && len(f.req.Command) > 0 {
		return cell.Errorf(cell.Invalid, opName, "give --eval or a command", "cannot fork %s: it was said to evaluate code and to run a command", name)
	}
	if len(f.req.Command) > 0 && f.req.Command[0] == "" {
		return cell.Errorf(cell.Invalid, opName, "say what to run: pando fork TEMPLATE -- COMMAND", "cannot run: no command given")
	}
	if err := cell.CheckArguments(opName, f.req.Command, nil); err != nil {
		return err
	}
	if f.terms, err = termsOf(f.req.Certify, f.req.AtFork); err != nil {
		return err
	}
	if f.req.Timeout != "" {
		if f.limit, err = policy.ParseTimeout(f.req.Timeout); err != nil {
			return err
		}
	}
	if f.req.Eval != "" {
		if f.ev, err = live.EvalOf(f.req.Eval, f.req.Timeout); err != nil {
			return err
		}
		f.ev.Limit, f.ev.Output = forkOutput, forkOutput
	}
	_, err = f.e.reg.Template(name)
	return err
}

// forkOutput is how much of each fork's output is in the answer, of each
// stream. In bytes.
const forkOutput = 64 << 10

// claimNames chooses the names of forks and keeps others from taking them until
// done is called.
func (e *Engine) claimNames(of, asked string, count int) (names []string, done func(), err error) {
	return e.claimNumbered(of, of+"-", asked, count)
}

// claimNumbered is claimNames, with numbers behind stem when no name is asked
// for.
func (e *Engine) claimNumbered(of, stem, asked string, count int) (names []string, done func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if asked != "" {
		stem = asked + "-"
	}
	if asked != "" && count == 1 {
		names = append(names, asked)
	}
	for i := 1; asked != "" && len(names) < count; i++ {
		names = append(names, stem+strconv.Itoa(i))
	}
	if len(names) < count {
		for i := range e.reg.NumbersOf(stem) {
			if n := stem + strconv.Itoa(i); e.taken(n) == "" {
				names = append(names, n)
			}
			if len(names) == count {
				break
			}
		}
	}
	for _, n := range names {
		if err := cell.CheckName(n); err != nil {
			return nil, nil, err
		}
		if what := e.taken(n); what != "" {
			kind := cell.Exists
			if e.names[n] {
				kind = cell.Conflict
			}
			return nil, nil, cell.Errorf(kind, "engine.claimNames", "choose another --name", "cannot fork %s: %s %s exists", of, what, n)
		}
	}
	for _, n := range names {
		e.names[n] = true
	}
	return names, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, n := range names {
			delete(e.names, n)
		}
	}, nil
}

// carryOut makes the cells, records them at once, and lets them answer.
func (f *forking) carryOut(ctx context.Context, names []string) error {
	e := f.e
	whole := make(chan error, 1)
	go func() { whole <- e.whole(ctx, f.par) }()
	in, madeAll := stage(ctx, "make")
	f.makeAll(in, names)
	madeAll(nil)
	var made []*child
	for _, ch := range f.all {
		if ch.err == nil {
			made = append(made, ch)
		}
	}
	err := <-whole
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err == nil && len(made) == 0 {
		return f.all[0].err
	}
	var seal func() (cell.Digest, error)
	if err == nil {
		in, recorded := stage(ctx, "record")
		seal, err = f.record(in, made)
		recorded(err)
	}
	if err != nil {
		f.drop(ctx, made)
		return err
	}
	f.res.ReadyMS = ms(time.Since(f.began))
	f.res.Inherited, f.res.Renewed = generators(made)
	f.countReady(made)
	for _, ch := range f.all {
		if ch.err != nil {
			f.say(ch)
		}
	}
	sealed := make(chan error, 1)
	go func() {
		d, err := seal()
		f.res.Receipt = d.String()
		sealed <- err
	}()
	in, answered := stage(ctx, "answer")
	f.answerAll(in, made)
	answered(nil)
	f.res.TookMS = ms(time.Since(f.began))
	err = <-sealed
	f.finish()
	if cause := context.Cause(ctx); cause != nil { // whoever asked is gone
		return errors.Join(cause, f.removeAll(context.WithoutCancel(ctx), made))
	}
	e.used(f.par, f.count, f.res.Hits)
	if f.req.Remove { // afterwards there is nothing to measure
		e.measure(ctx, f.par.t.Name, made)
		return errors.Join(err, f.removeAll(ctx, made))
	}
	e.background(func(ctx context.Context) { e.measure(ctx, f.par.t.Name, made) })
	return err
}

// countReady counts the cells that came of it, which are ready now.
func (f *forking) countReady(made []*child) {
	for _, ch := range made {
		from := fromTemplate
		if ch.hit {
			from = fromPool
		}
		f.e.figures.note(f.e.figures.forks, timingKey{backend: ch.c.Backend, from: from}, time.Since(f.began))
	}
}

// makeAll takes forks from the pool and makes the rest, and gives each its
// identity.
func (f *forking) makeAll(ctx context.Context, names []string) {
	e := f.e
	f.all = make([]*child, len(names))
	var ready []*child
	if f.maySlot(ctx) {
		ready = e.takeSlots(f.par, len(names))
	}
	next := make(chan int)
	var workers sync.WaitGroup
	atOnce := 2 * runtime.GOMAXPROCS(0)
	if f.par.whole != nil { // see answerAll
		atOnce = runtime.GOMAXPROCS(0)
	}
	for range min(len(names), atOnce) {
		workers.Go(func() {
			for i := range next {
				var ready1 *child
				if i < len(ready) {
					ready1 = ready[i]
				}
				f.all[i] = f.makeOne(ctx, names[i], ready1)
			}
		})
	}
	for i := range names {
		if ctx.Err() != nil {
			f.all[i] = &child{c: &state.Cell{Name: names[i]}, err: context.Cause(ctx)}
			if i < len(ready) {
				e.dropChild(ctx, ready[i], "the fork was given up")
			}
			continue
		}
		next <- i
	}
	close(next)
	workers.Wait()
}

// maySlot reports whether what was made ahead can be brought within the ceilings of who asks.
func (f *forking) maySlot(ctx context.Context) bool {
	c := f.par.c
	c.Ceiling, c.Maker = nil, makerOf(ctx)
	now := c.Limits()
	return now == c.Setup.Limits || f.par.whole == nil && now.Disk == c.Setup.Limits.Disk
}

// makeOne gives a fork its identity: one that was made ahead, or a new one. The
// first may have died unseen.
func (f *forking) makeOne(ctx context.Context, name string, ready *child) *child {
	e := f.e
	if ready != nil {
		ready.terms = f.terms
		err := e.adopt(ctx, ready, name, f.began)
		if err == nil {
			ready.hit = true
			return ready
		}
		e.dropChild(ctx, ready, "it could not be adopted")
		if f.terms.final(err) { // another would be no other
			return &child{c: &state.Cell{Name: name}, err: err}
		}
	}
	ch, err := e.makeChild(ctx, f.par, false)
	if err == nil {
		ch.terms = f.terms
		if err = e.adopt(ctx, ch, name, f.began); err == nil {
			return ch
		}
		e.dropChild(ctx, ch, "it could not be adopted")
	}
	return &child{c: &state.Cell{Name: name}, err: err}
}

// record makes all cells of the batch durable at once.
func (f *forking) record(ctx context.Context, made []*child) (func() (cell.Digest, error), error) {
	e, par := f.e, f.par
	key := fmt.Sprintf("%s/fork/%d", par.c.ID, f.began.UnixNano())
	pred := evidence.BatchOf(&par.c, evidence.Fork, point(&par.at))
	pred.Template, pred.Digest, pred.Interpreter, pred.Program, pred.Took, pred.Dropped = par.t.Name, par.t.Digest.String(), par.t.Version, par.t.Program.Sum.String(), tookMemory, f.res.Dropped
	a := state.AssuranceOf(made[0].w.Assurance())
	pred.Assurance = &a
	var objects []any
	if !par.known {
		objects = append(objects, par.shared)
	}
	for _, ch := range made {
		for _, l := range ch.lendings {
			objects = append(objects, l)
		}
		ch.c.Batch, ch.c.Of = key, par.t.Name
		objects = append(objects, ch.c, ch.first)
		if !par.mute() {
			ch.interp = &state.Interp{Cell: ch.c.ID, Kind: warmKind(par.t.Spec.Warm), Version: par.t.Version, Started: ch.c.Created, Depth: ch.depth, Template: par.t.Name, Batch: key}
			objects = append(objects, ch.interp)
		}
		pred.Cells = append(pred.Cells, evidence.BatchCell{Cell: string(ch.c.ID), Name: ch.c.Name, Ahead: ch.hit, Certificate: &ch.cert})
	}
	for _, ch := range f.all {
		if ch.err != nil {
			pred.Failed = append(pred.Failed, ch.c.Name+": "+ch.err.Error())
		}
	}
	t, err := e.reg.Template(par.t.Name) // others may have forked meanwhile
	if err != nil {
		return nil, err
	}
	t.Forks += int64(len(made))
	failpoint.Step("record forks")
	seal, err := e.evidence.CommitBatch(ctx, key, pred, append(objects, &t)...)
	if err != nil {
		return nil, err
	}
	for _, ch := range made {
		e.alive.Add(ch.c, ch.w, ch.interp)
		e.settleIn(ctx, ch)
	}
	return seal, nil
}

// settleIn does what a fork that talks needs beside its gateway.
func (e *Engine) settleIn(ctx context.Context, ch *child) {
	if !ch.c.Talks() {
		return
	}
	if err := e.govern.Equip(ctx, ch.c, ch.w, ch.c.Agent); err != nil {
		e.log.Warn("cannot lend keys of SSH to a fork", "cell", ch.c.ID, "error", err)
	}
}

// drop takes away what was made and is in no record.
func (f *forking) drop(ctx context.Context, made []*child) {
	var all sync.WaitGroup
	for _, ch := range made {
		all.Go(func() { f.e.dropChild(ctx, ch, "the fork was given up") })
	}
	all.Wait()
}

// removeAll removes the cells of a batch that was recorded.
func (f *forking) removeAll(ctx context.Context, made []*child) error {
	args := removeArgs{}
	for _, ch := range made {
		release, err := f.e.locks.Acquire(ctx, ch.c.ID, "remove", nil)
		if err != nil {
			return err
		}
		defer release()
		args.Cells = append(args.Cells, ch.c.ID)
	}
	return f.e.operate(ctx, opRemove, args, func(ctx context.Context) error { return f.e.doRemoveAll(ctx, args.Cells) })
}

// say tells of one cell that has answered, or could not be made.
func (f *forking) say(ch *child) {
	ch.res.Hit, ch.res.MS = ch.hit, ms(time.Since(f.began))
	if ch.err != nil {
		ch.res.Error = f.e.failure(ch.err).API()
	}
	if ch.c.ID == "" {
		ch.res.Cell = api.Cell{Name: ch.c.Name, State: string(cell.Failed), Downgrades: []string{}, LeftOut: []api.LeftOut{}}
	} else {
		ch.res.Cell = f.e.briefView(ch.c)
	}
	if f.out == nil {
		return
	}
	f.said.Lock()
	defer f.said.Unlock()
	f.out(api.StreamLine{Fork: &ch.res})
}

func (f *forking) finish() {
	for _, ch := range f.all {
		f.res.Forks = append(f.res.Forks, ch.res)
		if ch.hit && ch.err == nil {
			f.res.Hits++
		}
	}
}

// removeCell removes a cell, whatever it is the warm parent of.
func (e *Engine) removeCell(ctx context.Context, id cell.ID) error {
	release, err := e.locks.Acquire(ctx, id, "remove", nil)
	if err != nil {
		return err
	}
	defer release()
	return e.remove(ctx, id)
}
