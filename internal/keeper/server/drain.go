package server

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

const (
	// drainPiece is how much is read at once.
	drainPiece = 64 << 10
	// idleKept is how much is kept of what comes between two evaluations, from
	// threads and processes in the background: the next one gets it.
	idleKept = 64 << 10
)

// drain reads a stream of an interpreter, always: a program that writes is not held back
// while nothing is evaluated. A drain that waits has no buffer.
type drain struct {
	f       *os.File
	stream  int
	buffers *sync.Pool
	over    chan struct{} // closed at its end

	mu    sync.Mutex // guards what follows, and reading
	idle  []byte
	sink  func(cell.Output) error // nil: nothing listens
	room  int64                   // how much more the sink gets
	count int64                   // bytes since begin
}

// drain begins to read f, which it owns.
func (s *Server) drain(f *os.File, stream int) *drain {
	o := &drain{f: f, stream: stream, buffers: &s.buffers, over: make(chan struct{})}
	go func() {
		defer close(o.over)
		if c, err := f.SyscallConn(); err == nil {
			c.Read(func(fd uintptr) bool { return o.readAll(int(fd)) })
		}
	}()
	return o
}

// readAll reads what there is; true at the end.
func (o *drain) readAll(fd int) bool {
	buf := o.buffer()
	defer o.buffers.Put(buf)
	for {
		n, err := o.read(fd, buf[:])
		if err == unix.EAGAIN {
			return false
		}
		if n <= 0 {
			return true
		}
	}
}

func (o *drain) buffer() *[drainPiece]byte {
	if b, ok := o.buffers.Get().(*[drainPiece]byte); ok {
		return b
	}
	return new([drainPiece]byte)
}

// read reads once, and hands on.
func (o *drain) read(fd int, buf []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if n > 0 {
			o.hand(buf[:n])
		}
		return n, err
	}
}

// hand gives bytes to the sink. The caller holds o.mu: a sink that is
// slow holds the interpreter back, as a terminal would.
func (o *drain) hand(b []byte) {
	if o.sink == nil {
		o.idle = append(o.idle, b[:min(len(b), idleKept-len(o.idle))]...)
		return
	}
	o.count += int64(len(b))
	b = b[:min(int64(len(b)), o.room)]
	if o.room -= int64(len(b)); len(b) > 0 {
		if o.sink(cell.Output{Stream: o.stream, Data: b}) != nil {
			o.room = 0 // it has hung up
		}
	}
}

// begin gives everything to sink from now on, up to a limit: first what came
// before there was a sink.
func (o *drain) begin(sink func(cell.Output) error, limit int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sink, o.room, o.count = sink, limit, 0
	if sink == nil {
		o.sink = func(cell.Output) error { return nil }
	}
	if idle := o.idle; len(idle) > 0 {
		o.idle = nil
		o.hand(idle)
	}
}

// end takes the sink away when it has got all that was written before, and
// returns how much that was.
func (o *drain) end() int64 {
	if c, err := o.f.SyscallConn(); err == nil {
		c.Control(func(fd uintptr) { o.rest(int(fd)) })
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sink = nil
	return o.count
}

// rest reads what is there now, and not what is written meanwhile.
func (o *drain) rest(fd int) {
	left, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil || left == 0 {
		return
	}
	buf := o.buffer()
	defer o.buffers.Put(buf)
	for left > 0 {
		n, err := o.read(fd, buf[:min(left, drainPiece)])
		if n <= 0 || err != nil {
			return
		}
		left -= n
	}
}

// close is called when the interpreter is gone: what it wrote is read, and what
// others that have the stream write later is not.
func (o *drain) close() {
	select {
	case <-o.over:
	case <-time.After(drainGrace):
	}
	o.f.Close()
	<-o.over
}
