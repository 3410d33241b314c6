package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/repl"
)

// warm is a cell's interpreter, as long as it lives.
type warm struct {
	in         Interpreter
	kind       string
	version    string
	cannotFork string
	inherited  []string // see cell.Warmth
	started    time.Time
	out        [2]*drain     // stdout, stderr
	gone       chan struct{} // closed when it has ended, and death says why

	mu      sync.Mutex // guards what follows
	evals   int64
	sealed  bool
	busy    int    // evaluations under way, or waiting for their turn
	blocked bool   // it is being branched, or ended
	stuck   bool   // an evaluation did not let itself be interrupted, and perhaps still goes on
	cause   string // why we end it
	death   string
}

// setupLimit bounds the repr of a set-up's value, which nothing reads.
const setupLimit = 1000

// setupOutput is how much a set-up may write to each stream, in bytes.
const setupOutput = 64 << 20

// probeWait is how long a readiness probe that says no is left alone; it grows.
const probeWait = 10 * time.Millisecond

// quiet is set for the interpreter alone, unless the user has set it: numeric
// libraries start threads, and what has threads can't be forked; figures are
// drawn where there is no screen.
var quiet = []string{"OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1", "NUMEXPR_NUM_THREADS=1", "MPLBACKEND=Agg"}

// interpreter returns a cell's.
func (s *Server) interpreter(id cell.ID) (*warm, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.cells[id]
	switch {
	case k == nil:
		return nil, cell.Errorf(cell.NotFound, "keeper", "", "no cell %s", id)
	case k.warm == nil:
		return nil, cell.Errorf(cell.NotFound, "keeper", "warm the cell first", "cell %s has no interpreter", id)
	}
	return k.warm, nil
}

// warmUp starts a cell's interpreter and waits until it is ready.
func (s *Server) warmUp(ctx context.Context, id cell.ID, w cell.Warm, sink func(cell.Output) error) (_ *cell.Warmth, err error) {
	driver, ok := s.Driver.(Interpreting)
	if !ok {
		return nil, cell.Errorf(cell.Unsupported, "keeper.warm", cell.Isolated, "cannot start an interpreter: this backend keeps none")
	}
	if _, builtIn := repl.KindOf(w.Kind); w.Timeout <= 0 || (!builtIn && w.Kind != cell.WarmCommand) || len(w.Process.Args) == 0 {
		return nil, proto.Malformed("warm")
	}
	s.mu.Lock()
	k := s.cells[id]
	switch {
	case k == nil:
		err = cell.Errorf(cell.NotFound, "keeper.warm", "", "no cell %s", id)
	case k.warm != nil || k.warming:
		err = cell.Errorf(cell.Exists, "keeper.warm", "", "cell %s has an interpreter already", id)
	default:
		k.warming = true
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	h, err := s.startWarm(driver, id, w)
	s.mu.Lock()
	if k.warming = false; err == nil {
		if s.cells[id] == k {
			k.warm = h
		} else {
			err = cell.Errorf(cell.NotFound, "keeper.warm", "", "cell %s was removed", id)
		}
	}
	s.mu.Unlock()
	if h != nil {
		go s.followInterpreter(id, k, h)
	}
	if err == nil {
		_, forks := s.Driver.(Forker)
		err = h.prepare(ctx, w, forks, sink)
	}
	if err == nil && w.Setup != "" {
		err = h.inherit(ctx, w.Timeout)
	}
	if err != nil {
		if h != nil {
			h.kill()
			<-h.gone
			if h.death != "" && cell.KindOf(err) == cell.Unavailable {
				err = cell.Errorf(cell.Invalid, "keeper.warm", "", "%w (%s)", err, h.death)
			}
		}
		return nil, err
	}
	return h.warmth(), nil
}

// startWarm starts the process. When it fails nothing of it remains.
func (s *Server) startWarm(driver Interpreting, id cell.ID, w cell.Warm) (*warm, error) {
	p := w.Process
	p.TTY = false
	p.Env = slices.Clone(p.Env)
	p.Args = slices.Clone(p.Args)
	kind, builtIn := repl.KindOf(w.Kind)
	p.Args = append(p.Args, kind.Args...)
	if !builtIn {
		p.Env = append(p.Env, "PANDO_EVAL_FD=3")
	}
	for _, kv := range quiet {
		name, _, _ := strings.Cut(kv, "=")
		if !slices.ContainsFunc(p.Env, func(e string) bool { return strings.HasPrefix(e, name+"=") }) {
			p.Env = append(p.Env, kv)
		}
	}
	h := &warm{kind: w.Kind, started: time.Now(), gone: make(chan struct{})}
	err := s.connect(h, func(theirs [3]*os.File, control *os.File) error {
		if kind.Stdin == nil {
			return driver.StartInterpreter(id, p, &h.in, theirs, control)
		}
		f, err := repl.File(kind.Stdin)
		if err != nil {
			return err
		}
		defer f.Close()
		return driver.StartInterpreter(id, p, &h.in, [3]*os.File{f, theirs[1], theirs[2]}, control)
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

// connect makes what an interpreter is asked over and writes to, and hands its ends
// to start, which does not keep them. Its input is at its end. When start fails
// nothing of it remains.
func (s *Server) connect(h *warm, start func(theirs [3]*os.File, control *os.File) error) error {
	conn, control, err := repl.Pair()
	if err != nil {
		return err
	}
	defer control.Close()
	theirs, in, out, errs, err := stdioPipes()
	if err != nil {
		conn.Close()
		return err
	}
	in.Close() // a read is at the end
	h.in.Conn, h.in.Stdout, h.in.Stderr = conn, out, errs
	err = start(theirs, control)
	proto.CloseAll(theirs[:])
	if err != nil {
		conn.Close()
		proto.CloseAll([]*os.File{out, errs})
		return err
	}
	h.out = [2]*drain{s.drain(out, 1), s.drain(errs, 2)}
	return nil
}

// copyOf is the interpreter of a fork of another; followInterpreter waits for its end.
func (s *Server) copyOf(in Interpreter, of *warm) *warm {
	h := &warm{in: in, kind: of.kind, version: of.version, cannotFork: of.cannotFork, started: time.Now(), gone: make(chan struct{})}
	h.out = [2]*drain{s.drain(in.Stdout, 1), s.drain(in.Stderr, 2)}
	return h
}

// followInterpreter waits for the end of an interpreter, and tells it.
func (s *Server) followInterpreter(id cell.ID, k *kept, h *warm) {
	exit, _ := h.in.Process.Wait(func() {})
	if r, ok := h.in.Process.(Releaser); ok {
		r.Release()
	}
	h.in.Conn.Close()
	stats, _ := s.counted(id)
	h.mu.Lock()
	if h.death = h.cause; h.death == "" {
		h.death = deathOf(exit, stats)
	}
	told := h.cause != causeNotReady && h.cause != causeBranched && h.cause != causeDismissed
	h.mu.Unlock()
	s.mu.Lock()
	if k.warm == h {
		k.warm = nil
	}
	there := s.cells[id] == k
	s.mu.Unlock()
	for _, o := range h.out {
		o.close()
	}
	close(h.gone)
	if there && told {
		s.deaths.add(cell.Death{Cell: id, Cause: h.death})
	}
	if there && h.in.IsCell && told {
		s.remove(id, h.death)
	}
}

// causeNotReady is the cause of an interpreter's end after its set-up failed. The request
// that started it is answered with the reason.
const causeNotReady = "its set-up failed"

func deathOf(exit cell.Exit, stats cell.Stats) string {
	switch {
	case exit.Signal == "SIGKILL" && stats.OOMKills > 0:
		return api.CauseMemoryLimit
	case exit.Cause != "": // a request ended it
		return exit.Cause
	case exit.Signal != "":
		return "killed by " + exit.Signal
	}
	return "exit " + strconv.Itoa(exit.Code)
}

// kill ends an interpreter that did not become ready, and what it started.
func (h *warm) kill() {
	h.mu.Lock()
	h.cause = causeNotReady
	h.mu.Unlock()
	h.in.Process.Signal("SIGKILL")
	h.in.Process.EndRest()
}

// list is what runs in a cell, with its interpreter named as such.
func (s *Server) list(id cell.ID) ([]cell.ProcessInfo, error) {
	list, err := s.Driver.List(id)
	if err != nil {
		return nil, err
	}
	pid := 0
	if h, err := s.interpreter(id); err == nil {
		pid = h.innerPID()
	}
	for i := range list {
		p := &list[i]
		name, built := repl.ProgramOf(p.Command)
		switch {
		case p.PID == pid:
			p.Command = name + " (interpreter)"
		case built: // it has forked, and nothing was executed since
			p.Command = name + " (forked by the interpreter)"
		}
	}
	return list, nil
}

// innerPID is the interpreter's number in its cell.
func (h *warm) innerPID() int {
	if k, ok := h.in.Process.(interface{ InnerPID() int }); ok {
		return k.InnerPID()
	}
	return h.in.Process.PID()
}

// causeDismissed is that of an interpreter that makes way for a new one.
const causeDismissed = "a new one was asked for"

// dismiss ends a cell's interpreter, unless an evaluation is under way.
func (s *Server) dismiss(id cell.ID) error {
	const opName = "keeper.dismiss"
	h, err := s.interpreter(id)
	if err != nil {
		return err
	}
	h.mu.Lock()
	switch {
	case h.sealed:
		err = cell.Errorf(cell.Conflict, opName, "remove the template", "cannot end the interpreter: it is only forked")
	case h.blocked:
		err = cell.Errorf(cell.Conflict, opName, "try again when it was branched", "cannot end the interpreter: it is being branched")
	case h.busy > 0:
		err = cell.Errorf(cell.Conflict, opName, "wait for it, or interrupt it where it was begun (Ctrl-C)", "cannot end the interpreter: an evaluation is under way in it")
	default:
		h.blocked = true // nothing is begun in it any more
		h.cause = causeDismissed
	}
	h.mu.Unlock()
	if err != nil {
		return err
	}
	h.in.Process.Signal("SIGKILL")
	h.in.Process.EndRest()
	<-h.gone
	return nil
}

// prepare reads the greeting, evaluates the set-up and waits for the probe. forks
// tells that it would be forked by itself.
func (h *warm) prepare(ctx context.Context, w cell.Warm, forks bool, sink func(cell.Output) error) error {
	until := time.Now().Add(w.Timeout)
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	for _, o := range h.out {
		o.begin(sink, setupOutput)
	}
	defer h.endOutput()
	kind, builtIn := repl.KindOf(w.Kind)
	if !builtIn {
		kind.Unsound = "SyntaxError"
	}
	var program []byte
	if kind.First != nil {
		program = kind.First()
	}
	ready, err := h.in.Conn.Ready(ctx, program)
	if err != nil {
		return h.mute(ctx, w, err)
	}
	h.mu.Lock()
	h.version, h.cannotFork = ready.Version, ready.Reason
	h.mu.Unlock()
	if w.ToFork && forks && ready.Reason != "" {
		return cannotFork("keeper.warm", ready.Reason)
	}
	if w.Setup != "" {
		ev, err := h.in.Conn.Eval(ctx, repl.Evaluation{Code: w.Setup, Name: "<setup>", Limit: setupLimit, Interrupt: h.interrupt})
		if err != nil {
			return err
		}
		if !ev.OK {
			return h.unready("its set-up failed", ev, w.Timeout)
		}
	}
	if w.Ready == "" {
		return nil
	}
	for wait := probeWait; ; wait = min(2*wait, 500*time.Millisecond) {
		ev, err := h.in.Conn.Eval(ctx, repl.Evaluation{Code: w.Ready, Name: "<ready>", Limit: setupLimit, Interrupt: h.interrupt})
		if err != nil {
			return err
		}
		if ev.OK && holds(ev.Value) {
			return nil
		}
		if ev.Cause != "" || (ev.Error != nil && ev.Error.Type == kind.Unsound) {
			return h.unready("its readiness probe failed", ev, w.Timeout)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return cell.Errorf(cell.Timeout, "keeper.warm", moreTime, "cannot warm the cell: its readiness probe did not hold within %v: %s", w.Timeout, failure(ev, "it is not true"))
		}
	}
}

// inherit notes what copies will have in common of what the set-up has made.
func (h *warm) inherit(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	list, err := h.in.Conn.Inherit(ctx)
	said := cell.Certificate{Hazards: list}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inherited = said.Inherited()
	return err
}

// cannotFork refuses to fork an interpreter that says why it can't be.
func cannotFork(op, reason string) error {
	return cell.Errorf(cell.Unsupported, op, cell.ForkSandbox, "cannot fork the interpreter: %s", reason)
}

// mute says why a program did not say that it is ready.
func (h *warm) mute(ctx context.Context, w cell.Warm, err error) error {
	name, hint := w.Name, "see what it wrote: it must speak docs/reference/eval-protocol.md"
	if name == "" {
		name = w.Process.Args[0]
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return cell.Errorf(cell.Timeout, "keeper.warm", moreTime, "cannot warm the cell: %s took longer than %v to say that it is ready", name, w.Timeout)
	}
	if errors.Is(err, repl.ErrGone) {
		select {
		case <-h.gone:
			return cell.Errorf(cell.Invalid, "keeper.warm", hint, "cannot warm the cell: %s ended before it said that it is ready: %s", name, h.death)
		case <-time.After(deathGrace):
		}
	}
	return cell.Errorf(cell.Invalid, "keeper.warm", hint, "cannot warm the cell: %s is no interpreter: %w", name, err)
}

// moreTime is what to do when the time for set-up and probe is up.
const moreTime = "give it more time with pando template build --timeout, or mend the set-up or its probe"

// moreMemory is what to do when set-up and probe need more memory than the cell may have.
const moreMemory = "give it more with pando template build --memory, or have the set-up use less"

// unready says what became of a set-up or a probe that failed.
func (h *warm) unready(what string, ev cell.Evaluated, timeout time.Duration) error {
	kind, hint, detail := cell.Invalid, "mend the set-up or its probe", ""
	switch ev.Cause {
	case cell.CauseTimeout, cell.CauseStuck:
		kind, hint = cell.Timeout, moreTime
		detail = fmt.Sprintf("it took longer than %v", timeout)
	case cell.CauseInterrupted:
		detail = "it was interrupted"
	case cell.CauseEnded:
		detail = "the interpreter ended"
		select {
		case <-h.gone: // and why is known
			detail += ": " + h.death
			if h.death == api.CauseMemoryLimit {
				hint = moreMemory
			}
		case <-time.After(deathGrace):
		}
	}
	return cell.Errorf(kind, "keeper.warm", hint, "cannot warm the cell: %s: %s", what, failure(ev, detail))
}

// failure is detail, if there is any, and below it what the code threw.
func failure(ev cell.Evaluated, detail string) string {
	if ev.Error == nil {
		return detail
	}
	text := strings.TrimRight(ev.Error.Traceback, "\n")
	if text == "" {
		text = ev.Error.Type + ": " + ev.Error.Message
	}
	return strings.TrimLeft(detail+"\n"+text, "\n")
}

// holds reports whether a value means yes.
func holds(v *cell.Value) bool {
	if v == nil {
		return false
	}
	switch string(bytes.TrimSpace(v.JSON)) {
	case "false", "0", "0.0", "null", `""`, "[]", "{}", `{"$tuple":[]}`, `{"$set":[]}`:
		return false
	}
	return true
}

// interrupt interrupts the evaluation that is under way.
func (h *warm) interrupt() {
	if i, ok := h.in.Process.(Interrupter); ok {
		i.Interrupt()
		return
	}
	h.in.Process.Signal("SIGINT")
}

// endOutput takes the sinks away, and returns how much was written.
func (h *warm) endOutput() (stdout, stderr int64) {
	return h.out[0].end(), h.out[1].end()
}

// warmth is all that is known of it.
func (h *warm) warmth() *cell.Warmth {
	w := h.state()
	h.mu.Lock()
	p := h.in.Process
	h.mu.Unlock()
	programs := []int{p.PID()}
	if g, ok := p.(Guest); ok {
		programs = g.Programs()
	}
	for _, pid := range programs {
		w.Memory += ownMemory(pid)
	}
	return w
}

// state is warmth without Memory, which takes time to measure.
func (h *warm) state() *cell.Warmth {
	h.mu.Lock()
	defer h.mu.Unlock()
	return &cell.Warmth{Kind: h.kind, Version: h.version, PID: h.innerPID(), Started: h.started, Evals: h.evals, Depth: h.in.Depth, Layer: h.in.Layer,
		IsCell: h.in.IsCell, Sealed: h.sealed, Busy: h.in.Conn.Busy(), CannotFork: h.cannotFork, Inherited: h.inherited}
}

// residentMemory is what a process has in memory.
func residentMemory(pid int) int64 {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	f := strings.Fields(string(b))
	if len(f) < 2 {
		return 0
	}
	n, _ := strconv.ParseInt(f[1], 10, 64)
	return n * int64(os.Getpagesize())
}

// ownMemory is what a process has in memory that it shares with no other, 0 where
// that can't be seen.
func ownMemory(pid int) (n int64) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && (f[0] == "Private_Clean:" || f[0] == "Private_Dirty:") {
			kib, _ := strconv.ParseInt(f[1], 10, 64)
			n += kib << 10
		}
	}
	return n
}
