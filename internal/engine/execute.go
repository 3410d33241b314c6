package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cleanup"
	"github.com/pando-dev/pando/internal/workspace"
)

// logLimit is how much of each output stream a run keeps, in bytes. What goes
// beyond is streamed, counted and digested.
const logLimit = 64 << 20

// start makes the cell live, if it isn't, and starts the command.
func (x *execution) start(ctx context.Context) error {
	e := x.e
	began := time.Now()
	defer func() { x.run.Timings.Start = ms(time.Since(began)) }()
	x.inst = e.instance(x.c.ID)
	if x.inst != nil {
		if len(x.p.policy.Files.Mounts) > 0 && x.p.policy.Digest() != x.c.Setup.Policy {
			return cell.Errorf(cell.Conflict, "engine.StartRun", "stop the cell first: pando stop "+x.c.Title(),
				"cell %s has processes: its mounts cannot change now", x.c.Title())
		}
	} else if err := x.setUp(); err != nil {
		return err
	}
	// From here on a crash finds the run executing, and looks for the command.
	var err error
	if x.run.Phase, err = phase(x.run.Phase, cell.Executing); err != nil {
		return err
	}
	x.run.Started = time.Now().UTC()
	if x.c.State != cell.Running {
		if x.c.State, err = x.c.State.To(cell.Running); err != nil {
			// A new cell goes through idle: it is complete from here on.
			x.c.State = cell.Running
		}
	}
	x.c.LastRun = x.run.RunID()
	if x.p.cell.State != cell.Creating {
		x.c.Runs++
	}
	x.c.Cause = ""
	if err := e.reg.commit(&x.c, &x.before, x.run); err != nil {
		return err
	}
	if x.inst == nil {
		if x.inst, err = e.activate(ctx, &x.c); err != nil {
			return err
		}
	}
	x.run.Notes = append(x.run.Notes, e.takeMoved(x.c.ID)...)
	x.run.Assurance = assuranceAPI(x.inst.Assurance())
	if err := x.awaitClient(ctx); err != nil {
		return err
	}
	return x.startCommand(ctx)
}

// setUp makes the cell's setup from the image's plan and the policy, and a
// writable layer.
func (x *execution) setUp() error {
	e, pol := x.e, x.p.policy
	p, err := e.providerOf(x.c.Provider)
	if err != nil {
		return err
	}
	x.plan.Insert(
		cell.Mount{Kind: cell.Bind, Target: x.plan.Home, Owned: true, Why: whyHome},
		cell.Mount{Kind: cell.Bind, Target: x.plan.Tmp, Owned: true, Why: whyTmp},
		cell.Mount{Target: x.plan.Workspace, Why: whyWorkspace},
	)
	x.c.Setup = Setup{
		Policy: pol.Digest(), PolicyText: string(pol.Canonical()), Mounts: x.plan.Mounts, Env: x.plan.Env,
		User: e.cfg.User, Limits: pol.Limits.CellLimits(), Asked: pol.Asked,
		Downgrades: append(pol.Downgrades(), x.plan.Downgrades...),
	}
	if x.c.Gen == nil {
		err = e.begin(x.l.ctx, &x.c, p, &x.before)
	} else {
		err = p.Resume(x.l.ctx, *x.c.Gen)
	}
	if err != nil {
		return err
	}
	return e.refit(&x.c, p)
}

// leaving is how long the keeper of a cell that is at rest may still be on its
// way out, when the daemon that sent it away died meanwhile.
const leaving = 5 * time.Second

// activate makes an instance of a cell that is at rest.
func (e *Engine) activate(ctx context.Context, c *Cell) (backend.Instance, error) {
	b, err := e.backend(c.Backend)
	if err != nil {
		return nil, err
	}
	if err := e.awaitGone(ctx, c.ID); err != nil {
		return nil, err
	}
	spec := cell.Spec{
		ID: c.ID, Hostname: hostname(c), User: c.Setup.User, Mounts: c.Setup.Mounts, Workdir: c.Source,
		Limits: c.Setup.Limits, Asked: c.Setup.Asked, Writes: []string{e.private(c.ID)},
	}
	if c.Volume > 0 {
		spec.Sized, spec.Limits.Disk = true, c.Volume
	}
	for _, m := range c.Setup.Mounts {
		if m.Why == whyWorkspace {
			spec.Writes = append(spec.Writes, orElse(m.Upper, m.Source))
		}
	}
	if err := e.makeWay(c); err != nil {
		return nil, err
	}
	// A layer over a cache is mounted once: what an attempt left behind goes.
	if err := workspace.RemoveTree(filepath.Join(e.private(c.ID), "cache")); err != nil {
		return nil, err
	}
	inst, err := b.Create(ctx, spec)
	for began := time.Now(); cell.KindOf(err) == cell.Exists && time.Since(began) < leaving && ctx.Err() == nil; {
		time.Sleep(10 * time.Millisecond)
		inst, err = b.Create(ctx, spec)
	}
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.instances[c.ID] = inst
	e.mu.Unlock()
	e.watch(inst)
	return inst, nil
}

// watchTick is how often a living cell is looked at.
const watchTick = 2 * time.Second

// watch puts a cell to rest when what goes on in it by itself has ended: what
// a run or an exec left behind, or what an earlier daemon started.
func (e *Engine) watch(inst backend.Instance) {
	e.background(func(ctx context.Context) {
		tick := time.NewTicker(watchTick)
		defer tick.Stop()
		for e.instance(inst.ID()) == inst {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if e.runIn(inst.ID()) == nil {
				e.restIfEmpty(ctx, inst.ID())
			}
		}
	})
}

// deactivate ends a cell's processes for cause and takes its instance away.
// When it returns nothing runs in the cell and nothing can be started in it;
// the rest of the taking down goes on behind.
func (e *Engine) deactivate(ctx context.Context, id cell.ID, cause string) error {
	e.mu.Lock()
	inst := e.instances[id]
	delete(e.instances, id)
	e.mu.Unlock()
	if inst == nil {
		return nil
	}
	return e.takeDown(ctx, inst, cause)
}

// quiet is how long processes that were killed may take to be gone, before
// their namespaces are taken away under them.
const quiet = 2 * time.Second

// takeDown ends what runs in an instance that nobody can reach any more, and
// removes it.
func (e *Engine) takeDown(ctx context.Context, inst backend.Instance, cause string) error {
	empty := func() bool {
		list, err := inst.List(ctx)
		return err == nil && len(list) == 0
	}
	if !empty() {
		if _, err := inst.KillAll(ctx, cause); err == nil {
			for began := time.Now(); time.Since(began) < quiet && !empty(); {
				time.Sleep(time.Millisecond)
			}
		}
		if !empty() {
			return e.removeInstance(ctx, inst, cause)
		}
	}
	gone := make(chan struct{})
	e.mu.Lock()
	e.ending[inst.ID()] = gone
	e.mu.Unlock()
	e.background(func(ctx context.Context) {
		defer func() {
			e.mu.Lock()
			delete(e.ending, inst.ID())
			e.mu.Unlock()
			close(gone)
		}()
		if err := e.removeInstance(ctx, inst, cause); err != nil {
			e.log.Warn("cannot take down a cell", "cell", inst.ID(), "error", err)
		}
	})
	return nil
}

// removeInstance removes an instance, and the writable layers over caches with
// it. It is not given up when the daemon ends.
func (e *Engine) removeInstance(ctx context.Context, inst backend.Instance, cause string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup.Grace)
	defer cancel()
	if err := inst.Remove(ctx, cause); err != nil {
		return err
	}
	return workspace.RemoveTree(filepath.Join(e.private(inst.ID()), "cache"))
}

// awaitGone waits until an instance that is being taken down is gone.
func (e *Engine) awaitGone(ctx context.Context, id cell.ID) error {
	e.mu.Lock()
	gone := e.ending[id]
	e.mu.Unlock()
	if gone == nil {
		return nil
	}
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// hostname is a valid host name made of the cell's name.
func hostname(c *Cell) string {
	name := strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '-'
	}, c.Title()), "-")
	return orElse(name, string(c.ID))
}

// awaitClient holds the command back until the client that wants to see it is
// there, so that it misses nothing and a terminal has somebody behind it.
func (x *execution) awaitClient(ctx context.Context) error {
	select {
	case <-x.l.attached:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(attachGrace):
		return cell.Errorf(cell.Interrupted, "engine.run", "", "cannot start: the client that asked never attached")
	}
}

func (x *execution) startCommand(ctx context.Context) error {
	req := x.p.req
	env := commandEnv(x.c.Setup.Env, x.p.policy.Env, x.c.Setup.User, req.TTY, termIn(req.CallerEnv))
	path, err := x.lookPath(env)
	if err != nil {
		return err
	}
	logs, err := openLogs(x.run.Folder)
	if err != nil {
		return err
	}
	defer closeLogs(logs)
	x.proc, err = x.inst.Start(ctx, x.run.ID, cell.Start{
		Process: cell.Process{Args: req.Command, Env: env, Path: path, Workdir: x.resolvedWorkdir(), TTY: req.TTY, Rows: req.Rows, Cols: req.Cols},
		Run:     x.run.RunID(), Timeout: x.p.policy.Limits.CellLimits().Timeout, EndsCell: x.c.Anonymous(), LogLimit: logLimit,
	}, logs)
	if err != nil {
		return err
	}
	x.run.Assurance = assuranceAPI(x.proc.Assurance())
	x.run.Downgrades = append(append([]string{}, x.proc.Assurance().Downgrades...), x.c.Setup.Downgrades...)
	x.l.mu.Lock()
	x.l.proc = x.proc
	x.l.mu.Unlock()
	close(x.l.started)
	return nil
}

func (x *execution) resolvedWorkdir() string {
	if x.plan != nil && x.plan.Workdir != "" {
		return x.plan.Workdir
	}
	return x.workdir()
}

// lookPath lists the files to try as the command's program.
func (x *execution) lookPath(env []string) ([]string, error) {
	if x.plan != nil {
		return x.plan.LookPath(x.p.req.Command[0], x.resolvedWorkdir())
	}
	return candidates(x.p.req.Command[0], env, x.resolvedWorkdir()), nil
}

// candidates is what execvp would try.
func candidates(name string, env []string, workdir string) []string {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(workdir, name)
		}
		return []string{name}
	}
	var out []string
	for _, kv := range env {
		if p, ok := strings.CutPrefix(kv, "PATH="); ok {
			for _, d := range strings.Split(p, ":") {
				if filepath.IsAbs(d) {
					out = append(out, filepath.Join(d, name))
				}
			}
		}
	}
	return out
}

// commandEnv is the environment of a command: the image's, who it runs as,
// and what was asked for, which wins.
func commandEnv(base, asked []string, u cell.User, tty bool, term string) []string {
	env := map[string]string{}
	var order []string
	put := func(kv string) {
		k, v, _ := strings.Cut(kv, "=")
		if _, ok := env[k]; !ok {
			order = append(order, k)
		}
		env[k] = v
	}
	for _, kv := range base {
		put(kv)
	}
	put("HOME=" + u.Home)
	put("USER=" + u.Name)
	put("LOGNAME=" + u.Name)
	put("PANDO=1")
	if tty {
		put("TERM=" + orElse(term, "xterm-256color"))
	}
	for _, kv := range asked {
		put(kv)
	}
	out := make([]string, 0, len(order))
	for _, k := range order {
		out = append(out, k+"="+env[k])
	}
	return out
}

// openLogs makes the files of a run's output and events.
func openLogs(folder string) (logs [3]*os.File, err error) {
	for i, name := range []string{"stdout", "stderr", "events.jsonl"} {
		if logs[i], err = os.OpenFile(filepath.Join(folder, name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
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

// wait waits for the command. When the run is interrupted meanwhile, the
// command is ended and waited for.
func (x *execution) wait(ctx context.Context) (cell.Status, error) {
	x.l.report(api.Progress{Step: "running"})
	return x.e.waitFor(ctx, x.proc)
}

// waitFor waits for a process; ctx ends it with ctx's cause. errClosing means
// that the daemon goes and the process stays.
func (e *Engine) waitFor(ctx context.Context, proc backend.Process) (cell.Status, error) {
	st, err := proc.Wait(ctx)
	if err == nil || ctx.Err() == nil {
		return st, err
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, errClosing) {
		return st, errClosing
	}
	word := "interrupted"
	if cell.KindOf(cause) == cell.Timeout {
		word = "timeout"
	}
	if err := proc.End(e.life, word); err != nil {
		return st, err
	}
	st, err = proc.Wait(e.life)
	if err != nil && e.life.Err() != nil {
		return st, errClosing
	}
	return st, err
}

func phase(now string, next cell.Phase) (string, error) {
	p, err := cell.Phase(now).To(next)
	return string(p), err
}
