package cell

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Kind is the part of an error that programs decide on. The list only grows; package api
// maps each kind to one HTTP status and one exit code.
type Kind string

// The kinds of error.
const (
	Invalid      Kind = "invalid"        // the request itself is wrong
	NotFound     Kind = "not-found"      // the named thing does not exist
	Exists       Kind = "exists"         // a thing of that name exists already
	Conflict     Kind = "conflict"       // the state does not allow it now
	Denied       Kind = "denied"         // policy or permission says no
	Unsupported  Kind = "unsupported"    // this host or backend cannot do it
	Corrupt      Kind = "corrupt"        // verification failed
	Unavailable  Kind = "unavailable"    // a part is missing or full; may work later
	Timeout      Kind = "timeout"        // a limit on time was reached
	Interrupted  Kind = "interrupted"    // stopped on request
	NotRunnable  Kind = "not-runnable"   // the program exists but can't be executed
	NoSuchBinary Kind = "no-such-binary" // the program was not found
	Internal     Kind = "internal"       // a defect of pando

	Unauthenticated Kind = "unauthenticated" // the caller is not known
	Unsigned        Kind = "unsigned"        // approvers have to sign it first
	Limited         Kind = "limited"         // too many requests in a short time

	Stale       Kind = "stale"        // it changed since the caller read it
	TooLarge    Kind = "too-large"    // the request is larger than allowed
	WrongMethod Kind = "wrong-method" // the path exists and does not support this method
	WrongType   Kind = "wrong-type"   // unsupported content type
)

// Error is the error type that carries meaning across package boundaries. Err's text begins
// with "cannot" where users read it. Hint is one imperative sentence: the next step.
type Error struct {
	Op      string // the place, as "package.Function"
	Kind    Kind
	Subject Subject // mostly none
	Hint    string
	Err     error
}

// A Subject is what an error is about, where programs tell errors of one kind apart.
type Subject string

// The subjects.
const (
	NoSource Subject = "source" // no source is given, and a new cell needs one
	Canary   Subject = "canary" // the isolation did not stop what it has to stop
	Daemon   Subject = "daemon" // it was under way when the daemon ended, and nothing asked for its end
)

// About gives an error its subject.
func (e *Error) About(s Subject) *Error {
	e.Subject = s
	return e
}

// SubjectOf returns the first subject found in err's tree, outermost first; "" for none.
func SubjectOf(err error) Subject {
	for err != nil {
		e, ok := errors.AsType[*Error](err)
		if !ok {
			return ""
		}
		if e.Subject != "" {
			return e.Subject
		}
		err = e.Err
	}
	return ""
}

// Told is an error of another process: its text, and the system's error in it.
type Told struct {
	Text  string
	Errno syscall.Errno // 0 for none
}

func (e *Told) Error() string { return e.Text }

// Is reports whether target is the system's error. Told does not unwrap to that: a file that does
// not exist for the other process is none that this one looked for.
func (e *Told) Is(target error) bool {
	n, ok := target.(syscall.Errno)
	return ok && n != 0 && n == e.Errno
}

// ErrnoOf returns the system's error in err's tree, 0 for none.
func ErrnoOf(err error) syscall.Errno {
	if t, ok := errors.AsType[*Told](err); ok {
		return t.Errno
	}
	n, _ := errors.AsType[syscall.Errno](err)
	return n
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

// Errorf returns an Error; format is as in fmt.Errorf, %w included.
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

// Later marks an error that may go away with time.
type Later struct {
	Err   error
	After time.Duration
}

func (e *Later) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Later) Unwrap() error { return e.Err }

// RetryAfter returns the seconds after which to retry, as in the header Retry-After
// (RFC 9110, 10.2.3); 1 when the error does not say.
func RetryAfter(err error) int {
	if e, ok := errors.AsType[*Later](err); ok {
		return max(1, int((e.After+time.Second-1)/time.Second))
	}
	return 1
}

// NoAnswer marks an error of a request without a response: the connection failed or broke.
// The server may be running, and may have done what was asked.
type NoAnswer struct{ Err error }

func (e *NoAnswer) Error() string { return e.Err.Error() }
func (e *NoAnswer) Unwrap() error { return e.Err }

// Unanswered reports whether err has a NoAnswer in its tree.
func Unanswered(err error) bool {
	_, ok := errors.AsType[*NoAnswer](err)
	return ok
}
