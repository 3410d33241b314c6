package engine

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"go.opentelemetry.io/otel/attribute"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/ceiling"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/govern"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/live"
	"github.com/pando-dev/pando/internal/notice"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/run"
	"github.com/pando-dev/pando/internal/secret"
	"github.com/pando-dev/pando/internal/spawn"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// StartRun checks a request, records the run and starts working on it. What
// is wrong with the request itself is an error here; what goes wrong later is
// part of the run.
func (e *Engine) StartRun(ctx context.Context, req api.RunRequest) (api.Run, error) {
	run, err := e.startRun(ctx, req)
	for again := true; again && errors.Is(err, errMadeMeanwhile); { // by another run, or by a fork: this one goes into its cell
		if req.Cell != "" { // otherwise it is an agent, which takes the next name
			var awaitErr error
			if again, awaitErr = e.spawn.AwaitName(ctx, req.Cell); awaitErr != nil {
				return run, awaitErr
			}
		}
		run, err = e.startRun(ctx, req)
	}
	return run, err
}

func (e *Engine) startRun(ctx context.Context, req api.RunRequest) (_ api.Run, err error) {
	req.Inspect = false
	if len(req.ToolLog) > maxToolLog || strings.ContainsFunc(req.ToolLog, unicode.IsControl) {
		return api.Run{}, cell.Errorf(cell.Invalid, "engine.StartRun", "name a file of the cell, such as ~/tools.jsonl", "cannot start a run with that log of tool calls: its name may have at most %d bytes in one line", maxToolLog)
	}
	if v := viewOf(ctx); len(req.Pin) > 0 && req.Check == "" && (v == nil || v.forRace == "") { // of a race, a scorer may have them
		return api.Run{}, errNoJudge
	}
	if len(req.Ref) > maxRef || strings.ContainsFunc(req.Ref, unicode.IsControl) {
		return api.Run{}, cell.Errorf(cell.Invalid, "engine.StartRun", "a ticket's number or address will do", "cannot start a run with that reference: it may have at most %d bytes in one line", maxRef)
	}
	p, err := e.plan(ctx, req)
	if err != nil {
		return api.Run{}, err
	}
	defer func() {
		if err != nil && p.unlock != nil {
			p.unlock()
		}
	}()
	if p.cell == nil {
		var done func()
		if ctx, done, err = viewOf(ctx).making(ctx, 1+len(p.services), nil); err != nil {
			return api.Run{}, err
		}
		defer done()
		p.made = viewOf(ctx)
	}
	run := &state.Run{
		ID: string(cell.NewRunID()), Command: redactArgs(p.req.Command), Source: p.source, Repositories: p.further, Backend: p.backend.Name(), Isolation: api.IsolationOf(p.backend.Name()),
		Phase: cell.Preparing, Created: time.Now().UTC(), LeftOut: []state.LeftOut{}, Downgrades: []string{}, TTY: req.TTY,
		Image: p.image.String(),
		In: state.RunInternal{Confined: p.confined, IdlePause: p.agent.idlePause(), OnFailure: p.onFailure, OnSuccess: p.onSuccess, Check: redactor.String(req.Check), Attach: req.Attach,
			Notify: req.Notify, Record: req.Record},
	}
	if v := viewOf(ctx); v != nil {
		run.In.Race = v.forRace
	}
	if p.again != nil {
		run.ReplayOf = p.again.of
	}
	run.In.ToolLog, run.In.Pins = req.ToolLog, req.Pin
	run.Ref, run.Asked = redactor.String(req.Ref), viewOf(ctx).asker()
	run.DowngradeWords = p.words()
	p.governs(run)
	if p.agent != nil {
		run.Agent = p.agent.adapter.About().Name
	}
	if p.agent != nil && req.Agent != nil { // not its replay
		run.ModeReason = redactor.String(strings.ToValidUTF8(req.Agent.Reason, "?"))
		if req.Agent.Mode != policy.AgentStrict {
			run.Mode = req.Agent.Mode
		}
		if req.Agent.Autonomy != api.AutonomyFull {
			run.Autonomy = req.Agent.Autonomy
		}
		run.ModelURL = req.Agent.ModelURL
	}
	if p.cell != nil {
		run.Cell, run.CellName = string(p.cell.ID), p.cell.Name
	} else {
		if p.agent != nil && p.req.Cell == "" {
			p.req.Cell = e.agentName(p.source)
		}
		run.Cell, run.CellName = string(cell.NewID()), p.req.Cell
	}
	run.In.CheckHidden = run.In.Check != req.Check
	run.Folder = filepath.Join(e.cfg.Home.Runs(), run.ID)
	p.run = run
	if p.cell == nil { // nothing knows the cell yet; other runs in it wait until it is made
		if p.unlock, err = e.locks.Acquire(ctx, run.CellID(), "run "+run.ID, nil); err != nil {
			return api.Run{}, err
		}
	}
	if r, ok := e.pendingFrom(p); ok {
		run.Notes = append(run.Notes, "the result of "+r+" is still pending; this run starts from the source, without it")
	}
	if err := e.record(ctx, p); err != nil {
		return api.Run{}, err
	}
	asked := run.API() // from here on run is the work's
	e.carryOut(ctx, p, req.Attach)
	if req.Attach && ctx.Err() != nil { // the caller went away, and knows of no run
		e.runs.Expect(cell.RunID(asked.ID), unheardGrace)
	}
	return asked, nil
}

// maxToolLog bounds the name of a log of tool calls, in bytes.
const maxToolLog = 1000

// maxRef bounds the reference of a run, in bytes.
const maxRef = 200

// asker is the caller of a View, for records; nil for the engine's own work.
func (v *View) asker() *state.Asked {
	if v == nil {
		return nil
	}
	if v.askedBy != nil {
		a := *v.askedBy
		return &a
	}
	a := &state.Asked{Token: v.token, TokenName: v.tokenName, Door: v.door}
	if v.here {
		a.User = v.e.cfg.User.Name
	}
	if a.Token == "" {
		a.TokenName = ""
	}
	if *a == (state.Asked{}) {
		return nil
	}
	return a
}

// carryOut has a recorded run carried out.
func (e *Engine) carryOut(ctx context.Context, p *runPlan, attach bool) {
	var await time.Duration
	if attach {
		await = e.cfg.AttachGrace
	}
	traced, a := e.act(ctx, "run", "")
	a.backend = p.run.Backend
	a.say(attribute.String("pando.run", p.run.ID), attribute.String("pando.cell", p.run.Cell))
	e.runs.Start(run.Request{
		Run: p.run, Work: &work{e: e, p: p}, Release: p.unlock, Await: await,
		Along: func(ctx context.Context) context.Context { return alongside(ctx, traced) },
		Over: func(r state.Run, err error) {
			if err != nil || r.Phase != cell.Ended { // a later daemon goes on with it
				a.span.End()
				return
			}
			var failed error
			if r.Error != nil {
				what := "the run did not begin"
				if r.ExitCode != nil {
					what = "the run could not be finished"
				}
				failed = cell.Errorf(cell.Kind(r.Error.Kind), "engine.run", "", "%s", what)
			}
			a.say(attribute.String("pando.verdict", string(r.Verdict)))
			a.over(&failed)
		},
	})
}

// work prepares the cell of a run and starts its command. It implements run.Work.
type work struct {
	e *Engine
	p *runPlan
	x *execution // nil before Prepare
}

// LookAgain implements run.Work.
func (w *work) LookAgain() error { return w.e.lookAgain(w.p) }

// Prepare implements run.Work.
func (w *work) Prepare(ctx context.Context, l *run.Live) error {
	w.x = &execution{e: w.e, p: w.p, l: l, run: w.p.run, made: w.e.pins.Begin()}
	return w.x.prepare(ctx)
}

// Start implements run.Work.
func (w *work) Start(ctx context.Context, _ *run.Live) error { return w.x.start(ctx) }

// Job implements run.Work.
func (w *work) Job() run.Job {
	j := run.Job{Run: w.p.run, Planned: w.p.cell, Check: w.p.req.Check, Env: w.p.policy.Env, Alone: w.p.made.restricted()}
	if x := w.x; x != nil {
		j.Cell, j.Before, j.Imported, j.Inst, j.Proc, j.Workdir = x.c, x.before, x.imported, x.inst, x.proc, x.resolvedWorkdir
	}
	return j
}

// Close implements run.Work.
func (w *work) Close() { w.x.made.End() }

// runPlan is a checked request.
type runPlan struct {
	asked     api.RunRequest // by the caller
	agent     *agentPlan     // nil: a command
	req       api.RunRequest // with what the cell keeps
	kept      []string       // what that is, for people
	source    string
	from      string      // what is imported, when that is not the source
	further   []string    // directories that come into the workspace beside the source
	cell      *state.Cell // nil: to be made
	backend   backend.Backend
	image     image.Name
	kernel    string   // of its machine; "": none was asked for
	caches    []string // that are kept for its source, by name
	policy    policy.Result
	ceilings  ceiling.Bounds // of the caller, for a cell that is to be made
	notes     []string       // about policies that are not in force
	with      secret.With
	onFailure string
	onSuccess string
	run       *state.Run
	unlock    func()        // releases the lock of the cell, which a run that makes it has from the start
	made      *View         // of the maker of the cell; nil without bounds
	confined  bool          // the caller may not name files of the host
	home      []homePiece   // what the policy brings into the home of the cell
	missing   []api.Finding // of a plan that is inspected
	step      *imageStep    // of an image that is made; nil: none
	services  []plannedService
	service   *serving // of a cell in which a service is to run; nil: none
	again     *again   // of a run that executes another's command again; nil for all others
}

// plan checks everything about a request that can be checked without work.
func (e *Engine) plan(ctx context.Context, req api.RunRequest) (*runPlan, error) {
	v := viewOf(ctx)
	if v == nil {
		v = e.All()
	}
	return v.planFrom(req, "")
}

// planFrom is plan, for a workspace that is empty and seen at a path of its own
// when empty is not "".
func (v *View) planFrom(req api.RunRequest, empty string) (*runPlan, error) {
	const opName = "engine.StartRun"
	e := v.e
	started, err := e.planAgent(&req)
	if err != nil {
		return nil, err
	}
	if v.again != nil {
		started = v.again.agent
	}
	if req.Agent != nil && req.Agent.Continue && req.Cell == "" {
		if req.Cell, err = v.agentCell(&req); err != nil {
			return nil, err
		}
	}
	if len(req.Command) == 0 || req.Command[0] == "" {
		return nil, cell.Errorf(cell.Invalid, opName, "say what to run: pando run -- COMMAND", "cannot run: no command given")
	}
	if err := cell.CheckArguments(opName, req.Command, req.Env); err != nil {
		return nil, err
	}
	if err := checkPins(req.Pin); err != nil {
		return nil, err
	}
	for _, a := range []string{req.From, req.Workdir, req.Check} {
		if strings.ContainsRune(a, 0) {
			return nil, cell.Errorf(cell.Invalid, opName, "", "cannot run: an argument contains a NUL")
		}
	}
	p := &runPlan{asked: req, req: req, agent: started, onFailure: orElse(req.OnFailure, "restore"), onSuccess: orElse(req.OnSuccess, "pending"), confined: v.isConfined(), step: v.step, service: v.service, again: v.again}
	if !slices.Contains([]string{"restore", "pending", "ask"}, p.onFailure) {
		return nil, cell.Errorf(cell.Invalid, opName, "use restore, pending or ask", "%q is no answer to a failure", p.onFailure)
	}
	if !slices.Contains([]string{"pending", "accept", "apply", "ask"}, p.onSuccess) {
		return nil, cell.Errorf(cell.Invalid, opName, "use pending, accept, apply or ask", "%q is no answer to a success", p.onSuccess)
	}
	if p.with, err = secret.NewWith(req.WithSecret); err != nil {
		return nil, err
	}
	if req.Cell != "" {
		if err := e.checkCellName(req.Cell); err != nil {
			return nil, err
		}
		if c, ok := v.findCell(req.Cell); ok {
			if err := v.Enter(c.ID); err != nil {
				return nil, err
			}
			p.cell = &c
		}
	}
	if p.onSuccess == "apply" && (p.cell != nil && p.cell.NoSource || p.cell == nil && req.Upload != "") {
		return nil, cell.Errorf(cell.Conflict, opName, "leave it pending, and take the changes where you want them: pando diff --patch | git apply",
			"cannot apply a success: the cell begins with no directory of the daemon's host")
	}
	if err := e.planImageName(p); err != nil {
		return nil, err
	}
	if err := e.planServices(p); err != nil {
		return nil, err
	}
	switch {
	case p.cell == nil:
		err = v.mayImport(req.From, req.Upload)
	case req.Upload != "":
		err = cell.Errorf(cell.Invalid, opName, "leave it out, or work in a new cell", "cannot run in cell %s with an uploaded source: the cell has files already", p.cell.Title())
	case !p.cell.NoSource: // of which the policy is read, and to which a result may be applied
		for _, d := range p.cell.Parts() {
			err = cmp.Or(err, v.sameDirectory(d.Source))
		}
	}
	if err != nil {
		return nil, err
	}
	if p.cell != nil {
		if err := e.planExisting(p); err != nil {
			return nil, err
		}
		p.keep()
		if err := v.planGovernance(p); err != nil {
			return nil, err
		}
		return p, e.govern.MayRun(p.cell, p.policy.Limits)
	}
	if len(req.Repositories) > 0 && (req.Upload != "" || empty != "") {
		return nil, cell.Errorf(cell.Invalid, opName, "give the first with from, or leave out repositories", "cannot bring in %s: there is no directory that it would be beside", clip(req.Repositories[0]))
	}
	if req.Upload != "" {
		u, err := e.findUpload(req.Upload)
		if err != nil {
			return nil, err
		}
		p.source, p.from = orElse(empty, emptyWorkspace), u.dir
		if err := p.letIn([]workspace.Directory{{Source: u.dir}}); err != nil {
			return nil, err
		}
		return p, v.planGovernance(p)
	}
	if empty != "" {
		if p.source, p.from, err = empty, e.cfg.Home.Empty(), os.MkdirAll(e.cfg.Home.Empty(), 0o755); err != nil {
			return nil, full(err)
		}
		return p, v.planGovernance(p)
	}
	if p.source, err = workspace.CleanSource(orElse(req.From, ".")); err != nil {
		return nil, err
	}
	if req.From == "" {
		return nil, cell.Errorf(cell.Invalid, opName, "give it with --from; a request to the API has from, upload, or the cell to run in", "cannot run: no source directory given").About(cell.NoSource)
	}
	// Before anything is read of it: a home would be copied first and refused then.
	for _, at := range []string{req.From, p.source} {
		if err := e.checkSource(at); err != nil {
			return nil, err
		}
	}
	if err := v.planRepositories(p); err != nil {
		return nil, err
	}
	if err := p.letIn(p.parts()); err != nil {
		return nil, err
	}
	return p, v.planGovernance(p)
}

// planGovernance is Engine.planGovernance, for a caller that sees the same files.
func (v *View) planGovernance(p *runPlan) error {
	if p.cell == nil {
		p.ceilings = v.ceilings(nil)
	}
	if err := v.e.planTrust(p); err != nil {
		return err
	}
	if err := v.e.planGovernance(p); err != nil {
		return err
	}
	return v.samePaths(p)
}

// planGovernance makes the policy of the run, and chooses the backend by it.
func (e *Engine) planGovernance(p *runPlan) error {
	source := p.source
	if p.from != "" {
		source = ""
	}
	req, said := p.governed(e.stored)
	eff, err := &govern.Effective{}, error(nil)
	p.serviceHosts(&req, said)
	if note := p.furtherPolicies(); note != "" {
		p.kept = append(p.kept, note)
	}
	if p.step != nil { // under the policy of the run that wants the image
		eff.Result = p.step.policy
	} else if p.service != nil { // and of the cell that wants the service
		eff.Result = p.service.policy
	} else if p.again != nil { // and of the run that is executed again
		eff.Result = p.again.policy
	} else if eff, err = e.govern.Effective(req, source, said); err == nil {
		err = govern.Within(&eff.Result, p.req.PolicyName, p.ceilings)
	}
	if err != nil {
		return err
	}
	p.policy, p.notes = eff.Result, append(eff.Notes, p.kept...)
	if err := p.ownMachine(); err != nil {
		return err
	}
	if err := e.planBackend(p); err != nil {
		return err
	}
	if err := p.agent.mayStart(&p.policy, p.backend.Name()); err != nil && !p.lacks("login", err) {
		return err
	}
	p.agent.findKey(&p.policy, e.headerOf)
	if p.cell == nil {
		if err := cmp.Or(e.mayHaveImage(p), e.mayServe(p)); err != nil {
			return err
		}
	} else if err := p.policy.Secrets.Refuse(p.policy.Origins, "run in cell "+p.cell.Title(), govern.Tracked(p.cell)); err != nil {
		return err
	}
	if err := e.planKernel(p); err != nil {
		return err
	}
	for _, way := range req.Notify {
		if err := notice.Works(way); err != nil {
			return err
		}
	}
	if err := e.planCaches(p); err != nil {
		return err
	}
	if p.home, err = e.policyHome(p); err != nil {
		return err
	}
	if len(eff.Files.Hidden)+len(eff.Files.ReadOnly)+len(eff.Processes.Deny)+len(p.further) == 0 && !eff.Files.ReadOnlyRoot {
		return nil
	}
	// What can't be enforced is no policy: nothing runs without it.
	caps, err := e.caps(e.life, p.backend)
	if err == nil && caps.Mounts != "" && len(p.further) > 0 {
		err = cell.Errorf(cell.Unsupported, "engine.StartRun", "leave out --with, or "+cell.Isolated, "cannot bring in %s: %s", p.further[0], caps.Mounts)
	} else if err == nil && caps.Mounts != "" {
		err = cell.Errorf(cell.Unsupported, "engine.StartRun", "leave out --read-only, and files and processes of the policy, or "+cell.Isolated,
			"cannot hide, protect or deny anything: %s", caps.Mounts)
	}
	return err
}

func (e *Engine) checkSource(at string) error {
	if !filepath.IsAbs(at) {
		return nil // relative to the daemon: CleanSource has made it absolute
	}
	return image.CheckSource(at, e.cfg.User.Home, e.ownDirs()...)
}

// ownDirs are pando's own, which no cell sees.
func (e *Engine) ownDirs() []string {
	return []string{e.cfg.Home.State, e.cfg.Home.Cache, e.cfg.Home.Run}
}

// planExisting checks a request against the cell it names.
func (e *Engine) planExisting(p *runPlan) error {
	const opName = "engine.StartRun"
	c := p.cell
	if err := c.ForkedOnly(); err != nil {
		return err
	}
	if c.State == cell.Creating && !c.MadeByRun() || c.State == cell.Removed {
		return cell.Errorf(cell.Conflict, opName, "wait a moment and try again", "cell %s is %s", c.Title(), c.State)
	}
	if c.State == cell.Failed {
		return cell.Errorf(cell.Conflict, opName, "bring it back with pando restore "+c.Title()+"@N", "cell %s failed: %s", c.Title(), c.Cause)
	}
	if err := live.NotPaused(opName, c); err != nil {
		return err
	}
	if err := e.alive.SameProtocol(c); err != nil {
		return err
	}
	p.source, p.further = c.Source, c.Repositories
	if err := p.sameRepositories(); err != nil {
		return err
	}
	if p.req.From != "" {
		from, err := p.cleanSource(p.req.From)
		if err != nil {
			return err
		}
		if from != c.Source {
			return cell.Errorf(cell.Conflict, opName, "leave out --from, or choose another --cell",
				"cell %s was made from %s, not from %s", c.Title(), c.Source, from)
		}
	}
	if len(p.req.WithSecret) > 0 {
		return cell.Errorf(cell.Conflict, opName, "give --with-secret when the cell is made, or copy the file in with pando cp",
			"cell %s exists: its source was imported before", c.Title())
	}
	if b := p.req.Backend; b != "" && b != "auto" && b != c.Backend {
		return cell.Errorf(cell.Conflict, opName, "leave out --backend, or choose another --cell", "cell %s runs on backend %s", c.Title(), c.Backend)
	}
	var err error
	p.backend, err = e.backend(c.Backend)
	return err
}

// errMadeMeanwhile is a cell that was not there when a run in it was planned, and is when the
// run makes it.
var errMadeMeanwhile = cell.Errorf(cell.Conflict, "engine.StartRun", "choose another name", "cannot make the cell: a cell has that name")

// record makes the run and, if it is new, its cell known. The name of a cell
// that is to be made is taken from here on: of two runs that make it at once
// one does, and the other gets errMadeMeanwhile.
func (e *Engine) record(ctx context.Context, p *runPlan) error {
	objects, err := operation.Outcome(ctx, madeRun, p.run.RunID())
	if err != nil {
		return err
	}
	if p.cell != nil {
		return e.reg.Commit(append(objects, p.run)...)
	}
	c := &state.Cell{ID: p.run.CellID(), Name: p.req.Cell, State: cell.Creating, Source: p.source, Repositories: p.further, NoSource: p.from != "", Backend: p.backend.Name(), Image: p.image.String(),
		Created: time.Now().UTC(), Next: 1, LastRun: p.run.RunID(), Runs: 1, Guest: p.confined, Maker: p.made.maker()}
	p.cell = c
	objects = append(objects, c, p.run)
	if c.Name == "" {
		return e.reg.Commit(objects...)
	}
	return e.spawn.Name(c.Name, func(taken string) error {
		switch taken {
		case "":
			return e.reg.Commit(objects...)
		case spawn.TakenByCell:
			return errMadeMeanwhile
		}
		return cell.Errorf(cell.Conflict, "engine.StartRun", "choose another name", "cannot make cell %s: %s has that name", c.Name, taken)
	})
}

// pendingFrom returns the newest result from the same source that still waits
// in an anonymous cell, for a run that will not see it.
func (e *Engine) pendingFrom(p *runPlan) (string, bool) {
	if p.req.Cell != "" || p.from != "" || p.made.restricted() {
		return "", false
	}
	r, ok := e.reg.PendingFrom(p.source)
	return r.ID, ok
}

// lookAgain brings the plan of a run in an existing cell up to date: while it
// waited for its lock, others worked there.
func (e *Engine) lookAgain(p *runPlan) error {
	c, err := e.reg.Cell(p.cell.ID)
	if err != nil {
		return err
	}
	if c.State == cell.Removed {
		return e.neverMade(&c)
	}
	other := p.keepsOther(&c) || p.cell.State == cell.Creating // when this one was planned
	p.cell = &c
	if err := e.reg.Unfinished(&c, ""); err != nil {
		return err
	}
	if err := e.planExisting(p); err != nil {
		return err
	}
	if other {
		p.keep()
		if err := e.planGovernance(p); err != nil {
			return err
		}
		p.governs(p.run)
		if err := e.reg.Commit(p.run); err != nil {
			return err
		}
	}
	return e.govern.MayRun(&c, p.policy.Limits)
}

// neverMade says why a cell that a run waited for is not there.
func (e *Engine) neverMade(c *state.Cell) error {
	why := "it was removed"
	if r, err := e.reg.Run(c.LastRun); err == nil && r.Error != nil && r.NeverStarted() {
		why = "run " + r.ID + " was to make it: " + r.Error.Message
	}
	return cell.Errorf(cell.Conflict, "engine.StartRun", "run it again: it makes the cell then", "cannot start in cell %s: %s", c.Title(), why)
}

// governs notes in a run's record what governs it.
func (p *runPlan) governs(run *state.Run) {
	run.Policy, run.Notes = p.policy.Digest().String(), append([]string(nil), p.notes...)
	run.In.Timeout, run.In.EnvNames, run.In.Asked = p.policy.Limits.CellLimits().Timeout, p.policy.Environment.Set, state.Limits(p.req.Limits)
}

// orElse returns s, or dflt if s is empty.
func orElse(s, dflt string) string {
	if s == "" {
		return dflt
	}
	return s
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
