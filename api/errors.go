package api

import "net/http"

// Kind is the machine-readable reason of an error.
type Kind string

// Error is the body of every answer that is not a success.
type Error struct {
	Kind    Kind   `json:"kind"`              // one word for programs to decide on
	Subject string `json:"subject,omitempty"` // tells errors of one kind apart: source (none was given), canary (the isolation does not hold), daemon (the daemon ended meanwhile)
	Message string `json:"message"`           // one sentence for people
	Hint    string `json:"hint,omitempty"`    // what to do about it
}

func (e *Error) Error() string { return e.Message }

// SubjectSource is the subject of the error of a run without a source, which its new cell needs.
const SubjectSource = "source"

// Reason says how each kind of caller sees a kind.
type Reason struct {
	Kind   Kind
	Status int // HTTP status
	Exit   int // exit code of the CLI, except of run and exec
	Says   string
}

// Exit codes that run and exec add to those of a command, as in Docker.
const (
	ExitPandoFailed   = 125 // pando itself failed
	ExitNotRunnable   = 126 // the program can't be executed
	ExitNotFound      = 127 // the program was not found
	ExitTimeout       = 124
	ExitInterrupted   = 130
	ExitVerifyFailure = 7
	ExitUnsigned      = 8
)

// Reasons is the table of error kinds. The list only grows.
var Reasons = []Reason{
	{"invalid", http.StatusBadRequest, 2, "wrong usage: a flag, a name or a value"},
	{"not-found", http.StatusNotFound, 3, "no such cell, run, checkpoint or file"},
	{"exists", http.StatusConflict, 4, "the name exists already"},
	{"conflict", http.StatusConflict, 4, "not possible in the present state"},
	{"denied", http.StatusForbidden, 5, "denied by a policy or a permission"},
	{"unsupported", http.StatusNotImplemented, 6, "this host or this backend cannot do it"},
	{"corrupt", http.StatusUnprocessableEntity, ExitVerifyFailure, "verification failed"},
	{"unavailable", http.StatusServiceUnavailable, 1, "a part is missing or full; may work later"},
	{"timeout", http.StatusGatewayTimeout, ExitTimeout, "a time limit was reached"},
	{"interrupted", 499, ExitInterrupted, "interrupted"},
	{"not-runnable", http.StatusUnprocessableEntity, ExitNotRunnable, "the program exists but can't be executed"},
	{"no-such-binary", http.StatusUnprocessableEntity, ExitNotFound, "the program was not found"},
	{"unauthenticated", http.StatusUnauthorized, 5, "no token, or a wrong, expired or revoked one"},
	{"unsigned", http.StatusForbidden, ExitUnsigned, "approvers have to sign it first: pando approve"},
	{"limited", http.StatusTooManyRequests, 1, "too many requests in a short time"},
	{"stale", http.StatusPreconditionFailed, 4, "changed since you read it; read it again"},
	{"too-large", http.StatusRequestEntityTooLarge, 1, "the request is too large"},
	{"wrong-method", http.StatusMethodNotAllowed, 2, "method not allowed on this path"},
	{"wrong-type", http.StatusUnsupportedMediaType, 2, "unsupported content type"},
	{"internal", http.StatusInternalServerError, 1, "a bug in pando"},
}

// ReasonOf returns the row of kind. An unknown kind, from a newer daemon, has the row of
// "internal".
func ReasonOf(kind Kind) Reason {
	for _, r := range Reasons {
		if r.Kind == kind {
			return r
		}
	}
	return Reasons[len(Reasons)-1]
}
