package cell

import (
	"errors"
	"fmt"
	"time"
)

// Kind is what a program decides on. The list only grows; package api maps
// each kind to one HTTP status and one exit code.
type Kind string

// The kinds of error.
const (
	Invalid      Kind = "invalid"        // the request itself is wrong
	NotFound     Kind = "not-found"      // the named thing does not exist
	Exists       Kind = "exists"         // a thing of that name is there already
	Conflict     Kind = "conflict"       // the state does not allow it now
	Denied       Kind = "denied"         // policy or permission says no
	Unsupported  Kind = "unsupported"    // this host or backend can't
	Corrupt      Kind = "corrupt"        // verification failed
	Unavailable  Kind = "unavailable"    // a part is not there or full; may work later
	Timeout      Kind = "timeout"        // a limit on time was reached
	Interrupted  Kind = "interrupted"    // somebody stopped it
	NotRunnable  Kind = "not-runnable"   // the program exists but can't be executed
	NoSuchBinary Kind = "no-such-binary" // the program was not found
	Internal     Kind = "internal"       // a defect of ours

	Unauthenticated Kind = "unauthenticated" // who asks is not known
	Limited         Kind = "limited"         // too much was asked in a short time

	Stale       Kind = "stale"        // what the caller saw is not what is there any more
	TooLarge    Kind = "too-large"    // more was sent than is taken
	WrongMethod Kind = "wrong-method" // there is such a path, and that is not done to it
	WrongType   Kind = "wrong-type"   // what was sent is not of the type it has to be
)

// Error is the one error type that crosses package boundaries with a meaning.
// Err's text begins with "cannot" where it is shown to people; Hint is one
// imperative sentence that says what to do next.
type Error struct {
	Op   string // where, as "package.Function"
	Kind Kind
	Hint string
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is(err, cell.Kind) work through KindError.
func (e *Error) Is(target error) bool {
	k, ok := target.(KindError)
	return ok && Kind(k) == e.Kind
}

// KindError turns a kind into a target for errors.Is:
// errors.Is(err, cell.KindError(cell.NotFound)).
type KindError Kind

func (k KindError) Error() string { return string(k) }

// Errorf makes an Error; format is as in fmt.Errorf, %w included.
func Errorf(kind Kind, op, hint, format string, args ...any) *Error {
	return &Error{Op: op, Kind: kind, Hint: hint, Err: fmt.Errorf(format, args...)}
}

// KindOf returns the kind of the outermost Error in err's tree, Internal for
// other errors and "" for nil.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Internal
}

// HintOf returns the first hint found in err's tree, outermost first.
func HintOf(err error) string {
	for err != nil {
		e, ok := errors.AsType[*Error](err)
		if !ok {
			return ""
		}
		if e.Hint != "" {
			return e.Hint
		}
		err = e.Err
	}
	return ""
}

// Later marks an error that may be gone after some time.
type Later struct {
	Err   error
	After time.Duration
}

func (e *Later) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Later) Unwrap() error { return e.Err }

// RetryAfter is in how many seconds what failed may be tried again, as the header of that
// name says it (RFC 9110, 10.2.3): 1 when nothing is known.
func RetryAfter(err error) int {
	if e, ok := errors.AsType[*Later](err); ok {
		return max(1, int((e.After+time.Second-1)/time.Second))
	}
	return 1
}

// NoAnswer marks an error of a question that was not answered: the connection could not be
// made, or broke. Whoever was asked may be there, and what was asked for may have been done.
type NoAnswer struct{ Err error }

func (e *NoAnswer) Error() string { return e.Err.Error() }
func (e *NoAnswer) Unwrap() error { return e.Err }

// Unanswered reports whether err is of a question that was not answered.
func Unanswered(err error) bool {
	_, ok := errors.AsType[*NoAnswer](err)
	return ok
}
