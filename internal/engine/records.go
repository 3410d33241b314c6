package engine

import (
	"time"

	"cmp"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/op"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/workspace"
)

// Cell is what the registry keeps of a cell.
type Cell struct {
	ID        cell.ID             `json:"id"`
	Name      string              `json:"name,omitempty"`
	State     cell.State          `json:"state"`
	Cause     string              `json:"cause,omitempty"`
	Source    string              `json:"source"`
	Backend   string              `json:"backend"`
	Image     string              `json:"image"`
	ImageKey  cell.Digest         `json:"image_key,omitzero"`     // of an OCI image: by which it is kept
	ImageID   string              `json:"image_digest,omitempty"` // of the image that its name meant when the cell was made
	Family    cell.ID             `json:"family,omitempty"`       // whose keeper holds it; "": its own
	Created   time.Time           `json:"created"`
	Expires   time.Time           `json:"expires,omitzero"`
	LastRun   cell.RunID          `json:"last_run,omitempty"`
	Runs      int                 `json:"runs,omitempty"`
	Next      int                 `json:"next"` // number of the next checkpoint
	Parent    *Origin             `json:"parent,omitempty"`
	Provider  string              `json:"provider"`
	WhyNot    string              `json:"why_not,omitempty"` // why not a better provider
	LeftOut   []workspace.LeftOut `json:"left_out,omitempty"`
	ImportKey string              `json:"import_key,omitempty"`

	// Head is the checkpoint that the workspace is at or started from. Gen is
	// the writable layer above it, while there is one.
	Head cell.CheckpointID     `json:"head,omitempty"`
	Gen  *workspace.Generation `json:"gen,omitempty"`

	// Volume is the size of the cell's own file system, in bytes; 0 when it
	// shares the state directory's.
	Volume int64 `json:"volume,omitempty"`

	// Known is the tree of the source as far as pando knows it: that of the
	// import, with what was applied since. Zero: that of the first checkpoint.
	Known cell.Digest `json:"known,omitzero"`
	// KnownAt are the checkpoints, of whatever cell, whose files were applied to the source:
	// Known's contents are theirs, or the import's. They are kept as long as the cell.
	KnownAt []cell.CheckpointID `json:"known_at,omitempty"`
	// KnownHead is what the source's repository had checked out at that time; zero when there
	// was none, or it could not be read.
	KnownHead gitdir.Head `json:"known_head,omitzero"`
	// Applied is what of the cell's work is in the source, oldest first.
	Applied []applied `json:"applied,omitempty"`

	// Agent is the socket of the SSH agent of whoever ran something in it last,
	// if keys of it are lent.
	Agent string `json:"agent,omitempty"`

	// Home and Tmp are writable layers that take the place of home and tmp in
	// the cell's own folder: of templates and of what was forked in memory.
	Home *workspace.Generation `json:"home,omitempty"`
	Tmp  *workspace.Generation `json:"tmp,omitempty"`
	// Roots counts the layers over its image and caches that it has used up.
	Roots int `json:"roots,omitempty"`

	// Batch is the key of the receipt with the certificate of a cell that was forked
	// with its memory, Of the template that it, or what it was branched from, was forked from.
	Batch string `json:"batch,omitempty"`
	Of    string `json:"of,omitempty"`

	// Template is the template whose warm parent this cell is: it is not listed,
	// and goes with it. NoSource says that no directory of the host is its source.
	Template string `json:"template,omitempty"`
	NoSource bool   `json:"no_source,omitempty"`
	// Guest says that a caller made it that may not name files of the host: nothing of the
	// user's home is read for it.
	Guest bool `json:"guest,omitempty"`

	// Shared names the record that holds Setup and LeftOut, which a hundred
	// forks have in common; zero: they are here.
	Shared cell.Digest `json:"shared,omitzero"`

	// Ceiling is what the cell may use at most, by the ceilings of who made it.
	Ceiling *cell.Limits `json:"ceiling,omitempty"`

	// What commands in it get; set when it is made.
	Setup Setup `json:"setup,omitzero"`
	// Of a cell that is being made, and in no record: by which request, and the cell
	// in whose place it will be.
	made *Maker
	heir cell.ID
}

// Interp is what the registry keeps of a cell's latest interpreter. The
// interpreter itself is in the keeper, and gone with it. It is a record of its
// own, and not a part of the cell's: it begins and ends while a run holds the
// cell's turn.
type Interp struct {
	Cell     cell.ID   `json:"cell"`
	Kind     string    `json:"kind"`
	Version  string    `json:"version"`
	Started  time.Time `json:"started"`
	Depth    int       `json:"depth,omitempty"`
	Template string    `json:"template,omitempty"` // that it was forked from
	Former   string    `json:"former,omitempty"`   // the template that an earlier interpreter of the cell was forked from
	Batch    string    `json:"batch,omitempty"`    // key of the receipt with its certificate
	Ended    string    `json:"ended,omitempty"`    // why it is gone
}

// Origin is where a forked cell comes from.
type Origin struct {
	Cell       cell.ID           `json:"cell"`
	Checkpoint cell.CheckpointID `json:"checkpoint"`
}

// Setup is what governs a cell: the effective policy and what follows from it.
type Setup struct {
	Policy     cell.Digest    `json:"policy"`
	PolicyText string         `json:"policy_text"` // canonical form: these bytes are what was digested
	Mounts     []cell.Mount   `json:"mounts"`
	Seeds      []image.Seed   `json:"seeds,omitempty"` // what it finds over an image
	Env        []string       `json:"env"`             // from the image, never values the user gave
	User       cell.User      `json:"user"`
	Kernel     string         `json:"kernel,omitempty"` // as cell.Spec has it; "": none was asked for
	Limits     cell.Limits    `json:"limits"`
	Asked      []string       `json:"asked,omitempty"`
	Downgrades []string       `json:"downgrades,omitempty"`
	Talks      bool           `json:"talks,omitempty"`       // has an interface, and a gateway behind it
	TrustLists []string       `json:"trust_lists,omitempty"` // files of the host with authorities that it trusts, too
	Origins    policy.Origins `json:"origins"`               // where the policy's lines come from
	Handles    []string       `json:"handles,omitempty"`     // credentials that the policy lends
	Notes      []string       `json:"notes,omitempty"`
	Kept       kept           `json:"kept,omitzero"` // what later runs go by until they are told something else
	Budgets    Budgets        `json:"budgets,omitzero"`
	// Hidden and ReadOnly are paths of the workspace, and Unmasked says which of
	// them are not covered, and why.
	Hidden   []string `json:"hidden,omitempty"`
	ReadOnly []string `json:"read_only,omitempty"`
	Programs []string `json:"programs,omitempty"` // that are denied
	Unmasked []string `json:"unmasked,omitempty"`
}

// gens are the writable layers that a cell has now.
func (c *Cell) gens() (list []*workspace.Generation) {
	for _, g := range []*workspace.Generation{c.Gen, c.Home, c.Tmp} {
		if g != nil {
			list = append(list, g)
		}
	}
	return list
}

// Anonymous reports whether the cell has no name of its own.
func (c *Cell) Anonymous() bool { return c.Name == "" }

// Title is the cell's name for people.
func (c *Cell) Title() string {
	if c.Name != "" {
		return c.Name
	}
	return cmp.Or(c.Template, string(c.ID))
}

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
	TookMS  float64           `json:"took_ms,omitempty"`
	// Memory is what ran in the cell; nil: files alone. The cell stood still for PauseMS,
	// and MemoryTaken says how its memory was taken.
	Memory      *Remembered `json:"memory,omitempty"`
	PauseMS     float64     `json:"pause_ms,omitempty"`
	MemoryTaken string      `json:"memory_taken,omitempty"`
	Gone        bool        `json:"gone,omitempty"` // collected; the record explains old receipts
}

// Remembered is what belongs to a cell's memory: the root of its image in the
// store, and the files of the same instant that are not the workspace's.
type Remembered struct {
	Root  cell.Digest                `json:"root"`
	Home  workspace.State            `json:"home"`
	Tmp   workspace.State            `json:"tmp"`
	Above map[string]workspace.State `json:"above,omitempty"` // over its image and caches, by mount point
}

// states are the files of a checkpoint.
func (k *Checkpoint) states() []workspace.State {
	list := []workspace.State{k.State}
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
	kindBase   = "base"
	kindBefore = "before"
	kindAfter  = "after"
	kindManual = "manual"
	kindFork   = "fork"
	kindSealed = "template"
	kindBranch = "branch"
)

// Run is what the registry keeps of a run: what the API shows, and what a
// restarted daemon needs to go on.
type Run struct {
	api.Run
	In runInternal `json:"internal"`
}

type runInternal struct {
	Before    cell.CheckpointID `json:"before,omitempty"`
	After     cell.CheckpointID `json:"after,omitempty"`
	OnFailure string            `json:"on_failure"`
	OnSuccess string            `json:"on_success"`
	Check     string            `json:"check,omitempty"` // redacted
	// CheckHidden: the check had a secret in it, and only the daemon that
	// started the run could know it.
	CheckHidden bool          `json:"check_hidden,omitempty"`
	Attach      bool          `json:"attach,omitempty"`
	Timeout     time.Duration `json:"timeout,omitempty"`
	SourceFP    cell.Digest   `json:"source_before,omitzero"`
	SourceFP2   cell.Digest   `json:"source_after,omitzero"`
	EnvNames    []string      `json:"env_names,omitempty"`
	Proof       string        `json:"proof,omitempty"`
	LetGo       string        `json:"let_go,omitempty"` // why the result could not be kept
	Asked       api.Limits    `json:"asked"`
	ExecutedAt  time.Time     `json:"executed_at,omitzero"`
	EndedAt     time.Time     `json:"ended_at,omitzero"`
}

// undecided reports whether a result waits for a verdict.
func (r *Run) undecided() bool {
	return r.Verdict == string(cell.Pending) || r.Verdict == string(cell.Forked)
}

// offersNothing reports whether the workspace after a run is what it was before: a run that
// timed out, for example, and wrote nothing.
func (r *Run) offersNothing() bool { return r.In.After != "" && r.In.After == r.In.Before }

// neverStarted reports whether the run ended before its command ran.
func (r *Run) neverStarted() bool {
	return cell.Phase(r.Phase) == cell.Ended && r.ExitCode == nil && r.In.After == ""
}

// RunID is the run's identifier.
func (r *Run) RunID() cell.RunID { return cell.RunID(r.ID) }

// CellID is the run's cell.
func (r *Run) CellID() cell.ID { return cell.ID(r.Cell) }

// record is one line of the registry's journal: exactly one field is set.
type record struct {
	Cell       *Cell       `json:"cell,omitempty"`
	Checkpoint *Checkpoint `json:"checkpoint,omitempty"`
	Run        *Run        `json:"run,omitempty"`
	Op         *op.Record  `json:"op,omitempty"`
	Lending    *Lending    `json:"lending,omitempty"`
	Approval   *Approval   `json:"approval,omitempty"`
	Spent      *Spent      `json:"spent,omitempty"`
	Template   *Template   `json:"template,omitempty"`
	Interp     *Interp     `json:"interp,omitempty"`
	Shared     *Shared     `json:"shared,omitempty"`
	Lease      *Lease      `json:"lease,omitempty"`
	Standing   *Standing   `json:"standing,omitempty"`
	Forget     string      `json:"forget,omitempty"` // an id whose record is dropped
}

// Standing is a change of a cell's state alone, by who does not hold its turn. It
// counts if the state is still From by then: a cell that was removed meanwhile, say,
// stays so.
type Standing struct {
	Cell cell.ID    `json:"cell"`
	From cell.State `json:"from"`
	To   cell.State `json:"to"`
}
