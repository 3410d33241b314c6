package proto

import (
	"bytes"
	"encoding/json"
	"io"
	"net"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// An archive travels as frames: FrameStdin or FrameStdout with a piece of it,
// then FrameResult, or FrameError when it can't be completed.

// Pieces turns what is written into frames.
type Pieces struct {
	c net.Conn
	t api.FrameType
}

// SendPieces writes to c, in frames of the type.
func SendPieces(c net.Conn, t api.FrameType) *Pieces { return &Pieces{c, t} }

func (p *Pieces) Write(b []byte) (int, error) {
	n := 0
	for len(b) > 0 {
		m := min(len(b), 256<<10)
		if _, err := p.c.Write(api.AppendFrame(nil, api.Frame{Type: p.t, Payload: b[:m]})); err != nil {
			return n, err
		}
		n, b = n+m, b[m:]
	}
	return n, nil
}

// End sends how it ended.
func (p *Pieces) End(err error) {
	f := api.Frame{Type: api.FrameResult}
	if err != nil {
		f.Type = api.FrameError
		f.Payload, _ = json.Marshal(Wire(err))
	}
	p.c.Write(api.AppendFrame(nil, f))
}

// assembled reads frames as one stream; FrameResult is its end, FrameError an
// error.
type assembled struct {
	c    net.Conn
	buf  []byte
	rest bytes.Buffer
	err  error
}

// ReadPieces reads what comes in frames over c.
func ReadPieces(c net.Conn) io.Reader { return &assembled{c: c} }

func (a *assembled) Read(b []byte) (int, error) {
	for a.rest.Len() == 0 {
		if a.err != nil {
			return 0, a.err
		}
		f, err := api.ReadFrame(a.c, &a.buf)
		switch {
		case err != nil:
			a.err = io.ErrUnexpectedEOF
		case f.Type == api.FrameResult:
			a.err = io.EOF
		case f.Type == api.FrameError:
			var w WireError
			if json.Unmarshal(f.Payload, &w) != nil {
				w = WireError{Kind: cell.Internal, Message: "cannot read an error of the keeper"}
			}
			a.err = w.Err("files")
		default:
			a.rest.Write(f.Payload)
		}
	}
	return a.rest.Read(b)
}
