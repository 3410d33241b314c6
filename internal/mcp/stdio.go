package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pando-dev/pando/internal/bound"
)

// notText is the error of a request that is not UTF-8.
const notText = "cannot read the request: it is not UTF-8 (name such a file from within the cell, or name its folder)"

// Run answers on standard input and output until the input or ctx ends.
func (s *Server) Run(ctx context.Context) error { return s.answer(ctx, os.Stdin, os.Stdout) }

// answer answers the requests of in on out, one in a line. It closes in.
func (s *Server) answer(ctx context.Context, in io.ReadCloser, out io.Writer) error {
	w := &lineWriter{w: out}
	err := s.mcp.Run(ctx, &sdk.IOTransport{Reader: &textLines{Closer: in, in: bufio.NewReader(in), out: w}, Writer: w})
	if ctx.Err() != nil {
		return nil // it was told to end
	}
	return err
}

// lineWriter is an output to which several goroutines write one line after the other.
type lineWriter struct {
	mu sync.Mutex // held while a line is written
	w  io.Writer
}

func (l *lineWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// Close does nothing: the output is not the server's own.
func (l *lineWriter) Close() error { return nil }

// textLines are the lines of an input that are UTF-8 and single messages of JSON-RPC. The others are answered with
// an error: the decoder of JSON would change names in them, or end the session.
type textLines struct {
	io.Closer
	in   *bufio.Reader
	out  io.Writer
	rest []byte // what is read of the present line
	err  error  // what ends the input after it
}

func (t *textLines) Read(p []byte) (int, error) {
	for len(t.rest) == 0 {
		if t.err != nil {
			return 0, t.err
		}
		t.rest, t.err = t.line()
		bad := wrongLine(t.rest)
		if bad == nil {
			if text := bytes.TrimSpace(t.rest); len(t.rest) <= sdk.DefaultMaxLineLength { // the decoder takes no space after a message
				if t.rest = nil; len(text) > 0 {
					t.rest = append(text, '\n')
				}
			}
			continue
		}
		answer := refusal(t.rest, *bad)
		t.rest = nil
		if _, err := t.out.Write(answer); err != nil {
			return 0, err
		}
	}
	n := copy(p, t.rest)
	t.rest = t.rest[n:]
	return n, nil
}

// line reads a line. One that is longer than the protocol takes comes in pieces, and is refused
// there.
func (t *textLines) line() (line []byte, err error) {
	for len(line) <= sdk.DefaultMaxLineLength {
		piece, err := t.in.ReadSlice('\n')
		line = append(line, piece...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
	return line, nil
}

// failure is an error of JSON-RPC.
type failure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// wrongLine is what is wrong with a line of input; nil if it is a message, or longer than the protocol takes.
func wrongLine(line []byte) *failure {
	const noJSON, noRequest = -32700, -32600
	text := bytes.TrimSpace(line)
	switch {
	case !bound.IsText(line):
		return &failure{noJSON, notText}
	case len(text) == 0 || len(line) > sdk.DefaultMaxLineLength:
		return nil
	case !json.Valid(text):
		return &failure{noJSON, "cannot read the request: it is no JSON"}
	}
	if text[0] == '[' { // the decoder ends the session at one of protocol 2025-06-18 or later, and at one with an id twice
		return &failure{noRequest, "cannot read the request: it is a batch (send one message in a line)"}
	}
	if _, err := jsonrpc.DecodeMessage(text); err != nil {
		return &failure{noRequest, "cannot read the request: it is no message of JSON-RPC 2.0"}
	}
	return nil
}

// refusal is the answer to a line with which something is wrong, as JSON-RPC has it: with the number of
// the request, if that can be read.
func refusal(line []byte, bad failure) []byte {
	var request struct{ ID json.RawMessage }
	id := json.RawMessage("null")
	if json.Unmarshal(bytes.ToValidUTF8(line, []byte("?")), &request) == nil && len(request.ID) > 0 && (request.ID[0] == '"' || request.ID[0] == '-' || request.ID[0] >= '0' && request.ID[0] <= '9') {
		id = request.ID
	}
	b, _ := json.Marshal(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   failure         `json:"error"`
	}{"2.0", id, bad}) // what was decoded can be encoded
	return append(b, '\n')
}
