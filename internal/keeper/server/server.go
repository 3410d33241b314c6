package server

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/reexec"
)

// daemonWait is how long a keeper without processes waits for a daemon.
const daemonWait = 5 * time.Minute

// Server is a keeper's own side.
type Server struct {
	Backend   string // of the cells that it holds
	Driver    Driver
	NewEvents NewEvents
	Networks  Networks // nil: no cell may talk
	Log       *slog.Logger

	sessions atomic.Int32 // of SFTP

	mu       sync.Mutex // guards what follows
	cells    map[cell.ID]*kept
	procs    map[string]*Proc
	due      []*watch // of the cells that are looked at soon
	conns    int
	lastSeen time.Time
	over     chan struct{}
	ended    bool
	attached int           // streams that clients read
	drained  chan struct{} // closed when the server has ended and no client is attached

	closing sync.WaitGroup // gateways that end
	deaths  deaths
	buffers sync.Pool // of drains

	sizing  sync.Once     // makes what follows
	forking chan struct{} // has an element for each fork that is being made
}

// kept is a living cell.
type kept struct {
	note  proto.Noted
	watch *watch
	talk  *talk                 // nil: loopback only
	links map[*reexec.Conn]bool // that are served; nil: none yet

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
		tick := time.NewTicker(daemonWait / 10)
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
	if s.conns > 0 || time.Since(s.lastSeen) < daemonWait {
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
		serve, known := verbs()[req.Op]
		if !known {
			proto.CloseAll(files)
			if proto.Refuse(c, cell.Errorf(cell.Unsupported, "keeper", "", "this keeper does not know %q", req.Op)) != nil {
				return
			}
			continue
		}
		if !serve(s, c, req.Body, files) {
			return
		}
	}
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

// startNamed starts a process. The files are its own. With input it has a standard input that
// clients can write to.
func (s *Server) startNamed(q proto.NewProcess, files []*os.File, input bool) (*Proc, error) {
	if len(q.Start.Process.Args) == 0 {
		proto.CloseAll(files)
		return nil, proto.Malformed("start")
	}
	s.mu.Lock()
	_, there := s.procs[q.Proc]
	if !there {
		s.procs[q.Proc] = nil // reserved
	}
	s.mu.Unlock()
	if there {
		proto.CloseAll(files)
		return nil, cell.Errorf(cell.Exists, "keeper.start", "", "process %q exists", q.Proc)
	}
	p, err := s.startProc(q.Proc, q.Cell, q.Start, files, input)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		delete(s.procs, q.Proc)
		return nil, err
	}
	s.procs[q.Proc] = p
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

// unclaimed takes down a cell that was made for a daemon that has died meanwhile. The next
// daemon has looked for it too early and does not know of it, or has found it and started
// something in it.
func (s *Server) unclaimed(id cell.ID) {
	if len(s.known(id)) == 0 {
		s.remove(id, "no daemon waited for it")
	}
}

// remove takes a cell down, and returns how many are left in the family.
func (s *Server) remove(id cell.ID, cause string) (left int, err error) {
	s.blame(id, cause)
	s.mu.Lock()
	k, there := s.cells[id]
	delete(s.cells, id)
	left = len(s.cells)
	if there {
		for c := range k.links {
			c.Close()
		}
	}
	s.mu.Unlock()
	if !there {
		return left, cell.Errorf(cell.NotFound, "keeper.remove", "", "no cell %s", id)
	}
	if k.watch != nil {
		k.watch.stop()
	}
	err = s.Driver.Remove(id)
	// After the processes that use it; nothing waits for it: the kernel takes its time to
	// take an interface away.
	s.closing.Go(k.talk.close)
	if err != nil {
		return left, fmt.Errorf("cannot remove cell %s: %w", id, err)
	}
	return left, nil
}

// create makes a cell, with the gateway of one that may talk and the accounting of its disk.
// When one of them can't be had, there is no cell.
func (s *Server) create(q proto.NewCell, files []*os.File) (made proto.Made, err error) {
	files, dirs, err := q.Split(files)
	if err != nil {
		proto.CloseAll(files)
		return made, err
	}
	made.Measured, err = s.Driver.Create(q.Cell, q.Spec, files)
	if err != nil {
		proto.CloseAll(dirs)
		return proto.Made{}, err
	}
	k := &kept{note: proto.Noted{Note: q.Note, Measured: made.Measured}}
	if q.Network != nil {
		k.talk, err = s.open(q.Cell, *q.Network)
	}
	if err == nil && q.Warmth != nil {
		k.warm, err = s.resume(q.Cell, q.Warmth)
	}
	if err != nil {
		proto.CloseAll(dirs)
		s.closing.Go(k.talk.close)
		return proto.Made{}, errors.Join(err, s.Driver.Remove(q.Cell))
	}
	if k.warm != nil {
		go s.followInterpreter(q.Cell, k, k.warm)
	}
	s.mu.Lock()
	s.cells[q.Cell] = k
	s.mu.Unlock()
	err = s.watch(q.Cell, q.Watch, dirs)
	if r, ok := s.Driver.(Capturer); ok && err == nil {
		err = r.Rehearse(q.Cell)
	}
	if err != nil {
		return proto.Made{}, s.undo(q.Cell, err)
	}
	return made, nil
}
