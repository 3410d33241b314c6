package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/reexec"
)

// A verb serves one kind of request. It closes the files, and reports whether the connection
// can go on.
type verb func(s *Server, c *reexec.Conn, body json.RawMessage, files []*os.File) bool

// verbs are those that a keeper knows.
var verbs = sync.OnceValue(func() map[string]verb {
	t := map[string]verb{}
	answers(t, proto.Hello, (*Server).hello)
	converses(t, proto.Shutdown, (*Server).shutdown)
	answers(t, proto.Deaths, func(s *Server, q proto.Since) (n proto.News, err error) {
		n.Deaths, n.At = s.deaths.wait(q.Since, s.over)
		return n, nil
	})
	answers(t, proto.Room, func(s *Server, q proto.Forks) (proto.Count, error) {
		n, err := room(q.Talk)
		return proto.Count{Count: int(n)}, err
	})

	makes(t, proto.Create, (*Server).create, func(q proto.NewCell) cell.ID { return q.Cell })
	answers(t, proto.Note, (*Server).noted)
	answers(t, proto.Mounts, (*Server).mounts)
	answers(t, proto.List, func(s *Server, q proto.OfCell) (l proto.Listing, err error) {
		l.List, err = s.list(q.Cell)
		l.Procs = s.known(q.Cell)
		return l, err
	})
	answers(t, proto.Stats, func(s *Server, q proto.OfCell) (cell.Stats, error) { return s.Driver.Stats(q.Cell) })
	answers(t, proto.Ports, (*Server).ports)
	answers(t, proto.Mapped, (*Server).mapped)
	answers(t, proto.Freeze, func(s *Server, q proto.OfCell) (proto.None, error) { return proto.None{}, s.Driver.Freeze(q.Cell) })
	answers(t, proto.Thaw, func(s *Server, q proto.OfCell) (proto.None, error) { return proto.None{}, s.Driver.Thaw(q.Cell) })
	answers(t, proto.KillAll, func(s *Server, q proto.Ending) (proto.Count, error) {
		s.blame(q.Cell, q.Cause)
		n, err := s.Driver.KillAll(q.Cell)
		return proto.Count{Count: n}, err
	})
	answers(t, proto.Remove, func(s *Server, q proto.Ending) (proto.Count, error) {
		n, err := s.remove(q.Cell, q.Cause)
		return proto.Count{Count: n}, err
	})

	takes(t, proto.Start, (*Server).start)
	answers(t, proto.Run, (*Server).run)
	answers(t, proto.Status, func(s *Server, q proto.OfProcess) (proto.State, error) {
		p, err := s.proc(q.Proc)
		if err != nil {
			return proto.State{}, err
		}
		st := p.state()
		st.Status.Args = p.start.Process.Args
		return st, nil
	})
	answers(t, proto.Wait, func(s *Server, q proto.OfProcess) (proto.State, error) {
		p, err := s.proc(q.Proc)
		if err != nil {
			return proto.State{}, err
		}
		<-p.done
		return p.state(), nil
	})
	answers(t, proto.Signal, func(s *Server, q proto.ToProcess) (proto.None, error) {
		p, err := s.proc(q.Proc)
		if err != nil {
			return proto.None{}, err
		}
		p.emit("process.signal", map[string]any{"signal": q.Signal})
		return proto.None{}, p.started.Process.Signal(q.Signal)
	})
	answers(t, proto.End, func(s *Server, q proto.EndProcess) (proto.None, error) {
		p, err := s.proc(q.Proc)
		if err == nil {
			p.end(q.Cause, q.Grace)
		}
		return proto.None{}, err
	})
	answers(t, proto.Forget, func(s *Server, q proto.OfProcess) (proto.None, error) { return proto.None{}, s.forget(q.Proc) })

	answers(t, proto.Govern, (*Server).govern)
	answers(t, proto.Asked, (*Server).asked)
	answers(t, proto.Decide, (*Server).decide)
	answers(t, proto.Refused, (*Server).refused)
	takes(t, proto.Agent, (*Server).agent)
	takes(t, proto.Denials, (*Server).showDenials)
	takes(t, proto.ServeLink, (*Server).serveLink)
	takes(t, proto.TakeLink, (*Server).takeLink)

	converses(t, proto.Warm, (*Server).serveWarm)
	converses(t, proto.Eval, (*Server).serveEval)
	answers(t, proto.Warmth, func(s *Server, q proto.OfCell) (w cell.Warmth, err error) {
		h, err := s.interpreter(q.Cell)
		if err != nil {
			return w, err
		}
		return *h.warmth(), nil
	})
	answers(t, proto.Dismiss, func(s *Server, q proto.OfCell) (proto.None, error) { return proto.None{}, s.dismiss(q.Cell) })
	answers(t, proto.Seal, (*Server).seal)
	makes(t, proto.Fork, (*Server).fork, func(q proto.NewFork) cell.ID { return q.Cell })
	answers(t, proto.Adopt, (*Server).adopt)
	takes(t, proto.Capture, (*Server).capture)
	t[proto.Prepare.Name] = (*Server).prepare

	converses(t, proto.Branch, (*Server).branch)

	converses(t, proto.Attach, (*Server).serveAttach)
	converses(t, proto.Files, (*Server).files)
	converses(t, proto.Manage, (*Server).manage)
	converses(t, proto.Dial, (*Server).dial)
	converses(t, proto.SFTP, (*Server).sftp)
	return t
})

// answers has f answer a verb with requests without files.
func answers[Q, A any](t map[string]verb, v proto.Verb[Q, A], f func(s *Server, q Q) (A, error)) {
	takes(t, v, func(s *Server, q Q, files []*os.File) (A, error) {
		proto.CloseAll(files)
		return f(s, q)
	})
}

// takes has f answer a verb. The files are f's.
func takes[Q, A any](t map[string]verb, v proto.Verb[Q, A], f func(s *Server, q Q, files []*os.File) (A, error)) {
	t[v.Name] = func(s *Server, c *reexec.Conn, body json.RawMessage, files []*os.File) bool {
		return serve(s, c, v, body, files, f) == nil
	}
}

// makes is takes of a verb that makes a cell. When the answer can't be sent, the cell is removed.
func makes[Q, A any](t map[string]verb, v proto.Verb[Q, A], f func(s *Server, q Q, files []*os.File) (A, error), id func(Q) cell.ID) {
	t[v.Name] = func(s *Server, c *reexec.Conn, body json.RawMessage, files []*os.File) bool {
		var made cell.ID
		err := serve(s, c, v, body, files, func(s *Server, q Q, files []*os.File) (A, error) {
			a, err := f(s, q, files)
			if err == nil {
				made = id(q)
			}
			return a, err
		})
		if err != nil && made != "" {
			s.unclaimed(made)
		}
		return err == nil
	}
}

// serve has f answer one request, and returns what became of the answer.
func serve[Q, A any](s *Server, c *reexec.Conn, v proto.Verb[Q, A], body json.RawMessage, files []*os.File, f func(s *Server, q Q, files []*os.File) (A, error)) (sent error) {
	begin(v)
	var a A
	q, err := v.Read(body)
	if err != nil {
		proto.CloseAll(files)
	} else {
		a, err = f(s, q, files)
	}
	end(v)
	return v.Reply(c, a, err)
}

// begin and end are the steps at which a keeper may end, around a request that changes something.
func begin[Q, A any](v proto.Verb[Q, A]) {
	if !v.Reads {
		failpoint.Step("begin to " + v.Name)
	}
}

func end[Q, A any](v proto.Verb[Q, A]) {
	if !v.Reads {
		failpoint.Step("answer to " + v.Name)
	}
}

// converses has f serve a verb with requests without files, and all that follows on the
// connection. f reports whether the connection can go on.
func converses[Q, A any](t map[string]verb, v proto.Verb[Q, A], f func(s *Server, c *reexec.Conn, q Q) bool) {
	t[v.Name] = func(s *Server, c *reexec.Conn, body json.RawMessage, files []*os.File) bool {
		proto.CloseAll(files)
		begin(v)
		q, err := v.Read(body)
		if err != nil {
			return proto.Refuse(c, err) == nil
		}
		return f(s, c, q)
	}
}

func (s *Server) hello(q proto.Greeting) (w proto.Welcome, err error) {
	if q.Version != proto.Version && q.Version != proto.Version-1 && q.Version != proto.Version+1 {
		return w, cell.Errorf(cell.Unsupported, "keeper.hello", fmt.Sprintf("use the version of pando that began the cell, or end what runs in it: kill %d (its files stay)", os.Getpid()),
			"its keeper speaks version %d of the keepers' protocol, this daemon version %d", proto.Version, q.Version)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w = proto.Welcome{Version: proto.Version, PID: os.Getpid(), Backend: s.Backend}
	for id := range s.cells {
		w.Cells = append(w.Cells, id)
	}
	return w, nil
}

// shutdown removes all cells, and ends the keeper when that is done.
func (s *Server) shutdown(c *reexec.Conn, _ proto.None) bool {
	hello, err := s.hello(proto.Greeting{Version: proto.Version})
	for _, id := range hello.Cells {
		_, rerr := s.remove(id, "stopped")
		err = errors.Join(err, rerr)
	}
	end(proto.Shutdown)
	if proto.Shutdown.Reply(c, proto.None{}, err) == nil {
		s.finish()
	}
	return false
}

func (s *Server) noted(q proto.OfCell) (proto.Noted, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.cells[q.Cell]; k != nil {
		return k.note, nil
	}
	return proto.Noted{}, cell.Errorf(cell.NotFound, "keeper.note", "", "no cell %s", q.Cell)
}

func (s *Server) mounts(q proto.OfCell) ([]cell.Mount, error) {
	if m, ok := s.Driver.(interface {
		Mounts(cell.ID) ([]cell.Mount, error)
	}); ok {
		return m.Mounts(q.Cell)
	}
	return nil, nil
}

func (s *Server) ports(q proto.OfCell) ([]cell.Listening, error) {
	d, ok := s.Driver.(Dialer)
	if !ok {
		return nil, cell.Errorf(cell.Unsupported, "keeper.ports", "", "the ports of such a cell are not known")
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
	defer cancel()
	return d.Ports(ctx, q.Cell)
}

func (s *Server) mapped(q proto.OfCell) ([]cell.MappedFile, error) {
	d, ok := s.Driver.(Mapper)
	if !ok {
		return nil, cell.Errorf(cell.Unsupported, "keeper.mapped", "", "what such a cell has in shared memory is not known")
	}
	return d.Mapped(q.Cell)
}

func (s *Server) start(q proto.NewProcess, files []*os.File) (proto.Begun, error) {
	for _, n := range q.NoLogs {
		if n >= 0 && n < len(files) && files[n] != nil {
			files[n].Close()
			files[n] = nil
		}
	}
	p, err := s.startNamed(q, files, true)
	if err != nil {
		return proto.Begun{}, err
	}
	return p.begun(), nil
}

// run waits for the end of a process without listeners, and forgets it.
func (s *Server) run(q proto.NewProcess) (proto.Done, error) {
	p, err := s.startNamed(q, nil, false)
	if err != nil {
		return proto.Done{}, err
	}
	<-p.done
	d := proto.Done{Status: p.snapshot(), Stdout: p.stdout.all(), Stderr: p.stderr.all()}
	return d, s.forget(p.name)
}

func (s *Server) serveAttach(c *reexec.Conn, q proto.Attachment) bool {
	p, err := s.proc(q.Proc)
	if err == nil && (q.Stdout < 0 || q.Stderr < 0) {
		err = proto.Malformed("attach")
	}
	if err != nil {
		return proto.Refuse(c, err) == nil
	}
	if s.attach() {
		defer s.detach()
		if proto.Attach.Reply(c, proto.None{}, nil) == nil {
			p.attach(c.Raw(), q)
		}
	}
	return false
}

// prepare may answer with a file.
func (s *Server) prepare(c *reexec.Conn, body json.RawMessage, files []*os.File) bool {
	v := proto.Prepare
	defer proto.CloseAll(files)
	begin(v)
	q, err := v.Read(body)
	var given []*os.File
	if p, ok := s.Driver.(Capturer); ok && err == nil {
		var base *os.File
		if base, err = p.Prepare(q.Cell, files, q.Own); base != nil {
			given = append(given, base)
		}
	}
	defer proto.CloseAll(given)
	end(v)
	return v.Reply(c, proto.None{}, err, given...) == nil
}
