package api

import (
	"encoding/binary"
	"fmt"
	"io"
)

// FrameType is the content type of a frame. A stream belongs to one process: a run, an exec, or
// a followed log.
type FrameType byte

// The frames. The arrows show the direction; C is the client.
const (
	FrameStdin    FrameType = 'i' // C→ bytes for standard input
	FrameStdinEOF FrameType = 'e' // C→ standard input ends
	FrameResize   FrameType = 'w' // C→ JSON {rows, cols}
	FrameSignal   FrameType = 's' // C→ text: "SIGINT"
	FrameStdout   FrameType = 'o' // →C offset (8 bytes, big endian), then bytes
	FrameStderr   FrameType = 'E' // →C likewise
	FrameScreen   FrameType = 'S' // →C offset in standard output, then a part of the output that redraws the terminal's screen as of there
	FrameGap      FrameType = 'g' // →C JSON {stream, bytes}: output that is no longer kept
	FrameTaken    FrameType = 't' // →C JSON Taken: how much standard input the process has received
	FrameProgress FrameType = 'p' // →C JSON Progress
	FrameExit     FrameType = 'x' // →C JSON Exit: the process has ended, its output is complete
	FrameResult   FrameType = 'r' // →C JSON: the result; the last frame
	FrameError    FrameType = '!' // →C JSON Error; the last frame
)

// MaxFrame bounds the payload of one frame.
const MaxFrame = 1 << 20

// A Frame is one message of a stream. On a byte stream it follows four bytes of length, big
// endian, of type and payload; on a WebSocket it is one binary message of type and payload.
type Frame struct {
	Type    FrameType
	Payload []byte
}

// AppendFrame appends the byte-stream form of f to b.
func AppendFrame(b []byte, f Frame) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(1+len(f.Payload)))
	b = append(b, byte(f.Type))
	return append(b, f.Payload...)
}

// ReadFrame reads the byte-stream form. The payload is valid until the next
// call with the same buf.
func ReadFrame(r io.Reader, buf *[]byte) (Frame, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || n > MaxFrame+1 {
		return Frame{}, fmt.Errorf("cannot read a frame of %d bytes", n)
	}
	n--
	if cap(*buf) < int(n) {
		*buf = make([]byte, n)
	}
	b := (*buf)[:n]
	if _, err := io.ReadFull(r, b); err != nil {
		return Frame{}, err
	}
	return Frame{FrameType(head[4]), b}, nil
}

// Output makes a frame of output bytes at offset.
func Output(t FrameType, offset int64, data []byte) Frame {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(data)), uint64(offset))
	return Frame{t, append(b, data...)}
}

// OutputData splits the payload of an output frame.
func (f Frame) OutputData() (offset int64, data []byte, err error) {
	if len(f.Payload) < 8 {
		return 0, nil, fmt.Errorf("cannot read an output frame of %d bytes", len(f.Payload))
	}
	return int64(binary.BigEndian.Uint64(f.Payload)), f.Payload[8:], nil
}

// StepAsking is the step of a run that waits for a person; the note says how to decide.
const StepAsking = "asking"

// StepDenied is the step of a run after the first denial of a request; the note describes it,
// like the run's denials at its end.
const StepDenied = "denied"

// Progress is a progress report of long work.
type Progress struct {
	Step  string `json:"step"`            // "importing"
	Done  int64  `json:"done,omitempty"`  // files or bytes, see Unit
	Total int64  `json:"total,omitempty"` // 0: unknown
	Unit  string `json:"unit,omitempty"`  // "files", "bytes"
	Note  string `json:"note,omitempty"`  // a line for people
}

// Resize is the payload of FrameResize.
type Resize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Gap is the payload of FrameGap.
type Gap struct {
	Stream string `json:"stream"` // "stdout" or "stderr"
	Bytes  int64  `json:"bytes"`
}

// Taken is the payload of FrameTaken. A client that attaches again after losing its connection
// waits for the first such frame, and continues its input from there.
type Taken struct {
	Bytes int64 `json:"bytes"` // of standard input since the process began: from this client, if it has a name, or from all clients without one
}
