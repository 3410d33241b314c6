package server

import (
	"cmp"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/terminal/screen"
)

// killGrace is how long a process has between SIGTERM and SIGKILL, unless its end says otherwise.
const killGrace = 5 * time.Second

// drainGrace is how long output is waited for after the end of the process,
// when something else still holds its streams.
const drainGrace = 100 * time.Millisecond

// causeTimeout is the cause of an end for the process's own limit on time.
const causeTimeout = "timeout"

// Proc is one process of the daemon's: a run's command or an exec.
type Proc struct {
	name    string
	cell    cell.ID
	started Started
	stdout  *Output
	stderr  *Output
	stdin   *os.File // nil with a terminal, or when closed
	intakes intakes
	sizes   sizes
	events  Events
	talk    *talk // of the cell
	taped   *taped
	done    chan struct{} // closed when status is final
	start   cell.Start
	before  cell.Stats       // of the cell, unless it was made for this process
	inner   int              // its number in the cell; 0: not known
	tried   int64            // see Server.tried, when it began
	denied  map[Denied]int64 // see Server.denied, when it began
	missing map[string]int64 // see Server.missing, when it began
	opening sync.Once        // see opens
	told    atomic.Int64     // number of events that are a sign of work, see background
	starts  *Starts          // nil without events

	mu     sync.Mutex // guards what follows
	gone   bool       // it has ended
	cause  string     // why we ended it, if we did
	status cell.Status
}

// end stops the process for a cause: SIGTERM, and SIGKILL after grace, 0 for the usual one. Between
// them a terminal hangs up: interactive shells ignore SIGTERM. It does not wait. One that has ended by
// itself did so for no cause of ours.
func (p *Proc) end(cause string, grace time.Duration) {
	grace = cmp.Or(grace, killGrace)
	p.mu.Lock()
	if p.gone {
		p.mu.Unlock()
		return
	}
	if p.cause == "" {
		p.cause = cause
	}
	if cause == causeTimeout { // while the end can't be written before it
		p.emit("limit.time", map[string]any{"timeout_ms": p.start.Timeout.Milliseconds()})
	}
	p.mu.Unlock()
	p.started.Process.Signal("SIGTERM")
	go func() {
		wait := grace
		if p.start.Process.TTY {
			select {
			case <-p.done:
				return
			case <-time.After(grace / 2):
				p.started.Process.Signal("SIGHUP")
				wait -= grace / 2
			}
		}
		select {
		case <-p.done:
		case <-time.After(wait):
			p.kill(grace)
		}
	}()
}

// kill ends a process that did not end when it was asked to.
func (p *Proc) kill(grace time.Duration) {
	p.mu.Lock()
	if !p.gone && p.status.KilledAfter == 0 {
		p.status.KilledAfter = grace
	}
	p.mu.Unlock()
	p.started.Process.Signal("SIGKILL")
}

// endGroup ends what is left of the group of a process that was ended for a
// cause: its leader is gone, and nothing else would end the others.
func (p *Proc) endGroup() {
	p.mu.Lock()
	p.gone = true
	cause := p.cause
	p.mu.Unlock()
	if cause != "" {
		p.started.Process.Signal("SIGKILL")
	}
}

// wasEnded reports whether the process ended because we ended it.
func (p *Proc) wasEnded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cause != ""
}

func (p *Proc) snapshot() cell.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.status
	st.Stdout, st.Stderr, st.Events = p.stdout.status(), p.stderr.status(), p.told.Load()
	return st
}

func (p *Proc) begun() proto.Begun {
	return proto.Begun{PID: p.started.Process.PID(), Inner: p.inner, Measured: p.started.Measured}
}

func (p *Proc) state() proto.State { return proto.State{Begun: p.begun(), Status: p.snapshot()} }

// startProc starts a process and everything that follows it.
func (s *Server) startProc(name string, id cell.ID, req cell.Start, logs []*os.File, input bool) (*Proc, error) {
	for len(logs) < 4 {
		logs = append(logs, nil)
	}
	tape := logs[3]
	logs = logs[:3]
	p := &Proc{
		name: name, cell: id, start: req, done: make(chan struct{}),
		stdout: newOutput("stdout", logs[0], &req),
		stderr: newOutput("stderr", logs[1], &req),
	}
	if req.Process.TTY {
		p.stdout.screen = screen.New(req.Process.Rows, req.Process.Cols)
	}
	if logs[2] != nil && s.NewEvents != nil {
		p.events = s.NewEvents(logs[2], string(req.Run))
	}

	var theirs [3]*os.File
	var outR, errR *os.File
	var err error
	if !req.Process.TTY {
		if theirs, p.stdin, outR, errR, err = stdioPipes(); err != nil {
			proto.CloseAll(append(logs, tape))
			return nil, err
		}
		if !input || req.NoInput {
			p.closeInput()
		}
	}
	p.talk = s.talk(id)
	if p.taped, err = p.talk.tape(req.Wire, tape); err != nil {
		proto.CloseAll(theirs[:])
		proto.CloseAll([]*os.File{p.stdin, outR, errR})
		proto.CloseAll(logs)
		return nil, err
	}
	p.talk.join(p)
	p.emit("process.start", map[string]any{"args": len(req.Process.Args), "tty": req.Process.TTY})
	p.denied = s.denied(p) // before it can do anything: it may be denied itself
	p.missing = s.missing(p)
	p.started, err = s.startWatched(p, theirs)
	proto.CloseAll(theirs[:])
	if err != nil {
		p.starts.end()
		p.emit("process.failed", map[string]any{"error": err.Error()})
		p.talk.leave(p)
		p.taped.end(&p.status)
		if p.events != nil {
			p.events.Seal()
		}
		proto.CloseAll([]*os.File{p.stdin, outR, errR})
		proto.CloseAll(logs)
		return nil, err
	}
	switch {
	case req.EndsCell: // the cell was made for it
	case p.events != nil:
		p.before, _ = s.counted(id)
	default: // no stream is told
		p.before.OOMKills = s.killed(id)
	}
	if k, ok := p.started.Process.(interface{ InnerPID() int }); ok && p.events == nil {
		p.inner = k.InnerPID()
	}
	p.status = cell.Status{Running: true, Started: time.Now(), Awaited: req.Hold || !input}
	p.emit("process.running", map[string]any{"pid": p.started.Process.PID()})

	if req.Process.TTY {
		outR = p.started.Terminal
		p.stderr.close()
	} else {
		go func() { p.stderr.copyFrom(errR); errR.Close() }()
	}
	go func() {
		p.stdout.copyFrom(outR)
		if !req.Process.TTY {
			outR.Close()
		}
	}()
	if p.events != nil {
		go s.sample(p)
	}
	go func() {
		defer s.use(id)()
		s.follow(p, outR, errR)
	}()
	return p, nil
}

// follow waits for the process, writes down how it ended and, where asked,
// ends the rest of the cell.
func (s *Server) follow(p *Proc, outR, errR *os.File) {
	var timer *time.Timer
	if p.start.Timeout > 0 {
		timer = time.AfterFunc(p.start.Timeout, func() {
			p.end(causeTimeout, 0)
		})
	}
	exit, usage := p.started.Process.Wait(p.endGroup)
	if timer != nil {
		timer.Stop()
	}
	ended := time.Now()
	p.closeInput()
	s.lookAtEnd(p.cell)
	var stats cell.Stats
	switch {
	case p.start.EndsCell:
		stats, _ = s.counted(p.cell)
	case p.events != nil:
		stats, _ = s.counted(p.cell)
		stats = stats.Since(p.before)
	case exit.Signal == "SIGKILL":
		stats.OOMKills = s.killed(p.cell) - p.before.OOMKills
	}
	left := 0
	switch {
	case p.start.EndsCell:
		left, _ = s.Driver.KillAll(p.cell)
	case p.wasEnded(): // on request, which is about all of it
		left, _ = p.started.Process.EndRest()
	}
	if r, ok := p.started.Process.(Releaser); ok {
		r.Release()
	}
	if w, ok := p.started.Process.(Settler); ok && p.starts != nil {
		w.Settle()
	}
	p.starts.end()
	s.tellDenied(p)
	s.tellMissing(p)
	if n := s.tried(p); n > 0 {
		p.emit("network.none", map[string]any{"tries": n})
	}
	p.stdout.finish(outR, drainGrace)
	if errR != nil {
		p.stderr.finish(errR, drainGrace)
	}
	<-p.stdout.over
	<-p.stderr.over

	p.mu.Lock()
	if exit.Signal == "SIGKILL" && stats.OOMKills > 0 {
		exit.Cause = api.CauseMemoryLimit
	}
	if p.cause != "" { // we ended it
		exit.Cause = p.cause
	}
	p.status.Running, p.status.Exit, p.status.Usage, p.status.Stats = false, &exit, usage, stats
	p.status.Ended, p.status.LeftOver = ended, left
	p.mu.Unlock()

	if p.start.EndsCell || p.events != nil {
		p.talk.flush(p.start.EndsCell) // so that the end of what it said is in its stream
	}
	p.talk.leave(p)
	var tape cell.Status
	p.taped.end(&tape)
	p.mu.Lock()
	p.status.Recording, p.status.Replayed = tape.Recording, tape.Replayed
	p.mu.Unlock()
	out, errs := p.stdout.status(), p.stderr.status()
	failpoint.Step("write down an exit")
	p.emit("process.exit", map[string]any{
		"code": exit.Code, "signal": exit.Signal, "cause": exit.Cause, "left_over": left,
		"stdout": out, "stderr": errs, "usage": usage, "stats": stats,
	})
	if p.events != nil {
		if err := p.events.Seal(); err != nil {
			p.mu.Lock()
			p.status.Unsealed = err.Error()
			p.mu.Unlock()
		}
	}
	failpoint.Step("tell of an exit")
	close(p.done)
}

// observer is the driver, if the attempts of p to reach a network are counted: p has
// a record of events, and its cell no network.
func (s *Server) observer(p *Proc) Observer {
	if k, ok := s.Driver.(Observer); ok && p.events != nil && p.talk == nil {
		return k
	}
	return nil
}

// begins reads what must be known of a cell before p can do anything: how many
// attempts to reach a network its canaries and other processes have made. Read when
// Start has returned, the number could contain attempts of p itself. It is nil where
// nothing must be known.
func (s *Server) begins(p *Proc) func() {
	k := s.observer(p)
	if k == nil {
		return nil
	}
	return func() { p.tried = k.Tried(p.cell) }
}

// tried is how often p, and others in its cell meanwhile, tried to reach a network
// that the cell does not have.
func (s *Server) tried(p *Proc) int64 {
	if k := s.observer(p); k != nil {
		return k.Tried(p.cell) - p.tried
	}
	return 0
}

// counted is what a cell has used up to now, looking at no process where the
// driver can do without.
func (s *Server) counted(id cell.ID) (cell.Stats, error) {
	if c, ok := s.Driver.(Counter); ok {
		return c.Counted(id)
	}
	return s.Driver.Stats(id)
}

// killed is how many processes of a cell have ended for its limit on memory.
func (s *Server) killed(id cell.ID) int64 {
	if c, ok := s.Driver.(Counter); ok {
		return c.Killed(id)
	}
	st, _ := s.Driver.Stats(id)
	return st.OOMKills
}

func (p *Proc) emit(kind string, fields any) {
	if p.events != nil {
		p.events.Emit(kind, fields)
		if !background(kind) {
			p.told.Add(1)
		}
	}
}

// background reports whether events of a kind are no sign of work: a program that polls
// starts processes, too.
func background(kind string) bool {
	switch kind {
	case "sample", "output", "process.exec", "process.ended", "process.lost", "process.unseen":
		return true
	}
	return false
}

// startWatched has the driver start p, and tell which processes that starts if p has a record
// of events.
func (s *Server) startWatched(p *Proc, stdio [3]*os.File) (Started, error) {
	if p.events == nil {
		return s.Driver.Start(p.cell, p.start.Process, stdio, s.begins(p))
	}
	p.starts = newStarts(p.emit, append(p.talk.secrets(), p.start.Hide...))
	if w, ok := s.Driver.(StartWatcher); ok {
		return w.StartWatched(p.cell, p.start.Process, stdio, s.begins(p), p.starts)
	}
	p.starts.Unseen("starts and ends of processes", "the backend "+s.Backend+" does not observe them")
	return s.Driver.Start(p.cell, p.start.Process, stdio, s.begins(p))
}

// stdioPipes makes the pipes of a process without a terminal. Our ends can be
// waited for; theirs block, as programs expect, and are never waited for here.
func stdioPipes() (theirs [3]*os.File, in, out, errs *os.File, err error) {
	var ours [3]*os.File
	for i, mine := range [3]int{1, 0, 0} { // which end of it is ours
		var p [2]int
		if err = unix.Pipe2(p[:], unix.O_CLOEXEC); err == nil {
			if err = unix.SetNonblock(p[mine], true); err != nil {
				unix.Close(p[0])
				unix.Close(p[1])
			}
		}
		if err != nil {
			proto.CloseAll(theirs[:])
			proto.CloseAll(ours[:])
			return [3]*os.File{}, nil, nil, nil, os.NewSyscallError("pipe2", err)
		}
		ours[i], theirs[i] = os.NewFile(uintptr(p[mine]), "pipe"), os.NewFile(uintptr(p[1-mine]), "pipe")
	}
	return theirs, ours[0], ours[1], ours[2], nil
}
