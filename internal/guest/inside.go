package guest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/archive"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/hazard"
	"github.com/pando-dev/pando/internal/linux"
)

// dialLimit is the time limit for a connection inside the sandbox.
const dialLimit = 10 * time.Second

// inside is the guest's state.
type inside struct {
	door  *door
	place *place
	files Files // nil: no file server
	token []byte
	scan  hazard.Scanner

	mu     sync.Mutex // guards the fields below
	m      *mux       // the current connection
	tasks  map[string]*task
	still  bool     // the cell is frozen until its adoption
	parted bool     // the freezer holds each command by itself, see admit
	ended  []string // connections of the source that this copy closed

	listening sync.Mutex           // guards sockets
	sockets   map[string]*listener // by path
}

// Serve runs the guest: it serves the keeper at the other end of the socket fd until that
// closes. The caller must be the first process of its PID namespace, and root.
func Serve(fd int) error { return serve(fd, false, nil) }

// Files is the transport of the cell's files to the machine's kernel.
type Files interface {
	// Hold blocks new requests, and returns when none is pending.
	Hold(ctx context.Context) error
	// GoOn ends Hold.
	GoOn()
}

// ServeMachine is Serve in a virtual machine that belongs to the cell and runs Linux. It covers
// the parts of /proc that a cell must not have. fd may be a virtio-serial port with a peer. No
// file requests are pending while the guest is paused.
func ServeMachine(fd int, files Files) error { return serve(fd, true, files) }

// Refuse answers a greeting with the reason why the guest cannot start.
func Refuse(fd int, why error) error {
	d, err := newDoor(fd)
	if err != nil {
		return err
	}
	theirs, err := readGreeting(d)
	if err != nil {
		return err
	}
	if _, err := greetKeeper(d, theirs, nil, why); err != why {
		return err
	}
	return nil
}

func serve(fd int, cover bool, files Files) error {
	d, err := newDoor(fd)
	if err != nil {
		return err
	}
	g := &inside{door: d, files: files, tasks: map[string]*task{}, sockets: map[string]*listener{}}
	trim()
	var ready error
	g.place, ready = newPlace(cover)
	defer g.place.remove()
	theirs, err := readGreeting(d)
	if err != nil {
		return err
	}
	if g.token, err = greetKeeper(d, theirs, nil, ready); err != nil {
		return err
	}
	for {
		m := newMux(bufio.NewReaderSize(d, maxPayload), d)
		g.mu.Lock()
		g.m = m
		g.mu.Unlock()
		if err := g.talk(m); err != nil {
			m.fail(errGone)
			if err == io.EOF || errors.Is(err, unix.ECONNRESET) { // the keeper has finished
				err = nil
			}
			return err
		}
		// In a restored copy the old connection's frames have no receiver.
		m.fail(errDetached)
	}
}

// talk serves a connection until it is lost (an error) or replaced.
func (g *inside) talk(m *mux) error {
	buf := make([]byte, maxPayload)
	for {
		t, id, b, err := m.next(buf)
		if err != nil {
			return err
		}
		if t != frameAsk {
			return errProtocol("a frame of type %d", t)
		}
		var q question
		if err := decode(b, &q); err != nil {
			return err
		}
		if q.Op == opHold {
			again, err := g.hold(m, id, q.Stop)
			if err != nil || !again {
				return err
			}
			continue
		}
		if q.Op == opRelease { // in order: the next question may reuse the name
			g.release(q.ID)
			continue
		}
		var s *stream
		switch q.Op {
		case opRead, opWrite, opDial, opAccept: // stream data may follow at once
			if len(q.Streams) > 0 && q.Streams[0] != 0 {
				s = m.open(q.Streams[0])
			}
		}
		go func() {
			a, err := g.serve(m, &q, s)
			if err != nil {
				a = answer{Error: toWire(err)}
			}
			if err := m.writeJSON(frameAnswer, id, a); err != nil && cell.KindOf(err) == cell.Invalid {
				m.writeJSON(frameAnswer, id, answer{Error: toWire(err)})
			}
		}()
	}
}

func malformed(op string) error {
	return cell.Errorf(cell.Invalid, "guest", "", "cannot %s: the question is incomplete", op)
}

func (g *inside) serve(m *mux, q *question, s *stream) (a answer, err error) {
	switch q.Op {
	case opStart:
		if q.Command == nil || len(q.Streams) != 4 {
			return a, malformed(q.Op)
		}
		return g.start(m, q)
	case opPass:
		g.mu.Lock()
		t := g.tasks[q.ID]
		g.mu.Unlock()
		if t == nil || t.passed == nil {
			return a, cell.Errorf(cell.NotFound, "guest", "", "cannot let %s pass: it does not wait", q.ID)
		}
		select {
		case t.passed <- q.Refused:
		default: // it was answered already
		}
	case opReattach, opReap, opSignal, opInterrupt, opEndRest, opResize:
		g.mu.Lock()
		t := g.tasks[q.ID]
		g.mu.Unlock()
		if t == nil {
			return a, cell.Errorf(cell.NotFound, "guest", "", "cannot %s %s: there is no such process", q.Op, q.ID)
		}
		return t.serve(m, q)
	case opKnown:
		return answer{Known: g.known()}, nil
	case opList:
		list, err := others()
		return answer{List: list}, err
	case opPorts:
		list, err := linux.Listening("/proc/1/net") // of the cell's first process: /proc shows its namespace, in which the guest has no PID
		return answer{Ports: list}, err
	case opTried:
		return answer{Count: int(linux.Tried("/proc/1/net"))}, nil
	case opKillAll:
		n, err := g.place.all.end()
		return answer{Count: n}, err
	case opSync:
		unix.Sync()
	case opRead, opWrite:
		if s == nil {
			return a, malformed(q.Op)
		}
		defer m.forget(s)
		return a, files(s, q)
	case opDial:
		if s == nil {
			return a, malformed(q.Op)
		}
		if err := dial(s, q.Port); err != nil {
			m.forget(s)
			return a, err
		}
	case opAccept:
		if s == nil || !filepath.IsAbs(q.Path) {
			return a, malformed(q.Op)
		}
		if err := g.accept(s, q.Path); err != nil {
			m.forget(s)
			return a, err
		}
	case opAdopt:
		if q.Adopt == nil {
			return a, malformed(q.Op)
		}
		a.Hazards, err = g.adopt(*q.Adopt)
	case opDraws:
		a.Draws, err = g.draws()
		if q.Renew {
			g.renew(a.Draws)
		}
	case opStill:
		if q.Stop {
			return a, g.stop(false)
		}
		return a, g.goOn()
	default:
		err = cell.Errorf(cell.Unsupported, "guest", "use the pando-guest of this pando", "cannot %s: this guest does not support it", q.Op)
	}
	return a, err
}

// others lists all processes except the first, which belongs to the guest.
func others() ([]cell.ProcessInfo, error) {
	list, err := linux.Processes("/proc")
	return slices.DeleteFunc(list, func(p cell.ProcessInfo) bool { return p.PID == 1 }), err
}

// draws lists the random number generators of the cell's processes. It leaves out threads and
// processes that end meanwhile.
func (g *inside) draws() (list []hazard.Process, err error) {
	interpreters := map[int]bool{}
	g.mu.Lock()
	for _, t := range g.tasks {
		if t.asks != nil {
			interpreters[t.inner] = true
		}
	}
	g.mu.Unlock()
	all, err := others()
	for _, p := range all {
		if d, ok := g.scan.Process("/proc", p.PID); ok {
			d.Interpreter = interpreters[p.PID]
			list = append(list, d)
		}
	}
	return list, err
}

func (g *inside) known() (list []Known) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range g.tasks {
		if t.id != "" {
			list = append(list, t.known())
		}
	}
	slices.SortFunc(list, func(a, b Known) int { return a.PID - b.PID })
	return list
}

// files serves the two questions about archives.
func files(s *stream, q *question) error {
	root, err := os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer root.Close()
	if q.Op == opRead {
		w := bufio.NewWriterSize(s, maxPayload)
		if err = archive.Send(root, q.Path, w); err == nil {
			err = w.Flush()
		}
		s.CloseWrite()
		return err
	}
	r := bufio.NewReaderSize(s, maxPayload)
	err = archive.Take(root, q.Path, q.UID, q.GID, r)
	if err == nil { // padding after the archive
		_, err = io.Copy(io.Discard, r)
	}
	s.CloseRead()
	return err
}

// dial joins a stream with a connection to a port on the sandbox's loopback.
func dial(s *stream, port int) error {
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return cell.Errorf(cell.Unavailable, "guest.Dial", "", "cannot reach port %d in the cell: %w", port, err)
	}
	join(s, c.(*net.TCPConn))
	return nil
}

// duplex is a connection with half-close.
type duplex interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
}

// join joins a stream with a connection in the sandbox until both directions have ended.
func join(s *stream, c duplex) {
	var both sync.WaitGroup
	both.Go(func() {
		if _, err := io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{s}); err != nil {
			s.CloseRead()
		}
		c.CloseWrite()
	})
	both.Go(func() {
		s.whenStopped(func() { c.CloseRead() })
		io.Copy(struct{ io.Writer }{s}, struct{ io.Reader }{c})
		s.CloseWrite()
	})
	go func() {
		both.Wait()
		c.Close()
		s.m.forget(s)
	}()
}
