package operation

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// Redo is what a journal keeps of work that a restarted daemon finishes: enough to do it again.
// The work is idempotent, since a daemon may end after it was done and before that is noted.
// What can be taken back instead needs no record: the next daemon finds what no record names.
type Redo struct {
	ID      string          `json:"op"`
	Kind    string          `json:"kind"`
	Args    json.RawMessage `json:"args,omitempty"`
	Phase   Phase           `json:"phase"`
	Error   string          `json:"error,omitempty"`   // why it was given up
	Request string          `json:"request,omitempty"` // the request that it is work of: see WithRequest
}

// Phase is how far work is.
type Phase string

// The phases of work.
const (
	Doing   Phase = "doing"
	Done    Phase = "done"
	GivenUp Phase = "given up" // it failed, and its caller was told
)

// Over reports whether nothing is left to do.
func (r Redo) Over() bool { return r.Phase != Doing }

// Journal keeps records. When Write returns, the record is durable.
type Journal interface {
	Write(Redo) error
}

// NewID makes the ID of an operation.
func NewID() string {
	var b [8]byte
	rand.Read(b[:])
	return "o-" + hex.EncodeToString(b[:])
}

type requestKey struct{}

// WithRequest returns a context of the work of a request that has an idempotency key, or is an
// operation. id identifies this try of it: records of the work carry it, so that the next daemon
// can tell what became of a request that this one did not finish.
func WithRequest(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestKey{}, id)
}

// RequestOf returns the id of the request that a context's work is of; "" for none.
func RequestOf(ctx context.Context) string {
	id, _ := ctx.Value(requestKey{}).(string)
	return id
}

// Outcome is a record that says what a request has made. It is committed together with what it
// names. It is none for work without a request.
func Outcome(ctx context.Context, kind string, args any) (list []any, err error) {
	return outcome(ctx, Redo{Kind: kind, Phase: Done}, args)
}

// GiveUp is Outcome for a request that failed: it says what of its work is about to be removed
// again, and is committed before that.
func GiveUp(ctx context.Context, kind string, args any, why error) (list []any, err error) {
	return outcome(ctx, Redo{Kind: kind, Phase: GivenUp, Error: why.Error()}, args)
}

func outcome(ctx context.Context, r Redo, args any) (list []any, err error) {
	if r.Request = RequestOf(ctx); r.Request == "" {
		return nil, nil
	}
	r.ID = NewID()
	r.Args, err = json.Marshal(args)
	return []any{&r}, err
}

// Do does work that a restarted daemon finishes: it finds its kind and args in the journal.
func Do(ctx context.Context, j Journal, id, kind string, args any, do func(context.Context) error) error {
	raw, err := json.Marshal(args)
	if err != nil {
		return err
	}
	r := Redo{ID: id, Kind: kind, Args: raw, Phase: Doing, Request: RequestOf(ctx)}
	if err := j.Write(r); err != nil {
		return err
	}
	return finish(ctx, j, r, do)
}

// DoAgain does work that an earlier daemon began, with the arguments in the journal.
func DoAgain[T any](ctx context.Context, j Journal, r Redo, do func(context.Context, T) error) error {
	var args T
	if err := json.Unmarshal(r.Args, &args); err != nil {
		return err
	}
	return finish(WithRequest(ctx, r.Request), j, r, func(ctx context.Context) error { return do(ctx, args) })
}

func finish(ctx context.Context, j Journal, r Redo, do func(context.Context) error) error {
	err := do(ctx)
	if r.Phase = Done; err != nil {
		err = fmt.Errorf("cannot %s: %w", r.Kind, err)
		r.Phase, r.Error = GivenUp, err.Error()
	}
	return errors.Join(err, j.Write(r))
}
