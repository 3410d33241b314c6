package guest

import (
	"encoding/binary"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// window is the receive window of a stream, in bytes: more than a pipe.
const window = 256 << 10

// stream is one bidirectional stream of a connection.
type stream struct {
	m  *mux
	id uint32

	mu      sync.Mutex // guards the fields below
	moved   sync.Cond
	err     error
	room    int    // send window in bytes
	stopped bool   // the other end reads no more
	closed  bool   // this end sends no more
	onStop  func() // called once when stopped becomes true
	users   int    // see use

	queue []byte // received and not read
	taken int    // read and not yet granted as window, in bytes
	ended bool   // the other end sends no more
	deaf  bool   // this end reads no more
}

// Write sends b as the window allows. It fails with EPIPE when the other end reads no more. n
// is the number of bytes sent for certain.
func (s *stream) Write(b []byte) (n int, err error) {
	for n < len(b) {
		s.mu.Lock()
		for s.room == 0 && s.err == nil && !s.stopped {
			s.moved.Wait()
		}
		if s.err != nil || s.stopped {
			err = s.err
			if err == nil {
				err = unix.EPIPE
			}
			s.mu.Unlock()
			return n, err
		}
		k := min(len(b)-n, s.room, maxPayload)
		s.room -= k
		s.mu.Unlock()
		if err := s.m.write(frameData, s.id, b[n:n+k]); err != nil {
			return n, err
		}
		n += k
	}
	return n, nil
}

// full reports whether a Write would block.
func (s *stream) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.room == 0
}

// CloseWrite ends the data of this end.
func (s *stream) CloseWrite() error {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	s.mu.Unlock()
	if again {
		return nil
	}
	return s.m.write(frameEnd, s.id, nil)
}

// Read returns received data, and io.EOF after the end.
func (s *stream) Read(b []byte) (int, error) {
	s.mu.Lock()
	for len(s.queue) == 0 && !s.ended && s.err == nil {
		s.moved.Wait()
	}
	n := copy(b, s.queue)
	if n == 0 {
		defer s.mu.Unlock()
		if s.ended {
			return 0, io.EOF
		}
		return 0, s.err
	}
	if s.queue = s.queue[n:]; len(s.queue) == 0 {
		s.queue = nil
	}
	s.taken += n
	room := 0
	if s.taken >= window/4 && !s.ended {
		room, s.taken = s.taken, 0
	}
	s.moved.Broadcast()
	s.mu.Unlock()
	if room > 0 {
		s.m.write(frameRoom, s.id, binary.BigEndian.AppendUint32(nil, uint32(room)))
	}
	return n, nil
}

// CloseRead tells the other end that no more is read.
func (s *stream) CloseRead() {
	s.mu.Lock()
	again := s.deaf || s.ended
	s.deaf, s.queue = true, nil
	s.moved.Broadcast()
	s.mu.Unlock()
	if !again {
		s.m.write(frameStop, s.id, nil)
	}
}

// left returns the number of bytes received and not read.
func (s *stream) left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

func (s *stream) push(b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deaf || s.err != nil {
		return nil
	}
	if s.ended {
		return errProtocol("bytes after the end of stream %d", s.id)
	}
	if len(s.queue)+s.taken+len(b) > window {
		return errProtocol("more in stream %d than there is room for", s.id)
	}
	s.queue = append(s.queue, b...)
	s.moved.Broadcast()
	return nil
}

func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.moved.Broadcast()
}

func (s *stream) more(n uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int64(s.room)+int64(n) > window {
		return errProtocol("too much room in stream %d", s.id)
	}
	s.room += int(n)
	s.moved.Broadcast()
	return nil
}

func (s *stream) stop() {
	s.mu.Lock()
	f := s.onStop
	s.stopped, s.onStop = true, nil
	s.moved.Broadcast()
	s.mu.Unlock()
	if f != nil {
		f()
	}
}

// whenStopped calls f when the other end reads no more, or the connection is lost.
func (s *stream) whenStopped(f func()) {
	s.mu.Lock()
	if !s.stopped && s.err == nil {
		s.onStop = f
		f = nil
	}
	s.mu.Unlock()
	if f != nil {
		f()
	}
}

func (s *stream) fail(err error) {
	s.mu.Lock()
	f := s.onStop
	s.err, s.onStop = err, nil
	s.moved.Broadcast()
	s.mu.Unlock()
	if f != nil {
		f()
	}
}

// wait returns when Read would not block.
func (s *stream) wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) == 0 && !s.ended && s.err == nil {
		s.moved.Wait()
	}
}

// use counts the users of the stream. The last drop removes the stream.
func (s *stream) use() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users++
}

func (s *stream) drop() {
	s.mu.Lock()
	s.users--
	last := s.users == 0
	s.mu.Unlock()
	if last {
		s.m.forget(s)
	}
}

// stoppedBy reports whether the other end reads no more.
func (s *stream) stoppedBy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped
}
