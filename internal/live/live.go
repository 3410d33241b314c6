// Package live manages what is alive: the instances of cells, which backends made, and the
// interpreters in them. A cell is
//
//	at rest      it has no instance, and nothing runs in it
//	alive        it has an instance, and so many references to that
//	unreached    its keeper did not answer, and its processes may go on
//	ending       its instance is being taken down, behind the act that did so
//
// A cell is put to rest when nothing refers to its instance and nothing runs in it. One with an
// interpreter is put to rest when that ends. What the keeper of a cell does not answer says
// nothing about the cell: only a keeper that is known to be dead has none.
//
// Runs, pools, policies and commands are not known here. The engine gives what is needed of
// them (Config).
//
// Lock order: 1. the lock of a cell's pauses (pauses), 2. the lock of a cell (state.CellLocks),
// 3. the lock of the record of its lease (leasing) or its interpreter (recording), 4. the
// registry. Table.mu and envMu are the last: nothing is locked, and no keeper is asked, while
// one is held. Functions of Config are called without them.
package live

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// Config has the parts that a Manager needs of others.
type Config struct {
	Registry    *state.Registry
	Locks       *state.CellLocks
	Log         *slog.Logger
	Redactor    *receipt.Redactor
	AttachGrace time.Duration                              // how long a command waits for the client that said it would attach
	Reach       time.Duration                              // how long a keeper may take to answer a daemon that has no connection to it
	Backend     func(name string) (backend.Backend, error) // by its name in records
	Life        context.Context                            // ends with the daemon
	Work        func(work func(ctx context.Context))       // starts work that outlives its request, with Life
	Follow      func(follow func(ctx context.Context))     // starts what goes on as long as the daemon, with Life
	// Stage begins a part of an act, which is measured by itself.
	Stage func(ctx context.Context, what string) (context.Context, func(error))

	// Of runs: Working reports whether one is under way in a cell. WithinRun has a run do something while its command
	// goes on; done is false if it does not any more.
	Working   func(id cell.ID) bool
	WithinRun func(_ context.Context, run cell.RunID, do func() error) (done bool, err error)

	// Of the start of cells. Prepare gives one at rest a writable layer and mounts: what it
	// changed is committed with the cell, and done is called then, also after an error. Specify
	// is what its instance is made of. Woken gives it what it had when it ran last.
	Prepare func(ctx context.Context, c *state.Cell) (changed []any, done func(), err error)
	Specify func(c *state.Cell) (cell.Spec, error)
	Woken   func(ctx context.Context, c *state.Cell, inst backend.Instance)
	// Of a cell's writable layers over caches, when nothing has them mounted: Unmounted takes what is
	// kept of them, and removes them. ClearCaches removes what an attempt to start has left.
	Unmounted   func(ctx context.Context, id cell.ID) error
	ClearCaches func(id cell.ID) error

	Policies Policies
	Gateways Gateways
	Services Services
	// Leaving is called with an instance that has a gateway and is about to be taken down.
	Leaving func(ctx context.Context, inst backend.Instance)

	// Of templates. Drain takes away the forks of one that were made ahead. TakeUp takes up
	// what goes on in a cell that an earlier daemon made, beside its interpreter and commands.
	Drain  func(ctx context.Context, template, cause string)
	TakeUp func(ctx context.Context, c *state.Cell, inst backend.Instance)

	// Of notes. StartNotes is what is told, once, of the latest start of a cell. EndNotes is
	// what is told of a command that has ended, with its output, or as the process that has it.
	StartNotes func(id cell.ID) []string
	EndNotes   func(ctx context.Context, id cell.ID, workdir string, inst backend.Instance, proc backend.Process, d backend.Done) []string
	// Ended is called with each command that has ended.
	Ended func(x api.Exec)

	// Of what may become of a cell when its lease is over, and of a paused one that was kept
	// for as long as it may. The lock of its pauses is held.
	Stop, RemoveCell func(ctx context.Context, id cell.ID) error
	EndKept          func(l state.Lease)
}

// Policies checks the policy of a cell before something starts in it.
type Policies interface {
	// MayStart refuses to start anything in a cell that they do not allow now.
	MayStart(c *state.Cell) error
	// Spend counts a command outside runs, and refuses one too many.
	Spend(c *state.Cell) error
	// Env returns the variables that every command in a cell finds, but for those of its lease.
	Env(c *state.Cell) []string
}

// Gateways are those of cells.
type Gateways interface {
	// FollowAsks is called with an instance that has one, when it is in the table: it may ask
	// for what its policy leaves to a person.
	FollowAsks(inst backend.Instance)
	// Refresh puts into force what a cell is allowed now, which may have been changed while it
	// was unreached.
	Refresh(ctx context.Context, id cell.ID) error
}

// Services are what runs beside cells.
type Services interface {
	// Start has those of a cell run, before its instance is made, and Connect has that reach them. What was
	// wanted of them and came to nothing Follow takes back; it is called, too, for a cell that comes to rest.
	Start(ctx context.Context, c *state.Cell) error
	Connect(ctx context.Context, c *state.Cell, inst backend.Instance) error
	Follow(c *state.Cell)
}

// ErrClosing is the cause of work that ends because the daemon does.
var ErrClosing = cell.Errorf(cell.Interrupted, "live", "", "the daemon is ending")

// Manager is the manager of what is alive. It is safe for concurrent use.
type Manager struct {
	Table
	cfg Config
	// pauses are of pausing and resuming alone: a run holds the lock of its cell for as long
	// as it lasts.
	pauses state.CellLocks
	// leasing is held while the record of a lease is changed.
	leasing sync.Mutex
	// recording is held while the record of a cell's interpreter is changed.
	recording stripes

	envMu sync.Mutex           // guards env
	env   map[cell.ID][]string // variables of leases that are in no record: see SetLeaseEnv
}

// New returns a manager without instances.
func New(cfg Config) *Manager {
	m := &Manager{cfg: cfg, env: map[cell.ID][]string{}}
	m.Table = newTable(func(id cell.ID) {
		if cfg.Life.Err() == nil {
			cfg.Work(func(ctx context.Context) { m.restSoon(ctx, id) })
		}
	})
	return m
}
