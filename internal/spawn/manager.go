// Package spawn makes cells of cells: forks of a template, of a checkpoint and of a cell's files,
// branches of a cell that runs, and templates themselves. It keeps templates warm, makes forks of
// them ahead, and captures what runs in a cell.
//
// All cells that go on where another was are made in the same steps (child.go):
//
//	claim      their names, and what they take of the host
//	begin      a folder, layers over the state that they begin on, the keeper's cell
//	adopt      name, environment and what is lent
//	record     all of them at once, with the receipt that is owed
//
// A strategy says how layers and the keeper's cell come to be: a template's interpreter is forked
// (warmParent), a snapshot is copied (copying), a running interpreter is branched in one pause
// (pausing). Cells of files alone are records, and begin when they are used. When a step fails,
// nothing that was made is left.
//
// Runs, policies and what is alive are not known here. The engine gives what is needed of them
// (Config).
//
// Lock order: 1. the lock of a cell (state.CellLocks), 2. Manager.mu, 3. the registry. Nothing but
// the registry and the table of what is alive is asked while Manager.mu is held.
package spawn

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/store"
	"github.com/pando-dev/pando/internal/workspace"
)

// Config has the parts that a Manager needs of others. Its functions will be methods of other managers.
type Config struct {
	Registry *state.Registry
	Locks    *state.CellLocks
	Log      *slog.Logger
	Redactor *receipt.Redactor
	Home     paths.Home
	Objects  store.Store
	Pool     *int // how many forks are made ahead at most, of all templates; nil: as many as pay
	Live     Live
	Space    Space
	Evidence Evidence

	Backend  func(name string) (backend.Backend, error)    // by its name in records
	Provider func(name string) (workspace.Provider, error) // by its name in records
	Host     func() (Needs, error)                         // what forks may use of the host now
	Life     context.Context                               // ends with the daemon
	Work     func(work func(ctx context.Context))          // starts work that outlives its request, with Life
	Pin      func() (done func())                          // keeps objects and layers that no record names yet
	Caps     func(context.Context, backend.Backend) (backend.Caps, error)
	// Bound returns a context that ends with the request and with the daemon. Stage begins a part
	// of an act, which is measured by itself.
	Bound func(context.Context) (context.Context, context.CancelFunc)
	Stage func(ctx context.Context, what string) (context.Context, func(error))

	// Of callers. Maker is what the cells that a request makes have of its caller. Confined reports
	// whether the caller may not name files of the host. MayBuild refuses to build a template in the
	// place of one that the caller does not see; the cell is the caller's until done is called.
	Maker    func(context.Context) *state.Maker
	Confined func(context.Context) bool
	MayBuild func(ctx context.Context, template string) (_ context.Context, done func(), _ error)

	// Of runs. RunIn is the run that is under way in a cell; "" for none. Settle makes the present
	// files of a cell a checkpoint, within a run or "". Plan checks a request for the cell of a template.
	RunIn  func(cell.ID) cell.RunID
	Settle func(ctx context.Context, c *state.Cell, kind string, within cell.RunID) (state.Checkpoint, error)
	Plan   func(ctx context.Context, req api.RunRequest) (Draft, error)

	// Of files. Tree is the tree of a checkpoint, TreeAbove that of a new state over a base.
	Tree       func(context.Context, *state.Checkpoint) (*workspace.Tree, error)
	TreeAbove  func(_ context.Context, _ workspace.Provider, _ *state.Checkpoint, base workspace.State) (*workspace.Tree, error)
	GetTree    func(cell.Digest) (*workspace.Tree, error)
	PutTree    func(*workspace.Tree) (cell.Digest, error)
	Begin      func(context.Context, *state.Cell, workspace.Provider, *state.Checkpoint) error // gives a cell at rest a writable layer
	Affordable func(context.Context, workspace.Provider, *state.Cell) error                    // refuses files that claim more than the disk limit

	// Of a cell's folder and mounts. ForkSpec is what a cell beside its parent is made of, with
	// layers of its own. Specify is what a cell at rest is made of, and clears the places of its
	// mounts. Refit points its mounts at its layers; ClearOverlays drops what it wrote over its image
	// and caches. Overlays are those layers, by where they are seen, and Stacked the mounts of a copy
	// that begins over them. FillHome and MoveOwn are of its home and /tmp.
	ForkSpec      func(*state.Cell, workspace.Provider) (cell.Spec, error)
	Specify       func(*state.Cell) (cell.Spec, error)
	Refit         func(*state.Cell, workspace.Provider, *state.Checkpoint) error
	ClearOverlays func(*state.Cell) error
	// Caches is what a cell that is forked from another begins with of kept caches, for its record: of one that is copied
	// with its mounts, and of one that has its files alone. nil: nothing.
	Caches   func(from, to cell.ID, mounted bool) *state.CellCaches
	Overlays func(*state.Cell) map[string]string
	Stacked  func(*state.Cell) []cell.Mount
	// BranchMounts is Stacked for a cell that goes on beside its copies, with caches.
	BranchMounts func(*state.Cell) []cell.Mount
	FillHome     func(c *state.Cell, home string) error
	MoveOwn      func(*state.Cell, workspace.Provider) error
	FileOf       func(mounts []cell.Mount, path string) (string, bool) // the host's file at a path of a cell

	// Of policies. MayStart refuses to start anything in a cell, MayFork to make so many cells of
	// it, Spend a command too many. Rules are those of the gateway of a cell that was lent nothing
	// yet. Lend lends a template's cell what its policy names, LendFork a new cell beside its parent;
	// Equip gives one that lives what it has beside its gateway. Env are the variables of a cell's
	// commands. KeepablePolicy is the text of a policy that may be written down.
	MayStart       func(*state.Cell) error
	MayFork        func(c *state.Cell, count int) error
	Spend          func(*state.Cell) error
	Rules          func(*state.Cell) (*cell.Governance, error)
	Lend           func(*state.Cell) error
	LendFork       func(*state.Cell, *cell.Adoption) ([]*state.Lending, error)
	Equip          func(ctx context.Context, c *state.Cell, inst backend.Instance, agent string) error
	Env            func(*state.Cell) []string
	KeepablePolicy func(text string) (kept string, variables bool, err error)

	// Of services. Beside makes what a cell's services keep checkpoints, by name, and has them stand still until do
	// returns or calls goOn; CopyServices gives a new cell copies of them, as records; Serve starts those of a cell that lives, and
	// connects it.
	Beside       func(_ context.Context, _ *state.Cell, do func(at map[string]cell.CheckpointID, goOn func()) error) error
	CopyServices func(of *state.Cell, at *state.Checkpoint, c *state.Cell, first *state.Checkpoint) ([]any, error)
	Serve        func(context.Context, *state.Cell, backend.Instance) error

	// Of interpreters.
	EvalOf      func(code, timeout string) (cell.Eval, error)
	OutputTo    func(out func(api.StreamLine)) func(cell.Output)
	WarmTimeout time.Duration

	// Of removals. Remove is for callers with the cell's lock. RemoveNew removes cells that no run
	// was in yet, RemoveUnmade one that was never completed.
	Remove       func(context.Context, cell.ID) error
	RemoveCells  func(context.Context, []state.Cell) error
	RemoveNew    func(context.Context, []cell.ID) error
	RemoveUnmade func(state.Cell)

	// Of answers. View is a cell as it is told of, Brief one that was just made. Failure is an error
	// as records have it. SealFork commits a fork of files with its receipt.
	View     func(*state.Cell) api.Cell
	Brief    func(*state.Cell) api.Cell
	Failure  func(error) *state.Error
	SealFork func(_ context.Context, src *state.Cell, at *state.Checkpoint, children []string, objects ...any) (cell.Digest, error)
}

// Live is what is alive.
type Live interface {
	Cells
	Instances
	Ends
	Interpreters
	Commands
}

// Cells says which cells can be worked with, and locks them.
type Cells interface {
	Lock(ctx context.Context, id cell.ID, purpose string) (release func(), err error)
	Within(ctx context.Context, id cell.ID, purpose string, do func(run cell.RunID) error) error
	Usable(cell.ID) (state.Cell, error)
	AtRest(cell.ID) bool
}

// Instances are those of cells. FreeKeeper is the family of a cell that comes to life anew.
type Instances interface {
	Instance(cell.ID) backend.Instance
	Ref(cell.ID) (inst backend.Instance, release func())
	Add(*state.Cell, backend.Instance, *state.Interp)
	Activate(context.Context, *state.Cell) (backend.Instance, error)
	FreeKeeper(cell.ID) cell.ID
}

// Ends are those of instances, and of pauses for an act.
type Ends interface {
	Take(cell.ID) (inst backend.Instance, interp bool)
	AwaitGone(context.Context, cell.ID) error
	Deactivate(ctx context.Context, id cell.ID, cause string) error
	Remove(ctx context.Context, inst backend.Instance, cause string) error
	RemoveFrozen(ctx context.Context, inst backend.Instance, cause string) error
	Unfreeze(context.Context, backend.Instance) error
}

// Interpreters are those that are known to live. PutSealed says that a template's does, or that the
// template is an image; SealedUse is when it was used last.
type Interpreters interface {
	HasInterp(cell.ID) bool
	PutSealed(c *state.Cell, image bool)
	SealedUse(cell.ID) (last time.Time, image, lives bool)
	UseInterp(cell.ID, time.Time)
	InterpEnded(id cell.ID, cause string)
	FollowDeaths(keeper cell.ID)
}

// Commands run in cells.
type Commands interface {
	RunsCommand(cell.ID) (command []string, runs bool)
	Evaluate(context.Context, cell.ID, backend.Warmer, cell.Eval, func(api.StreamLine)) (cell.Evaluated, error)
	WaitFor(context.Context, backend.Instance, backend.Process) (cell.Status, error)
}

// Space is the room on the disk. Free is what its file system has left, and how much of that
// stays free.
type Space interface {
	Free() (free, keep int64, err error)
	KeepReserve() error
	Freeing(act func() error) error
	RemoveFolder(cell.ID) error
	DropLayer(provider, layer string)
}

// Evidence writes receipts.
type Evidence interface {
	CommitBatch(ctx context.Context, key string, of *state.Cell, b state.Batch, objects ...any) (seal func() string, err error)
}

// A Draft is the cell of a template on its way to its first start, made as one for a run. Begin
// comes first; until done is called, what is made and not recorded yet stays.
type Draft interface {
	Begin(ctx context.Context, c *state.Cell) (done func())
	Look() error                                                   // finds out what it will see of its image
	Import() (state.Checkpoint, error)                             // of its source
	SetUp() error                                                  // gives it mounts
	Programs(name string) ([]string, error)                        // the files to try as a program
	Start(context.Context, backend.Instance) (cell.Process, error) // in which the program runs, without its files
	Facts() Facts
}

// Facts are what is known of a Draft so far.
type Facts struct {
	Backend backend.Backend
	Policy  cell.Digest
	Notes   []string
}

// Manager makes cells of cells. It is safe for concurrent use.
type Manager struct {
	cfg   Config
	reg   *state.Registry
	log   *slog.Logger
	live  Live
	space Space

	budgets state.CellLocks // of the cells of templates that may have so many forks: held from the question whether there may be more to their record

	mu       sync.Mutex               // guards what follows
	names    map[string]chan struct{} // of cells that are being forked; closed at the end of that
	building map[string]bool          // templates that are being built, warmed or removed
	pools    map[string]*pool         // by template
	promised Needs                    // to forks under way
	fitting  map[cell.ID]int64        // forks under way of a template's cell, beside those that were made ahead
	measured map[string]*footprint    // what forks of each template took
	forked   map[cell.ID]int64        // how many forks each template's cell has had, with those that are being recorded
	sights   map[cell.ID]sight        // of templates' files
	forkings int                      // requests for forks under way
	filling  int                      // how many fill pools
}

// New returns a Manager, which calls nothing of c yet.
func New(c Config) *Manager {
	return &Manager{
		cfg: c, reg: c.Registry, log: c.Log, live: c.Live, space: c.Space, names: map[string]chan struct{}{}, building: map[string]bool{}, pools: map[string]*pool{},
		fitting: map[cell.ID]int64{}, forked: map[cell.ID]int64{}, measured: map[string]*footprint{}, sights: map[cell.ID]sight{},
	}
}

// private is the folder of what belongs to one cell alone.
func (m *Manager) private(id cell.ID) string { return filepath.Join(m.cfg.Home.Cells(), string(id)) }

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// writable is the directory of the host that holds what a cell writes below a mount.
func writable(m *cell.Mount) string { return cmp.Or(m.Upper, m.Source) }

// several names the first of a list.
func several(list []string) string {
	const shown = 5
	if len(list) > shown {
		list = append(append([]string{}, list[:shown]...), "…")
	}
	return strings.Join(list, ", ")
}
