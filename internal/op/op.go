// Package op runs long work as steps that can be done and undone, with a
// journal that outlives the process: a restarted daemon finishes what was
// begun, or takes it back.
//
// Every Do and every Undo is idempotent: after a crash the step that was under
// way is done (or undone) again. Steps know nothing of each other but what
// they find in the world.
package op

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/pando-dev/pando/internal/cleanup"
)

// Step is one part of an operation. Undo is nil for what needs no undoing.
type Step struct {
	Name string
	Do   func(context.Context) error
	Undo func(context.Context) error
}

// Phase is what an operation is about.
type Phase string

// The phases of an operation.
const (
	Doing   Phase = "doing"
	Undoing Phase = "undoing"
	Done    Phase = "done"
	Undone  Phase = "undone"
)

// Record is what the journal keeps of an operation: enough to build its steps
// again and to know where it was.
type Record struct {
	ID    string          `json:"op"`
	Kind  string          `json:"kind"`
	Args  json.RawMessage `json:"args,omitempty"`
	Phase Phase           `json:"phase"`
	Next  int             `json:"next"` // Doing: the step under way; Undoing: the step to undo
	Error string          `json:"error,omitempty"`
}

// NewID makes the ID of an operation.
func NewID() string {
	var b [8]byte
	rand.Read(b[:])
	return "o-" + hex.EncodeToString(b[:])
}

// Over reports whether nothing is left to do.
func (r Record) Over() bool { return r.Phase == Done || r.Phase == Undone }

// Journal keeps records. When Write returns, the record is durable.
type Journal interface {
	Write(Record) error
}

// Run does steps in order. When one fails, those before it are undone, last
// first, and the error says what could not be.
func Run(ctx context.Context, j Journal, id, kind string, args any, steps ...Step) error {
	raw, err := json.Marshal(args)
	if err != nil {
		return err
	}
	return Resume(ctx, j, Record{ID: id, Kind: kind, Args: raw, Phase: Doing}, steps...)
}

// Resume goes on with an operation where its record says it was.
func Resume(ctx context.Context, j Journal, r Record, steps ...Step) error {
	if r.Next > len(steps) || r.Next < 0 {
		return fmt.Errorf("cannot resume %s: its journal names step %d of %d", r.ID, r.Next, len(steps))
	}
	if r.Phase == Undoing {
		return undo(ctx, j, r, errors.New(r.Error), steps)
	}
	for r.Next < len(steps) {
		if err := j.Write(r); err != nil {
			return undo(ctx, j, r, err, steps)
		}
		s := steps[r.Next]
		if err := s.Do(ctx); err != nil {
			return undo(ctx, j, r, fmt.Errorf("cannot %s: %w", s.Name, err), steps)
		}
		r.Next++
	}
	r.Phase = Done
	return j.Write(r)
}

// RunOne is Run for work of one step without undo, which its kind is the name of.
func RunOne(ctx context.Context, j Journal, id, kind string, args any, do func(context.Context) error) error {
	return Run(ctx, j, id, kind, args, Step{Name: kind, Do: do})
}

// ResumeOne goes on with work that RunOne began, of the arguments in the journal.
func ResumeOne[T any](ctx context.Context, j Journal, r Record, do func(context.Context, T) error) error {
	var args T
	if err := json.Unmarshal(r.Args, &args); err != nil {
		return err
	}
	return Resume(ctx, j, r, Step{Name: r.Kind, Do: func(ctx context.Context) error { return do(ctx, args) }})
}

// undo takes back the step under way and all before it.
func undo(ctx context.Context, j Journal, r Record, cause error, steps []Step) error {
	r.Phase, r.Error = Undoing, cause.Error()
	if r.Next == len(steps) {
		r.Next--
	}
	failed := []error{cause}
	for ; r.Next >= 0; r.Next-- {
		if err := j.Write(r); err != nil {
			failed = append(failed, err)
		}
		s := steps[r.Next]
		if s.Undo == nil {
			continue
		}
		c, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup.Grace)
		if err := s.Undo(c); err != nil {
			failed = append(failed, fmt.Errorf("cannot undo %q: %w", s.Name, err))
		}
		cancel()
	}
	r.Phase, r.Next = Undone, 0
	if err := j.Write(r); err != nil {
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}
