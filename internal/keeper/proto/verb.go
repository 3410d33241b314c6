package proto

import (
	"encoding/json"
	"os"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/reexec"
)

// A Verb is one kind of request: its word, the type of its message, and that of its answer.
type Verb[Q, A any] struct {
	Name string
	// Reads is true of a verb that changes nothing, so that it cannot be half done.
	Reads bool
}

// Request is a request as it is received: its verb says what is in Body.
type Request struct {
	Op   string          `json:"op"`
	Body json.RawMessage `json:"body,omitempty"`
}

// Response is a response as it is received: one of the three. A body of a known type is decoded
// in the same pass.
type Response[A any] struct {
	Error  *WireError   `json:"error,omitempty"`
	Output *cell.Output `json:"output,omitempty"` // a piece, before the answer
	Body   *A           `json:"body,omitempty"`
}

// sent is a Request or Response on its way out.
type sent struct {
	Op     string       `json:"op,omitempty"`
	Error  *WireError   `json:"error,omitempty"`
	Output *cell.Output `json:"output,omitempty"`
	Body   any          `json:"body,omitempty"`
}

// Answer is the answer to one request.
type Answer[A any] struct {
	Value   A
	Files   []*os.File // of the receiver
	Refused *WireError // else nil
}

// Ask sends a request over k.
func (v Verb[Q, A]) Ask(k *reexec.Conn, q Q, files ...*os.File) error {
	return k.Send(sent{Op: v.Name, Body: q}, files...)
}

// Hear receives the answer to a request. out gets the output that comes before it; nil: it is
// dropped.
func (v Verb[Q, A]) Hear(k *reexec.Conn, out func(cell.Output)) (a Answer[A], err error) {
	for {
		var r Response[A]
		files, err := k.Recv(&r)
		if err != nil {
			return a, err
		}
		if r.Output != nil {
			CloseAll(files)
			if out != nil {
				out(*r.Output)
			}
			continue
		}
		a.Files, a.Refused = files, r.Error
		switch {
		case r.Error != nil:
			CloseAll(files)
			a.Files = nil
		case r.Body != nil:
			a.Value = *r.Body
		}
		return a, nil
	}
}

// Reply sends the answer to a request, or err.
func (v Verb[Q, A]) Reply(k *reexec.Conn, a A, err error, files ...*os.File) error {
	if err != nil {
		return Refuse(k, err)
	}
	return k.Send(sent{Body: a}, files...)
}

// Refuse answers a request with an error.
func Refuse(k *reexec.Conn, err error) error { return k.Send(sent{Error: Wire(err)}) }

// Emit sends a piece of output before an answer.
func Emit(k *reexec.Conn, o cell.Output) error { return k.Send(sent{Output: &o}) }

// Read decodes the message of a request.
func (v Verb[Q, A]) Read(body json.RawMessage) (q Q, err error) {
	if len(body) == 0 {
		return q, Malformed(v.Name)
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return q, cell.Errorf(cell.Invalid, "keeper."+v.Name, "", "cannot read request %q: %w", v.Name, err)
	}
	return q, nil
}

// Malformed is the error of a request with a part that is missing or wrong.
func Malformed(op string) error {
	return cell.Errorf(cell.Invalid, "keeper", "", "request %q lacks its part", op)
}

// CloseAll closes files, of which some may be nil.
func CloseAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}
