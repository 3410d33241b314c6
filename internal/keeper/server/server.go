package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/reexec"
)

// lonely is how long a keeper without processes waits for a daemon.
const lonely = 5 * time.Minute

// Server is a keeper's own side.
type Server struct {
	Backend   string // whose cells it holds
	Driver    Driver
	NewEvents NewEvents
	Networks  Networks // nil: no cell may talk
	Log       *slog.Logger

	mu       sync.Mutex // guards what follows
	cells    map[cell.ID]*kept
	procs    map[string]*Proc
	due      []*watch // whose cells are looked at soon
	conns    int
	lastSeen time.Time
	over     chan struct{}
	ended    bool
	attached int           // streams that clients read
	drained  chan struct{} // closed when the server has ended and nobody is attached

	closing sync.WaitGroup // gateways that end
	deaths  deaths
	buffers sync.Pool // of drains

	sizing  sync.Once     // makes what follows
	forking chan struct{} // has an element for each fork that is being made
}

// kept is a living cell.
type kept struct {
	note  json.RawMessage
	watch *watch
	talk  *talk // nil: loopback only

	warming bool  // an interpreter is being started
	warm    *warm // nil: it has none
}

// Serve answers on l until a daemon sends "shutdown", or until nothing lives
// and no daemon has come for a while.
func (s *Server) Serve(l *net.UnixListener) error {
	s.mu.Lock()
	s.cells, s.procs = map[cell.ID]*kept{}, map[string]*Proc{}
	s.over, s.drained, s.lastSeen = make(chan struct{}), make(chan struct{}), time.Now()
	s.mu.Unlock()
	go func() {
		tick := time.NewTicker(lonely / 10)
		defer tick.Stop()
		for {
			select {
			case <-s.over:
				l.Close()
				return
			case <-tick.C:
				if s.abandoned() {
					s.finish()
				}
			}
		}
	}()
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			select {
			case <-s.over:
				return nil
			default:
				return err
			}
		}
		go s.serve(c)
	}
}

func (s *Server) abandoned() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns > 0 || time.Since(s.lastSeen) < lonely {
		return false
	}
	for id := range s.cells {
		if list, err := s.Driver.List(id); err != nil || len(list) > 0 {
			return false
		}
	}
	return true
}

func (s *Server) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.ended = true
		close(s.over)
		if s.attached == 0 {
			close(s.drained)
		}
	}
}

// attach counts one more stream; false when it is too late for one.
func (s *Server) attach() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.attached++
	return true
}

func (s *Server) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attached--; s.ended && s.attached == 0 {
		close(s.drained)
	}
}

// Drain waits, after Serve, until every client that is attached has read the
// end of its output or hung up (a slow reader outlives the cell), and until the
// gateways of removed cells have ended.
func (s *Server) Drain() {
	<-s.drained
	s.closing.Wait()
}

func (s *Server) serve(uc *net.UnixConn) {
	s.mu.Lock()
	s.conns++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.conns--
		s.lastSeen = time.Now()
		s.mu.Unlock()
	}()
	c := reexec.NewConn(uc)
	defer c.Close()
	for {
		var req proto.Request
		files, err := c.Recv(&req)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				s.Log.Warn("cannot read a request", "error", err)
			}
			return
		}
		if req.Op == "attach" {
			p, err := s.proc(req.Proc)
			if err == nil && (req.Attach == nil || req.Attach.Stdout < 0 || req.Attach.Stderr < 0) {
				err = malformed(req.Op)
			}
			if err != nil {
				c.Send(proto.Response{Error: proto.Wire(err)})
				continue
			}
			if s.attach() {
				defer s.detach()
				if c.Send(proto.Response{}) == nil {
					p.attach(uc, *req.Attach)
				}
			}
			return
		}
		if req.Op == "files" {
			proto.CloseAll(files)
			s.files(c, &req)
			return
		}
		if req.Op == "manage" || req.Op == "dial" {
			proto.CloseAll(files)
			if req.Op == "manage" {
				s.manage(c, &req)
			} else {
				s.dial(c, &req)
			}
			return
		}
		if req.Op == "branch" {
			proto.CloseAll(files)
			if !s.branch(c, &req) {
				return
			}
			continue
		}
		if req.Op == "warm" || req.Op == "eval" {
			proto.CloseAll(files)
			if !s.streamed(c, &req) {
				return
			}
			continue
		}
		if proto.Changes(req.Op) {
			failpoint.Step("begin to " + req.Op)
		}
		resp, err := s.handle(&req, files)
		if err != nil {
			resp = proto.Response{Error: proto.Wire(err)}
		}
		if proto.Changes(req.Op) {
			failpoint.Step("answer to " + req.Op)
		}
		err = c.Send(resp, resp.Given...)
		proto.CloseAll(resp.Given)
		if err != nil {
			if (req.Op == "fork" || req.Op == "create") && resp.Error == nil {
				s.unclaimed(req.Cell)
			}
			return
		}
		if req.Op == "shutdown" {
			s.finish()
			return
		}
	}
}

// handle answers one request. Files that no case takes over are closed.
func (s *Server) handle(req *proto.Request, files []*os.File) (resp proto.Response, err error) {
	taken := false
	defer func() {
		if !taken {
			proto.CloseAll(files)
		}
	}()
	switch req.Op {
	case "hello":
		if req.Version != proto.Version && req.Version != proto.Version-1 && req.Version != proto.Version+1 {
			return resp, cell.Errorf(cell.Unsupported, "keeper.hello", "stop the cell and start it again", "this keeper speaks version %d of its protocol, not %d", proto.Version, req.Version)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		resp.Version, resp.PID, resp.Backend = proto.Version, os.Getpid(), s.Backend
		for n := range s.procs {
			resp.Procs = append(resp.Procs, n)
		}
		for id := range s.cells {
			resp.Cells = append(resp.Cells, id)
		}
		return resp, nil
	case "create":
		taken = true
		resp.Measured, err = s.create(req, files)
		return resp, err
	case "start":
		if req.Start == nil {
			return resp, malformed(req.Op)
		}
		taken = true
		for _, n := range req.NoLogs {
			if n >= 0 && n < len(files) && files[n] != nil {
				files[n].Close()
				files[n] = nil
			}
		}
		p, err := s.startNamed(req, files)
		if err != nil {
			return resp, err
		}
		if req.Whole {
			return s.whole(p)
		}
		return proto.Response{PID: p.started.Process.PID(), Inner: p.inner, Measured: p.started.Measured}, nil
	case "status", "wait":
		p, err := s.proc(req.Proc)
		if err != nil {
			return resp, err
		}
		if req.Op == "wait" {
			<-p.done
		}
		st := p.snapshot()
		if req.Op == "status" {
			st.Args = p.start.Process.Args
		}
		return proto.Response{Status: &st, PID: p.started.Process.PID(), Inner: p.inner, Measured: p.started.Measured}, nil
	case "annotate":
		s.mu.Lock()
		defer s.mu.Unlock()
		if k := s.cells[req.Cell]; k != nil {
			k.note = req.Note
			return resp, nil
		}
		return resp, cell.Errorf(cell.NotFound, "keeper.annotate", "", "no cell %s", req.Cell)
	case "note":
		s.mu.Lock()
		defer s.mu.Unlock()
		k := s.cells[req.Cell]
		if k == nil {
			return resp, cell.Errorf(cell.NotFound, "keeper.note", "", "no cell %s", req.Cell)
		}
		return proto.Response{Note: k.note}, nil
	case "signal":
		p, err := s.proc(req.Proc)
		if err != nil {
			return resp, err
		}
		if req.Cause != "" {
			p.end(req.Cause)
			return resp, nil
		}
		p.emit("process.signal", map[string]any{"signal": req.Signal})
		return resp, p.started.Process.Signal(req.Signal)
	case "ports":
		d, ok := s.Driver.(Dialer)
		if !ok {
			return resp, cell.Errorf(cell.Unsupported, "keeper.ports", "", "the ports of such a cell are not known")
		}
		ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
		defer cancel()
		resp.Ports, err = d.Ports(ctx, req.Cell)
		return resp, err
	case "forget":
		return resp, s.forget(req.Proc)
	case "watch":
		if req.Watch == nil {
			return resp, malformed(req.Op)
		}
		taken = true
		return resp, s.watch(req.Cell, *req.Watch, files)
	case "agent":
		taken = true
		return resp, s.agent(req, files)
	case "denials":
		taken = true
		return resp, s.showDenials(req, files)
	case "list":
		resp.List, err = s.list(req.Cell)
		resp.Procs = s.known(req.Cell)
		return resp, err
	case "stats":
		st, err := s.Driver.Stats(req.Cell)
		resp.Stats = &st
		return resp, err
	case "govern", "asked", "answer", "refused":
		return s.network(req)
	case "freeze":
		return resp, s.Driver.Freeze(req.Cell)
	case "thaw":
		return resp, s.Driver.Thaw(req.Cell)
	case "killall":
		s.blame(req.Cell, req.Cause)
		resp.Count, err = s.Driver.KillAll(req.Cell)
		return resp, err
	case "remove":
		resp.Count, err = s.remove(req.Cell, req.Cause)
		return resp, err
	case "room":
		n, err := room(req.Talk)
		resp.Count = int(n)
		return resp, err
	case "warmth":
		w, err := s.interpreter(req.Cell)
		if err == nil {
			resp.Warmth = w.warmth()
		}
		return resp, err
	case "interrupt":
		w, err := s.interpreter(req.Cell)
		if err == nil {
			w.interrupt()
		}
		return resp, err
	case "dismiss":
		return resp, s.dismiss(req.Cell)
	case "seal":
		resp.Warmth, err = s.seal(req.Cell)
		return resp, err
	case "fork":
		taken = true
		resp.Measured, err = s.fork(req, files)
		return resp, err
	case "prepare":
		if p, ok := s.Driver.(Preparer); ok {
			var base *os.File
			if base, err = p.Prepare(req.Cell, files, req.Own); base != nil {
				resp.Given = []*os.File{base}
			}
		}
		return resp, err
	case "capture":
		resp.Captured, resp.Warmth, err = s.capture(req.Cell, files)
		return resp, err
	case "adopt":
		resp.Certificate, err = s.adopt(req)
		return resp, err
	case "mounts":
		if m, ok := s.Driver.(interface {
			Mounts(cell.ID) ([]cell.Mount, error)
		}); ok {
			resp.Mounts, err = m.Mounts(req.Cell)
		}
		return resp, err
	case "deaths":
		resp.Deaths, resp.DeathsAt = s.deaths.wait(req.Since, s.over)
		return resp, nil
	case "shutdown":
		s.mu.Lock()
		ids := make([]cell.ID, 0, len(s.cells))
		for id := range s.cells {
			ids = append(ids, id)
		}
		s.mu.Unlock()
		var errs []error
		for _, id := range ids {
			_, err := s.remove(id, "stopped")
			errs = append(errs, err)
		}
		return resp, errors.Join(errs...)
	}
	return resp, cell.Errorf(cell.Unsupported, "keeper", "", "this keeper does not know %q", req.Op)
}

func malformed(op string) error {
	return cell.Errorf(cell.Invalid, "keeper", "", "request %q lacks its part", op)
}

func (s *Server) proc(name string) (*Proc, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.procs[name]; p != nil {
		return p, nil
	}
	return nil, cell.Errorf(cell.NotFound, "keeper", "", "no process %q", name)
}

// known names the processes of a cell that were started and not forgotten.
func (s *Server) known(id cell.ID) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, p := range s.procs {
		if p != nil && p.cell == id {
			names = append(names, n)
		}
	}
	return names
}

func (s *Server) startNamed(req *proto.Request, files []*os.File) (*Proc, error) {
	s.mu.Lock()
	_, there := s.procs[req.Proc]
	if !there {
		s.procs[req.Proc] = nil // reserved
	}
	s.mu.Unlock()
	if there {
		proto.CloseAll(files)
		return nil, cell.Errorf(cell.Exists, "keeper.start", "", "process %q exists", req.Proc)
	}
	p, err := s.startProc(req.Proc, req.Cell, *req.Start, files, !req.Whole)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		delete(s.procs, req.Proc)
		return nil, err
	}
	s.procs[req.Proc] = p
	return p, nil
}

// forget drops the record of a process that has ended.
func (s *Server) forget(name string) error {
	p, err := s.proc(name)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	default:
		return cell.Errorf(cell.Conflict, "keeper.forget", "", "process %q still runs", name)
	}
	p.stdout.release()
	p.stderr.release()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.procs, name)
	return nil
}

// whole waits for a process that nobody attaches to, and hands over all there is
// of it.
func (s *Server) whole(p *Proc) (proto.Response, error) {
	<-p.done
	st := p.snapshot()
	resp := proto.Response{Status: &st, PID: p.started.Process.PID(), Stdout: p.stdout.all(), Stderr: p.stderr.all()}
	return resp, s.forget(p.name)
}

// blame makes cause that of every process of the cell which ends from now on.
func (s *Server) blame(id cell.ID, cause string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.procs {
		if p != nil && p.cell == id {
			p.mu.Lock()
			if p.cause == "" {
				p.cause = cause
			}
			p.mu.Unlock()
		}
	}
	if k := s.cells[id]; k != nil && k.warm != nil && cause != "" {
		k.warm.blame(cause)
	}
}

// unclaimed takes down a cell that was made for somebody who has died meanwhile.
// Whoever came after them has looked for it too early, and does not know of it;
// or has found it, and started something in it.
func (s *Server) unclaimed(id cell.ID) {
	if len(s.known(id)) == 0 {
		s.remove(id, "nobody was there for it")
	}
}

// remove takes a cell down, and returns how many are left in the family.
func (s *Server) remove(id cell.ID, cause string) (left int, err error) {
	s.blame(id, cause)
	s.mu.Lock()
	k, there := s.cells[id]
	delete(s.cells, id)
	left = len(s.cells)
	s.mu.Unlock()
	if !there {
		return left, cell.Errorf(cell.NotFound, "keeper.remove", "", "no cell %s", id)
	}
	if k.watch != nil {
		k.watch.stop()
	}
	err = s.Driver.Remove(id)
	// After those who talk; nobody waits for it: the kernel takes its time to
	// take an interface away.
	s.closing.Go(k.talk.close)
	if err != nil {
		return left, fmt.Errorf("cannot remove cell %s: %w", id, err)
	}
	return left, nil
}

// create makes a cell, and the gateway of one that may talk. A gateway that
// can't be had leaves no cell.
func (s *Server) create(req *proto.Request, files []*os.File) (measured json.RawMessage, err error) {
	if measured, err = s.Driver.Create(req.Cell, req.Spec, files); err != nil {
		return nil, err
	}
	k := &kept{}
	if req.Network != nil {
		if k.talk, err = s.open(req.Cell, *req.Network); err != nil {
			return nil, errors.Join(err, s.Driver.Remove(req.Cell))
		}
	}
	if req.Warmth != nil {
		if k.warm, err = s.resume(req.Cell, req.Warmth); err != nil {
			s.closing.Go(k.talk.close)
			return nil, errors.Join(err, s.Driver.Remove(req.Cell))
		}
		go s.attend(req.Cell, k, k.warm)
	}
	s.mu.Lock()
	s.cells[req.Cell] = k
	s.mu.Unlock()
	if r, ok := s.Driver.(Rehearser); ok {
		if err := r.Rehearse(req.Cell); err != nil {
			return nil, s.undo(req.Cell, err)
		}
	}
	return measured, nil
}
