package state

import (
	"slices"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
)

// Checkpoint is what the registry keeps of a state.
type Checkpoint struct {
	ID      cell.CheckpointID `json:"id"`
	Cell    cell.ID           `json:"cell"`
	Number  int               `json:"number"`
	Parent  cell.CheckpointID `json:"parent,omitempty"`
	Kind    string            `json:"kind"`
	Run     cell.RunID        `json:"run,omitempty"`
	Message string            `json:"message,omitempty"`
	Created time.Time         `json:"created"`
	Expires time.Time         `json:"expires,omitzero"`
	State   workspace.State   `json:"state"`
	Tree    cell.Digest       `json:"tree,omitzero"`
	Content cell.Digest       `json:"content,omitzero"`
	Under   string            `json:"under,omitempty"`
	// Turn is the number of the turn of the agent's conversation that begins here; 0: none does. Home
	// is the cell's home of the same instant; nil: it has none.
	Turn   int              `json:"turn,omitempty"`
	Home   *workspace.State `json:"home,omitempty"`
	TookMS float64          `json:"took_ms,omitempty"`
	// Services are, by name, the checkpoints of the same instant of the cells that services of the cell run in.
	Services map[string]cell.CheckpointID `json:"services,omitempty"`
	// Memory is what ran in the cell; nil: files alone. The cell stood still for PauseMS,
	// and MemoryTaken says how its memory was taken.
	Memory      *MemorySnapshot `json:"memory,omitempty"`
	PauseMS     float64         `json:"pause_ms,omitempty"`
	MemoryTaken string          `json:"memory_taken,omitempty"`
	Gone        bool            `json:"gone,omitempty"` // collected; the record explains old receipts
}

// MemorySnapshot is what belongs to a cell's memory: the root of its image in the
// store, and the files of the same instant that are not the workspace's.
type MemorySnapshot struct {
	Root  cell.Digest                `json:"root"`
	Home  workspace.State            `json:"home"`
	Tmp   workspace.State            `json:"tmp"`
	Above map[string]workspace.State `json:"above,omitempty"` // over its image and caches, by mount point
}

// States are the files of a checkpoint.
func (k *Checkpoint) States() []workspace.State {
	list := []workspace.State{k.State}
	if k.Home != nil {
		list = append(list, *k.Home)
	}
	if m := k.Memory; m != nil {
		list = append(list, m.Home, m.Tmp)
		for _, s := range m.Above {
			list = append(list, s)
		}
	}
	return list
}

// The kinds of checkpoints.
const (
	KindBase     = "base"
	KindBefore   = "before"
	KindAfter    = "after"
	KindManual   = "manual"
	KindLooked   = "looked" // made to show or decide about what there is
	KindFork     = "fork"
	KindTemplate = "template"
	KindBranch   = "branch"
	KindTurn     = "turn"
	KindStep     = "step"    // before a command or an evaluation
	KindService  = "service" // of a service, made with one of the cell that it runs beside
)

// The messages of a checkpoint of KindLooked: it shows what there was, or what was accepted.
const (
	LookedMessage   = "as it was looked at"
	AcceptedMessage = "as it was accepted"
)

// HasRun reports whether a checkpoint is the one before or after a run.
func (r *Registry) HasRun(k *Checkpoint) bool {
	if k.Run == "" {
		return false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.runs.at(k.Run) != nil
}

// Ancestors is a checkpoint with all that it goes back to.
func (r *Registry) Ancestors(id cell.CheckpointID) map[cell.CheckpointID]bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	here := map[cell.CheckpointID]bool{}
	for id != "" && !here[id] {
		here[id] = true
		if k := r.checkpoints.of[id]; k != nil {
			id = k.Parent
		}
	}
	return here
}

// HasState reports whether a checkpoint of a cell has a state, as its files or as its home.
func (r *Registry) HasState(id cell.ID, s workspace.State) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, at := range r.numbered[id] {
		if k := r.checkpoints.of[at]; k != nil && !k.Gone && (k.State.Same(s) || k.Home != nil && k.Home.Same(s)) {
			return true
		}
	}
	return false
}

// LastTurn is the number of a cell's latest turn; 0: it had none.
func (r *Registry) LastTurn(id cell.ID) (last int) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, at := range r.numbered[id] {
		if k := r.checkpoints.of[at]; k != nil {
			last = max(last, k.Turn)
		}
	}
	return last
}

// AtTurn returns the checkpoint at which a turn of a cell's agent begins.
func (r *Registry) AtTurn(id cell.ID, turn int) (Checkpoint, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, at := range r.numbered[id] {
		if k := r.checkpoints.of[at]; k != nil && k.Turn == turn && turn > 0 {
			return *k, nil
		}
	}
	of := string(id)
	if c := r.cells.of[id]; c != nil {
		of = c.Title()
	}
	return Checkpoint{}, cell.Errorf(cell.NotFound, "engine.turn", "run `pando history "+of+"` to see its turns", "cell %s has no turn %d", of, turn)
}

// Point is what records of runs and receipts have of a checkpoint.
func (k *Checkpoint) Point() *Point {
	return &Point{Checkpoint: string(k.ID), Number: k.Number, TreeDigest: k.Tree.String(), ContentDigest: k.Content.String()}
}

// HeadNumber is the number of the checkpoint that a cell is at; 0 if there is none.
func (r *Registry) HeadNumber(c *Cell) int {
	k, err := r.Checkpoint(c.Head)
	if err != nil {
		return 0
	}
	return k.Number
}

// What a checkpoint under living processes has of them.
const (
	UnderFiles  = "living processes: the top layer was copied"
	UnderMemory = "living processes: with their memory, home and /tmp"
)

// FilesOf is the checkpoint that made the files of k a checkpoint: k itself, or one above it after which
// checkpoints were made for the home or the services alone.
func (r *Registry) FilesOf(k Checkpoint) Checkpoint {
	for k.forMore() && !k.Tree.IsZero() {
		up, err := r.Checkpoint(k.Parent)
		if err != nil || up.Cell != k.Cell || up.Tree != k.Tree {
			break
		}
		k = up
	}
	return k
}

// forMore reports whether a checkpoint may have been made for something else than the files.
func (k *Checkpoint) forMore() bool {
	switch k.Kind {
	case KindManual, KindFork, KindBefore:
		return k.Memory == nil && (k.Home != nil || len(k.Services) > 0)
	}
	return false
}

// IsPart reports whether a checkpoint of the cell of a service is part of one of the cell that it serves.
func (r *Registry) IsPart(c *Cell, id cell.CheckpointID) bool {
	if c.Serves == nil {
		return false
	}
	return slices.ContainsFunc(r.Checkpoints(c.Serves.Of), func(k Checkpoint) bool { return k.Services[c.Serves.Name] == id })
}
