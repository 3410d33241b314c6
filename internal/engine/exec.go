package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/fault"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/workspace"
)

// liveExec is a command in a cell outside any run.
type liveExec struct {
	id     string
	cell   cell.ID
	proc   backend.Process
	began  time.Time
	done   chan struct{} // closed when it has ended
	once   sync.Once     // closes read
	read   chan struct{} // closed when the client that was attached has read everything
	ctx    context.Context
	stop   context.CancelCauseFunc
	result api.Exec // valid when done is closed
}

// StartExec starts a command in a cell, which becomes live if it is at rest.
func (e *Engine) StartExec(ctx context.Context, id cell.ID, req api.ExecRequest) (api.Exec, error) {
	const opName = "engine.StartExec"
	if len(req.Command) == 0 || req.Command[0] == "" {
		return api.Exec{}, cell.Errorf(cell.Invalid, opName, "say what to run: pando exec CELL -- COMMAND", "cannot run: no command given")
	}
	var timeout time.Duration
	if req.Timeout != "" {
		var err error
		if timeout, err = policy.ParseTimeout(req.Timeout); err != nil {
			return api.Exec{}, err
		}
	}
	for _, kv := range req.Env {
		if _, err := policy.CheckEnv(kv); err != nil {
			return api.Exec{}, err
		}
	}
	inst, c, release, err := e.ensureLive(ctx, id)
	if err != nil {
		return api.Exec{}, err
	}
	started := false
	defer func() {
		if !started {
			release()
		}
	}()
	if c.State == cell.Paused {
		return api.Exec{}, cell.Errorf(cell.Conflict, opName, "run `pando resume "+c.Title()+"` first", "cell %s is paused", c.Title())
	}
	if err := e.spendExec(&c); err != nil {
		return api.Exec{}, err
	}
	var b [8]byte
	rand.Read(b[:])
	x := &liveExec{id: "e-" + hex.EncodeToString(b[:]), cell: c.ID, began: time.Now(), done: make(chan struct{}), read: make(chan struct{})}
	x.ctx, x.stop = context.WithCancelCause(e.life)
	env := commandEnv(e.cellEnv(&c), req.Env, c.Setup.User, req.TTY, termIn(req.CallerEnv))
	workdir := orElse(req.Workdir, c.Source)
	if !filepath.IsAbs(workdir) {
		workdir = filepath.Join(c.Source, workdir)
	}
	x.proc, err = inst.Start(ctx, x.id, cell.Start{
		Process: cell.Process{Args: req.Command, Env: env, Path: candidates(req.Command[0], env, workdir), Workdir: workdir,
			TTY: req.TTY, Rows: req.Rows, Cols: req.Cols},
		Timeout: timeout, LogLimit: execLimit, Hold: req.Attach,
	}, [3]*os.File{})
	if err != nil {
		x.stop(nil)
		return api.Exec{}, err
	}
	started = true
	e.mu.Lock()
	e.execs[x.id] = x
	e.mu.Unlock()
	e.background(func(ctx context.Context) { e.followExec(x, req.Attach, release) })
	return api.Exec{ID: x.id, Cell: string(c.ID), Running: true, Notes: e.takeMoved(c.ID)}, nil
}

// execLimit is how much output of an exec its keeper holds for whoever
// attaches late; it goes to no file. In bytes.
const execLimit = 1 << 20

// ensureLive returns the instance of a cell, making one if it is at rest. The
// cell stays live until release is called.
func (e *Engine) ensureLive(ctx context.Context, id cell.ID) (inst backend.Instance, c Cell, release func(), err error) {
	inst, release = e.hold(id)
	if inst != nil && dead(ctx, inst) {
		release()
		if err := e.bury(ctx, id); err != nil {
			return nil, c, nil, err
		}
		inst, release = e.hold(id)
	}
	if inst == nil {
		if inst, release, err = e.wake(ctx, id); err != nil {
			return nil, c, nil, err
		}
	}
	if c, err = e.usable(id); err != nil {
		release()
		return nil, c, nil, err
	}
	return inst, c, release, nil
}

// wake makes an instance of a cell at rest.
func (e *Engine) wake(ctx context.Context, id cell.ID) (backend.Instance, func(), error) {
	inst, release, turn, err := e.liveOrTurn(ctx, id)
	if inst != nil || err != nil {
		return inst, release, err
	}
	defer turn()
	defer e.under.begin().end()
	c, err := e.usable(id)
	if err != nil {
		return nil, nil, err
	}
	if err := e.unfinished(&c, ""); err != nil {
		return nil, nil, err
	}
	if c.State == cell.Failed {
		return nil, nil, cell.Errorf(cell.Conflict, "engine.exec", "bring it back with pando restore "+c.Title()+"@N", "cell %s failed: %s", c.Title(), c.Cause)
	}
	p, err := e.providerOf(c.Provider)
	if err != nil {
		return nil, nil, err
	}
	changed := []any{&c}
	if c.Gen == nil {
		head, err := e.reg.checkpoint(c.Head)
		if err != nil {
			return nil, nil, err
		}
		if err := e.begin(ctx, &c, p, &head); err != nil {
			return nil, nil, err
		}
		changed = append(changed, &head)
	} else if err := p.Resume(ctx, *c.Gen); err != nil {
		return nil, nil, err
	}
	if err := e.refit(&c, p, nil); err != nil {
		return nil, nil, err
	}
	if c.State == cell.Running || c.State == cell.Paused {
		c.State = cell.Idle // its rest could not be recorded
	}
	if c.State, err = c.State.To(cell.Running); err != nil {
		return nil, nil, err
	}
	c.Cause = ""
	if err := e.reg.commit(changed...); err != nil {
		return nil, nil, err
	}
	inst, err = e.activate(ctx, &c)
	if err != nil {
		c.State = cell.Idle
		e.reg.commit(&c)
		return nil, nil, err
	}
	if err := e.lendAgent(ctx, &c, inst, c.Agent); err != nil { // it was there when the cell ran last
		e.log.Warn("cannot lend keys of SSH again", "cell", id, "error", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return inst, e.use(id), nil
}

// liveOrTurn waits until the cell has an instance, which it returns held, or
// until its turn is free, which it takes. A run that is just starting keeps
// the turn to its end, but makes an instance soon.
func (e *Engine) liveOrTurn(ctx context.Context, id cell.ID) (inst backend.Instance, release, turn func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	taken := make(chan error, 1)
	go func() {
		var err error
		turn, err = e.turns.take(ctx, id, "start", nil)
		taken <- err
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-taken:
			if err != nil {
				return nil, nil, nil, err
			}
			if inst, release = e.hold(id); inst != nil {
				turn()
			}
			return inst, release, turn, nil
		case <-tick.C:
			if inst, release = e.hold(id); inst != nil {
				cancel()
				if <-taken == nil {
					turn()
				}
				return inst, release, nil, nil
			}
		}
	}
}

// What the cell's own mounts are, in cell.Mount.Why.
const (
	whyWorkspace = "workspace"
	whyHome      = "the cell's home"
	whyTmp       = "the cell's /tmp"
)

// refit points a cell's mounts at its present layer and its own folders.
func (e *Engine) refit(c *Cell, p workspace.Provider, from *Checkpoint) error {
	private := e.private(c.ID)
	fault.Step("make the folders of a cell")
	if err := e.makeHome(private); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(private, "tmp"), 0o700); err != nil {
		return err
	}
	if err := os.Chmod(filepath.Join(private, "tmp"), 0o777|os.ModeSticky); err != nil {
		return err
	}
	mounts := append([]cell.Mount(nil), c.Setup.Mounts...)
	caches := 0
	for i := range mounts {
		m := &mounts[i]
		switch {
		case m.Why == whyWorkspace:
			*m = p.Mount(*c.Gen, m.Target)
		case m.Why == whyHome:
			m.Source = filepath.Join(private, "home")
		case m.Why == whyTmp:
			m.Source = filepath.Join(private, "tmp")
		case m.Why == image.WhyNetwork:
			m.Source = filepath.Join(private, talkFolder, talkName(m))
		case m.Kind == cell.Cache:
			m.Upper = filepath.Join(private, "cache", strconv.Itoa(caches))
			caches++
		}
	}
	var err error
	if mounts, err = e.mask(c, from, mounts); err != nil {
		return err
	}
	if c.Setup.Mounts, err = e.denyPrograms(c, mounts); err != nil {
		return err
	}
	if c.talks() {
		return e.writeTalk(c)
	}
	return nil
}

// makeHome makes a cell's home when it first starts. In it git finds who
// commits, as the host's git would: that is no secret, and without it no
// commit can be made. What the cell makes of it later is its own affair.
func (e *Engine) makeHome(private string) error {
	home := filepath.Join(private, "home")
	if err := os.MkdirAll(private, 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(home, 0o700); errors.Is(err, fs.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	if conf := gitdir.IdentityConfig(gitdir.Identity(e.cfg.User.Home)); conf != nil {
		return os.WriteFile(filepath.Join(home, ".gitconfig"), conf, 0o644)
	}
	return nil
}

// followExec waits for an exec to end, and lets the cell rest when it was the
// last thing in it.
func (e *Engine) followExec(x *liveExec, attach bool, release func()) {
	st, err := e.waitFor(x.ctx, x.proc)
	if err == errClosing {
		return
	}
	r := api.Exec{ID: x.id, Cell: string(x.cell), WallMS: ms(time.Since(x.began))}
	exit := cell.Exit{Code: 255, Cause: "keeper lost"}
	if err == nil && st.Exit != nil {
		exit = *st.Exit
	}
	r.ExitCode, r.Signal, r.Cause = &exit.Code, exit.Signal, exit.Cause
	r.Output = api.Outputs{Stdout: outputAPI(st.Stdout), Stderr: outputAPI(st.Stderr)}
	x.result = r
	close(x.done)
	if attach { // its keeper holds the last output until the client has read it
		select {
		case <-x.read:
		case <-time.After(attachGrace):
		case <-e.life.Done():
			return
		}
	}
	x.proc.Forget(e.life)
	x.stop(nil)
	release()
	select {
	case <-time.After(execMemory):
	case <-e.life.Done():
	}
	e.mu.Lock()
	delete(e.execs, x.id)
	e.mu.Unlock()
}

// execMemory is how long the result of an exec can be asked for.
const execMemory = time.Minute

// restIfEmpty takes a cell's instance down when nothing happens in it.
func (e *Engine) restIfEmpty(ctx context.Context, id cell.ID) {
	release, err := e.turns.take(ctx, id, "rest", nil)
	if err != nil {
		return
	}
	defer release()
	e.mu.Lock()
	inst := e.instances[id]
	if inst == nil || e.uses[id] > 0 {
		e.mu.Unlock()
		return
	}
	e.mu.Unlock()
	list, err := inst.List(ctx)
	if err == nil && len(list) > 0 {
		return
	}
	c, cerr := e.reg.cell(id)
	if cerr != nil || (c.State != cell.Running && c.State != cell.Paused) {
		return
	}
	e.mu.Lock()
	if e.uses[id] > 0 { // somebody came meanwhile
		e.mu.Unlock()
		return
	}
	delete(e.instances, id) // nobody can come any more
	e.mu.Unlock()
	if err := e.takeDown(ctx, inst, "nothing runs in it"); err != nil {
		e.log.Warn("cannot put a cell to rest", "cell", id, "error", err)
		return
	}
	c.State = cell.Idle
	if err := e.reg.commit(&c); err != nil {
		e.log.Error("cannot record a cell", "cell", id, "error", err)
	}
}

func termIn(env []string) string {
	for _, kv := range env {
		if len(kv) > 5 && kv[:5] == "TERM=" {
			return kv[5:]
		}
	}
	return ""
}
