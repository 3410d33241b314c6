package live

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
)

// Exec is a command in a cell outside any run.
type Exec struct {
	id        string
	cell      cell.ID
	inst      backend.Instance
	proc      backend.Process
	ended     func(error) // called with its end; nil when an earlier daemon began it
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
	taken     string   // why its cell was taken down while it ran, which Table.mu guards
}

// execPrefix is how their ids begin.
const execPrefix = "e-"

// execLimit is how much output of a command its keeper holds for clients that
// attach late; it goes to no file. In bytes.
const execLimit = 1 << 20

// execMemory is how long the result of a command can be asked for.
const execMemory = time.Minute

// newExec is a command that has no process yet.
func (m *Manager) newExec(id string, of cell.ID, began time.Time) *Exec {
	x := &Exec{id: id, cell: of, isolation: m.isolation(of), began: began, done: make(chan struct{}), joined: make(chan struct{}), read: make(chan struct{})}
	x.ctx, x.stop = context.WithCancelCause(m.cfg.Life)
	return x
}

// isolation is the word for what a cell runs on.
func (m *Manager) isolation(id cell.ID) string {
	c, err := m.cfg.Registry.Cell(id)
	if err != nil {
		return api.Isolated
	}
	return api.IsolationOf(c.Backend)
}

// ReadyExec is a command that may start: its cell lives until it is started and has ended.
type ReadyExec struct {
	ID      string
	cell    cell.ID
	inst    backend.Instance
	release func()
	start   cell.Start
	logs    [3]*os.File
}

// ServiceExec is the id of the command that is the program of a service, in the cell of the service.
func ServiceExec(id cell.ID) string { return execPrefix + strings.TrimPrefix(string(id), "c-") }

// Release gives up a command that was not started.
func (r *ReadyExec) Release() { r.release() }

// Serves makes the command the program of a service, with files for its output, which stay the caller's, of up
// to limit bytes each.
func (r *ReadyExec) Serves(stdout, stderr *os.File, limit int64) {
	r.ID, r.logs, r.start.LogLimit = ServiceExec(r.cell), [3]*os.File{stdout, stderr}, limit
}

// ReadyExec checks what is asked for, and makes the cell live if it is at rest.
func (m *Manager) ReadyExec(ctx context.Context, id cell.ID, req *api.ExecRequest) (x *ReadyExec, err error) {
	const opName = "live.ReadyExec"
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
		if timeout, err = policy.ParseTimeout(req.Timeout); err != nil {
			return nil, err
		}
	}
	for _, kv := range req.Env {
		if _, err := policy.CheckEnv(kv); err != nil {
			return nil, err
		}
	}
	inst, c, release, err := m.ensureLive(ctx, id)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	if err := NotPaused(opName, &c); err != nil {
		return nil, err
	}
	if err := m.cfg.Policies.Spend(&c); err != nil {
		return nil, err
	}
	var b [8]byte
	rand.Read(b[:])
	env := cell.CommandEnv(m.cfg.Policies.Env(&c), append(m.LeasedEnv(c.ID), req.Env...), c.Setup.User, req.TTY, cell.TermIn(req.CallerEnv))
	workdir := cmp.Or(req.Workdir, c.Source)
	if !filepath.IsAbs(workdir) {
		workdir = filepath.Join(c.Source, workdir)
	}
	return &ReadyExec{ID: execPrefix + hex.EncodeToString(b[:]), cell: c.ID, inst: inst, release: release, start: cell.Start{
		Process: cell.Process{Args: req.Command, Env: env, Path: cell.Candidates(req.Command[0], env, workdir), Workdir: workdir,
			TTY: req.TTY, Rows: req.Rows, Cols: req.Cols},
		Timeout: timeout, LogLimit: execLimit, Hold: req.Attach,
	}}, nil
}

// StartExec starts a command. ended is called when it has ended, and not when it did not start.
func (m *Manager) StartExec(ctx context.Context, r *ReadyExec, ended func(error)) (api.Exec, error) {
	x := m.newExec(r.ID, r.cell, time.Now())
	x.command, x.workdir = m.cfg.Redactor.Args(r.start.Process.Args), r.start.Process.Workdir
	x.ended = ended
	x.inst = r.inst
	var err error
	x.proc, err = r.inst.Start(ctx, x.id, r.start, r.logs)
	if err != nil {
		x.stop(nil)
		err = m.orEnded(r.cell, r.inst, err) // before it is released: it may come to rest then, which ended nothing
		r.release()
		return api.Exec{}, err
	}
	m.mu.Lock()
	m.execs[x.id] = x
	m.mu.Unlock()
	if ctx.Err() != nil && m.cfg.Life.Err() == nil { // its caller went away, and knows of no command
		x.stop(cell.Errorf(cell.Interrupted, "live.StartExec", "", "the client went away"))
	}
	m.attend(x, r.start.Hold, r.release)
	return api.Exec{ID: x.id, Cell: string(x.cell), Isolation: x.isolation, PID: x.pid(), Running: true, Notes: m.cfg.StartNotes(x.cell)}, nil
}

// DoExec does a command from its start to its end, in one exchange with the keeper of the
// cell. No client can attach to it.
func (m *Manager) DoExec(ctx context.Context, r *ReadyExec) (api.Exec, error) {
	began := time.Now()
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		m.cfg.Work(func(life context.Context) { endUnawaited(life, r, over) })
	})
	d, err := r.inst.Do(m.cfg.Life, r.ID, r.start)
	stop()
	close(over)
	if m.cfg.Life.Err() != nil {
		return api.Exec{}, ErrClosing // the command goes on, and its cell with it
	}
	defer r.release()
	if err != nil {
		return api.Exec{}, m.orEnded(r.cell, r.inst, err)
	}
	res := m.endedExec(r.ID, r.cell, began, d.Status, lost(""))
	m.cfg.Ended(res)
	res.Stdout, res.Stderr, res.Notes = d.Stdout, d.Stderr, m.cfg.StartNotes(r.cell)
	res.Notes = append(res.Notes, m.cfg.EndNotes(m.cfg.Life, r.cell, r.start.Process.Workdir, r.inst, nil, d)...)
	return res, nil
}

// endUnawaited ends a command when its caller has gone, unless it is over.
func endUnawaited(ctx context.Context, r *ReadyExec, over <-chan struct{}) {
	for {
		if p, err := r.inst.Process(ctx, r.ID); err == nil {
			p.End(ctx, "interrupted", 0)
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

// lost is the end of a command of which the keeper can't tell it any more. taken is why the
// daemon took its cell down while it ran, "" if it did not: what is left then is killed.
func lost(taken string) cell.Exit {
	if taken != "" {
		return cell.Exit{Code: 128 + int(unix.SIGKILL), Signal: "SIGKILL", Cause: taken}
	}
	return cell.Exit{Code: 255, Cause: cell.CauseKeeperLost}
}

// endedExec is what is told of a command that has ended: what its status has of that, else exit.
func (m *Manager) endedExec(id string, of cell.ID, began time.Time, st cell.Status, exit cell.Exit) api.Exec {
	r := api.Exec{ID: id, Cell: string(of), Isolation: m.isolation(of), WallMS: since(began)}
	if st.Exit != nil {
		exit = *st.Exit
	}
	r.ExitCode, r.Signal, r.Cause = &exit.Code, exit.Signal, exit.Cause
	r.Output = state.OutputsOf(st).API()
	return r
}

// since is the time since began in milliseconds.
func since(began time.Time) float64 { return float64(time.Since(began).Microseconds()) / 1000 }

// attend waits for a command that is in the table. One with attach runs for a client, which has
// to come.
func (m *Manager) attend(x *Exec, attach bool, release func()) {
	if attach {
		m.cfg.Work(func(context.Context) { x.awaitClient(m.cfg.AttachGrace) })
	}
	m.cfg.Work(func(context.Context) { m.followExec(x, attach, release) })
}

// followExec waits for a command to end, and lets the cell rest when it was the
// last thing in it.
func (m *Manager) followExec(x *Exec, attach bool, release func()) {
	life := m.cfg.Life
	st, err := m.WaitFor(x.ctx, x.inst, x.proc)
	if err == ErrClosing {
		return
	}
	if err != nil {
		st.Exit = nil
	}
	x.result = m.endedExec(x.id, x.cell, x.began, st, lost(m.takenDown(x)))
	x.result.Notes = m.cfg.EndNotes(life, x.cell, x.workdir, x.inst, x.proc, backend.Done{Status: st})
	m.cfg.Ended(x.result)
	if x.ended != nil {
		x.ended(err)
	}
	close(x.done)
	if attach { // its keeper holds the last output until the client has read it
		select {
		case <-x.read:
		case <-time.After(m.cfg.AttachGrace):
		case <-life.Done():
			return
		}
	}
	x.proc.Forget(life)
	x.stop(nil)
	release()
	select {
	case <-time.After(execMemory):
	case <-life.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.execs[x.id] == x { // a service that was started again has the same id
		delete(m.execs, x.id)
	}
}

// awaitClient ends a command when its client does not come.
func (x *Exec) awaitClient(grace time.Duration) {
	select {
	case <-x.joined:
	case <-x.done:
	case <-x.ctx.Done():
	case <-time.After(grace):
		x.stop(cell.Errorf(cell.Interrupted, "live.StartExec", "", "no client attached to it"))
	}
}

// Join notes a client that attaches, with input or to look, until release is called. gone says
// that the client went away before the end: when no other with input is there the command is
// interrupted.
func (x *Exec) Join(input bool) (release func(gone bool)) {
	if input {
		x.clients.Add(1)
		x.came.Do(func() { close(x.joined) })
	}
	return func(gone bool) {
		if !input || x.clients.Add(-1) > 0 {
			return
		}
		x.once.Do(func() { close(x.read) })
		if gone {
			x.stop(cell.Errorf(cell.Interrupted, "live.Attach", "run it again", "the command was ended: its client disconnected"))
		}
	}
}

// Open returns the stream of a command, in frames of package api.
func (x *Exec) Open(ctx context.Context, at backend.Attach) (net.Conn, error) {
	return x.proc.Attach(ctx, at)
}

// Done is closed when the command has ended, and Result is what is told of it then.
func (x *Exec) Done() <-chan struct{} { return x.done }

// Result is what is told of a command that has ended.
func (x *Exec) Result() api.Exec { return x.result }

// over reports whether it has ended.
func (x *Exec) over() bool {
	select {
	case <-x.done:
		return true
	default:
		return false
	}
}

// pid is its number in the cell; 0 if that is not known.
func (x *Exec) pid() int {
	if x.proc == nil {
		return 0
	}
	return x.proc.InnerPID()
}

// view is what is told of it now.
func (x *Exec) view() api.Exec {
	v := api.Exec{ID: x.id, Cell: string(x.cell), Isolation: x.isolation, PID: x.pid(), Running: true, WallMS: since(x.began)}
	if x.over() {
		v = x.result
	}
	v.Command, v.Began = x.command, x.began.UTC()
	return v
}

// Exec is a command that runs, or has ended less than a minute ago.
func (m *Manager) Exec(id string) (*Exec, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x := m.execs[id]; x != nil {
		return x, nil
	}
	return nil, NoExec(id)
}

// NoExec is the error for a command that is not known.
func NoExec(id string) error {
	return cell.Errorf(cell.NotFound, "live.Exec", "", "no exec %.80s", strings.ToValidUTF8(id, "\ufffd"))
}

// Cell is the cell that it is in.
func (x *Exec) Cell() cell.ID { return x.cell }

// execsIn are the commands that are known in a cell, "" for all, in no order.
func (m *Manager) execsIn(id cell.ID) (out []*Exec) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range m.execs {
		if id == "" || x.cell == id {
			out = append(out, x)
		}
	}
	return out
}

// Running counts the commands that run, outside runs, in all cells.
func (m *Manager) Running() (n int) {
	for _, x := range m.execsIn("") {
		if !x.over() {
			n++
		}
	}
	return n
}

// RunsCommand reports whether a command runs in a cell, outside runs, and returns one that does.
func (m *Manager) RunsCommand(id cell.ID) (command []string, runs bool) {
	for _, x := range m.execsIn(id) {
		if !x.over() {
			return x.command, true
		}
	}
	return nil, false
}

// Execs lists the commands in a cell, outside any run, that clients may attach
// to: those that run, and for a minute those that have ended. Oldest first.
func (m *Manager) Execs(id cell.ID) ([]api.Exec, error) {
	if _, err := m.cfg.Registry.Cell(id); err != nil {
		return nil, err
	}
	all := m.execsIn(id)
	slices.SortFunc(all, func(a, b *Exec) int { return cmp.Or(a.began.Compare(b.began), cmp.Compare(a.id, b.id)) })
	list := []api.Exec{}
	for _, x := range all {
		list = append(list, x.view())
	}
	return list, nil
}

// ShowExec returns what is known of a command.
func (m *Manager) ShowExec(id string) (api.Exec, error) {
	x, err := m.Exec(id)
	if err != nil {
		return api.Exec{}, err
	}
	v := x.view()
	if v.Running {
		if st, err := x.proc.Status(m.cfg.Life); err == nil {
			v.Output = state.OutputsOf(st).API()
		}
	}
	return v, nil
}

// SignalExec sends a signal to a command in a cell.
func (m *Manager) SignalExec(ctx context.Context, id, signal string) (api.Exec, error) {
	x, err := m.Exec(id)
	if err != nil {
		return api.Exec{}, err
	}
	if x.over() {
		return api.Exec{}, cell.Errorf(cell.Conflict, "live.SignalExec", "", "it has ended")
	}
	if err := x.proc.Signal(ctx, signal); err != nil {
		return api.Exec{}, err
	}
	return x.view(), nil
}
