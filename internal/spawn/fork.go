package spawn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// MaxFork bounds how many cells one request makes.
const MaxFork = 1000

// What forks of a template have, and have not.
const (
	tookMemory    = "memory, files, home and /tmp as they were when the template was sealed"
	droppedByFork = "connections, terminals, processes beside the interpreter, credentials' placeholders: each has its own"
)

// warmParent is a warm template, with what its forks have in common.
type warmParent struct {
	m      *Manager
	t      state.Template
	c      state.Cell
	at     state.Checkpoint
	p      workspace.Provider
	w      backend.Warmer
	root   workspace.Entry // of the workspace
	shared *state.Shared
	known  bool                  // shared is in the registry
	depth  int                   // of its interpreter
	image  *snapshot             // of a template that is an image; then w is nil
	join   []workspace.LinkGroup // joined in each fork
	apart  []string              // notes of those that are not
}

// warmParent returns what a template's forks need, of one that is warm.
func (m *Manager) warmParent(ctx context.Context, t state.Template) (*warmParent, error) {
	par := &warmParent{m: m, t: t}
	inst := m.live.Instance(t.Cell)
	var err error
	if par.c, err = m.reg.Cell(t.Cell); err != nil {
		return nil, err
	}
	image := m.hasImage(&par.c)
	if inst == nil && !image {
		return nil, cell.Errorf(cell.Conflict, "spawn.ForkTemplate", "try again", "cannot fork template %s: it went cold in this moment", t.Name)
	}
	if !image {
		if par.w, err = backend.WarmerOf(inst); err != nil {
			return nil, err
		}
	}
	if par.p, err = m.cfg.Provider(par.c.Provider); err != nil {
		return nil, err
	}
	if par.at, err = m.reg.Checkpoint(par.c.Head); err != nil {
		return nil, err
	}
	if image {
		if par.image, err = m.imageOf(&t, &par.c, &par.at); err != nil {
			return nil, err
		}
	}
	if i := m.reg.Interp(par.c.ID); i != nil {
		par.depth = i.Depth
	}
	tree, err := m.cfg.Tree(ctx, &par.at)
	if err != nil {
		return nil, err
	}
	par.root = tree.Root
	if err := par.links(tree); err != nil {
		return nil, err
	}
	par.shared, par.known, err = m.sharedOf(&par.c)
	return par, err
}

// links chooses the hard links of the workspace that hold in forks. What was captured
// with a kernel of its own has the files open that it began with: nothing is joined there.
func (par *warmParent) links(tree *workspace.Tree) (err error) {
	if !par.p.Mounts() || len(tree.Links) == 0 {
		return nil
	}
	names, bytes := workspace.MaxForkedNames, par.c.JoinedBytes(workspace.MaxForkedBytes)
	if par.image != nil {
		names, bytes = 0, 0
	}
	join, rest, err := tree.Joinable(names, bytes)
	par.join, par.apart = join, comeApart(rest, "a fork")
	return err
}

// mute reports whether nothing can be evaluated in forks: what was kept warm is a
// program that isn't asked anything.
func (par *warmParent) mute() bool {
	return par.image != nil && warmKind(par.t.Spec.Warm) == cell.WarmCommand && par.t.Spec.Ready != ""
}

// sharedOf is the record that forks of a cell have in common, and whether it is
// in the registry.
func (m *Manager) sharedOf(c *state.Cell) (*state.Shared, bool, error) {
	s, err := sharedAs(c, m.cfg.Stacked(c))
	if err != nil {
		return nil, false, err
	}
	return s, m.reg.HasShared(s.Digest), nil
}

// sharedAs is that record for cells with these mounts.
func sharedAs(c *state.Cell, mounts []cell.Mount) (*state.Shared, error) {
	s := &state.Shared{Setup: c.Setup, LeftOut: c.LeftOut}
	s.Setup.Mounts = mounts
	b, err := json.Marshal(s)
	s.Digest = cell.Sum(b)
	return s, err
}

// makeChild makes a fork that is complete but for its identity, which it waits for if
// it is made ahead.
func (m *Manager) makeChild(ctx context.Context, par *warmParent, ahead bool) (*child, error) {
	ch := newChild(&par.c, &par.at, par.shared)
	ch.depth, ch.ahead = par.depth+1, ahead
	if !ahead {
		ch.c.Maker = m.cfg.Maker(ctx) // its limits are its maker's
	}
	if par.image != nil {
		return ch, m.begin(ctx, ch, par.p, &copying{par.image, par.root})
	}
	ch.c.Family = par.c.Keeper()
	return ch, m.begin(ctx, ch, par.p, par)
}

// layers implements strategy. In the layer of the workspace the links hold that par.links chose.
func (par *warmParent) layers(ctx context.Context, c *state.Cell) error {
	g, err := par.p.Begin(ctx, par.at.State, par.root, "")
	if err != nil {
		return durable.Full(err)
	}
	c.Gen = &g
	if err := par.p.Join(ctx, g, par.join); err != nil {
		return durable.Full(err)
	}
	return par.m.homeLayers(ctx, c, par.p, &par.c)
}

// start implements strategy: it forks the template's interpreter.
func (par *warmParent) start(ctx context.Context, _ *child, spec cell.Spec) (backend.Warmer, error) {
	return par.w.Fork(ctx, spec)
}

// ForkTemplate makes cells out of a template, and evaluates or runs something
// in each. One that fails does not fail the others: its error is in its place.
func (m *Manager) ForkTemplate(ctx context.Context, name string, req api.WarmForkRequest, out func(api.StreamLine)) (api.WarmForkResult, error) {
	f := &forking{m: m, req: req, out: out, began: time.Now()}
	f.res = api.WarmForkResult{Template: name, Forks: []api.WarmFork{}, Took: tookMemory, Dropped: droppedByFork}
	if err := f.check(name); err != nil {
		return f.res, err
	}
	ctx, cancel := m.cfg.Bound(ctx)
	defer cancel()
	defer m.cfg.Pin()()
	defer m.forkBegins()()
	release, err := f.reserve(name, m.isImage(name))
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
	m := f.m
	in, warm := m.cfg.Stage(ctx, "warm")
	t, err := m.ensureWarm(in, name, f.out)
	if warm(err); err != nil {
		return err
	}
	if f.par, err = m.warmParent(ctx, t); err != nil {
		return err
	}
	if f.par.image != nil {
		f.res.Dropped = droppedByCopy
	}
	f.res.Notes = f.par.apart
	f.recorded = func() {}
	if f.par.c.Setup.Budgets.Forks > 0 {
		if f.recorded, err = m.budgets.Acquire(ctx, f.par.c.ID, "fork", nil); err != nil {
			return err
		}
		defer f.recorded()
	}
	if err := m.cfg.MayFork(&f.par.c, f.count); err != nil {
		return err
	}
	fitted, err := f.fit(ctx, name)
	if err != nil {
		return err
	}
	defer fitted()
	names, done, err := m.claimNames(name, f.req.Name, f.count)
	if err != nil {
		return err
	}
	defer done()
	return f.carryOut(ctx, names)
}

// keeperLost reports whether no fork could be made because the template's keeper
// was gone, which was not noted before. The template is cold then.
func (f *forking) keeperLost(ctx context.Context) bool {
	if f.par == nil || f.par.image != nil || f.res.ReadyMS != 0 || ctx.Err() != nil || !backend.Dead(ctx, f.par.w) {
		return false
	}
	f.m.live.InterpEnded(f.par.c.ID, state.KeeperLost)
	return true
}

// forking is one request for forks on its way.
type forking struct {
	m        *Manager
	req      api.WarmForkRequest
	out      func(api.StreamLine)
	began    time.Time
	count    int
	ev       cell.Eval
	limit    time.Duration // of the command
	terms    terms
	par      *warmParent
	recorded func() // lets others ask how many forks there may be
	all      []*child
	said     sync.Mutex // held while a line is said
	res      api.WarmForkResult
}

func (f *forking) check(name string) (err error) {
	const opName = "spawn.ForkTemplate"
	f.count = max(f.req.Count, 1)
	if f.req.Count < 0 || f.count > MaxFork {
		return cell.Errorf(cell.Invalid, opName, fmt.Sprintf("ask for 1 to %d", MaxFork), "cannot make %d cells", f.req.Count)
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
		if f.ev, err = f.m.cfg.EvalOf(f.req.Eval, f.req.Timeout); err != nil {
			return err
		}
		f.ev.Limit, f.ev.Output = forkOutput, forkOutput
	}
	_, err = f.m.reg.Template(name)
	return err
}

// forkOutput is how much of each fork's output is in the answer, of each
// stream. In bytes.
const forkOutput = 64 << 10

// carryOut makes the cells, records them at once, and lets them answer.
func (f *forking) carryOut(ctx context.Context, names []string) error {
	m := f.m
	unchanged := make(chan error, 1)
	go func() { unchanged <- m.unchanged(ctx, f.par) }()
	in, madeAll := m.cfg.Stage(ctx, "make")
	f.makeAll(in, names)
	madeAll(nil)
	var made []*child
	for _, ch := range f.all {
		if ch.err == nil {
			made = append(made, ch)
		}
	}
	err := <-unchanged
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err == nil && len(made) == 0 {
		return f.all[0].err
	}
	var seal func() string
	if err == nil {
		in, recorded := m.cfg.Stage(ctx, "record")
		seal, err = f.record(in, made)
		recorded(err)
	}
	f.recorded()
	if err != nil {
		f.drop(ctx, made)
		return err
	}
	f.res.ReadyMS = ms(time.Since(f.began))
	f.res.Inherited, f.res.Renewed = generators(made)
	for _, ch := range f.all {
		if ch.err != nil {
			f.say(ch)
		}
	}
	sealed := make(chan string, 1)
	go func() { sealed <- seal() }()
	in, answered := m.cfg.Stage(ctx, "answer")
	f.answerAll(in, made)
	answered(nil)
	f.res.TookMS = ms(time.Since(f.began))
	f.res.Receipt = <-sealed
	f.finish()
	if cause := context.Cause(ctx); cause != nil { // the caller is gone
		return errors.Join(cause, f.takeBack(context.WithoutCancel(ctx), made, cause))
	}
	m.used(f.par, f.count, f.res.Hits)
	if f.req.Remove { // afterwards there is nothing to measure
		m.measure(ctx, f.par.t.Name, made)
		return f.removeAll(ctx, made)
	}
	m.cfg.Work(func(ctx context.Context) { m.measure(ctx, f.par.t.Name, made) })
	return nil
}

// makeAll takes forks from the pool and makes the rest, and gives each its
// identity.
func (f *forking) makeAll(ctx context.Context, names []string) {
	m := f.m
	f.all = make([]*child, len(names))
	var ready []*child
	if f.maySlot(ctx) {
		ready = m.takeSlots(f.par, len(names))
	}
	next := make(chan int)
	var workers sync.WaitGroup
	atOnce := 2 * runtime.GOMAXPROCS(0)
	if f.par.image != nil { // see answerAll
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
				m.dropChild(ctx, ready[i], "the fork was given up")
			}
			continue
		}
		next <- i
	}
	close(next)
	workers.Wait()
}

// maySlot reports whether what was made ahead can be brought within the ceilings of the caller.
func (f *forking) maySlot(ctx context.Context) bool {
	c := f.par.c
	c.Ceiling, c.Maker = nil, f.m.cfg.Maker(ctx)
	now := c.Limits()
	return now == c.Setup.Limits || f.par.image == nil && now.Disk == c.Setup.Limits.Disk
}

// makeOne gives a fork its identity: one that was made ahead, or a new one. The
// first may have died unseen.
func (f *forking) makeOne(ctx context.Context, name string, ready *child) *child {
	m := f.m
	if ready != nil {
		ready.terms = f.terms
		err := m.adopt(ctx, ready, name, f.began)
		if err == nil {
			ready.hit = true
			return ready
		}
		m.dropChild(ctx, ready, "it could not be adopted")
		if f.terms.final(err) { // another would be no other
			return &child{c: &state.Cell{Name: name}, err: err}
		}
	}
	ch, err := m.makeChild(ctx, f.par, false)
	if err == nil {
		ch.terms = f.terms
		if err = m.adopt(ctx, ch, name, f.began); err == nil {
			return ch
		}
		m.dropChild(ctx, ch, "it could not be adopted")
	}
	return &child{c: &state.Cell{Name: name}, err: err}
}

// record makes all cells of the batch durable at once.
func (f *forking) record(ctx context.Context, made []*child) (func() string, error) {
	m, par := f.m, f.par
	key := fmt.Sprintf("%s/fork/%d", par.c.ID, f.began.UnixNano())
	a := state.AssuranceOf(made[0].w.Assurance())
	batch := state.Batch{Act: state.BatchFork, Template: par.t.Name, Digest: par.t.Digest.String(), Interpreter: par.t.Version, Program: par.t.Program.Sum.String(),
		From: par.at.Point(), Assurance: &a, Took: tookMemory, Dropped: f.res.Dropped}
	var objects []any
	if !par.known {
		objects = append(objects, par.shared)
	}
	for _, ch := range made {
		ch.c.Batch, ch.c.Of = key, par.t.Name
		if !par.mute() {
			ch.interp = &state.Interp{Cell: ch.c.ID, Kind: warmKind(par.t.Spec.Warm), Version: par.t.Version, Started: ch.c.Created, Depth: ch.depth, Template: par.t.Name, Batch: key}
		}
	}
	for _, ch := range f.all {
		if ch.err != nil {
			batch.Failed = append(batch.Failed, ch.c.Name+": "+ch.err.Error())
		}
	}
	t, err := m.reg.Template(par.t.Name) // others may have forked meanwhile
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.forked[t.Cell] = max(m.forked[t.Cell], t.Forks) + int64(len(made))
	t.Forks = m.forked[t.Cell]
	m.mu.Unlock()
	seal, err := m.record(ctx, key, &par.c, batch, made, append(objects, &t)...)
	if err != nil {
		m.mu.Lock()
		m.forked[t.Cell] -= int64(len(made))
		m.mu.Unlock()
	}
	return seal, err
}

// drop takes away what was made and is in no record.
func (f *forking) drop(ctx context.Context, made []*child) {
	var all sync.WaitGroup
	for _, ch := range made {
		all.Go(func() { f.m.dropChild(ctx, ch, "the fork was given up") })
	}
	all.Wait()
}

// OpTakeBack is the kind of the record that names the cells which a request has made, and which
// are removed again because it failed.
const OpTakeBack = "take back forks"

// takeBack removes the cells of a batch that was recorded before its request failed. A daemon
// that finds the request without an end must not take the batch for its answer.
func (f *forking) takeBack(ctx context.Context, made []*child, why error) error {
	var ids []cell.ID
	for _, ch := range made {
		ids = append(ids, ch.c.ID)
	}
	given, err := operation.GiveUp(ctx, OpTakeBack, ids, fmt.Errorf("the cells that it made were removed again: %w", why))
	if err == nil {
		err = f.m.reg.Commit(given...)
	}
	if err != nil {
		return err
	}
	return f.removeAll(ctx, made)
}

// removeAll removes the cells of a batch that was recorded.
func (f *forking) removeAll(ctx context.Context, made []*child) error {
	var ids []cell.ID
	for _, ch := range made {
		release, err := f.m.cfg.Locks.Acquire(ctx, ch.c.ID, "remove", nil)
		if err != nil {
			return err
		}
		defer release()
		ids = append(ids, ch.c.ID)
	}
	return f.m.cfg.RemoveNew(ctx, ids)
}

// say tells of one cell that has answered, or could not be made.
func (f *forking) say(ch *child) {
	ch.res.Hit, ch.res.MS = ch.hit, ms(time.Since(f.began))
	if ch.err != nil {
		ch.res.Error = f.m.cfg.Failure(ch.err).API()
	}
	if ch.c.ID == "" {
		ch.res.Cell = api.Cell{Name: ch.c.Name, State: string(cell.Failed), Downgrades: []string{}, LeftOut: []api.LeftOut{}}
	} else {
		ch.res.Cell = f.m.cfg.Brief(ch.c)
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
