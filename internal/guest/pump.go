package guest

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// keptLimit is how much is kept of a stream that nobody takes.
const keptLimit = 64 << 10

// longAgo is a deadline that ends a wait at once.
var longAgo = time.Unix(1, 0)

// outlet hands on what a command writes, to the stream that it is attached to at
// the time. Without one it keeps a little and drops the rest: a program never
// waits for a keeper that is not there.
type outlet struct {
	f    *os.File
	done func() // nothing more is read from f
	// behind are those whose output is sent first, as far as it was written before:
	// an answer of an interpreter says that the output is complete.
	behind []*outlet

	mu   sync.Mutex // guards what follows
	s    *stream
	kept []byte
	busy bool // something was read and not handed on
	over bool // nothing more is read
}

// attach makes s, or nothing, what takes the output from now on, first of all
// what was kept.
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
		go o.settle(s)
		return
	}
	o.f.SetReadDeadline(longAgo) // so that it looks at what was kept
}

// run hands on until the command's end of f is closed, or nobody wants more.
func (o *outlet) run() {
	buf := make([]byte, maxPayload)
	c, err := o.f.SyscallConn()
	for err == nil {
		var n int
		var rerr error
		err = c.Read(func(fd uintptr) bool {
			// What has left the pipe is known to be in hand: see drain.
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
		o.settle(s)
	}
}

func (o *outlet) fallBehind() {
	for _, first := range o.behind {
		first.drain(true)
	}
}

// hand gives what was kept, and b, to the stream, or keeps it. It fails when
// nobody wants more.
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

// settle gives a stream the rest, and says that it was the rest.
func (o *outlet) settle(s *stream) {
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

// drain returns when everything that was written until now has been sent; without
// patience also when nobody takes it.
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

// inlet hands a command what comes on the stream that it is attached to.
type inlet struct {
	f    *os.File
	done func() // nothing more is written to f

	mu    sync.Mutex // guards what follows
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

// run hands on until the stream says that there is no more, or the command reads
// no more. Another stream may follow one whose connection is lost.
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
