package repl

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

// Protocol is the protocol version of this end.
const Protocol = 1

// maxLine is the size limit of one line of a program, in bytes.
const maxLine = 12 << 20

// Lines of at least longLine bytes count towards maxLarge, which limits the memory that a
// family's unfinished lines use in its keeper.
const (
	longLine = 1 << 20
	maxLarge = 256 << 20
)

// maxText is the size limit of a program's texts about itself: versions, names, reasons.
const maxText = 4096

// ErrGone is the cause of errors after a program has closed the connection or ended.
var ErrGone = errors.New("it is gone")

// Conn is the keeper's end of one interpreter's connection. It is safe for concurrent use: one
// question is in progress at a time, others wait for the turn.
type Conn struct {
	c    *net.UnixConn
	turn chan struct{} // holds one token; its taker may use the connection and the fields below

	buf  []byte
	last int64 // id
	n    int64 // number of evaluations
	gone error // why no more questions are possible
	held int64 // bytes counted in large

	standing sync.Mutex            // held during a fork
	stand    atomic.Pointer[stand] // changed under standing; nil: the program does not stand
	sits     bool                  // guarded by standing: it cannot stand
	slow     string                // guarded by standing: why it does not stand

	large *atomic.Int64 // bytes of long lines in progress, of the whole family

	once sync.Once
}

// Pair returns the keeper's end of a new connection, and the file for the program's descriptor
// 3.
func Pair() (*Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "interpreter")
	ours := os.NewFile(uintptr(fds[0]), "interpreter")
	defer ours.Close()
	// The kernel identifies the sender of a fork's first message.
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

// Close closes the connection. Pending questions fail.
func (c *Conn) Close() {
	c.once.Do(func() { c.c.Close() })
	if st := c.stand.Load(); st != nil {
		st.c.Close()
	}
}

// answer is a message of a program, with one member set.
type answer struct {
	ID        int64      `json:"id"`
	Ready     *Ready     `json:"ready"`
	Error     string     `json:"error"`
	Evaluated *evaluated `json:"evaluated"`

	raw []byte
}

// evaluated is the answer to an evaluation. Its value is not parsed. The lists are, with a
// limit: an element of three bytes can expand to hundreds.
type evaluated struct {
	cell.Evaluated
	Display shown  `json:"display"`
	Missing unread `json:"missing_calls"` // reported by the kernel instead
}

// shown is what code displayed during an evaluation.
type shown []cell.Bundle

// maxShown limits the number of JSON values in shown, which are those of bundles; maxValues
// limits those in other answers.
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

// unread is a member that is not parsed.
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

// yield returns the turn.
func (c *Conn) yield() { c.turn <- struct{}{} }

func waited(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return cell.Errorf(cell.Timeout, "interp", "wait for the current evaluation, or interrupt it", "cannot ask the interpreter: it is busy")
	}
	return context.Cause(ctx)
}

// broken ends the connection for a violation of the protocol. The caller has the turn.
func (c *Conn) broken(format string, args ...any) error {
	if c.gone == nil {
		c.gone = cell.Errorf(cell.Unavailable, "interp", "warm the cell again", "cannot talk to the interpreter: "+format, args...)
	}
	c.buf = nil
	c.holds(0)
	c.Close()
	return c.gone
}

// send writes one request and files, which stay open.
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

// sendGrace is the time limit for a program to read a request.
const sendGrace = 30 * time.Second

// line returns the next line, valid until the next call. After os.ErrDeadlineExceeded (of
// SetReadDeadline) reading can continue; any other error is final.
func (c *Conn) line() ([]byte, error) {
	seen := 0
	for {
		if at := bytes.IndexByte(c.buf[seen:], '\n'); at >= 0 {
			at += seen
			line := c.buf[:at]
			c.holds(0)
			if rest := c.buf[at+1:]; len(rest) == 0 {
				c.buf = nil // an idle interpreter uses no memory here
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
				return nil, c.broken("the unfinished lines of its family exceed the limit")
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

// holds counts the bytes of a line, and reports whether they are within the limit.
func (c *Conn) holds(n int) bool {
	if n < longLine {
		n = 0
	}
	all := c.large.Add(int64(n) - c.held)
	c.held = int64(n)
	return n == 0 || all <= maxLarge
}

// hear reads the answer to question id. No other message is allowed.
func (c *Conn) hear(id int64) (*answer, error) {
	line, err := c.line()
	if err != nil {
		return nil, err
	}
	a := answer{raw: line}
	if err := json.Unmarshal(line, &a); err != nil {
		return nil, c.broken("its message is no answer: %.100q", line)
	}
	if a.ID != id {
		return nil, c.broken("it answered question %d when %d was asked", a.ID, id)
	}
	if len(a.Error) > maxText {
		a.Error = a.Error[:maxText] + "…"
	}
	return &a, nil
}

// ask sends a question that needs no interruption, and reads the answer into out. If ctx ends
// first, a goroutine reads the answer, and the next caller waits for that.
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
		return c.broken("its message is no answer: %.100q", a.raw)
	}
	return nil
}

// until limits reads by ctx. The returned function removes the limit.
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

// late reads the answer to an abandoned question, and returns the turn.
func (c *Conn) late(id int64) {
	c.hear(id)
	c.yield()
}
