// Package parse runs parsers of untrusted bytes in a process of their own, with
// hard limits on memory and processor time.
//
// The process is this executable in another role (package reexec). It gets the
// input as a pipe, has no other file, and dies alone: its end is an error here
// and harms nothing else.
//
//	daemon                              pando-parse
//	  │ request + read end of a pipe ──▶ │  sets its limits, then reads
//	  │ input ═════════════════════════▶ │
//	  │ ◀───────── answer (kind, size)   │
//	  │ ◀═════════════════════ result    │  exits
//
// An input is known by a key. Before a process starts, an attempt is recorded
// under the key, and the record is removed when the process has answered,
// whatever the answer. So an input that ended two attempts is not tried again:
// neither after a crash of the process nor after one of the daemon, which reads
// the same records when it starts again.
//
// It leaves to the caller what is small enough to be parsed in place.
package parse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/reexec"
)

// Role is the role of a process that parses.
const Role = "parse"

const (
	attempts   = 2                // of one input that did not end with an answer
	maxAnswer  = 64<<20 + 1<<20   // of the result, in bytes
	unanswered = 10 * time.Minute // the process has a limit on processor time, which comes first
	maxAtOnce  = 2
)

// A Job names one parser, with its arguments.
type Job struct {
	Name string `json:"name"`
	Arg  int64  `json:"arg,omitempty"`
	Size int64  `json:"size"` // of the input
}

// A Func parses r. The result is in a form of its own that the caller checks.
type Func func(r io.Reader, job Job) ([]byte, error)

// A Parser runs jobs. A nil Parser refuses all of them.
type Parser struct {
	fsys    durable.FS
	file    string // of the records
	program string
	turns   chan struct{}

	mu sync.Mutex // guards the file of records
}

// New returns a Parser that records its attempts in a file of fsys. It is removed by hand to
// have all inputs tried again.
func New(fsys durable.FS, file string) *Parser {
	return &Parser{fsys: fsys, file: file, program: reexec.Self, turns: make(chan struct{}, maxAtOnce)}
}

// answer is what the process says before the result.
type answer struct {
	Kind  cell.Kind    `json:"kind,omitempty"`
	Hint  string       `json:"hint,omitempty"`
	Error string       `json:"error,omitempty"`
	Limit *bound.Error `json:"limit,omitempty"` // that the error is about
	Size  int64        `json:"size"`
}

// Do has a process parse in, which has job.Size bytes, and returns its result.
// key is of the input: inputs with the same content have the same key. what
// names the input in errors.
//
// It fails with the parser's own error, with TooLarge when the process ended
// without an answer or did so too often before, and with ctx.
func (p *Parser) Do(ctx context.Context, what string, key cell.Digest, job Job, in io.Reader) ([]byte, error) {
	if p == nil {
		return nil, cell.Errorf(cell.TooLarge, "parse.Do", "", "cannot read %s: with %d bytes it is too large to be parsed here", what, job.Size)
	}
	select {
	case p.turns <- struct{}{}:
		defer func() { <-p.turns }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := p.begin(what, key); err != nil {
		return nil, err
	}
	out, err := p.run(ctx, what, job, in)
	died := errors.As(err, new(*diedError))
	switch {
	case died && ctx.Err() != nil: // not its own end
		return nil, errors.Join(context.Cause(ctx), p.forget(key, 1))
	case died:
		return nil, &cell.Error{Op: "parse.Do", Kind: cell.TooLarge, Err: err}
	}
	return out, errors.Join(err, p.forget(key, attempts))
}

// diedError says that the process ended without an answer.
type diedError struct{ what, how string }

func (e *diedError) Error() string {
	return fmt.Sprintf("cannot read %s: the process that parses it ended without an answer (%s)", e.what, e.how)
}

func (p *Parser) run(ctx context.Context, what string, job Job, in io.Reader) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, unanswered)
	defer cancel()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	cmd, conn, err := reexec.StartFrom(p.program, Role, nil, nil)
	if err != nil {
		r.Close()
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { cmd.Process.Kill() })
	defer stop()
	err = conn.Send(job, r)
	r.Close()
	fed := make(chan error, 1)
	if err != nil {
		fed <- nil
	} else {
		go func() {
			_, err := io.Copy(w, io.LimitReader(in, job.Size))
			w.Close()
			if errors.Is(err, syscall.EPIPE) {
				err = nil // the process has seen enough
			}
			fed <- err
		}()
	}
	var a answer
	var out []byte
	if _, err = conn.Recv(&a); err == nil {
		if a.Size < 0 || a.Size > maxAnswer {
			err = fmt.Errorf("a result of %d bytes", a.Size)
		} else {
			out = make([]byte, a.Size)
			_, err = io.ReadFull(conn.Raw(), out)
		}
	}
	if err != nil {
		cmd.Process.Kill()
	}
	cmd.Wait()
	// With the process gone nothing reads the pipe, so the copy ends.
	if ferr := <-fed; ferr != nil {
		return nil, fmt.Errorf("cannot read %s: %w", what, ferr)
	}
	if err != nil {
		return nil, &diedError{what, how(cmd.ProcessState, err)}
	}
	if a.Error != "" {
		e := &cell.Error{Op: "parse.Do", Kind: a.Kind, Hint: a.Hint, Err: errors.New(a.Error)}
		if a.Limit != nil {
			e.Err = a.Limit
		}
		return nil, e
	}
	return out, nil
}

// how says how the process ended.
func how(state *os.ProcessState, err error) string {
	s, ok := state.Sys().(syscall.WaitStatus)
	switch {
	case !ok:
		return err.Error()
	case s.Exited() && s.ExitStatus() == exitTime:
		return "it reached its limit on processor time"
	case s.Exited() && s.ExitStatus() == exitPanic:
		return "the parser panicked"
	case s.Exited() && s.ExitStatus() == exitMemory:
		return "it reached its limit on memory"
	}
	return state.String()
}
