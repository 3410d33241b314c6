// Package access identifies callers: levels of what a caller may do, principals (identified
// callers), and the tokens that identify callers over the network.
//
// A token is 160 random bits. It is shown once, when it is made; the store keeps its
// SHA-256 digest. The end of a token, by removal or expiry, also ends the work that was
// begun with it.
package access

import (
	"context"
	"net/http"
	"strings"
)

// Level is what a caller may do. Each has all that the one before it has.
type Level string

// The levels, lowest first.
const (
	Read    Level = "read"    // look
	Approve Level = "approve" // give sign-offs
	Run     Level = "run"     // start and change things in cells
	Admin   Level = "admin"   // write to sources, remove, stop the daemon, make tokens
)

// Levels are all of them, lowest first.
var Levels = []Level{Read, Approve, Run, Admin}

func (l Level) rank() int {
	for i, x := range Levels {
		if x == l {
			return i
		}
	}
	return -1
}

// Allows reports whether a caller with level l may do what needs need. An unknown level
// allows nothing, and no caller has it.
func (l Level) Allows(need Level) bool {
	return need.rank() >= 0 && l.rank() >= need.rank()
}

// A Principal is an identified caller.
type Principal struct {
	Name  string // for people: a token's name, or "local"
	Token string // the id of its token; "" for a caller on the unix socket
	Level Level
	// Bounds are what its token is held to; nil for none. They are not changed.
	Bounds *Bounds
	// Door is by which the caller came, where that is not the API's own: see package
	// ceiling; "" else.
	Door string
	// Here reports that the caller called on the unix socket, and Process is its process
	// id; 0 in a PID namespace that the daemon does not see.
	Here    bool
	Process int
}

// Restricted reports whether p sees only what carries labels.
func (p Principal) Restricted() bool { return p.Bounds != nil && len(p.Bounds.Labels) > 0 }

// Local is the caller on the unix socket: the user, or root.
var Local = Principal{Name: "local", Level: Admin}

type contextKey struct{}

// With returns a context of a request by p.
func With(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, contextKey{}, p)
}

// From returns the principal of the request with the context ctx; ok is false if the caller
// was not identified.
func From(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(contextKey{}).(Principal)
	return p, ok
}

// The beginnings of tokens. They are the same token: the second is how clients of
// E2B know one.
const (
	Prefix    = "pando_"
	PrefixE2B = "e2b_"
)

// Presented returns the token of a request: of Authorization: Bearer, or of
// X-API-KEY, where clients of E2B have it; "" when it has none. Two that differ
// are as good as a wrong one.
func Presented(r *http.Request) string {
	var found []string
	for _, v := range r.Header.Values("Authorization") {
		if kind, v, ok := strings.Cut(v, " "); ok && strings.EqualFold(kind, "bearer") {
			found = append(found, strings.TrimSpace(v))
		}
	}
	found = append(found, r.Header.Values("X-Api-Key")...)
	for _, f := range found {
		if bare(f) != bare(found[0]) {
			return "more than one"
		}
	}
	if len(found) == 0 {
		return ""
	}
	return found[0]
}

// bare is a token without its beginning.
func bare(token string) string {
	if s, ok := strings.CutPrefix(token, Prefix); ok {
		return s
	}
	return strings.TrimPrefix(token, PrefixE2B)
}
