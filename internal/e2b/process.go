package e2b

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/run"
)

// processConfig is the configuration of a process.
type processConfig struct {
	Cmd  string            `json:"cmd" pb:"1"`
	Args []string          `json:"args,omitempty" pb:"2"`
	Envs map[string]string `json:"envs,omitempty" pb:"3"`
	Cwd  string            `json:"cwd,omitempty" pb:"4"`
}

type ptySize struct {
	Size struct {
		Cols uint16 `json:"cols" pb:"1"`
		Rows uint16 `json:"rows" pb:"2"`
	} `json:"size" pb:"1"`
}

type startRequest struct {
	Process processConfig `json:"process" pb:"1"`
	Pty     *ptySize      `json:"pty" pb:"2"`
	Tag     string        `json:"tag" pb:"3"`
	Stdin   *bool         `json:"stdin" pb:"4"` // absent, as with older clients: open
}

// selector names a process.
type selector struct {
	PID int    `json:"pid" pb:"1"`
	Tag string `json:"tag" pb:"2"`
}

// input is bytes for a process; one field is set.
type input struct {
	Stdin []byte `json:"stdin" pb:"1"`
	Pty   []byte `json:"pty" pb:"2"`
}

// processRequest is for a process.
type processRequest struct {
	Process selector `json:"process" pb:"1"`
}

type inputRequest struct {
	Process selector `json:"process" pb:"1"`
	Input   input    `json:"input" pb:"2"`
}

type signalRequest struct {
	Process selector `json:"process" pb:"1"`
	Signal  string   `json:"signal" pb:"2,Signal"`
}

type updateRequest struct {
	Process selector `json:"process" pb:"1"`
	Pty     *ptySize `json:"pty" pb:"2"`
}

// inputMessage is a message of a stream of input; one field is set.
type inputMessage struct {
	Start *struct {
		Process selector `json:"process" pb:"1"`
	} `json:"start" pb:"1"`
	Data *struct {
		Input input `json:"input" pb:"2"`
	} `json:"data" pb:"2"`
	Keepalive *struct{} `json:"keepalive" pb:"3"`
}

// processMessage is a message of a stream about a process.
type processMessage struct {
	Event event `json:"event" pb:"1"`
}

// event is an event of a process; one field is set.
type event struct {
	Start     *startEvent `json:"start,omitempty" pb:"1"`
	Data      *dataEvent  `json:"data,omitempty" pb:"2"`
	End       *endEvent   `json:"end,omitempty" pb:"3"`
	Keepalive *struct{}   `json:"keepalive,omitempty" pb:"4"`
}

type startEvent struct {
	PID int `json:"pid" pb:"1"`
}

type dataEvent struct {
	Stdout []byte `json:"stdout,omitempty" pb:"1"`
	Stderr []byte `json:"stderr,omitempty" pb:"2"`
	Pty    []byte `json:"pty,omitempty" pb:"3"`
}

type endEvent struct {
	ExitCode int    `json:"exitCode" pb:"1,sint"`
	Exited   bool   `json:"exited" pb:"2"`
	Status   string `json:"status" pb:"3"`
	Error    string `json:"error,omitempty" pb:"4"`
	late     bool   // its time limit was reached
}

// proc is a process started through this front.
type proc struct {
	pid    int
	tag    string
	config processConfig
	tty    bool
	exec   string
	kept   bool // the next daemon will know it; guarded by the box's mu
	att    *run.Attachment
	conn   net.Conn

	sending sync.Mutex // held while writing to conn

	mu   sync.Mutex // guards the fields below
	subs map[*subscriber]bool
	end  *endEvent // set at its end
}

// subscriber is a client that follows a process.
type subscriber struct {
	ctx    context.Context
	events chan event
	bound  bool // it set the time limit of the process
}

// errUser is the error for a user that the cell does not have.
var errUser = errors.New("no such user")

// user checks the user of a request. A cell has one; "user" is E2B's name of it.
func (f *Front) user(r *http.Request) error {
	name, _, ok := r.BasicAuth()
	if !ok {
		name = r.URL.Query().Get("username")
	}
	return f.userNamed(name)
}

func (f *Front) userNamed(name string) error {
	own := f.cfg.Engine.User()
	if name == "" || name == "user" || name == own.Name || name == "root" && own.UID == 0 {
		return nil
	}
	return cell.Errorf(cell.Denied, "e2b", "leave the user out", "%w: cannot work as %q, the cell's only user is %s", errUser, cell.Clip(name), own.Name)
}

func (f *Front) processRoutes(m *http.ServeMux) {
	const p = "POST /process.Process/"
	m.HandleFunc(p+"Start", stream(f.startProcess))
	m.HandleFunc(p+"Connect", stream(f.followProcess))
	m.HandleFunc(p+"List", unary(f.listProcesses))
	m.HandleFunc(p+"SendInput", unary(f.sendInput))
	m.HandleFunc(p+"CloseStdin", unary(f.closeStdin))
	m.HandleFunc(p+"SendSignal", unary(f.sendSignal))
	m.HandleFunc(p+"Update", unary(f.updateProcess))
	m.HandleFunc(p+"StreamInput", streams(f.streamInput))
}

// inHome makes a path absolute or relative to the workspace, which "~" stands for, too.
func inHome(p string) string {
	if p == "~" {
		return "."
	}
	return strings.TrimPrefix(p, "~/")
}

// workdir returns the directory of a command: the requested one, or that of the template.
func (f *Front) workdir(id cell.ID, asked string) string {
	if asked != "" {
		return inHome(asked)
	}
	c, err := f.cfg.Engine.Record(id)
	if err != nil {
		return ""
	}
	return c.Labels[labelDir]
}

// startProcess starts a process and follows it. The process survives a disconnect of the client,
// until its time limit.
func (f *Front) startProcess(r *http.Request, in *startRequest, s *sender) error {
	if err := f.user(r); err != nil {
		return err
	}
	req := api.ExecRequest{Command: append([]string{in.Process.Cmd}, in.Process.Args...), Workdir: f.workdir(idIn(r.Context()), in.Process.Cwd), Attach: true}
	for k, v := range in.Process.Envs {
		req.Env = append(req.Env, k+"="+v)
	}
	slices.Sort(req.Env)
	if in.Pty != nil {
		req.TTY, req.Rows, req.Cols = true, in.Pty.Size.Rows, in.Pty.Size.Cols
	}
	if n, err := strconv.ParseInt(r.Header.Get("Connect-Timeout-Ms"), 10, 64); err == nil && n > 0 {
		req.Timeout = strconv.FormatInt(n, 10) + "ms"
	}
	p, sub, err := f.start(r.Context(), idIn(r.Context()), in, req)
	if err != nil {
		return err
	}
	return p.tell(s, sub, pings(r))
}

// start starts a process, followed by its first client.
func (f *Front) start(ctx context.Context, id cell.ID, in *startRequest, req api.ExecRequest) (*proc, *subscriber, error) {
	e := f.cfg.Engine
	x, err := e.StartExec(ctx, id, req)
	if err != nil {
		return nil, nil, err
	}
	p := &proc{pid: x.PID, tag: in.Tag, config: in.Process, tty: req.TTY, exec: x.ID, subs: map[*subscriber]bool{}}
	if p.att, err = e.AttachExec(x.ID, true); err != nil {
		return nil, nil, err
	}
	if p.conn, err = p.att.Open(context.WithoutCancel(ctx), backend.Attach{Input: true}); err != nil {
		p.att.Release(true)
		return nil, nil, err
	}
	b := f.box(id)
	b.mu.Lock()
	if _, there := b.procs[p.pid]; p.pid == 0 || there {
		b.next++
		p.pid = b.next
	}
	b.procs[p.pid] = p
	b.mu.Unlock()
	if !req.TTY && in.Stdin != nil && !*in.Stdin {
		p.send(api.Frame{Type: api.FrameStdinEOF})
	}
	sub := p.subscribe(ctx)
	sub.bound = req.Timeout != ""
	f.note(id, "info", "process "+strconv.Itoa(p.pid)+" started: "+in.Process.Cmd)
	go f.attend(id, b, p)
	time.AfterFunc(keepAfter, func() {
		b.mu.Lock()
		lives := b.procs[p.pid] == p
		p.kept = lives
		b.mu.Unlock()
		if lives {
			f.keep(id, b)
		}
	})
	return p, sub, nil
}

// attend follows a process to its end.
func (f *Front) attend(id cell.ID, b *box, p *proc) { f.ended(id, b, p, p.follow()) }

// ended drops a process that has ended, and tells its clients then: they find it in no list.
func (f *Front) ended(id cell.ID, b *box, p *proc, end endEvent) {
	b.mu.Lock()
	delete(b.procs, p.pid)
	kept := p.kept
	b.mu.Unlock()
	if kept {
		f.keep(id, b)
	}
	p.conclude(end)
	f.note(id, "info", "process "+strconv.Itoa(p.pid)+" ended: "+end.Status)
}

// follow passes the output of a process to its followers, until its end, which it returns.
// Output without a follower is lost, as in envd.
func (p *proc) follow() endEvent {
	defer p.conn.Close()
	var buf []byte
	for {
		fr, err := api.ReadFrame(p.conn, &buf)
		if err != nil || fr.Type == api.FrameExit {
			break
		}
		if fr.Type != api.FrameStdout && fr.Type != api.FrameStderr {
			continue
		}
		_, data, err := fr.OutputData()
		if err != nil {
			continue
		}
		switch data = bytes.Clone(data); { // the buffer is reused
		case fr.Type == api.FrameStderr:
			p.hand(event{Data: &dataEvent{Stderr: data}})
		case p.tty:
			p.hand(event{Data: &dataEvent{Pty: data}})
		default:
			p.hand(event{Data: &dataEvent{Stdout: data}})
		}
	}
	p.att.Release(false) // everything was read
	<-p.att.Done
	return endOf(p.att.Result())
}

// conclude ends the streams of a process.
func (p *proc) conclude(end endEvent) {
	p.mu.Lock()
	p.end = &end
	p.mu.Unlock()
	p.hand(event{End: &end})
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.subs {
		close(s.events)
	}
	p.subs = nil
}

// endOf describes the end of a process as Go's os.ProcessState does, like envd.
func endOf(result any, err error) (e endEvent) {
	x, ok := result.(api.Exec)
	e.late = ok && x.Cause == cell.CauseTimeout
	switch {
	case err != nil:
		e.ExitCode, e.Status = -1, err.Error()
	case !ok || x.ExitCode == nil:
		e.ExitCode, e.Status = -1, "its end is not known"
	case x.Signal != "":
		e.ExitCode, e.Status = -1, "signal: "+strings.TrimPrefix(syscall.Signal(unix.SignalNum(x.Signal)).String(), "signal ")
	default:
		e.ExitCode, e.Exited, e.Status = *x.ExitCode, true, "exit status "+strconv.Itoa(*x.ExitCode)
		if x.Cause != "" && *x.ExitCode != 0 {
			e.Status += " (" + x.Cause + ")"
		}
	}
	if e.ExitCode != 0 {
		e.Error = e.Status
	}
	return e
}

// hand passes an event to all followers. A client that does not read blocks the process, as a
// terminal would, until it disconnects.
func (p *proc) hand(v event) {
	p.mu.Lock()
	subs := make([]*subscriber, 0, len(p.subs))
	for s := range p.subs {
		subs = append(subs, s)
	}
	p.mu.Unlock()
	for _, s := range subs {
		select {
		case s.events <- v:
		case <-s.ctx.Done():
		}
	}
}

// subscribe starts to follow a process; nil when it has ended.
func (p *proc) subscribe(ctx context.Context) *subscriber {
	s := &subscriber{ctx: ctx, events: make(chan event, 16)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end != nil {
		s.events <- event{End: p.end}
		close(s.events)
		return s
	}
	p.subs[s] = true
	return s
}

// tell sends a client the events of a process, to its end.
func (p *proc) tell(out *sender, s *subscriber, every time.Duration) error {
	defer func() {
		p.mu.Lock()
		delete(p.subs, s)
		p.mu.Unlock()
	}()
	if err := out.send(processMessage{event{Start: &startEvent{p.pid}}}); err != nil {
		return err
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case v, ok := <-s.events:
			if !ok {
				return nil
			}
			if v.End != nil && v.End.late && s.bound { // the client reports its own limit
				return cell.Errorf(cell.Timeout, "e2b.process", "set a longer limit: timeoutMs", "the process was ended at its time limit")
			}
			if err := out.send(processMessage{v}); err != nil {
				return err
			}
			tick.Reset(every)
		case <-tick.C:
			if err := out.send(processMessage{event{Keepalive: &struct{}{}}}); err != nil {
				return err
			}
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
}

func (p *proc) send(fr api.Frame) error {
	p.sending.Lock()
	defer p.sending.Unlock()
	_, err := p.conn.Write(api.AppendFrame(nil, fr))
	return err
}

// process finds a running process.
func (f *Front) process(r *http.Request, s selector) (*proc, error) {
	b := f.box(idIn(r.Context()))
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.procs[s.PID]; p != nil && s.Tag == "" {
		return p, nil
	}
	for _, p := range b.procs {
		if s.Tag != "" && p.tag == s.Tag {
			return p, nil
		}
	}
	if s.Tag != "" {
		return nil, cell.Errorf(cell.NotFound, "e2b", "", "process with tag %s not found", cell.Clip(s.Tag))
	}
	return nil, cell.Errorf(cell.NotFound, "e2b", "", "process with pid %d not found", s.PID)
}

func (f *Front) followProcess(r *http.Request, in *processRequest, s *sender) error {
	p, err := f.process(r, in.Process)
	if err != nil {
		return err
	}
	return p.tell(s, p.subscribe(r.Context()), pings(r))
}

type processView struct {
	Config processConfig `json:"config" pb:"1"`
	PID    int           `json:"pid" pb:"2"`
	Tag    string        `json:"tag,omitempty" pb:"3"`
}

type processList struct {
	Processes []processView `json:"processes" pb:"1"`
}

func (f *Front) listProcesses(r *http.Request, _ *struct{}) (any, error) {
	b := f.box(idIn(r.Context()))
	b.mu.Lock()
	defer b.mu.Unlock()
	list := []processView{}
	for _, p := range b.procs {
		list = append(list, processView{p.config, p.pid, p.tag})
	}
	slices.SortFunc(list, func(a, b processView) int { return a.PID - b.PID })
	return processList{list}, nil
}

func (f *Front) sendInput(r *http.Request, in *inputRequest) (any, error) {
	p, err := f.process(r, in.Process)
	if err != nil {
		return nil, err
	}
	return struct{}{}, p.feed(in.Input)
}

// feed sends input to a process, in pieces of a frame's size.
func (p *proc) feed(in input) error {
	b := in.Stdin
	if p.tty {
		b = in.Pty
	}
	if (in.Pty != nil) != p.tty {
		return cell.Errorf(cell.Invalid, "e2b.feed", "", "cannot send input to process %d: it has %s", p.pid, map[bool]string{true: "a terminal", false: "no terminal"}[p.tty])
	}
	for chunk := range slices.Chunk(b, 256<<10) {
		if err := p.send(api.Frame{Type: api.FrameStdin, Payload: chunk}); err != nil {
			return err
		}
	}
	return nil
}

func (f *Front) closeStdin(r *http.Request, in *processRequest) (any, error) {
	p, err := f.process(r, in.Process)
	if err != nil {
		return nil, err
	}
	if p.tty {
		return nil, cell.Errorf(cell.Conflict, "e2b.closeStdin", "send it the byte 4 (^D)", "cannot close the input of process %d: it has a terminal", p.pid)
	}
	return struct{}{}, p.send(api.Frame{Type: api.FrameStdinEOF})
}

func (f *Front) sendSignal(r *http.Request, in *signalRequest) (any, error) {
	p, err := f.process(r, in.Process)
	if err != nil {
		return nil, err
	}
	sig := strings.TrimPrefix(in.Signal, "SIGNAL_")
	if sig != "SIGKILL" && sig != "SIGTERM" {
		return nil, cell.Errorf(cell.Invalid, "e2b.sendSignal", "use SIGNAL_SIGTERM or SIGNAL_SIGKILL", "cannot send signal %q", cell.Clip(in.Signal))
	}
	return struct{}{}, p.send(api.Frame{Type: api.FrameSignal, Payload: []byte(sig)})
}

func (f *Front) updateProcess(r *http.Request, in *updateRequest) (any, error) {
	p, err := f.process(r, in.Process)
	if err != nil || in.Pty == nil {
		return struct{}{}, err
	}
	if !p.tty {
		return nil, cell.Errorf(cell.Conflict, "e2b.updateProcess", "", "cannot resize process %d: it has no terminal", p.pid)
	}
	b, err := json.Marshal(api.Resize{Rows: in.Pty.Size.Rows, Cols: in.Pty.Size.Cols})
	if err != nil {
		return nil, err
	}
	return struct{}{}, p.send(api.Frame{Type: api.FrameResize, Payload: b})
}

// streamInput receives a stream of input: first the process, then bytes.
func (f *Front) streamInput(r *http.Request, next func(to any) error, s *sender) error {
	var p *proc
	for {
		var m inputMessage
		if err := next(&m); errors.Is(err, io.EOF) {
			return s.send(struct{}{})
		} else if err != nil {
			return err
		}
		var err error
		switch {
		case m.Start != nil:
			p, err = f.process(r, m.Start.Process)
		case m.Data != nil && p == nil:
			err = cell.Errorf(cell.Invalid, "e2b.streamInput", "", "cannot take input: its stream does not begin with a process")
		case m.Data != nil:
			err = p.feed(m.Data.Input)
		}
		if err != nil {
			return err
		}
	}
}
