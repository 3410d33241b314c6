package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/pando-dev/pando/api"
)

// A Listener is told what long work says on its way. What is nil is not wanted.
// Its functions are called one at a time, by the goroutine that made the call;
// bytes are valid until they return.
type Listener struct {
	Progress func(api.Progress)
	Stdout   func([]byte)
	Stderr   func([]byte)
	Needs    func(api.ForkNeeds) // of a fork: what it will take, before anything is made
	Fork     func(api.WarmFork)  // of a fork: one of its cells has answered
}

// maxLine bounds one line of an answer, in bytes.
const maxLine = 64 << 20

// stream sends a request whose answer tells in lines how far it is, and decodes
// the result into out. When ctx ends, the work does.
func (c *Client) stream(ctx context.Context, method, path string, in any, on Listener, out any) error {
	body, err := c.accept(ctx, "application/jsonl", method, path, nil, in)
	if err != nil {
		return err
	}
	defer body.Close()
	lines := bufio.NewReader(body)
	for {
		b, err := readLine(lines)
		if err != nil {
			return unwrap(ctx, err)
		}
		var l api.StreamLine
		err = json.Unmarshal(b, &l)
		if err == nil && l.Result != nil {
			err = json.Unmarshal(l.Result, out)
		}
		switch {
		case err != nil:
			return &api.Error{Kind: "internal", Message: fmt.Sprintf("cannot read the daemon's answer to %s %s: %v", method, path, err)}
		case l.Error != nil:
			return l.Error
		case l.Result != nil:
			io.Copy(io.Discard, lines) // the end of the answer: so that the connection can be used again
			return nil
		}
		on.tell(l)
	}
}

func (on Listener) tell(l api.StreamLine) {
	switch {
	case l.Progress != nil && on.Progress != nil:
		on.Progress(*l.Progress)
	case l.Stdout != nil && on.Stdout != nil:
		on.Stdout(l.Stdout)
	case l.Stderr != nil && on.Stderr != nil:
		on.Stderr(l.Stderr)
	case l.Needs != nil && on.Needs != nil:
		on.Needs(*l.Needs)
	case l.Fork != nil && on.Fork != nil:
		on.Fork(*l.Fork)
	}
}

// readLine reads a line of up to maxLine bytes.
func readLine(r *bufio.Reader) (line []byte, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
			return nil, fmt.Errorf("a line of its answer is longer than %d bytes", maxLine)
		}
		if err == nil && line == nil {
			return part, nil
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}
