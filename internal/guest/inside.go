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

// dialLimit bounds how long a connection inside the sandbox may take.
const dialLimit = 10 * time.Second

// inside is the guest.
type inside struct {
	door  *door
	place *place
	files Files // nil: nobody carries them
	token []byte
	scan  hazard.Scanner

	mu     sync.Mutex // guards what follows
	m      *mux       // the connection there is
	tasks  map[string]*task
	still  bool     // the cell stands still, and waits to be adopted
	parted bool     // the freezer holds each command by itself, see admit
	ended  []string // connections of the source's that this copy had, and no longer has

	listening sync.Mutex           // guards what follows
	sockets   map[string]*listener // by path
}

// Serve is all that the program inside a sandbox does: it talks to the keeper at
// the other end of the socket fd until that is gone. It must be the first process
// of its pid namespace, and root.
func Serve(fd int) error { return serve(fd, false, nil) }

// Files is who carries the cell's files to the machine's kernel.
type Files interface {
	// Hold lets nothing more through, and returns when nothing is under way.
	Hold(ctx context.Context) error
	// GoOn ends Hold.
	GoOn()
}

// ServeMachine is Serve in a virtual machine of the cell's own, whose kernel is
// Linux and has nobody else: what a cell must not have of its /proc is covered. fd may
// be a port of virtio-serial, at whose other end somebody is. Nothing of the files is under
// way while the guest stands still.
func ServeMachine(fd int, files Files) error { return serve(fd, true, files) }

// Refuse tells a keeper that greets why there will be no guest.
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
			if err == io.EOF || errors.Is(err, unix.ECONNRESET) { // the keeper wants nothing more
				err = nil
			}
			return err
		}
		// A restored copy: what was sent for the old connection is for nobody.
		m.fail(errDetached)
	}
}

// talk serves a connection until it is lost, which is an error, or another.
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
		if q.Op == opRelease { // in its turn: what is asked next may use the name again
			g.release(q.ID)
			continue
		}
		var s *stream
		switch q.Op {
		case opRead, opWrite, opDial, opAccept: // what comes on it follows at once
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
		default: // it was said already
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
		list, err := linux.Listening("/proc/1/net") // of the cell's first process: /proc shows its namespace, in which the guest is nobody
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
		err = cell.Errorf(cell.Unsupported, "guest", "use the pando-guest of this pando", "cannot %s: this guest has never heard of it", q.Op)
	}
	return a, err
}

// others leaves out the first process, which is the guest's.
func others() ([]cell.ProcessInfo, error) {
	list, err := linux.Processes("/proc")
	return slices.DeleteFunc(list, func(p cell.ProcessInfo) bool { return p.PID == 1 }), err
}

// draws says what generators of random numbers the cell's processes have. Threads and
// processes that end meanwhile are left out.
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

// dial joins a stream with a connection to a port of the sandbox's loopback.
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

// duplex is a connection whose directions end one by one.
type duplex interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
}

// join joins a stream with a connection of the sandbox's, until both directions have
// ended.
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
