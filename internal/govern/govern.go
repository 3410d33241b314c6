// Package govern decides what cells and callers may do: the effective policy of a run or a cell,
// and the explanations of it; what may be started, and how often; and how many cells a caller
// may have, and of which size.
//
// It promises that nothing is allowed that a layer of the policy denies, that what the host's
// and the user's files demand holds for cells that are older than they, and that requests for
// cells are served in the order in which they came. It leaves to its caller to ask before
// something begins, and what a caller from outside sees.
//
// Lock order: 1. the lock of a cell, 2. queue.mu, allowing and spending, 3. the registry's.
// Functions of Config are called without the locks of the second row.
package govern

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/ceiling"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/credential"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
)

// Config is what a Manager is made of.
type Config struct {
	Records     *state.Registry
	Log         *slog.Logger
	Home        paths.Home
	Credentials *credential.Store
	Host        policy.Host
	HostPolicy  string          // the policy file of the host; "" for none
	Resolvers   []string        // DNS servers that gateways ask, "address:port"; none: the host's
	Proxy       *cell.Proxy     // the host's way out; nil: gateways dial by themselves
	Life        context.Context // ends with the daemon

	// Of evidence. RunPolicy is the policy that governed a run.
	RunPolicy func(*state.Run) (*policy.Result, error)

	// Of backends. Caps are those of the backend with a name; of the first that is enough for a
	// policy, when there is no name.
	Caps func(ctx context.Context, name string, least policy.Isolation) (backend.Caps, error)
}

// Manager is safe for concurrent use.
type Manager struct {
	cfg Config

	ceilings atomic.Pointer[ceiling.Set] // nil in it: callers may have whatever they ask for
	draining atomic.Bool                 // no new cells are made
	queue    queue

	allowing sync.Mutex // guards the file of policies that were allowed
	spending sync.Mutex // held while commands are counted
}

// New returns a Manager, which calls nothing of c yet.
func New(c Config) *Manager {
	m := &Manager{cfg: c}
	m.queue.refused, m.queue.waited = map[ceiling.Scope]int64{}, map[ceiling.Scope]int64{}
	return m
}

// counted says how many there are of something.
func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// clip bounds what a caller wrote, for a message.
func clip(s string) string {
	if len(s) > 80 {
		s = s[:80] + "…"
	}
	return strings.ToValidUTF8(s, "\ufffd")
}
