package engine

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/govern"
	"github.com/pando-dev/pando/internal/policy/decide"
	"github.com/pando-dev/pando/internal/state"
)

// logLimit is how much of each output stream a run keeps, in bytes. What goes
// beyond is streamed, counted and digested.
const logLimit = 64 << 20

// start makes the cell live, if it isn't, and starts the command.
func (x *execution) start(ctx context.Context) error {
	e := x.e
	began := time.Now()
	defer func() { x.run.Timings.Start = ms(time.Since(began)) }()
	x.inst = e.alive.Instance(x.c.ID)
	recorded := func() {}
	var err error
	if x.inst != nil {
		recorded, err = x.regovern(ctx)
	} else {
		err = x.setUp()
	}
	if err != nil {
		return err
	}
	defer recorded()
	x.recordAgent()
	// From here on a crash finds the run executing, and looks for the command.
	if err := x.run.To(cell.Executing); err != nil {
		return err
	}
	x.run.Started, x.run.In.Workdir = time.Now().UTC(), x.resolvedWorkdir()
	if x.c.State == cell.Creating { // it is complete from here on
		if err := x.c.To(cell.Idle); err != nil {
			return err
		}
	}
	if err := x.c.To(cell.Running); err != nil {
		return err
	}
	if x.inst == nil {
		x.c.Family = e.alive.FreeKeeper(x.c.ID)
	}
	x.c.LastRun = x.run.RunID()
	if x.run.Agent != "" {
		x.c.Agent = x.run.Agent
	}
	before := x.c
	if x.p.cell.State != cell.Creating {
		x.c.Runs++
	}
	x.c.Cause = ""
	if err := e.govern.Count(&before, x.p.policy.Limits, func() error { return e.reg.Commit(&x.c, &x.before, x.run) }); err != nil {
		x.c.Runs = before.Runs
		return err
	}
	recorded()
	if x.inst == nil {
		x.e.alive.RecordEnd(x.c.ID, state.PutToRest)
		if names := x.c.ServiceNames(); len(names) > 0 {
			x.report(api.Progress{Step: "starting", Note: strings.Join(names, ", ")})
		}
		if x.inst, err = e.alive.Activate(ctx, &x.c); err != nil {
			return err
		}
	}
	if err := e.govern.Equip(ctx, &x.c, x.inst, govern.AgentOf(x.p.req.CallerEnv)); err != nil {
		return err
	}
	if err := x.furnish(ctx); err != nil {
		return err
	}
	if h := x.c.Setup.Handles; len(h) > 0 && !x.c.Talks() {
		x.run.Notes = append(x.run.Notes, join(h)+": lent in vain, no rule lets the cell talk to anything (--allow HOST)")
	}
	x.run.Services = x.c.ServiceUses()
	x.run.Notes = append(x.run.Notes, e.takeMoved(x.c.ID)...)
	x.run.Assurance = state.AssuranceOf(x.inst.Assurance())
	if err := x.l.AwaitClient(ctx); err != nil {
		return err
	}
	return x.startCommand(ctx)
}

// mountsDiffer compares what two policies, in their canonical form, say of mounts.
func mountsDiffer(canonical, other []byte) bool {
	a, _ := decide.Parse(canonical) // what can't be read has none, and is another
	b, _ := decide.Parse(other)
	return !slices.Equal(a.Files.Mounts, b.Files.Mounts) || a.Files.ReadOnlyRoot != b.Files.ReadOnlyRoot
}

// regovern puts the run's policy into force in a cell that lives: what is
// decided at the gateway changes at once, what was made with the cell can't. recorded is called
// after the commit, also when that failed.
func (x *execution) regovern(ctx context.Context) (recorded func(), err error) {
	pol, s := x.p.policy, &x.c.Setup
	if !slices.Equal(x.p.caches, s.Kept.Caches) || len(x.p.caches) > 0 && x.p.req.CacheWrite != s.Kept.CacheWrite {
		return nil, x.isMounted("caches")
	}
	if pol.Digest() == s.Policy {
		return func() {}, x.e.govern.DropAnswers(ctx, &x.c, x.run.RunID()) // a daemon before this one may not have come to it
	}
	what := ""
	switch {
	case mountsDiffer(pol.Canonical(), []byte(s.PolicyText)), !slices.Equal(pol.Files.Hidden, s.Hidden), !slices.Equal(pol.Files.ReadOnly, s.ReadOnly), !slices.Equal(pol.Processes.Deny, s.Programs):
		what = "mounts"
	case pol.Talks() != s.Talks:
		what = "network interface"
	}
	if what != "" {
		return nil, x.isMounted(what)
	}
	keeps, err := x.p.keeps()
	if err != nil {
		return nil, err
	}
	return x.e.govern.Change(ctx, &x.c, x.inst, &pol, keeps, x.run.RunID())
}

// isMounted is the error for what can't change in a cell that lives.
func (x *execution) isMounted(what string) error {
	return cell.Errorf(cell.Conflict, "engine.StartRun", "stop the cell first: pando stop "+x.c.Title(),
		"cell %s has processes: its %s cannot change now", x.c.Title(), what)
}

// setUp makes the cell's setup from the image's plan and the policy, and a
// writable layer.
func (x *execution) setUp() error {
	e, pol := x.e, x.p.policy
	p, err := e.providerOf(x.c.Provider)
	if err != nil {
		return err
	}
	if len(x.p.caches) > 0 && !p.Mounts() {
		return cell.Errorf(cell.Unsupported, "engine.StartRun", "leave out --cache; pando doctor says what keeps overlays from working",
			"cannot keep caches: the workspace of cell %s is a copy, since %s", x.c.Title(), x.c.WhyNot)
	}
	x.plan.Insert(
		cell.Mount{Kind: cell.Bind, Target: x.plan.Home, Owned: true, Role: cell.RoleHome, Why: whyHome},
		cell.Mount{Kind: cell.Bind, Target: x.plan.Tmp, Owned: true, Role: cell.RoleTmp, Why: whyTmp},
	)
	x.plan.Insert(workspaceMounts(x.plan.Workspaces)...)
	if x.c.Builds {
		x.plan.Insert(cell.Mount{Kind: cell.Bind, Target: "/", Owned: true, Role: cell.RoleTop, Why: whyTop})
	}
	if _, _, err := e.govern.Lend(&x.c, pol.Handles()); err != nil {
		return err
	}
	var trust []string
	if pol.Talks() {
		trust = x.plan.Talk(e.govern.TalkDir(x.c.ID))
	} else {
		x.plan.Silent()
	}
	keeps, err := x.p.keeps()
	if err != nil {
		return err
	}
	budgets, err := e.govern.Budgets(&x.c, &pol)
	if err != nil {
		return err
	}
	x.c.Shared = cell.Digest{}
	x.c.Setup = state.Setup{
		Talks: pol.Talks(), TrustLists: trust, Origins: pol.Origins, Handles: pol.Handles(), Budgets: budgets, Hidden: pol.Files.Hidden, ReadOnly: pol.Files.ReadOnly, Programs: pol.Processes.Deny,
		Policy: pol.Digest(), PolicyText: string(pol.Canonical()), Mounts: x.plan.Mounts, Env: x.plan.Env,
		Seeds: x.plan.Seeds, User: e.cfg.User, Kernel: x.p.kernel, Limits: pol.Limits.CellLimits(), Asked: pol.Asked,
		Downgrades: append(pol.Downgrades(), x.plan.Downgrades...), Kept: keeps,
	}
	if x.c.Gen == nil {
		err = e.begin(x.l.Context(), &x.c, p, &x.before)
	} else {
		err = p.Resume(x.l.Context(), *x.c.Gen)
	}
	if err != nil {
		return err
	}
	return e.refit(&x.c, p, &x.before)
}

func (x *execution) startCommand(ctx context.Context) error {
	e, req := x.e, x.p.req
	env := x.agentEnv(cell.CommandEnv(e.govern.Env(&x.c), append(e.alive.LeasedEnv(x.c.ID), x.p.policy.Env...), x.c.Setup.User, req.TTY, cell.TermIn(req.CallerEnv)))
	path, err := x.lookPath(env)
	if err != nil {
		return err
	}
	x.noteUntested(path)
	logs, err := openLogs(x.run.Folder)
	if err != nil {
		return err
	}
	defer closeLogs(logs)
	tape, err := x.wire()
	if err != nil {
		return err
	}
	if tape != nil && tape.Recipient != "" {
		defer tape.File.Close()
	}
	x.proc, err = x.inst.Start(ctx, x.run.ID, cell.Start{
		Process: cell.Process{Args: req.Command, Env: env, Path: path, Workdir: x.resolvedWorkdir(), TTY: req.TTY, Rows: req.Rows, Cols: req.Cols},
		Run:     x.run.RunID(), Timeout: x.p.policy.Limits.CellLimits().Timeout, EndsCell: x.c.Anonymous(), LogLimit: logLimit, Wire: tape, NoInput: x.p.again != nil, Hide: redactor.Found(append(slices.Clone(req.Command), env...)...), Screen: x.p.agent != nil && req.TTY,
	}, logs)
	if err != nil {
		return err
	}
	x.run.Assurance = state.AssuranceOf(x.proc.Assurance())
	x.run.Downgrades = append(append([]string{}, x.proc.Assurance().Downgrades...), append(slices.Clone(x.c.Setup.Downgrades), x.c.Setup.Unmasked...)...)
	if a := x.p.agent; a != nil && a.start.Trusts {
		x.run.Downgrades = append(x.run.Downgrades, "the agent runs what the repository configures for it")
	}
	if kinds := x.p.agent.brought(); len(kinds) > 0 {
		x.run.Downgrades = append(x.run.Downgrades, "the agent has of the user's home: "+strings.Join(kinds, ", "))
	}
	x.l.Started(x.proc)
	return nil
}

func (x *execution) resolvedWorkdir() string {
	if x.plan != nil && x.plan.Workdir != "" && x.plan.Workdir != x.c.Source {
		return x.plan.Workdir
	}
	return x.workdir() // what is in the workspace is known now
}

// lookPath lists the files to try as the command's program.
func (x *execution) lookPath(env []string) ([]string, error) {
	if x.plan != nil {
		list, err := x.plan.LookPath(x.p.req.Command[0], x.resolvedWorkdir())
		return list, x.p.agent.install(err)
	}
	return cell.Candidates(x.p.req.Command[0], env, x.resolvedWorkdir()), nil
}

// openLogs makes the files of a run's output and events.
func openLogs(folder string) (logs [3]*os.File, err error) {
	for i, name := range []string{"stdout", "stderr", "events.jsonl"} {
		failpoint.Step("make " + name)
		if logs[i], err = evidence.CreateRecord(folder, name); err != nil {
			closeLogs(logs)
			return logs, err
		}
	}
	return logs, nil
}

func closeLogs(logs [3]*os.File) {
	for _, f := range logs {
		if f != nil {
			f.Close()
		}
	}
}
