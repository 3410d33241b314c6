package guest

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/pando-dev/pando/internal/cell"
)

// A frame is a type, a number and up to 64 KiB:
//
//	byte 0      type
//	bytes 1–4   number of the question or stream, big-endian
//	bytes 5–8   length of the rest, big-endian
//	…           JSON, or bytes of a stream
//
// Longer JSON comes in frames of the same number that follow each other; all but
// the last have the bit frameMore.
type frameType byte

const (
	frameGreet  frameType = 1 + iota // JSON, before anything else
	frameAsk                         // JSON, keeper to guest
	frameAnswer                      // JSON, guest to keeper
	frameNote                        // JSON, guest to keeper
	frameData                        // bytes of a stream
	frameEnd                         // the sender sends no more
	frameRoom                        // four bytes: additional window in bytes
	frameStop                        // the receiver reads no more
	frameMore   frameType = 0x80
)

const (
	headerSize = 9
	maxPayload = 64 << 10
	// maxJSON is the size limit of a question or an answer, in bytes. It fits the arguments and
	// environment of a command, and a long process list.
	maxJSON = 8 << 20
)

// errProtocol returns the error for a violation of the protocol.
func errProtocol(format string, args ...any) error {
	return cell.Errorf(cell.Unavailable, "guest", "", "cannot understand the other end of the cell's connection: %w", fmt.Errorf(format, args...))
}

// readFrame reads one frame into buf, which fits the longest.
func readFrame(r io.Reader, buf []byte) (t frameType, id uint32, payload []byte, err error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, 0, nil, err
	}
	t, id = frameType(h[0]), binary.BigEndian.Uint32(h[1:])
	n := binary.BigEndian.Uint32(h[5:])
	if n > maxPayload {
		return 0, 0, nil, errProtocol("a frame of %d bytes", n)
	}
	if _, err := io.ReadFull(r, buf[:n]); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, 0, nil, err
	}
	return t, id, buf[:n], nil
}

// appendFrame appends a frame to b.
func appendFrame(b []byte, t frameType, id uint32, payload []byte) []byte {
	b = append(b, byte(t))
	b = binary.BigEndian.AppendUint32(b, id)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}
