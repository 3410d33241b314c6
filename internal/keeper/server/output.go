package server

import (
	"crypto/sha256"
	"errors"
	"hash"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/terminal/screen"
)

// Output is one stream of a process: kept in a file up to a limit, counted
// and digested beyond it, and handed to the attached listeners as it comes. A
// listener that doesn't take it holds the process back, as a terminal would.
// On a full disk a little more is kept in memory for later listeners: it is
// likely to be what the process says about the full disk.
//
// It ends when nothing can write to it any more, or, when something that the
// process left behind still can, with what had come when the process was gone
// and a grace over. What comes later belongs to no process that is recorded:
// it is read, so that its writer goes on, and thrown away.
type Output struct {
	name string
	file *os.File // nil: what is kept is in memory
	max  int64
	hold time.Duration // how long output beyond max waits for the first listener

	first chan struct{} // closed at the first listener
	over  chan struct{} // closed at the end

	mu     sync.Mutex // guards what follows
	moved  sync.Cond  // something below has changed
	bytes  int64
	filed  int64  // what is in the file
	memory []byte // what is kept after that
	sum    hash.Hash
	screen *screen.Screen // nil: it is no terminal
	subs   map[*subscriber]bool
	rush   bool  // the process is gone: slow listeners hold nothing back
	final  int64 // where it ends; -1: not known yet
	closed bool
}

// subscriber takes pieces in order.
type subscriber struct {
	queue  []piece
	queued int  // bytes
	gone   bool // it has hung up
	view   view
	behind bool // it gets the screen next, instead of what is on the way to it
}

type piece struct {
	offset int64
	data   []byte
	screen bool // data draws the screen
}

// queueLimit is how far a listener may be behind before it holds the process
// back, in bytes.
const queueLimit = 1 << 20

// spareLimit is how much is kept in memory that the file couldn't take, in
// bytes.
const spareLimit = 64 << 10

// holdGrace is how long held output waits.
const holdGrace = 30 * time.Second

func newOutput(name string, file *os.File, start *cell.Start) *Output {
	o := &Output{name: name, file: file, max: start.LogLimit, sum: sha256.New(), subs: map[*subscriber]bool{}, first: make(chan struct{}),
		over: make(chan struct{}), final: -1}
	o.moved.L = &o.mu
	if start.Hold {
		o.hold = holdGrace
	}
	return o
}

// copyFrom reads r to its end. Most processes write little, and many nothing.
func (o *Output) copyFrom(r *os.File) {
	buf := make([]byte, 2<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			o.add(buf[:n])
		}
		if n == len(buf) && n < 64<<10 {
			buf = make([]byte, 64<<10)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) { // finish has set it
			r.SetReadDeadline(time.Time{})
			o.endAfter(waiting(r))
			continue
		}
		if err != nil {
			break // the end, or EIO: the last process of the terminal is gone
		}
	}
	o.close()
}

// waiting is how many bytes can be read from a pipe or a terminal now.
func waiting(r *os.File) (n int64) {
	c, err := r.SyscallConn()
	if err != nil {
		return 0
	}
	c.Control(func(fd uintptr) {
		if k, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil {
			n = int64(k)
		}
	})
	return n
}

// finish is called when the process is gone. What it has written comes to its
// end, at the latest after grace.
func (o *Output) finish(r *os.File, grace time.Duration) {
	if r.SetReadDeadline(time.Now().Add(grace)) != nil {
		o.close() // it was read to its end, or can't be waited for
		return
	}
	time.AfterFunc(grace, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.rush = true
		o.moved.Broadcast()
	})
}

func (o *Output) add(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.hold > 0 && len(o.subs) == 0 && o.bytes+int64(len(b)) > o.max {
		o.mu.Unlock()
		select {
		case <-o.first:
		case <-time.After(o.hold):
		}
		o.mu.Lock()
		o.hold = 0
	}
	if o.final >= 0 {
		b = b[:min(int64(len(b)), o.final-o.bytes)]
	}
	if o.closed || len(b) == 0 {
		return
	}
	p := piece{offset: o.bytes}
	o.bytes += int64(len(b))
	o.sum.Write(b)
	if o.screen != nil {
		o.screen.Write(b)
	}
	if kept := o.kept(); kept == p.offset && kept < o.max {
		o.keep(b[:min(int64(len(b)), o.max-kept)])
	}
	if len(o.subs) > 0 {
		p.data = append([]byte(nil), b...)
		o.hand(p)
	}
	if o.bytes == o.final {
		o.end()
	}
}

// kept is how much of the beginning is kept. The caller holds o.mu.
func (o *Output) kept() int64 { return o.filed + int64(len(o.memory)) }

// keep keeps what follows what is kept, or as much of it as there is room for.
// The caller holds o.mu.
func (o *Output) keep(b []byte) {
	if o.file == nil {
		o.memory = append(o.memory, b...)
		return
	}
	if len(o.memory) > 0 { // there may be room again
		b = append(o.memory, b...)
	}
	n, _ := o.file.Write(b)
	o.filed += int64(n)
	o.memory = append([]byte(nil), b[n:min(len(b), n+spareLimit)]...)
}

// hand gives a piece to all listeners. The caller holds o.mu.
func (o *Output) hand(p piece) {
	subs := make([]*subscriber, 0, len(o.subs))
	for s := range o.subs {
		subs = append(subs, s)
	}
	for _, s := range subs {
		for s.queued >= queueLimit && !s.gone && !o.rush && !o.closed {
			if o.screen != nil && s.view != noScreen && o.quicker(s) {
				s.queue, s.queued, s.behind = nil, 0, true
				break
			}
			o.moved.Wait()
		}
		if !s.gone && !s.behind {
			s.queue, s.queued = append(s.queue, p), s.queued+len(p.data)
		}
	}
	o.moved.Broadcast()
}

// quicker reports whether another listener has room: what s does not take holds it back no
// longer, and s gets the screen instead. The caller holds o.mu.
func (o *Output) quicker(s *subscriber) bool {
	for other := range o.subs {
		if other != s && !other.behind && other.queued < queueLimit {
			return true
		}
	}
	return false
}

// endAfter ends the output n bytes from here.
func (o *Output) endAfter(n int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.final = o.bytes + n; n == 0 {
		o.end()
	}
}

func (o *Output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.end()
}

// end makes what came until now all there is. The caller holds o.mu.
func (o *Output) end() {
	if o.closed {
		return
	}
	o.closed = true
	close(o.over)
	o.moved.Broadcast()
}

// release frees what is kept; no client can attach any more.
func (o *Output) release() {
	o.close()
	if o.file != nil {
		o.file.Close()
	}
}

// written is how many bytes there were up to now.
func (o *Output) written() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes
}

func (o *Output) status() cell.StreamStatus {
	o.mu.Lock()
	defer o.mu.Unlock()
	kept := o.filed
	if o.file == nil {
		kept = o.kept()
	}
	return cell.StreamStatus{Bytes: o.bytes, Kept: kept, Digest: cell.Digest(o.sum.Sum(nil))}
}

// subscribe returns a listener for everything after the returned offset, and
// how much is kept. Where v says so, for a client that has seen everything up to seen, it
// returns what draws the screen as it is at that offset.
func (o *Output) subscribe(v view, seen int64) (s *subscriber, offset, kept int64, drawn []byte) {
	s = &subscriber{view: v}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.subs[s] = true
	select {
	case <-o.first:
	default:
		close(o.first)
	}
	if kept = o.kept(); o.screen != nil && (v == screenFirst || v == redraws && max(seen, kept) < o.bytes) {
		drawn = o.screen.Draw()
	}
	return s, o.bytes, kept, drawn
}

// next returns the next piece for a listener, false after the last.
func (o *Output) next(s *subscriber) (p piece, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(s.queue) == 0 && !s.gone && !s.behind && !o.closed {
		o.moved.Wait()
	}
	if s.behind && !s.gone {
		s.behind = false
		return piece{offset: o.bytes, data: o.screen.Draw(), screen: true}, true
	}
	if len(s.queue) == 0 || s.gone {
		return p, false
	}
	p = s.queue[0]
	s.queue, s.queued = s.queue[1:], s.queued-len(p.data)
	o.moved.Broadcast()
	return p, true
}

func (o *Output) unsubscribe(s *subscriber) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.gone, s.queue = true, nil
	delete(o.subs, s)
	o.moved.Broadcast()
}

// all is what is kept in memory.
func (o *Output) all() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.memory
}

// readKept returns what is kept from offset on, at most len(buf) bytes.
func (o *Output) readKept(buf []byte, offset int64) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if offset < o.filed {
		n, _ := o.file.ReadAt(buf[:min(int64(len(buf)), o.filed-offset)], offset)
		return n
	}
	if offset >= o.kept() {
		return 0
	}
	return copy(buf, o.memory[offset-o.filed:])
}
