package keeper

import (
	"crypto/sha256"
	"hash"
	"io"
	"os"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// Output is one stream of a process: kept in a file up to a limit, counted
// and digested beyond it, and handed to whoever is attached as it comes. A
// listener that doesn't take it holds the process back, as a terminal would.
type Output struct {
	name string
	file *os.File // nil: what is kept is in memory
	max  int64
	hold time.Duration // how long output beyond max waits for the first listener

	first chan struct{} // closed when somebody has listened

	mu     sync.Mutex // guards what follows
	bytes  int64
	kept   int64
	memory []byte
	sum    hash.Hash
	subs   map[*subscriber]bool
	closed bool
}

// subscriber takes pieces in order. gone is closed when it hangs up.
type subscriber struct {
	pieces chan piece
	gone   chan struct{}
}

type piece struct {
	offset int64
	data   []byte
}

func newOutput(name string, file *os.File, start *cell.Start) *Output {
	o := &Output{name: name, file: file, max: start.LogLimit, sum: sha256.New(), subs: map[*subscriber]bool{}, first: make(chan struct{})}
	if start.Hold {
		o.hold = holdGrace
	}
	return o
}

// holdGrace is how long held output waits.
const holdGrace = 30 * time.Second

// copyFrom reads r to its end.
func (o *Output) copyFrom(r io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			o.add(buf[:n])
		}
		if err != nil {
			break // the end, or EIO: a terminal whose last process is gone
		}
	}
	o.close()
}

func (o *Output) add(b []byte) {
	o.mu.Lock()
	if o.hold > 0 && len(o.subs) == 0 && o.bytes+int64(len(b)) > o.max {
		o.mu.Unlock()
		select {
		case <-o.first:
		case <-time.After(o.hold):
		}
		o.mu.Lock()
		o.hold = 0
	}
	off := o.bytes
	o.bytes += int64(len(b))
	o.sum.Write(b)
	if o.kept == off && o.kept < o.max {
		keep := b[:min(int64(len(b)), o.max-o.kept)]
		n := len(keep)
		if o.file != nil {
			n, _ = o.file.Write(keep) // a full disk: the rest is counted as not kept
		} else {
			o.memory = append(o.memory, keep...)
		}
		o.kept += int64(n)
	}
	subs := make([]*subscriber, 0, len(o.subs))
	for s := range o.subs {
		subs = append(subs, s)
	}
	o.mu.Unlock()
	if len(subs) == 0 {
		return
	}
	p := piece{off, append([]byte(nil), b...)}
	for _, s := range subs {
		select {
		case s.pieces <- p:
		case <-s.gone:
		}
	}
}

func (o *Output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	o.closed = true
	for s := range o.subs {
		close(s.pieces)
	}
	o.subs = nil
}

// release lets go of what is kept; nobody can attach any more.
func (o *Output) release() {
	o.close()
	if o.file != nil {
		o.file.Close()
	}
}

// complete reports whether nothing more can come.
func (o *Output) complete() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.closed
}

func (o *Output) status() cell.StreamStatus {
	o.mu.Lock()
	defer o.mu.Unlock()
	return cell.StreamStatus{Bytes: o.bytes, Kept: o.kept, Digest: cell.Digest(o.sum.Sum(nil))}
}

// subscribe returns a listener for everything after the returned offset, and
// how much is kept in the file. The listener's channel is closed at the end.
func (o *Output) subscribe() (s *subscriber, offset, kept int64) {
	s = &subscriber{pieces: make(chan piece, 16), gone: make(chan struct{})}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		close(s.pieces)
	} else {
		o.subs[s] = true
	}
	select {
	case <-o.first:
	default:
		close(o.first)
	}
	return s, o.bytes, o.kept
}

func (o *Output) unsubscribe(s *subscriber) {
	close(s.gone)
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.subs, s)
}

// readKept returns what is kept from offset on, at most len(buf) bytes.
func (o *Output) readKept(buf []byte, offset int64) int {
	if o.file != nil {
		n, _ := o.file.ReadAt(buf, offset)
		return n
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if offset >= int64(len(o.memory)) {
		return 0
	}
	return copy(buf, o.memory[offset:])
}
