package guest

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// keptLimit is the size of the buffer for a detached stream, in bytes.
const keptLimit = 64 << 10

// longAgo is a deadline that ends a wait at once.
var longAgo = time.Unix(1, 0)

// outlet forwards a command's output to the stream that is attached at the time. Without a
// stream it buffers a little and drops the rest, so that a program never blocks on an absent
// keeper.
type outlet struct {
	f    *os.File
	done func() // nothing more is read from f
	// behind are the outlets with output that is sent first: an interpreter's answer implies
	// that its output is complete.
	behind []*outlet

	mu   sync.Mutex // guards the fields below
	s    *stream
	kept []byte
	busy bool // data was read but not forwarded
	over bool // nothing more is read
}

// attach sets the stream of the outlet, or nil. The stream gets the buffered data first.
func (o *outlet) attach(s *stream) {
	o.mu.Lock()
	o.s = s
	over := o.over
	o.mu.Unlock()
	if s == nil {
		return
	}
	s.use()
	if over {
		go o.finish(s)
		return
	}
	o.f.SetReadDeadline(longAgo) // wakes the reader, which sends the buffer
}

// run forwards until the command's end of f is closed, or the stream has no reader.
func (o *outlet) run() {
	buf := make([]byte, maxPayload)
	c, err := o.f.SyscallConn()
	for err == nil {
		var n int
		var rerr error
		err = c.Read(func(fd uintptr) bool {
			// Data that left the pipe must be marked as in progress: see drain.
			o.mu.Lock()
			defer o.mu.Unlock()
			for {
				if n, rerr = unix.Read(int(fd), buf); rerr != unix.EINTR {
					break
				}
			}
			o.busy = rerr == nil && n > 0
			return rerr != unix.EAGAIN
		})
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			o.f.SetReadDeadline(time.Time{})
			err = o.hand(nil)
		case err == nil && (rerr != nil || n <= 0):
			o.fallBehind()
			err = io.EOF
		case err == nil:
			o.fallBehind()
			err = o.hand(buf[:n])
		}
	}
	o.done()
	o.mu.Lock()
	o.busy, o.over = false, true
	s := o.s
	o.mu.Unlock()
	if s != nil {
		o.finish(s)
	}
}

func (o *outlet) fallBehind() {
	for _, first := range o.behind {
		first.drain(true)
	}
}

// hand gives the buffer and b to the stream, or buffers b. It fails when the stream has no
// reader.
func (o *outlet) hand(b []byte) error {
	for {
		o.mu.Lock()
		s := o.s
		if s == nil {
			o.kept = append(o.kept, b[:min(len(b), keptLimit-len(o.kept))]...)
			o.busy = false
			o.mu.Unlock()
			return nil
		}
		kept := o.kept
		o.kept = nil
		o.mu.Unlock()
		n, err := s.Write(kept)
		kept = kept[n:]
		if err == nil {
			n, err = s.Write(b)
			b = b[n:]
		}
		o.mu.Lock()
		if err == nil {
			o.busy = false
			o.mu.Unlock()
			return nil
		}
		o.kept = kept
		if o.s == s && !s.stoppedBy() {
			o.s = nil
		}
		o.mu.Unlock()
		if s.stoppedBy() {
			return err
		}
	}
}

// finish sends the buffer and the end of the stream.
func (o *outlet) finish(s *stream) {
	o.mu.Lock()
	kept := o.kept
	o.kept = nil
	o.mu.Unlock()
	if n, err := s.Write(kept); err != nil && !s.stoppedBy() {
		o.mu.Lock()
		o.kept = kept[n:]
		o.mu.Unlock()
	}
	s.CloseWrite()
	s.drop()
}

// drain returns when all output written so far was sent; if not patient, also when the reader
// is stuck.
func (o *outlet) drain(patient bool) {
	c, err := o.f.SyscallConn()
	if err != nil {
		return
	}
	for wait := 20 * time.Microsecond; ; wait = min(2*wait, 2*time.Millisecond) {
		o.mu.Lock()
		rest := 0
		if !o.over && !o.busy {
			c.Control(func(fd uintptr) { rest, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
		}
		idle := o.over || !o.busy && rest == 0 || !patient && o.s != nil && o.s.full()
		o.mu.Unlock()
		if idle {
			return
		}
		time.Sleep(wait)
	}
}

// inlet forwards a stream to a command's input.
type inlet struct {
	f    *os.File
	done func() // nothing more is written to f

	mu    sync.Mutex // guards the fields below
	moved sync.Cond
	s     *stream
	over  bool // the command reads no more
}

func newInlet(f *os.File, done func()) *inlet {
	i := &inlet{f: f, done: done}
	i.moved.L = &i.mu
	return i
}

func (i *inlet) attach(s *stream) {
	i.mu.Lock()
	i.s = s
	over := i.over
	i.moved.Broadcast()
	i.mu.Unlock()
	if s == nil {
		return
	}
	s.use()
	if over {
		go func() { s.CloseRead(); s.drop() }()
	}
}

// run forwards until the end of the stream, or until the command reads no more. Another stream
// may follow after a lost connection.
func (i *inlet) run() {
	defer func() {
		i.mu.Lock()
		i.over = true
		i.mu.Unlock()
		i.done()
	}()
	buf := make([]byte, maxPayload)
	for {
		i.mu.Lock()
		for i.s == nil {
			i.moved.Wait()
		}
		s := i.s
		i.mu.Unlock()
		n, err := s.Read(buf)
		if n > 0 {
			if _, werr := i.f.Write(buf[:n]); werr != nil {
				s.CloseRead()
				s.drop()
				return
			}
		}
		if err == io.EOF {
			s.drop()
			return
		}
		if err != nil {
			i.mu.Lock()
			if i.s == s {
				i.s = nil
			}
			i.mu.Unlock()
		}
	}
}
