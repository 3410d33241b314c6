// Package gc owns what of an installation's disk is needed, and what can go. It removes cells
// and checkpoints that have expired, layers and objects that no record names, sources and
// images that were not used for long, and what an earlier daemon left. It measures the disk,
// keeps the state within its budget, and keeps a reserve so that a full disk can be emptied.
//
// It promises that nothing goes that a living cell, a run without a verdict, a checkpoint, a
// fork or a pin needs. It leaves to its caller how a cell is ended, and which request may
// remove what.
//
// Lock order: 1. Manager.trimming, 2. the lock of a cell, 3. Manager.measuring,
// 4. Manager.space and Manager.mu, 5. the registry's, 6. Pins.mu.
package gc

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/oci"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// Config is what a Manager is made of. Functions may be called at any time, several at once.
type Config struct {
	Home      paths.Home
	Log       *slog.Logger
	Records   *state.Registry
	Providers []workspace.Provider
	Provider  func(name string) (workspace.Provider, error)
	Pins      *Pins  // stand before the objects
	Etc       string // the folder of filtered copies of the host's /etc
	MaxState  int64  // bytes that the state may hold; 0: a tenth of its file system
	MinFree   int64  // bytes of the state's file system that stay free; 0: DefaultFree

	Sources Sources

	// Images lists the OCI images that are unpacked here. ImageNeeded reports whether a cell
	// needs one; RemoveImage fails with Conflict then.
	Images      func() ([]oci.Image, error)
	ImageNeeded func(*oci.Image) bool
	RemoveImage func(*oci.Image) error
	// RemoveCache removes a cache that is kept for a source.
	RemoveCache func(id string) error
	// Lock takes the lock of a cell or an import (see ImportLock). why is shown to what waits. It fails with
	// state.HeldByRun while the command of a run goes on in the cell.
	// TryLock fails with Conflict when the lock is taken.
	Lock    func(ctx context.Context, id cell.ID, why string) (release func(), err error)
	TryLock func(id cell.ID, why string) (release func(), err error)
	// AtRest reports whether nothing of a cell lives. AwaitGone waits until what is being taken
	// down of it is gone. Remove ends it and records that it is removed, for callers with its
	// lock.
	AtRest    func(cell.ID) bool
	AwaitGone func(context.Context, cell.ID) error
	Dropped   func(*state.Cell) // is told of each cell that was removed
	Remove    func(context.Context, cell.ID) error
	// Tree returns the tree of a digest, which may be in memory. ForgetTrees drops those: the
	// store may not have them any more.
	Tree        func(cell.Digest) (*workspace.Tree, error)
	ForgetTrees func()
	// Above returns what the image of a template's cell needs beside the cell's record.
	Above func(cell.ID) []workspace.State
	// Begun returns the layers that an operation which is not over may have made. It calls no
	// method of the registry.
	Begun func(*operation.Redo) []*workspace.Generation
	// BegunObjects returns the trees, and the contents of files, that such an operation goes on with. It calls no
	// function of the registry.
	BegunObjects func(*operation.Redo) (trees, contents []cell.Digest)
	// ExpireEvidence erases the contents of runs' evidence that the policy keeps no longer; dry only says which.
	ExpireEvidence func(ctx context.Context, dry bool, now time.Time) ([]api.GCItem, error)
	// Kept is for how long a paused cell with a lease is kept, and by which rule.
	Kept func(*state.Lease) (time.Duration, string)
	// Leftovers removes what keepers that died left, and names it; dry only names it.
	Leftovers func(ctx context.Context, dry bool) ([]string, error)
	// Background runs work that outlives its request. Its context ends with the daemon.
	Background func(func(context.Context))
}

// Sources are the newest imports of sources, which the next imports begin with.
type Sources interface {
	// Loaded returns those that are in memory.
	Loaded() []*workspace.Imported
	// Recorded returns those that are on disk.
	Recorded() ([]Source, error)
	// Forget drops one: the next import reads all of its source.
	Forget(name string)
}

// ImportLock is the lock under which a source is imported.
func ImportLock(name string) cell.ID { return cell.ID("source " + name) }

// Source is the record of an import. One that can't be read has no Path.
type Source struct {
	Name  string
	Path  string // of the source
	State workspace.State
	Tree  cell.Digest
	Used  time.Time
	Files []string // that the record consists of
}

// Manager is safe for concurrent use.
type Manager struct {
	cfg Config

	trimming sync.Mutex // held while things are removed to fit the budget

	measuring  sync.Mutex       // guards what follows
	layerSizes map[string]int64 // of layers that nothing writes to

	space    sync.Mutex // guards the files of the reserve, and what follows
	spenders int        // how many use the reserve's space

	mu       sync.Mutex           // guards what follows
	usage    *usage               // as it was measured last; nil: not yet
	made     int64                // bytes that runs made since
	looking  bool                 // at it, in the background
	next     []*holding           // what is removed next if the state grows
	warned   map[string]bool      // ids of what an answer, or the log an hour ago, has named as next
	warnings map[string]time.Time // when the log named them
	removed  []api.DiskObject     // for the budget: the latest, newest first
	gone     []*state.Cell        // removed cells of which the layers may go
	dropping bool                 // drops them, in the background
}

// New returns a Manager, which calls nothing of c yet.
func New(c Config) *Manager { return &Manager{cfg: c} }

// folder is the folder of what belongs to one cell alone.
func (m *Manager) folder(id cell.ID) string { return filepath.Join(m.cfg.Home.Cells(), string(id)) }
