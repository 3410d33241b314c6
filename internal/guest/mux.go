package guest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
)

// errGone is the error of calls that wait on a lost connection.
var errGone = cell.Errorf(cell.Unavailable, "guest", "", "cannot reach the cell: the connection to its guest is lost")

// errDetached ends the streams of a connection that a restored copy no longer has.
var errDetached = cell.Errorf(cell.Unavailable, "guest", "", "cannot continue: the connection was replaced")

// mux is one connection after its greeting, at either end.
type mux struct {
	in   io.Reader
	out  io.Writer
	turn chan struct{} // holds one token; its taker may write
	gone chan struct{} // closed when the connection is lost

	mu      sync.Mutex // guards the fields below
	cause   error      // why the connection was lost
	streams map[uint32]*stream

	frame []byte // the frame being written; guarded by turn
	part  []byte // JSON being read; used by the reader only
	partT frameType
	partN uint32
}

func newMux(in io.Reader, out io.Writer) *mux {
	m := &mux{in: in, out: out, turn: make(chan struct{}, 1), gone: make(chan struct{}), streams: map[uint32]*stream{}}
	m.turn <- struct{}{}
	return m
}

// take waits for the write turn.
func (m *mux) take(ctx context.Context) error {
	select {
	case <-m.turn:
		return nil
	default:
	}
	select {
	case <-m.turn:
		return nil
	case <-m.gone:
		return m.err()
	case <-ctx.Done(): // while the other end is held nothing is sent
		return context.Cause(ctx)
	}
}

func (m *mux) give() { m.turn <- struct{}{} }

// write sends a frame, or long JSON as several frames.
func (m *mux) write(t frameType, id uint32, payload []byte) error {
	return m.writeWithin(context.Background(), t, id, payload)
}

// writeWithin is write for as long as ctx lasts.
func (m *mux) writeWithin(ctx context.Context, t frameType, id uint32, payload []byte) error {
	if err := m.take(ctx); err != nil {
		return err
	}
	defer m.give()
	return m.writeNow(t, id, payload)
}

// writeNow is write for a caller with the write turn.
func (m *mux) writeNow(t frameType, id uint32, payload []byte) error {
	for {
		n := min(len(payload), maxPayload)
		part := t
		if n < len(payload) {
			part |= frameMore
		}
		m.frame = appendFrame(m.frame[:0], part, id, payload[:n])
		if _, err := m.out.Write(m.frame); err != nil {
			m.fail(errGone)
			return m.err()
		}
		if payload = payload[n:]; len(payload) == 0 {
			return nil
		}
	}
}

func (m *mux) writeJSON(t frameType, id uint32, v any) error {
	return m.ask(context.Background(), t, id, v)
}

// ask is writeJSON for as long as ctx lasts.
func (m *mux) ask(ctx context.Context, t frameType, id uint32, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > maxJSON {
		return cell.Errorf(cell.Invalid, "guest", "", "cannot send %d bytes in one message: %d are the most", len(b), maxJSON)
	}
	return m.writeWithin(ctx, t, id, b)
}

// fail ends the connection for all its users.
func (m *mux) fail(cause error) {
	m.mu.Lock()
	if m.cause != nil {
		m.mu.Unlock()
		return
	}
	m.cause = cause
	all := m.streams
	m.streams = map[uint32]*stream{}
	close(m.gone)
	m.mu.Unlock()
	for _, s := range all {
		s.fail(cause)
	}
}

func (m *mux) err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cause
}

// open creates the stream with a number that both ends know.
func (m *mux) open(id uint32) *stream {
	s := &stream{m: m, id: id, room: window}
	s.moved.L = &s.mu
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cause != nil {
		s.err = m.cause
		return s
	}
	m.streams[id] = s
	return s
}

// forget removes a stream. Later frames for it are dropped.
func (m *mux) forget(s *stream) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.streams, s.id)
}

func (m *mux) stream(id uint32) *stream {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.streams[id]
}

// next reads frames up to the first one that belongs to no stream, and returns it reassembled.
func (m *mux) next(buf []byte) (frameType, uint32, []byte, error) {
	for {
		t, id, b, err := readFrame(m.in, buf)
		if err != nil {
			return 0, 0, nil, err
		}
		if m.part != nil && (t&^frameMore != m.partT || id != m.partN) {
			return 0, 0, nil, errProtocol("a message is incomplete")
		}
		switch t &^ frameMore {
		case frameAsk, frameAnswer, frameNote:
			if t&frameMore == 0 && m.part == nil {
				return t, id, b, nil
			}
			if len(m.part)+len(b) > maxJSON {
				return 0, 0, nil, errProtocol("a message of more than %d bytes", maxJSON)
			}
			m.part, m.partT, m.partN = append(m.part, b...), t&^frameMore, id
			if m.part == nil {
				m.part = []byte{}
			}
			if t&frameMore == 0 {
				whole := m.part
				m.part = nil
				return t, id, whole, nil
			}
			continue
		}
		if err := m.streamed(t, id, b); err != nil {
			return 0, 0, nil, err
		}
	}
}

// streamed dispatches a frame of a stream. It drops frames of removed streams.
func (m *mux) streamed(t frameType, id uint32, b []byte) error {
	s := m.stream(id)
	switch t {
	case frameData:
		if s != nil {
			return s.push(b)
		}
	case frameEnd:
		if s != nil {
			s.end()
		}
	case frameRoom:
		if len(b) != 4 {
			return errProtocol("room of %d bytes", len(b))
		}
		if s != nil {
			return s.more(binary.BigEndian.Uint32(b))
		}
	case frameStop:
		if s != nil {
			s.stop()
		}
	default:
		return errProtocol("a frame of type %d", t)
	}
	return nil
}
