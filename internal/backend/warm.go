package backend

import (
	"context"

	"github.com/pando-dev/pando/internal/cell"
)

// A Warmer is an instance that can keep an interpreter, evaluate in it, and
// fork it. Backends whose Caps.Eval, Caps.Fork and Caps.LiveBranch are "" have
// instances that implement it; what a single one of them is not able to do is
// Unsupported, with the sentence of Caps.
type Warmer interface {
	Instance

	// Warm starts the cell's interpreter, evaluates the set-up and waits until
	// the probe answers; out gets what it writes meanwhile. A cell has one
	// interpreter: a second is Exists. When set-up or probe fail nothing of it
	// remains, and the error (Invalid; Timeout, when w.Timeout is over) has the
	// traceback.
	Warm(ctx context.Context, w cell.Warm, out func(cell.Output)) (cell.Warmth, error)

	// Warmth says how the interpreter stands; NotFound if there is none.
	Warmth(ctx context.Context) (cell.Warmth, error)

	// Eval evaluates code. One evaluation is under way at a time: a second
	// waits, ctx bounds how long. When ctx ends during the evaluation it is
	// interrupted. What the code does wrong is in the answer, not an error.
	Eval(ctx context.Context, ev cell.Eval, out func(cell.Output)) (cell.Evaluated, error)

	// Dismiss ends the interpreter and what it started, and returns when it has
	// ended; another can be warmed then. Where Warmth.IsCell, everything in the
	// cell has ended, and the cell is to be removed. While an evaluation is
	// under way, or a branch, it is a Conflict; one that could not be
	// interrupted and was given up is ended. Deaths doesn't tell of it.
	Dismiss(ctx context.Context) error

	// Seal makes the interpreter one that is only forked, and the cell's files
	// immutable. What can't be forked safely is Unsupported, naming threads,
	// processes, files: with the backend that can. It can't be undone, and may
	// be repeated.
	Seal(ctx context.Context) (cell.Warmth, error)

	// Fork makes a cell out of a sealed interpreter, in the same family: its
	// memory is the interpreter's, copied on write, everything else its own, as
	// spec says. It has no identity yet and evaluates nothing before it is
	// adopted. When it fails nothing of it remains. Many may be under way.
	Fork(ctx context.Context, spec cell.Spec) (Warmer, error)

	// Adopt gives a forked cell its identity, handles its hazards, and returns
	// what was measured. It is called once. When it fails the cell is removed.
	Adopt(ctx context.Context, a cell.Adoption) (cell.Certificate, error)

	// Branch forks the interpreter as it is, in the middle of its life; the
	// source goes on. The branches are in its family, are adopted like forks,
	// and can't be reached from the source nor from each other; removing the
	// source leaves them. Live threads and processes other than the
	// interpreter, writable shared mappings, deleted files that are open: each
	// is a Conflict that names them; a family that is too deep is Unsupported.
	// When Branch fails there are no branches. The source then goes on where it
	// was, or, when the pause has a gap, over b.Self: what can fail after the
	// source has gone on does not make it stand still again.
	Branch(ctx context.Context, b cell.Branching) ([]Warmer, cell.Pause, error)

	// Limit lowers memory, processes and processors to l before Adopt, where l is not 0: a
	// fork that was made ahead gets its limits then. What was not limited before, because
	// that can't be done here, stays so. Unsupported: it can't be lowered in a fork that is
	// made already.
	Limit(ctx context.Context, l cell.Limits) error

	// ForksLeft is how many more forks the process that holds the family has file
	// descriptors for. Forks that may talk take more.
	ForksLeft(ctx context.Context, talk bool) (int64, error)

	// Deaths returns the cells of the family whose interpreters have ended since
	// the version, when there are any, or after half a minute.
	Deaths(ctx context.Context, since int64) (list []cell.Death, version int64, err error)
}

// A Capturer is an instance whose memory can be captured, with all that runs in
// it. Backends whose Caps.Memory is "" have instances that implement it.
type Capturer interface {
	Instance

	// Capture writes an image of what a frozen instance has in memory into dir, an
	// empty directory of the caller's. A cell that is created with it as its
	// Spec.Memory, and has the same files at the same places, is a copy of the
	// instance: its processes go on where they were, once it is adopted. While its
	// interpreter evaluates it is a Conflict. taken says how the memory was taken, in
	// words; "" where there is one way alone.
	Capture(ctx context.Context, dir string) (taken string, err error)

	// Prepare begins to write an image into dir, an empty directory of the caller's, while
	// the instance runs, so that Capture into the same one takes less time. It may do
	// nothing. An image that was prepared is for the moment: a file of it may be a link to
	// one that this process has in memory, and that ends with it or with the link. One that
	// is brief is for nothing but copies that begin while this process lives: it need not
	// hold what the instance itself has begun with.
	Prepare(ctx context.Context, dir string, brief bool) error

	// Adopt gives a copy its identity, handles its hazards, lets it go on, and
	// returns what was measured. It is called once.
	Adopt(ctx context.Context, a cell.Adoption) (cell.Certificate, error)
}
