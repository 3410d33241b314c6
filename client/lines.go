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

// A Listener receives the progress of long work; nil functions are not called. The calling
// goroutine calls them one at a time. Bytes are valid until a function returns.
type Listener struct {
	Progress func(api.Progress)
	Stdout   func([]byte)
	Stderr   func([]byte)
	Needs    func(api.ForkNeeds) // of a fork: the estimated needs, before any cell is made
	Fork     func(api.WarmFork)  // of a fork: one of its cells has answered
}

// maxLine bounds one line of an answer, in bytes.
const maxLine = 64 << 20

// stream sends a request with a streamed answer, passes its progress on, and decodes the result
// into out. The work ends when ctx ends.
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
			io.Copy(io.Discard, lines) // read to the end, so that the connection can be reused
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
