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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/live"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/secret"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// liveExec is a command in a cell outside any run.
type liveExec struct {
	id        string
	cell      cell.ID
	inst      backend.Instance
	proc      backend.Process
	act       *act // nil when an earlier daemon began it
	began     time.Time
	workdir   string        // where it started; "" when an earlier daemon began it
	command   []string      // redacted
	isolation string        // of its cell, in the API's word
	done      chan struct{} // closed when it has ended
	came      sync.Once     // closes joined
	joined    chan struct{} // closed when a client with input has attached
	clients   atomic.Int32  // that feed its input
	once      sync.Once     // closes read
	read      chan struct{} // closed when the clients that were attached have read everything
	ctx       context.Context
	stop      context.CancelCauseFunc
	result    api.Exec // valid when done is closed
}

// execPrefix is how their ids begin.
const execPrefix = "e-"

// newExec is a command that has no process yet.
func (e *Engine) newExec(id string, of cell.ID, began time.Time) *liveExec {
	x := &liveExec{id: id, cell: of, isolation: e.isolation(of), began: began, done: make(chan struct{}), joined: make(chan struct{}), read: make(chan struct{})}
	x.ctx, x.stop = context.WithCancelCause(e.life)
	return x
}

// pid is its number in the cell; 0 if that is not known.
func (x *liveExec) pid() int {
	if x.proc == nil {
		return 0
	}
	return x.proc.InnerPID()
}

// readyExec is a command that may start: its cell lives until release is called.
type readyExec struct {
	id      string
	cell    cell.ID
	inst    backend.Instance
	release func()
	start   cell.Start
}

// readyExec checks what is asked for, and makes the cell live if it is at rest.
func (e *Engine) readyExec(ctx context.Context, id cell.ID, req *api.ExecRequest) (x *readyExec, err error) {
	const opName = "engine.StartExec"
	if len(req.Command) == 0 || req.Command[0] == "" {
		return nil, cell.Errorf(cell.Invalid, opName, "say what to run: pando exec CELL -- COMMAND", "cannot run: no command given")
	}
	if err := cell.CheckArguments(opName, req.Command, req.Env); err != nil {
		return nil, err
	}
	if req.Wait && (req.Attach || req.TTY) {
		return nil, cell.Errorf(cell.Invalid, opName, "leave out wait, and attach", "cannot wait for a command that a client attaches to")
	}
	var timeout time.Duration
	if req.Timeout != "" {
		var err error
		if timeout, err = policy.ParseTimeout(req.Timeout); err != nil {
			return nil, err
		}
	}
	for _, kv := range req.Env {
		if _, err := policy.CheckEnv(kv); err != nil {
			return nil, err
		}
	}
	inst, c, release, err := e.alive.EnsureLive(ctx, id)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	if err := live.NotPaused(opName, &c); err != nil {
		return nil, err
	}
	if err := e.spendExec(&c); err != nil {
		return nil, err
	}
	var b [8]byte
	rand.Read(b[:])
	env := commandEnv(e.cellEnv(&c), append(e.alive.LeasedEnv(c.ID), req.Env...), c.Setup.User, req.TTY, termIn(req.CallerEnv))
	workdir := orElse(req.Workdir, c.Source)
	if !filepath.IsAbs(workdir) {
		workdir = filepath.Join(c.Source, workdir)
	}
	return &readyExec{id: execPrefix + hex.EncodeToString(b[:]), cell: c.ID, inst: inst, release: release, start: cell.Start{
		Process: cell.Process{Args: req.Command, Env: env, Path: candidates(req.Command[0], env, workdir), Workdir: workdir,
			TTY: req.TTY, Rows: req.Rows, Cols: req.Cols},
		Timeout: timeout, LogLimit: execLimit, Hold: req.Attach,
	}}, nil
}

// StartExec starts a command in a cell, which becomes live if it is at rest.
// With req.Wait it returns when the command has ended.
func (e *Engine) StartExec(ctx context.Context, id cell.ID, req api.ExecRequest) (res api.Exec, err error) {
	ctx, a := e.act(ctx, "exec", id)
	defer func() {
		if err != nil || req.Wait {
			a.over(&err)
		}
	}()
	in, ready := stage(ctx, "ready")
	r, err := e.readyExec(in, id, &req)
	ready(err)
	if err != nil {
		return api.Exec{}, err
	}
	a.say(attribute.String("pando.exec", r.id))
	if req.Wait {
		return e.wholeExec(ctx, r)
	}
	x := e.newExec(r.id, r.cell, time.Now())
	x.command, x.workdir = redactor.Args(req.Command), r.start.Process.Workdir
	x.act = a
	x.inst = r.inst
	x.proc, err = r.inst.Start(ctx, x.id, r.start, [3]*os.File{})
	if err != nil {
		x.stop(nil)
		r.release()
		return api.Exec{}, err
	}
	e.follow(x, req.Attach, r.release)
	return api.Exec{ID: x.id, Cell: string(x.cell), Isolation: x.isolation, PID: x.pid(), Running: true, Notes: e.takeMoved(x.cell)}, nil
}

// wholeExec does a command from its start to its end, with one question to who
// holds the cell. Nobody can attach to it.
func (e *Engine) wholeExec(ctx context.Context, x *readyExec) (api.Exec, error) {
	began := time.Now()
	e.work.Add(1)
	defer e.work.Done()
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		e.background(func(life context.Context) { endWhole(life, x, over) })
	})
	d, err := x.inst.Do(e.life, x.id, x.start)
	stop()
	close(over)
	if e.life.Err() != nil {
		return api.Exec{}, errClosing // the command goes on, and its cell with it
	}
	defer x.release()
	if err != nil {
		return api.Exec{}, err
	}
	r := e.endedExec(x.id, x.cell, began, d.Status)
	r.Stdout, r.Stderr, r.Notes = d.Stdout, d.Stderr, e.takeMoved(x.cell)
	r.Notes = append(r.Notes, e.execNotes(e.life, x.inst, x.cell, x.start.Process.Workdir, d.Status, func() (stdout, stderr []byte) { return d.Stdout, d.Stderr })...)
	return r, nil
}

// endWhole ends a command that nobody waits for any more, unless it is over.
func endWhole(ctx context.Context, x *readyExec, over <-chan struct{}) {
	for {
		if p, err := x.inst.Process(ctx, x.id); err == nil {
			p.End(ctx, "interrupted")
			return
		}
		select {
		case <-over:
			return
		case <-ctx.Done():
			return
		case <-time.After(5 * time.Millisecond): // it is just being started
		}
	}
}

// endedExec is what is told of a command that has ended.
func (e *Engine) endedExec(id string, of cell.ID, began time.Time, st cell.Status) api.Exec {
	r := api.Exec{ID: id, Cell: string(of), Isolation: e.isolation(of), WallMS: ms(time.Since(began))}
	exit := cell.Exit{Code: 255, Cause: "keeper lost"}
	if st.Exit != nil {
		exit = *st.Exit
	}
	r.ExitCode, r.Signal, r.Cause = &exit.Code, exit.Signal, exit.Cause
	r.Output = state.Outputs{Stdout: outputOf(st.Stdout), Stderr: outputOf(st.Stderr)}.API()
	return r
}

// execLimit is how much output of an exec its keeper holds for whoever
// attaches late; it goes to no file. In bytes.
const execLimit = 1 << 20

// What the cell's own mounts are, in cell.Mount.Why.
const (
	whyWorkspace = "workspace"
	whyHome      = "the cell's home"
	whyTmp       = "the cell's /tmp"
)

// refit points a cell's mounts at its present layer and its own folders.
func (e *Engine) refit(c *state.Cell, p workspace.Provider, from *state.Checkpoint) error {
	private := e.private(c.ID)
	failpoint.Step("make the folders of a cell")
	if err := e.makeFolders(c, p, private); err != nil {
		return err
	}
	c.Shared = cell.Digest{} // its setup is its own from here on
	mounts := append([]cell.Mount(nil), c.Setup.Mounts...)
	caches := 0
	for i := range mounts {
		m := &mounts[i]
		switch {
		case m.Why == whyWorkspace:
			*m = p.Mount(*c.Gen, m.Target)
		case m.Why == whyHome:
			*m = ownMount(m, p, c.Home, filepath.Join(private, "home"))
		case m.Why == whyTmp:
			*m = ownMount(m, p, c.Tmp, filepath.Join(private, "tmp"))
		case m.Why == image.WhyNetwork:
			m.Source = filepath.Join(private, talkFolder, talkName(m))
		case m.Kind == cell.Cache:
			m.Upper = cachePath(private, c.Roots, caches)
			caches++
		}
	}
	err := e.layImage(c, mounts)
	if err != nil {
		return err
	}
	if mounts, err = e.mask(c, from, mounts); err != nil {
		return err
	}
	if mounts, err = e.coverSetID(c, mounts); err != nil {
		return err
	}
	if c.Setup.Mounts, err = e.denyPrograms(c, mounts); err != nil {
		return err
	}
	if c.Talks() {
		return e.writeTalk(c)
	}
	return nil
}

// cachePath is where a cell's layer over a cache is.
func cachePath(private string, roots, n int) string {
	return filepath.Join(private, "cache", numbered(strconv.Itoa(n), roots))
}

// makeFolders makes what belongs to a cell alone, when it first starts.
func (e *Engine) makeFolders(c *state.Cell, p workspace.Provider, private string) error {
	if err := os.MkdirAll(private, 0o700); err != nil {
		return err
	}
	if err := e.moveOwn(c, p); err != nil {
		return err
	}
	for _, g := range []*workspace.Generation{c.Home, c.Tmp} {
		if g != nil {
			if err := p.Resume(e.life, *g); err != nil {
				return err
			}
		}
	}
	if c.Home == nil {
		home := filepath.Join(private, "home")
		err := os.Mkdir(home, 0o700)
		if err == nil {
			err = e.fillHome(c, home)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if c.Tmp != nil {
		return nil
	}
	tmp := filepath.Join(private, "tmp")
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return err
	}
	return os.Chmod(tmp, 0o777|os.ModeSticky)
}

// ownMount shows a cell its home or /tmp: a layer, or a directory of its own.
func ownMount(m *cell.Mount, p workspace.Provider, g *workspace.Generation, dir string) cell.Mount {
	own := cell.Mount{Kind: cell.Bind, Target: m.Target, Source: dir, Owned: true}
	if g != nil {
		if own = p.Mount(*g, m.Target); len(g.Base.Layers) == 0 {
			own = cell.Mount{Kind: cell.Bind, Target: m.Target, Source: writable(&own), Owned: true}
		}
	}
	own.Why = m.Why
	return own
}

// writable is the directory of the host that holds what a cell writes below a
// mount.
func writable(m *cell.Mount) string { return orElse(m.Upper, m.Source) }

// fillHome gives a new home what git there needs to answer as the user's does (see
// gitdir.CellSettings). What the cell makes of it later is its own affair. A caller that
// may not name files of the host gets nothing of the user's home.
func (e *Engine) fillHome(c *state.Cell, home string) error {
	s := e.gitSettings(c)
	for _, f := range []struct {
		name string
		data []byte
	}{{".gitconfig", s.Config}, {".config/git/ignore", s.Ignore}, {".config/git/attributes", s.Attributes}} {
		if f.data == nil {
			continue
		}
		at := filepath.Join(home, f.name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(at, f.data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// gitSettings is what git in a cell is told of the user's configuration.
func (e *Engine) gitSettings(c *state.Cell) gitdir.Settings {
	home := e.cfg.User.Home
	if c.Guest {
		home = ""
	}
	return gitdir.CellSettings(home, func(b []byte) bool { return len(secret.Scan("", b)) > 0 })
}

// unsigned reports whether git signs in the source of a cell and not in the cell.
func (e *Engine) unsigned(c *state.Cell, im *workspace.Imported) bool {
	for _, l := range im.LeftOut {
		for _, f := range l.Fields {
			if strings.HasSuffix(f, secret.Unsigned) {
				return true
			}
		}
	}
	_, err := im.Tree.Lookup(".git")
	return err == nil && e.gitSettings(c).Signs
}

// follow makes a command one that can be asked for, until some time after its
// end. One with attach runs for a client, who has to come.
func (e *Engine) follow(x *liveExec, attach bool, release func()) {
	e.mu.Lock()
	e.execs[x.id] = x
	e.mu.Unlock()
	if attach {
		e.background(func(context.Context) { x.awaitClient(e.cfg.AttachGrace) })
	}
	e.background(func(context.Context) { e.followExec(x, attach, release) })
}

// followExec waits for an exec to end, and lets the cell rest when it was the
// last thing in it.
func (e *Engine) followExec(x *liveExec, attach bool, release func()) {
	st, err := e.waitFor(x.ctx, x.inst, x.proc)
	if err == errClosing {
		return
	}
	if err != nil {
		st.Exit = nil
	}
	x.result = e.endedExec(x.id, x.cell, x.began, st)
	x.result.Notes = e.execNotes(e.life, x.inst, x.cell, x.workdir, st, func() (stdout, stderr []byte) { return outputTails(e.life, x.proc, st) })
	x.act.over(&err)
	close(x.done)
	if attach { // its keeper holds the last output until the client has read it
		select {
		case <-x.read:
		case <-time.After(e.cfg.AttachGrace):
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

// awaitClient ends a command whose client does not come.
func (x *liveExec) awaitClient(grace time.Duration) {
	select {
	case <-x.joined:
	case <-x.done:
	case <-x.ctx.Done():
	case <-time.After(grace):
		x.stop(cell.Errorf(cell.Interrupted, "engine.StartExec", "", "nobody attached to it"))
	}
}

// execMemory is how long the result of an exec can be asked for.
const execMemory = time.Minute

func termIn(env []string) string {
	for _, kv := range env {
		if len(kv) > 5 && kv[:5] == "TERM=" {
			return kv[5:]
		}
	}
	return ""
}
