package gateway

import (
	"encoding/binary"
	"errors"
	"io"
)

// frames removes values from the messages of a server on a WebSocket (RFC 6455). It parses the
// frames, to find a value that is spread over the frames of one message, and never delays the
// end of a message.
type frames struct {
	from io.Reader
	hide []hidden
	err  error

	// queue has the bytes that were read and not returned yet: headers and payloads in order.
	// loose lists its parts that are payload of the unfinished message, and may be searched
	// again with more of it.
	queue []byte
	given int    // of the queue
	loose []span // in the queue
	limit int    // part of the queue that can be returned

	head  []byte // the received part of a frame's header
	left  uint64 // missing payload of the current frame
	fin   bool   // the last data frame ended its message, or there was none yet
	ctl   bool   // the current frame is a control frame
	ctlAt int    // where its payload begins in the queue
}

// span is a part of a queue.
type span struct{ from, to int }

func newFrames(from io.Reader, hide []hidden) *frames {
	return &frames{from: from, hide: hide, fin: true}
}

var (
	errExtended = errors.New("a WebSocket frame uses an extension that was not agreed on")
	errMasked   = errors.New("a WebSocket frame of a server is masked")
	errFrame    = errors.New("a WebSocket frame is malformed")
)

func (f *frames) Read(p []byte) (int, error) {
	for f.given >= f.limit {
		if f.err != nil {
			if f.limit = len(f.queue); f.given < f.limit && f.err == io.EOF {
				break // the rest is no value
			}
			return 0, f.err
		}
		f.compact()
		buf := make([]byte, max(4096, min(len(p), pieceSize)))
		n, err := f.from.Read(buf)
		f.err = err
		if bad := f.take(buf[:n]); bad != nil {
			f.err = bad
		}
	}
	n := copy(p, f.queue[f.given:f.limit])
	f.given += n
	return n, nil
}

// compact drops the returned bytes, except the last payload in which a value may begin.
func (f *frames) compact() {
	from := f.given
	if len(f.loose) > 0 {
		from = min(from, f.loose[0].from)
	}
	f.queue = append(f.queue[:0], f.queue[from:]...)
	f.given -= from
	f.limit -= from
	f.ctlAt -= from
	for i := range f.loose {
		f.loose[i].from -= from
		f.loose[i].to -= from
	}
}

// take appends bytes to the queue.
func (f *frames) take(b []byte) error {
	for len(b) > 0 {
		if f.left > 0 {
			n := int(min(f.left, uint64(len(b))))
			f.payload(b[:n])
			b, f.left = b[n:], f.left-uint64(n)
			if f.left == 0 {
				f.end()
			}
			continue
		}
		f.head = append(f.head, b[0])
		b = b[1:]
		if !f.whole() {
			continue
		}
		if err := f.begin(); err != nil {
			return err
		}
	}
	f.look()
	if f.ctl && f.left > 0 {
		f.limit = max(f.given, min(f.limit, f.ctlAt))
	}
	return nil
}

// whole reports whether the header of a frame is complete.
func (f *frames) whole() bool {
	if len(f.head) < 2 {
		return false
	}
	switch f.head[1] & 0x7f {
	case 126:
		return len(f.head) >= 4
	case 127:
		return len(f.head) >= 10
	}
	return true
}

// begin begins a frame.
func (f *frames) begin() error {
	h := f.head
	f.head = nil
	op := h[0] & 0x0f
	switch {
	case h[0]&0x70 != 0:
		return errExtended
	case h[1]&0x80 != 0:
		return errMasked
	}
	f.ctl = op >= 8
	f.left = uint64(h[1] & 0x7f)
	switch f.left {
	case 126:
		f.left = uint64(binary.BigEndian.Uint16(h[2:]))
	case 127:
		f.left = binary.BigEndian.Uint64(h[2:])
	}
	if f.left >= 1<<63 || f.ctl && (f.left > 125 || h[0]&0x80 == 0) || op > 2 && op < 8 || op > 10 {
		return errFrame
	}
	if !f.ctl {
		// A frame continues a message exactly when the previous one has not ended: another
		// interpretation by the program could hide a value.
		if (op == 0) == f.fin {
			return errFrame
		}
		if op != 0 {
			f.searchRest() // a new message
		}
		f.fin = h[0]&0x80 != 0
	}
	f.queue = append(f.queue, h...)
	f.ctlAt = len(f.queue)
	if f.left == 0 {
		f.end()
	}
	return nil
}

// payload takes a part of a frame's payload. That of a control frame is a text of its own, and
// waits for its end.
func (f *frames) payload(b []byte) {
	at := len(f.queue)
	f.queue = append(f.queue, b...)
	switch {
	case f.ctl:
	case len(f.loose) > 0 && f.loose[len(f.loose)-1].to == at:
		f.loose[len(f.loose)-1].to = len(f.queue)
	default:
		f.loose = append(f.loose, span{at, len(f.queue)})
	}
}

// end ends a frame.
func (f *frames) end() {
	switch {
	case f.ctl:
		redactAll(f.queue[f.ctlAt:], f.hide)
	case f.fin:
		f.searchRest()
	}
}

// searchRest searches the rest of a message, all of which can then be returned.
func (f *frames) searchRest() {
	f.look()
	f.loose = nil
	f.limit = len(f.queue)
}

// look removes values from the loose payloads, and computes how much can be returned. Of
// searched payloads it keeps as much as the beginning of a value.
func (f *frames) look() {
	if len(f.loose) == 0 {
		f.limit = len(f.queue)
		return
	}
	var text []byte
	for _, s := range f.loose {
		text = append(text, f.queue[s.from:s.to]...)
	}
	ready := redactAll(text, f.hide)
	rest := text
	for _, s := range f.loose {
		rest = rest[copy(f.queue[s.from:s.to], rest):]
	}
	// The queue can be returned up to the payload that is held back.
	f.limit = len(f.queue)
	at := 0
	for _, s := range f.loose {
		if n := s.to - s.from; at+n > ready {
			f.limit = s.from + ready - at
			break
		} else {
			at += n
		}
	}
	f.limit = max(f.limit, f.given)
	keep := max(0, ready-unheld)
	for len(f.loose) > 0 && keep > 0 {
		n := min(keep, f.loose[0].to-f.loose[0].from)
		f.loose[0].from += n
		keep -= n
		if f.loose[0].from == f.loose[0].to {
			f.loose = f.loose[1:]
		}
	}
}
