package api

import "net/http"

// Kind is the machine-readable reason of an error.
type Kind string

// Error is the body of every answer that is not a success.
type Error struct {
	Kind    Kind   `json:"kind"`           // one word that a program decides on
	Message string `json:"message"`        // one sentence for people
	Hint    string `json:"hint,omitempty"` // what to do about it
}

func (e *Error) Error() string { return e.Message }

// Reason says what a kind means to each kind of caller.
type Reason struct {
	Kind   Kind
	Status int // HTTP status
	Exit   int // exit code of the CLI, except of run and exec
	Says   string
}

// Exit codes that run and exec add to a command's own, as Docker has them.
const (
	ExitPandoFailed   = 125 // pando itself failed
	ExitNotRunnable   = 126 // the program can't be executed
	ExitNotFound      = 127 // the program was not found
	ExitTimeout       = 124
	ExitInterrupted   = 130
	ExitVerifyFailure = 7
)

// Reasons is the one table of error kinds. The list only grows.
var Reasons = []Reason{
	{"invalid", http.StatusBadRequest, 2, "wrong usage: a flag, a name or a value"},
	{"not-found", http.StatusNotFound, 3, "no such cell, run, checkpoint or file"},
	{"exists", http.StatusConflict, 4, "something of that name exists"},
	{"conflict", http.StatusConflict, 4, "the state does not allow it now"},
	{"denied", http.StatusForbidden, 5, "policy or permission says no"},
	{"unsupported", http.StatusNotImplemented, 6, "this host or this backend can't"},
	{"corrupt", http.StatusUnprocessableEntity, ExitVerifyFailure, "verification failed"},
	{"unavailable", http.StatusServiceUnavailable, 1, "a part is not there or full; may work later"},
	{"timeout", http.StatusGatewayTimeout, ExitTimeout, "a limit on time was reached"},
	{"interrupted", 499, ExitInterrupted, "somebody stopped it"},
	{"not-runnable", http.StatusUnprocessableEntity, ExitNotRunnable, "the program exists but can't be executed"},
	{"no-such-binary", http.StatusUnprocessableEntity, ExitNotFound, "the program was not found"},
	{"unauthenticated", http.StatusUnauthorized, 5, "no token, or one that is wrong, expired or removed"},
	{"limited", http.StatusTooManyRequests, 1, "too many requests in a short time"},
	{"stale", http.StatusPreconditionFailed, 4, "what you saw is not what is there any more: look again"},
	{"too-large", http.StatusRequestEntityTooLarge, 1, "more was sent than is taken"},
	{"wrong-method", http.StatusMethodNotAllowed, 2, "there is such a path, and that is not done to it"},
	{"wrong-type", http.StatusUnsupportedMediaType, 2, "what was sent is not of the type it has to be"},
	{"internal", http.StatusInternalServerError, 1, "a defect of pando"},
}

// ReasonOf returns the row of kind; an unknown kind, from a newer daemon, has
// the row of "internal".
func ReasonOf(kind Kind) Reason {
	for _, r := range Reasons {
		if r.Kind == kind {
			return r
		}
	}
	return Reasons[len(Reasons)-1]
}
