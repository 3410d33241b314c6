// Package govern decides what cells and callers may do: the effective policy of a run or a cell,
// and the explanations of it; the mounts that enforce it; what a cell's gateway goes by, with the
// credentials that it is lent and what a person approved; where the values of credentials turn
// up; what may be started, and how often; and how many cells a caller may have, and of which
// size.
//
// It promises that nothing is allowed that a layer of the policy denies, that what the host's
// and the user's files demand holds for cells that are older than they, that a credential that
// was taken back is put in nowhere when that returns, and that requests for cells are served in
// the order in which they came. It leaves to its caller to ask before something begins, and what
// a caller from outside sees.
//
// Lock order: 1. the lock of a cell, 2. pausing and the lock of a cell's rules, 3. queue.mu, allowing,
// spending, lending and budgeting, 4. the registry's. Functions of Config are called without the
// locks of the third row.
package govern

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/ceiling"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/credential"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// Config is what a Manager is made of.
type Config struct {
	Records     *state.Registry
	Log         *slog.Logger
	Home        paths.Home
	Credentials *credential.Store
	Redactor    *receipt.Redactor
	User        cell.User // that cells belong to
	Host        policy.Host
	HostPolicy  string          // the policy file of the host; "" for none
	Resolvers   []string        // DNS servers that gateways ask, "address:port"; none: the host's
	Roots       string          // certificates (PEM) that gateways trust besides the host's
	Proxy       *cell.Proxy     // the host's way out; nil: gateways dial by themselves
	Life        context.Context // ends with the daemon

	Background func(func(ctx context.Context)) // starts work that outlives its request, with Life

	// Of what is alive. Usable is a cell in which something can be done; NotFound or Conflict
	// for others.
	Instances func() Instances
	Usable    func(cell.ID) (state.Cell, error)
	Lock      func(ctx context.Context, id cell.ID, purpose string) (release func(), err error)

	// Of runs. RunIn is the one that goes on in a cell, "" if there is none. Report tells its
	// clients, if there is one.
	RunIn func(cell.ID) cell.RunID
	// Turn makes the beginning of a turn of a cell's agent a checkpoint.
	Turn   func(context.Context, cell.ID, cell.Turn) error
	Report func(cell.ID, api.Progress)
	// Notice gives notice of what waits for an answer, as the run asked for.
	Notice func(context.Context, *state.Approval)

	// Of budgets. Alive lists the cells with instances; Pause freezes one and Resume lets it go on.
	Alive         func() []cell.ID
	Pause, Resume func(context.Context, cell.ID) error

	// Of workspaces. OwnDir is the directory of the host that holds what a cell wrote to its
	// home or /tmp; "" when it has none.
	OwnDir func(*state.Cell, cell.Role) string
	// Tree is that of a checkpoint. Spec is what a cell with some mounts is made of.
	Tree func(context.Context, *state.Checkpoint) (*workspace.Tree, error)
	Spec func(*state.Cell, []cell.Mount) cell.Spec

	// Of evidence. RunPolicy is the policy that governed a run. SealedFiles names the files of a
	// run's folder that its receipt has; OpenRecord opens one.
	RunPolicy   func(*state.Run) (*policy.Result, error)
	SealedFiles func() []string
	OpenRecord  func(folder, name string) (*os.File, error)

	// Of backends. Caps are those of the backend with a name; of the first that is enough for a
	// policy, when there is no name.
	Caps func(ctx context.Context, name string, least policy.Isolation) (backend.Caps, error)
	// Captures reports whether a cell's backend captures memory: a fork is a copy then.
	Captures func(context.Context, *state.Cell) (bool, error)
}

// Instances are those of cells that are alive.
type Instances interface {
	// Instance returns that of a cell, nil when there is none.
	Instance(cell.ID) backend.Instance
	// RefOf is the same, and keeps the cell from being put to rest until release is called. It
	// fails with Unavailable when the cell's keeper does not answer.
	RefOf(*state.Cell) (inst backend.Instance, release func(), err error)
	// AtRest reports whether nothing of a cell lives.
	AtRest(cell.ID) bool
}

// Manager is safe for concurrent use.
type Manager struct {
	cfg Config

	ceilings atomic.Pointer[ceiling.Set] // nil in it: callers may have whatever they ask for
	draining atomic.Bool                 // no new cells are made
	queue    queue

	allowing sync.Mutex // guards the file of policies that were allowed
	spending sync.Mutex // held while commands are counted
	// lending is held while it is decided what a cell is lent, so that it gets one placeholder
	// and what is taken back stays so.
	lending    sync.Mutex
	rulesLocks state.CellLocks // see lockRules
	budgets    budgets
}

// New returns a Manager, which calls nothing of c yet.
func New(c Config) *Manager {
	m := &Manager{cfg: c}
	m.budgets.latest, m.budgets.time = map[cell.ID]state.Counted{}, map[cell.ID]time.Duration{}
	m.queue.refused, m.queue.waited = map[ceiling.Scope]int64{}, map[ceiling.Scope]int64{}
	return m
}

// folder is the folder of what belongs to one cell alone.
func (m *Manager) folder(id cell.ID) string { return filepath.Join(m.cfg.Home.Cells(), string(id)) }

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
