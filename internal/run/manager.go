// Package run owns the life of a run: it waits for its cell, has the cell prepared and the command
// started, waits for that, freezes and compares what it left, gives the first verdict, and closes with
// a receipt. Clients attach to runs here, and a later daemon takes up those of an earlier one.
//
//	Start ─ wait for the cell's lock ─ Work.Prepare ─ Work.Start ─ wait for the command   (run.go)
//	      └ failed to start (failed.go)                              └ finish, verdict, receipt
//	Recover ─ the command lives: wait for it; it is gone: read how it ended ┘ (recover.go, finish.go)
//
// It promises that each run that was recorded ends with a verdict, and that a crash in the middle
// changes neither: finish may be repeated. It leaves to its caller what a request means, how a cell is
// made and its command started (Work), and how the files of a cell become a checkpoint.
//
// Lock order: 1. the lock of a cell, 2. Manager.mu, 3. the registry's. Live.mu is the last.
package run

import (
	"context"
	"iter"
	"log/slog"
	"os"
	"sync"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/agent/price"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/parse"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// Config is what a Manager is made of. Functions may be called at any time, several at once.
type Config struct {
	Records  *state.Registry
	Locks    *state.CellLocks
	Log      *slog.Logger
	Parser   *parse.Parser // of what is too large to be parsed here
	Redactor *receipt.Redactor
	Life     context.Context // ends with the daemon; its cause is what commands that stay are left with

	Cells    Cells
	Commands Commands
	Evidence Evidence
	Files    Files
	Space    Space
	Drops    Drops

	// Compare computes what a run changed, and notes it in the run. Apply accepts its result and
	// applies it to the source.
	Compare func(ctx context.Context, run *state.Run, c *state.Cell, before, after *state.Checkpoint) (Changed, error)
	// Demands reports whether the policy may demand sign-offs for a run, and Demand which its result needs; nil for none.
	Demands func(c *state.Cell, run *state.Run) (bool, error)
	Demand  func(ctx context.Context, c *state.Cell, run *state.Run) (*state.SignOffNeed, error)
	Apply   func(ctx context.Context, c *state.Cell, run *state.Run, reason string) error
	// Secrets searches what a run left behind for values of credentials, and notes them in the run.
	Secrets func(ctx context.Context, run *state.Run, c *state.Cell, before, after *state.Checkpoint) error
	// Calls keeps what an agent reports of its tool calls, in the folder of its run.
	Calls func(ctx context.Context, run *state.Run, c *state.Cell, after *state.Checkpoint)
	// NoteCaches notes in a run that ends what it had of caches, and EndCaches keeps what it wrote there, if that may be kept
	// by its verdict.
	NoteCaches, EndCaches func(ctx context.Context, c *state.Cell, run *state.Run)
	// Notice gives notice of the end of a run, as it asked for.
	Notice func(context.Context, *state.Run)
	// EndAnswers takes back what was approved for the runs of a cell alone.
	EndAnswers func(context.Context, *state.Cell) error
	// Checkpoint makes the state of a cell after a run a checkpoint, and its head, if it is not
	// one. It fails with an *Unaffordable for files that can't be kept.
	Checkpoint func(ctx context.Context, c *state.Cell, run cell.RunID) (state.Checkpoint, error)
	// ServicesTo brings the services of a cell at rest to where they were at a checkpoint of it. The objects are to be
	// committed with the cell; done is called when they were, or were not.
	ServicesTo func(ctx context.Context, c *state.Cell, to *state.Checkpoint) (objects []any, done func(recorded bool), err error)
	// Check runs the check of a run in a fork of its result, and notes its outcome in the run.
	Check func(ctx context.Context, j *Job, after *state.Checkpoint) error
	// Side is the tree of a checkpoint with the contents of its files.
	Side func(context.Context, *state.Checkpoint) (workspace.Side, error)
	// DiskFull reports whether the disk of a cell is full.
	DiskFull func(cell.ID) bool
	// Command returns the command of a run in a living cell.
	Command func(ctx context.Context, inst backend.Instance, id cell.RunID) (backend.Process, error)
	// Sleep pauses a cell in which nothing happens, until something is done in it. It fails, and the
	// cell goes on, when it is in use or free says that it is.
	Sleep func(ctx context.Context, id cell.ID, free func() bool) error
	// Idle reports whether nothing runs in a living cell.
	Idle func(context.Context, backend.Instance) bool
	// LastImport returns the newest import with a key; nil: there is none.
	LastImport func(key string) (*workspace.Imported, error)
	// RemoveUnmade removes a cell that was not completely made.
	RemoveUnmade func(state.Cell)
	// Failure is an error as records have it.
	Failure func(error) *state.Error
	// Pin keeps what is not recorded yet from garbage collection until end.
	Pin func() (end func())
	// Stage begins a span of a part of a run, and end ends it.
	Stage func(ctx context.Context, name string) (_ context.Context, end func(error))
	// Background starts work that outlives its request. Its context ends with the daemon.
	Background func(func(context.Context))
}

// Cells looks up living cells (live.Manager).
type Cells interface {
	// Instance returns what lives of a cell; nil for nothing.
	Instance(cell.ID) backend.Instance
	// Deactivate ends what lives of a cell.
	Deactivate(ctx context.Context, id cell.ID, cause string) error
	// AtRest reports whether nothing of a cell lives.
	AtRest(cell.ID) bool
}

// Commands are the commands of living cells.
type Commands interface {
	// WaitFor waits for the end of a command, and ends it when ctx ends. It fails with the cause of
	// Config.Life when the daemon ends and the command stays.
	WaitFor(context.Context, backend.Instance, backend.Process) (cell.Status, error)
	// AwaitReach returns what lives of the cell of a run that an earlier daemon began, after its
	// keeper has answered or is gone; nil for nothing.
	AwaitReach(context.Context, *state.Cell) backend.Instance
	// MayWait refuses to wait for a cell that does not answer.
	MayWait(cell.ID) error
}

// Evidence keeps receipts.
type Evidence interface {
	// SealRun writes the receipt of a run, once.
	SealRun(context.Context, *state.Run, *state.Cell) error
	// Adopt gives a run what its receipt says of it, if it has one.
	Adopt(*state.Run) (bool, error)
}

// Files are functions on the files in the folder of a run.
type Files struct {
	Open, Create func(folder, name string) (*os.File, error)
	// Network is what a run said to the outside, and which system calls were missing.
	Network func(folder string, run cell.RunID, own []price.Own) (*state.Network, []string, error)
	// Denials yields what a run is refused on the network until ctx ends.
	Denials func(context.Context, *state.Run) iter.Seq[api.Denial]
	// ExitOf is how a command ended, by what its keeper wrote before it was gone.
	ExitOf func(*state.Run) (cell.Status, error)
}

// Space is the space on disk.
type Space interface {
	// SpendReserve lets the reserve be used until done.
	SpendReserve() (done func())
	// SyncLayers makes all layers survive power loss.
	SyncLayers() error
	// Note is a warning for a run that ends; "" for none.
	Note(ctx context.Context, made int64) string
}

// Drops removes what no record names.
type Drops interface {
	DropCell(*state.Cell)
	DropLayer(provider, layer string)
}

// Changed is what a run changed.
type Changed interface {
	// Nothing reports whether that is nothing of substance.
	Nothing() bool
	// Taken reports whether the source has all of it, by accepts while the run went on.
	Taken() bool
	// Unread reports whether git's index or its rules could not be read.
	Unread() bool
	// WritePatch writes what accept would apply. note says why there is none, or not all.
	WritePatch(context.Context, *os.File) (note string, err error)
}

// Manager carries out runs. It is safe for concurrent use.
type Manager struct {
	cfg Config

	mu   sync.Mutex // guards what follows
	live map[cell.RunID]*Live
	lost map[cell.RunID]error // runs with an end that could not be recorded yet, and why
}

// New makes a Manager.
func New(cfg Config) *Manager {
	return &Manager{cfg: cfg, live: map[cell.RunID]*Live{}, lost: map[cell.RunID]error{}}
}
