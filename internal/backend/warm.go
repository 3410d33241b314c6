package backend

import (
	"context"

	"github.com/pando-dev/pando/internal/cell"
)

// A Warmer is an instance that can keep an interpreter, evaluate in it, and fork it. Backends
// with empty Caps.Eval, Caps.Fork and Caps.LiveBranch have instances that implement it; what a
// single instance can't do is Unsupported, with the sentence of Caps.
type Warmer interface {
	Instance

	// Warm starts the cell's interpreter, evaluates the set-up and waits until the probe
	// succeeds; out gets the output meanwhile. A cell has one interpreter: a second is Exists.
	// When set-up or probe fail nothing of it remains, and the error (Invalid; Timeout after
	// w.Timeout) has the traceback.
	Warm(ctx context.Context, w cell.Warm, out func(cell.Output)) (cell.Warmth, error)

	// Warmth returns the state of the interpreter; NotFound if there is none.
	Warmth(ctx context.Context) (cell.Warmth, error)

	// Eval evaluates code. Evaluations run one at a time: a second waits until ctx ends. When
	// ctx ends during the evaluation it is interrupted. Errors of the code are in the answer,
	// and not errors of the call.
	Eval(ctx context.Context, ev cell.Eval, out func(cell.Output)) (cell.Evaluated, error)

	// Dismiss ends the interpreter and its processes, and returns when they have ended; another
	// can be warmed then. With Warmth.IsCell, everything in the cell has ended, and the caller
	// removes the cell. During an evaluation or a branch it is a Conflict, but it ends an
	// evaluation that could not be interrupted. Deaths doesn't report it.
	Dismiss(ctx context.Context) error

	// Seal makes the interpreter one that is only forked, and the cell's files immutable. State
	// that can't be forked safely is Unsupported, naming threads, processes, files, and the
	// backend that can. It can't be undone, and may be repeated.
	Seal(ctx context.Context) (cell.Warmth, error)

	// Fork makes a cell from a sealed interpreter, in the same family: its memory is the
	// interpreter's, copy-on-write, everything else its own, as in spec. It has no identity yet
	// and evaluates nothing before it is adopted. When Fork fails nothing of it remains. Forks
	// may run concurrently.
	Fork(ctx context.Context, spec cell.Spec) (Warmer, error)

	// Adopt gives a forked cell its identity, handles its hazards, and returns the measurements.
	// It is called once. When it fails the cell is removed.
	Adopt(ctx context.Context, a cell.Adoption) (cell.Certificate, error)

	// Branch forks the interpreter as it is, in the middle of its life; the
	// source goes on. The branches are in its family, are adopted like forks,
	// and can't be reached from the source nor from each other; removing the
	// source leaves them. Live threads and processes other than the
	// interpreter, writable shared mappings, deleted files that are open: each
	// is a Conflict that names them; a family that is too deep is Unsupported.
	// When Branch fails there are no branches. The source then continues as
	// it was or, when the pause has a gap, over b.Self: a failure after the source has
	// continued does not pause it again.
	Branch(ctx context.Context, b cell.Branching) ([]Warmer, cell.Pause, error)

	// Limit lowers memory, processes and processors to l before Adopt, where l is not 0: a
	// fork that was made ahead gets its limits then. What was not limited before, because
	// that can't be done here, stays so. Unsupported: it can't be lowered in a fork that is
	// made already.
	Limit(ctx context.Context, l cell.Limits) error

	// ForksLeft is how many more forks the process that holds the family has file
	// descriptors for. Forks that may talk take more.
	ForksLeft(ctx context.Context, talk bool) (int64, error)

	// Deaths returns the cells of the family with interpreters that have ended since
	// the version, when there are any, or after half a minute.
	Deaths(ctx context.Context, since int64) (list []cell.Death, version int64, err error)
}

// A Capturer is an instance with memory that can be captured, with all its processes. Backends
// with an empty Caps.Memory have instances that implement it.
type Capturer interface {
	Instance

	// Capture writes an image of a frozen instance's memory into dir, an empty directory of the
	// caller's. A cell that is created with it as its Spec.Memory, and has the same files at the
	// same paths, is a copy of the instance: its processes continue once it is adopted. During
	// an evaluation Capture is a Conflict. taken describes how the memory was captured; "" where
	// there is one way alone.
	Capture(ctx context.Context, dir string) (taken string, err error)

	// Prepare begins to write an image into dir, an empty directory of the caller's, while the
	// instance runs, so that Capture into the same directory takes less time. It may do nothing.
	// A prepared image is short-lived: a file of it may be a link to one that this process has
	// in memory, which ends with the process or the link. A brief image is only for copies that
	// begin while this process lives: it may lack what the instance itself began with.
	Prepare(ctx context.Context, dir string, brief bool) error

	// Adopt gives a copy its identity, handles its hazards, resumes it, and returns the
	// measurements. It is called once.
	Adopt(ctx context.Context, a cell.Adoption) (cell.Certificate, error)
}
