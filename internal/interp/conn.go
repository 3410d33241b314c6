package interp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
)

// Protocol is the version that this end speaks.
const Protocol = 1

// maxLine bounds one line of a program, in bytes.
const maxLine = 12 << 20

// Lines from longLine on count for maxLarge, which bounds what a family can make
// its keeper hold by saying much and not coming to an end.
const (
	longLine = 1 << 20
	maxLarge = 256 << 20
)

// maxText bounds what a program says of itself: versions, names, reasons.
const maxText = 4096

// ErrGone is the cause of errors when a program has hung up, or ended.
var ErrGone = errors.New("it is gone")

// Conn is the keeper's end of one interpreter. It is safe for concurrent use:
// one question is under way at a time, others wait for their turn.
type Conn struct {
	c    *net.UnixConn
	turn chan struct{} // holds one token; who has it talks, and owns what follows

	buf  []byte
	last int64 // id
	n    int64 // evaluations
	gone error // why nothing can be asked any more
	held int64 // of large

	standing sync.Mutex            // held by who forks
	stand    atomic.Pointer[stand] // changed under standing; nil: it does not stand
	sits     bool                  // guarded by standing: it can't
	slow     string                // guarded by standing: why it does not stand

	large *atomic.Int64 // bytes of long lines that are being read, of the whole family

	once sync.Once
}

// Pair makes a connection: the keeper's end, and the file that is to be the
// program's descriptor 3.
func Pair() (*Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "interpreter")
	ours := os.NewFile(uintptr(fds[0]), "interpreter")
	defer ours.Close()
	// Who says that it is a fork is known by what the kernel says of it.
	if err := unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		theirs.Close()
		return nil, nil, os.NewSyscallError("setsockopt", err)
	}
	c, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	k := &Conn{c: c.(*net.UnixConn), turn: make(chan struct{}, 1), large: new(atomic.Int64)}
	k.turn <- struct{}{}
	return k, theirs, nil
}

// Close hangs up. What waits for an answer fails.
func (c *Conn) Close() {
	c.once.Do(func() { c.c.Close() })
	if st := c.stand.Load(); st != nil {
		st.c.Close()
	}
}

// answer is whatever a program says, one member of it at a time.
type answer struct {
	ID        int64      `json:"id"`
	Ready     *Ready     `json:"ready"`
	Error     string     `json:"error"`
	Evaluated *evaluated `json:"evaluated"`

	raw []byte
}

// evaluated is what a program says of an evaluation. Its value is not looked into;
// the lists are, for an element of three bytes can be one of hundreds.
type evaluated struct {
	cell.Evaluated
	Display shown  `json:"display"`
	Missing unread `json:"missing_calls"` // the kernel says that
}

// shown is what code showed on the way.
type shown []cell.Bundle

// maxShown bounds how many values there are in what code shows, which are those of
// bundles, and maxValues those in other answers.
const (
	maxShown  = 1 << 16
	maxValues = 1 << 16
)

func (s *shown) UnmarshalJSON(b []byte) error {
	if err := bound.Values(b, "what the code shows", maxShown); err != nil {
		return err
	}
	return json.Unmarshal(b, (*[]cell.Bundle)(s))
}

// unread is a member that is left alone.
type unread struct{}

func (unread) UnmarshalJSON([]byte) error { return nil }

// take waits for the turn.
func (c *Conn) take(ctx context.Context) error {
	select {
	case <-c.turn:
	default:
		select {
		case <-c.turn:
		case <-ctx.Done():
			return waited(ctx)
		}
	}
	if c.gone != nil {
		defer c.yield()
		return c.gone
	}
	return nil
}

// yield gives the turn back.
func (c *Conn) yield() { c.turn <- struct{}{} }

func waited(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return cell.Errorf(cell.Timeout, "interp", "wait for the evaluation that is under way, or interrupt it", "cannot ask the interpreter: it is busy")
	}
	return context.Cause(ctx)
}

// broken is the end of the conversation. The caller has the turn.
func (c *Conn) broken(format string, args ...any) error {
	if c.gone == nil {
		c.gone = cell.Errorf(cell.Unavailable, "interp", "warm the cell again", "cannot talk to the interpreter: "+format, args...)
	}
	c.buf = nil
	c.holds(0)
	c.Close()
	return c.gone
}

// send writes one request, with files beside it, which stay open.
func (c *Conn) send(req any, files ...*os.File) error {
	line, err := json.Marshal(req)
	if err != nil {
		return err
	}
	return c.write(append(line, '\n'), files...)
}

func (c *Conn) write(b []byte, files ...*os.File) error {
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	c.c.SetWriteDeadline(time.Now().Add(sendGrace))
	n, _, err := c.c.WriteMsgUnix(b, rights, nil)
	if err == nil && n < len(b) {
		_, err = c.c.Write(b[n:])
	}
	if err != nil {
		return c.broken("%w", err)
	}
	return nil
}

// sendGrace is how long a program may take to read what it is sent.
const sendGrace = 30 * time.Second

// line returns the next line, which the next call overwrites. os.ErrDeadlineExceeded
// (of SetReadDeadline) leaves everything as it was; any other error is the end.
func (c *Conn) line() ([]byte, error) {
	seen := 0
	for {
		if at := bytes.IndexByte(c.buf[seen:], '\n'); at >= 0 {
			at += seen
			line := c.buf[:at]
			c.holds(0)
			if rest := c.buf[at+1:]; len(rest) == 0 {
				c.buf = nil // an idle interpreter holds no memory here
			} else {
				c.buf = rest
			}
			return line, nil
		}
		if seen = len(c.buf); seen > maxLine {
			return nil, c.broken("it said more than %d bytes in one line", maxLine)
		}
		if cap(c.buf)-seen < 512 {
			grown := make([]byte, seen, max(1024, 2*cap(c.buf)))
			if !c.holds(cap(grown)) {
				return nil, c.broken("it and those that were forked with it say too much at once")
			}
			copy(grown, c.buf)
			c.buf = grown
		}
		n, err := c.c.Read(c.buf[seen:cap(c.buf)])
		c.buf = c.buf[:seen+n]
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && n == 0:
			return nil, os.ErrDeadlineExceeded
		case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.Is(err, unix.ECONNRESET):
			return nil, c.broken("%w", ErrGone)
		case err != nil:
			return nil, c.broken("%w", err)
		}
	}
}

// holds counts what is held of a line, and says whether that is little enough.
func (c *Conn) holds(n int) bool {
	if n < longLine {
		n = 0
	}
	all := c.large.Add(int64(n) - c.held)
	c.held = int64(n)
	return n == 0 || all <= maxLarge
}

// hear reads the answer to question id. Nothing else may come.
func (c *Conn) hear(id int64) (*answer, error) {
	line, err := c.line()
	if err != nil {
		return nil, err
	}
	a := answer{raw: line}
	if err := json.Unmarshal(line, &a); err != nil {
		return nil, c.broken("it said what is no answer: %.100q", line)
	}
	if a.ID != id {
		return nil, c.broken("it answered question %d when %d was asked", a.ID, id)
	}
	if len(a.Error) > maxText {
		a.Error = a.Error[:maxText] + "…"
	}
	return &a, nil
}

// ask sends a question that ends by itself, and reads the answer into out. When
// ctx ends before, the answer is waited for in the background, and whoever is
// next waits for that.
func (c *Conn) ask(ctx context.Context, req map[string]any, out any, files ...*os.File) error {
	if req["op"] != "stand" {
		c.sit()
	}
	if err := c.take(ctx); err != nil {
		return err
	}
	c.last++
	id := c.last
	req["id"] = id
	if err := c.send(req, files...); err != nil {
		c.yield()
		return err
	}
	back := c.until(ctx)
	a, err := c.hear(id)
	back()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		go c.late(id)
		return cell.Errorf(cell.Timeout, "interp", "stop the cell if this goes on", "cannot %v the interpreter: it does not answer", req["op"])
	}
	defer c.yield()
	if err != nil {
		return err
	}
	if a.Error != "" {
		return cell.Errorf(cell.Unsupported, "interp", "", "cannot %v the interpreter: %s", req["op"], a.Error)
	}
	if out == nil {
		return nil
	}
	if err := bound.Values(a.raw, "the interpreter's answer", maxValues); err != nil {
		return c.broken("%w", err)
	}
	if err := json.Unmarshal(a.raw, out); err != nil {
		return c.broken("it said what is no answer: %.100q", a.raw)
	}
	return nil
}

// until bounds what is read from now on by ctx. The function that it returns
// takes the bound away.
func (c *Conn) until(ctx context.Context) (back func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		c.c.SetReadDeadline(time.Unix(1, 0))
		close(done)
	})
	return func() {
		if !stop() {
			<-done
			c.c.SetReadDeadline(time.Time{})
		}
	}
}

// late waits for an answer that nobody wants any more, and gives the turn back.
func (c *Conn) late(id int64) {
	c.hear(id)
	c.yield()
}
