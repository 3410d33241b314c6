// Package result owns what cells and runs changed, and what is decided about it: comparisons of
// checkpoints, what accept applies to the source and holds back, reverts of that, what is discarded,
// and restores of a cell to one of its checkpoints.
//
// It promises that a decision and its receipt are one, also after a crash (Resume), that a source has
// all of an accept or none (Recover), and that nothing is lost by a restore: what a cell was stays as
// a checkpoint for a while. It leaves to its caller which requests may decide, how a run comes to its
// first verdict, and how a cell's files become a checkpoint.
//
// A Manager has no state beside the registry, and no lock. It decides under the lock of the cell.
package result

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/parse"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/store"
	"github.com/pando-dev/pando/internal/workspace"
)

// Config is what a Manager is made of. Functions may be called at any time, several at once.
type Config struct {
	Records  *state.Registry
	Locks    *state.CellLocks
	Log      *slog.Logger
	Parser   *parse.Parser // of what is too large to be parsed here
	Redactor *receipt.Redactor
	Home     string               // the home directory of the user that pando runs as
	User     string               // the name of that user
	Backups  string               // the folder of what applies replace, until they are complete
	Path     string               // the user's PATH
	Private  func(cell.ID) string // the folder of what belongs to one cell alone

	Cells    Cells
	Evidence Evidence
	Space    Space
	Decides  Decides

	// Pin keeps what is not recorded yet from garbage collection until end.
	Pin func() (end func())
	// Tree returns the tree of a digest, and PutTree stores one. TreeOf is the tree of a
	// checkpoint, and Side that tree with the contents of its files. Verify reads all of a
	// checkpoint and fails when it is not what it was.
	Tree    func(cell.Digest) (*workspace.Tree, error)
	PutTree func(*workspace.Tree) (cell.Digest, error)
	TreeOf  func(context.Context, *state.Checkpoint) (*workspace.Tree, error)
	Side    func(context.Context, *state.Checkpoint) (workspace.Side, error)
	// Stamp is another one once a cell's files, which may be in use, were changed; not settled where they changed just now.
	Stamp func(context.Context, *state.Cell) (sum cell.Digest, settled bool, err error)
	// SourceNow is what a new import of a cell's source makes of it now, and left reports what that left out.
	// Objects has the contents of files that merges made or replaced, until no record names them.
	SourceNow func(context.Context, *state.Cell) (_ workspace.Side, left func(path string) bool, err error)
	Objects   store.Store
	Verify    func(context.Context, *state.Checkpoint) error
	// Checkpoint makes the present state of a cell a checkpoint, of which k says what it is for, and its head, if it
	// is not one, within a run or "". c is changed and committed.
	Checkpoint func(ctx context.Context, c *state.Cell, k state.Checkpoint, within cell.RunID) (state.Checkpoint, error)
	// MayReturn refuses to bring a cell back to a checkpoint where one of its services can't go with it.
	MayReturn func(c *state.Cell, to *state.Checkpoint) error
	// ServicesTo brings the services of a cell at rest to where they were at a checkpoint of it. The objects are to be
	// committed with the cell; done is called when they were, or were not.
	ServicesTo func(ctx context.Context, c *state.Cell, to *state.Checkpoint) (objects []any, done func(recorded bool), err error)
	// HomeAt gives a cell the home of a checkpoint, if that has one. c is changed; done is called
	// when that was recorded, or was not.
	HomeAt func(ctx context.Context, c *state.Cell, k *state.Checkpoint) (done func(recorded bool), err error)
	// Memory returns the memory that a restore of a cell brings back with a checkpoint; nil when
	// it brings back its files alone.
	Memory func(req api.RestoreRequest, c *state.Cell, k *state.Checkpoint) (Memory, error)
	// Processes counts the processes of a cell.
	Processes func(context.Context, *state.Cell) (int, error)
	// EndOrphan ends what an earlier daemon left alive of a cell.
	EndOrphan func(context.Context, *state.Cell)
	// Working reports whether a run is under way in a cell.
	Working func(cell.ID) bool
	// Show is a cell as the API has it.
	Show func(*state.Cell) api.Cell
	// Act begins a span of what is done to a cell, and over ends it with its outcome.
	Act func(ctx context.Context, what string, id cell.ID) (_ context.Context, over func(*error))
	// Caches lists the caches that are kept when runs of a cell are accepted, and KeepCaches keeps them, once they are.
	Caches     func(id cell.ID, runs []cell.RunID) []string
	KeepCaches func(ctx context.Context, id cell.ID)
	// Background starts work that outlives its request.
	Background func(func(context.Context))
}

// Cells locks living cells and looks them up (live.Manager).
type Cells interface {
	// Lock takes the lock of a cell. It fails when the cell does not answer.
	Lock(ctx context.Context, id cell.ID, purpose string) (release func(), err error)
	Within(ctx context.Context, id cell.ID, purpose string, do func(run cell.RunID) error) error
	// Usable returns a cell that is made and not removed.
	Usable(cell.ID) (state.Cell, error)
	// Alone has do work in an instance of a cell at rest that nothing else reaches, and takes it down. The caller
	// holds the cell's lock. c is changed, and committed before do.
	Alone(ctx context.Context, c *state.Cell, do func(backend.Instance) error) error
	// Living is a cell's instance, nil at rest, also after its keeper died: then c is changed and committed. The
	// caller holds the cell's lock.
	Living(ctx context.Context, c *state.Cell) (backend.Instance, error)
	// Deactivate ends what lives of a cell.
	Deactivate(ctx context.Context, id cell.ID, cause string) error
}

// Evidence keeps receipts.
type Evidence interface {
	// Seal makes an act, its receipt and the records that change with it durable at once.
	Seal(ctx context.Context, key string, act state.Act, objects ...any) (cell.Digest, error)
	// Origin is the name of the installation's ledger.
	Origin() string
	// Sealed reports whether there is a receipt with a key.
	Sealed(key string) bool
	// VerifyRun compares a run's record and files with its receipts.
	VerifyRun(*state.Run) (files int, problems []receipt.Problem, unproven []string)
}

// Space is what results hold on disk.
type Space interface {
	// Room refuses what writes while the disk is nearly full.
	Room() error
	// SyncLayers makes all layers survive power loss.
	SyncLayers() error
	// DropStates returns how many bytes only a checkpoint holds, and without dry frees them.
	DropStates(k *state.Checkpoint, dry bool) (freed int64, err error)
	// ForgetLooked drops a checkpoint that was made only to show what there was, unless it came to be more than that.
	// The caller has the cell's lock.
	ForgetLooked(c *state.Cell, at cell.CheckpointID) error
	// GiveUp frees what only a checkpoint holds, after commit made it durable that it is gone.
	GiveUp(k *state.Checkpoint, commit func() error) error
}

// Decides says what governs a decision. Each function fails when it may not be taken.
type Decides struct {
	// Unchanged refuses a cell, or a run of it, that is not what the caller saw.
	Unchanged func(c *state.Cell, run *state.Run, seen []Seen) error
	// MayStart refuses a cell in which nothing may be started now.
	MayStart func(*state.Cell) error
	// Secrets refuses changes that have the value of a credential in them that the cell was
	// lent. title is how people select the changes; ignored: files that git ignores, too.
	Secrets func(ctx context.Context, c *state.Cell, title string, base *workspace.Tree, after workspace.Side, ignored bool) error
	// SignOffs is what runs of a cell need to be accepted, by the policies of now, theirs, and those of the runs that they come from.
	SignOffs func(c *state.Cell, runs, from []state.Run) (policy.Accept, error)
	// High lists the findings of severity high in what a run did, in words.
	High func(context.Context, cell.RunID) ([]string, error)
	// GitSigner returns a function that signs commits with the key of a credential, by the SSH agent on a socket, and
	// the key's fingerprint. done ends it.
	GitSigner func(ctx context.Context, credential, socket string) (_ func(ctx context.Context, commit string) (string, error), key string, done func(), err error)
	// SecretsIn returns a function that refuses a text with such a value; nil when the cell was lent none.
	SecretsIn func(ctx context.Context, c *state.Cell) func(place string, r io.Reader) error
}

// Seen checks If-Match: it fails unless tag, the ETag of what there is, is one that the caller read.
type Seen = func(tag string) error

// Memory is the memory of a checkpoint, for one restore.
type Memory interface {
	// Load reads it, and tries it first where the request is strict. It changes nothing.
	Load(context.Context) error
	// Resume lets the cell, which is at rest at the checkpoint, go on with it. res says what
	// became of it.
	Resume(ctx context.Context, res *api.RestoreResult)
	// Close frees what Load took.
	Close()
}

// Manager compares, decides and restores. It is safe for concurrent use.
type Manager struct{ cfg Config }

// New makes a Manager.
func New(cfg Config) *Manager { return &Manager{cfg} }

// The kinds of operations in the journal that Resume finishes.
const (
	OpAccept  = "accept"
	OpDiscard = "discard"
	OpRevert  = "revert"
	OpSync    = "sync"
	OpFetch   = "fetch"
)

// Resume finishes an operation of one of the kinds above that an earlier daemon began.
func (m *Manager) Resume(ctx context.Context, rec operation.Redo) error {
	switch rec.Kind {
	case OpAccept:
		return operation.DoAgain(ctx, m.cfg.Records, rec, m.resumeAccept)
	case OpDiscard:
		return operation.DoAgain(ctx, m.cfg.Records, rec, m.resumeDiscard)
	case OpRevert:
		return operation.DoAgain(ctx, m.cfg.Records, rec, m.resumeRevert)
	case OpSync:
		return operation.DoAgain(ctx, m.cfg.Records, rec, m.resumeSync)
	case OpFetch:
		return operation.DoAgain(ctx, m.cfg.Records, rec, m.resumeFetch)
	}
	return fmt.Errorf("cannot resume an operation of kind %q", rec.Kind)
}

// BegunObjects are the trees, and the contents of files, that an operation goes on with which is not over.
func BegunObjects(o *operation.Redo) (trees, contents []cell.Digest) {
	switch o.Kind {
	case OpAccept:
		var a acceptArgs
		if json.Unmarshal(o.Args, &a) == nil && a.Merge != nil {
			return []cell.Digest{a.Merge.Base, a.Merge.After}, a.Merge.Contents
		}
	case OpDiscard:
		var a discardArgs
		if json.Unmarshal(o.Args, &a) == nil {
			return []cell.Digest{a.Tree}, nil
		}
	}
	return nil, nil
}

// retry is the time between two tries to write the receipt of an accept.
const retry = 3 * time.Second

// names are the first of a list, for people.
func names(list []string) string {
	if len(list) > 5 {
		list = append(slices.Clone(list[:5]), "…")
	}
	return strings.Join(list, ", ")
}
