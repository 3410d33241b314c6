package state

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/workspace"
)

// Cell is what the registry keeps of a cell.
type Cell struct {
	ID     cell.ID    `json:"id"`
	Name   string     `json:"name,omitempty"`
	State  cell.State `json:"state"`
	Cause  string     `json:"cause,omitempty"`
	Source string     `json:"source"`
	// Repositories are directories of the host that are in the workspace beside Source, each at its own path; clean and
	// absolute. None lies in another or in Source.
	Repositories []string            `json:"repositories,omitempty"`
	Backend      string              `json:"backend"`
	Image        string              `json:"image"`
	ImageKey     cell.Digest         `json:"image_key,omitzero"`     // of an OCI image: by which it is kept
	Builds       bool                `json:"builds,omitempty"`       // an image is being made in it
	ImageID      string              `json:"image_digest,omitempty"` // of the image that its name meant when the cell was made
	Family       cell.ID             `json:"family,omitempty"`       // the cell by which its keeper is named; "": itself
	Created      time.Time           `json:"created"`
	Expires      time.Time           `json:"expires,omitzero"`
	RemovedAt    time.Time           `json:"removed_at,omitzero"`
	LastRun      cell.RunID          `json:"last_run,omitempty"`
	Runs         int                 `json:"runs,omitempty"`
	Next         int                 `json:"next"` // number of the next checkpoint
	Parent       *Origin             `json:"parent,omitempty"`
	Provider     string              `json:"provider"`
	WhyNot       string              `json:"why_not,omitempty"` // why not a better provider
	LeftOut      []workspace.LeftOut `json:"left_out,omitempty"`
	ImportKey    string              `json:"import_key,omitempty"`

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
	// KnownAt are the checkpoints, of any cell, with files that were applied to the source:
	// Known's contents are theirs, or the import's. They are kept as long as the cell.
	KnownAt []cell.CheckpointID `json:"known_at,omitempty"`
	// KnownHeads are what the repositories of the cell's directories (see Parts) had checked out at that time; zero where
	// there was none, or it could not be read.
	KnownHeads []gitdir.Head `json:"known_heads,omitempty"`
	// Taken are the moves of the source's branch by commits of the cell, or of those that it comes of, oldest first.
	Taken []BranchMove `json:"taken,omitempty"`
	// Agreed is what the cell and its source came to have in common since the import, oldest first. What was taken
	// back is not in it. Apart says that Known has what the source changed by itself: the cell's changes are told by
	// Agreed then, and not by Known.
	Agreed []Agreement `json:"agreed,omitempty"`
	Apart  bool        `json:"apart,omitempty"`
	// Contents are files of Known and Agreed, now or before, that no checkpoint has: what merges made and what they
	// took the place of. They are in the store of objects, as long as the cell.
	Contents []cell.Digest `json:"contents,omitempty"`
	// With are the secrets that the source was imported with, by name.
	With []string `json:"with,omitempty"`
	// Applied is what of the cell's work is in the source, oldest first.
	Applied []Applied `json:"applied,omitempty"`
	// SignOffs is what approvers signed about what the cell has, oldest first.
	SignOffs []SignOff `json:"sign_offs,omitempty"`
	// Hold and Acts are of its Retained: a legal hold, and the receipts of such.
	Hold *Hold    `json:"-"`
	Acts []string `json:"-"`

	// SSHAgent is the socket of the SSH agent that the latest run came with, if keys of it
	// are lent.
	SSHAgent string `json:"ssh_agent,omitempty"`
	// Agent is the coding agent that was last started in the cell.
	Agent string `json:"agent,omitempty"`
	// Offline says that the cell is answered from recordings alone, now and later: a replay made it.
	Offline bool `json:"offline,omitempty"`

	// Home and Tmp are writable layers that take the place of home and tmp in
	// the cell's own folder: of templates and of what was forked in memory.
	Home *workspace.Generation `json:"home,omitempty"`
	Tmp  *workspace.Generation `json:"tmp,omitempty"`
	// Roots counts the layers over its image and caches that it has used up.
	Roots int `json:"roots,omitempty"`

	// Batch is the key of the receipt of the fork that made the cell, which has its certificate
	// if it was forked with its memory; Of is the template that it, or what it was branched from, was forked from.
	Batch string `json:"batch,omitempty"`
	Of    string `json:"of,omitempty"`
	// Race is the race that made the cell for its attempts.
	Race cell.RaceID `json:"race,omitempty"`

	// Template is the template of which this cell is the warm parent: it is not listed,
	// and goes with it. NoSource says that no directory of the host is its source.
	Template string `json:"template,omitempty"`
	NoSource bool   `json:"no_source,omitempty"`
	// Guest says that a caller made it that may not name files of the host: nothing of the
	// user's home is read for it.
	Guest bool `json:"guest,omitempty"`

	// Host is the host name of a cell in which a command of another one is executed again: that one's.
	Host string `json:"host,omitempty"`

	// Services run beside the cell, and go with it. Serves is of the cell in which one runs.
	Services []Service `json:"services,omitempty"`
	Serves   *Serves   `json:"serves,omitempty"`

	// Shared names the record that holds Setup and LeftOut, which a hundred
	// forks have in common; zero: they are here.
	Shared cell.Digest `json:"shared,omitzero"`

	// Ceiling is what the cell may use at most, by the ceilings that held for the request which made it.
	Ceiling *cell.Limits `json:"ceiling,omitempty"`

	// What commands in it get; set when it is made.
	Setup Setup `json:"setup,omitzero"`
	// Of a cell that is being made, and in no record: the request that makes it, and the
	// cell that it takes the place of.
	Maker    *Maker  `json:"-"`
	Replaces cell.ID `json:"-"`
}

// Origin is where a forked cell comes from.
type Origin struct {
	Cell       cell.ID           `json:"cell"`
	Checkpoint cell.CheckpointID `json:"checkpoint"`
}

// Top is the directory that the paths of a cell's workspace are relative to.
func (c *Cell) Top() string {
	top, _ := c.parts()
	return top
}

// Parts are the directories of the host that a cell's workspace has, that of Source first. Of a workspace with one, its place
// is "".
func (c *Cell) Parts() []workspace.Directory {
	_, parts := c.parts()
	return parts
}

func (c *Cell) parts() (string, []workspace.Directory) {
	if top, parts, err := workspace.Directories(append([]string{c.Source}, c.Repositories...)); err == nil {
		return top, parts
	}
	return c.Source, []workspace.Directory{{Source: c.Source}} // an altered record
}

// Gens are the writable layers that a cell has now.
func (c *Cell) Gens() (list []*workspace.Generation) {
	for _, g := range []*workspace.Generation{c.Gen, c.Home, c.Tmp} {
		if g != nil {
			list = append(list, g)
		}
	}
	return list
}

// Gone is a removed cell of which there is no record.
func Gone(id cell.ID, name string) Cell { return Cell{ID: id, Name: name, State: cell.Removed} }

// To moves the cell to another state, if the table of package cell allows that; a Conflict
// otherwise. That it stays is no move.
func (c *Cell) To(next cell.State) error {
	if c.State == next {
		return nil
	}
	if _, err := c.State.To(next); err != nil {
		return cell.Errorf(cell.Conflict, "state.Cell.To", "", "cell %s is %s and cannot become %s", c.Title(), c.State, next)
	}
	c.State = next
	if next == cell.Removed {
		c.RemovedAt = time.Now().UTC()
	}
	return nil
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

// MadeByRun reports whether a run makes, or made, the cell: it has the cell's turn before
// the cell is known, and other runs wait for that.
func (c *Cell) MadeByRun() bool { return c.LastRun != "" }

// Applied is what an accept made of a source.
type Applied struct {
	ID         string            `json:"id"`
	At         time.Time         `json:"at"`
	Runs       []cell.RunID      `json:"runs,omitempty"` // their results are in it
	Files      int               `json:"files"`          // how many were written
	Checkpoint cell.CheckpointID `json:"checkpoint"`     // that has the files
	// Before and After are the source as it was known to be: they differ in what was
	// written, and in nothing else.
	Before cell.Digest `json:"before"`
	After  cell.Digest `json:"after"`
	Merged []Merged    `json:"merged,omitempty"` // of these files: with what the source had
	Branch *BranchMove `json:"branch,omitempty"` // the source's, when commits came with them
	During cell.RunID  `json:"during,omitempty"` // the run that went on meanwhile, and had made some of it
	Part   bool        `json:"part,omitempty"`   // the cell had other changes there, which were not asked for
	Held   bool        `json:"held,omitempty"`   // it had changes there that were held back, or that git ignores
}

// TakenDuring lists what was applied while a run went on, oldest first.
func (c *Cell) TakenDuring(run cell.RunID) (list []Applied) {
	for _, a := range c.Applied {
		if a.During == run && run != "" {
			list = append(list, a)
		}
	}
	return list
}

// FilesOf is how many files of the results of a run are in a source.
func FilesOf(applied []Applied, run cell.RunID) (n int) {
	for _, a := range applied {
		if slices.Contains(a.Runs, run) {
			n += a.Files
		}
	}
	return n
}

// BranchMove is a move of the branch that a source has checked out, by commits that were made in a cell.
type BranchMove struct {
	Branch  string `json:"branch"`           // without refs/heads/
	Was     string `json:"was,omitempty"`    // the commit before; "": there was none
	Now     string `json:"now"`              // the commit after
	Tip     string `json:"tip,omitempty"`    // the commit in the cell, of which Now may be a copy on top of Was
	Commits int    `json:"commits"`          // how many came, or were taken back
	Signed  string `json:"signed,omitempty"` // the fingerprint of the key of SSH that signed those that came
}

// Agreement is something that a cell and its source came to have in common.
type Agreement struct {
	Checkpoint cell.CheckpointID `json:"checkpoint"` // with the cell's files
	// After is a tree with what came to be in common. Before differs from it there, and nowhere else.
	Before  cell.Digest `json:"before"`
	After   cell.Digest `json:"after"`
	Applied string      `json:"applied,omitempty"` // the accept that brought it into the source; "": it came into the cell
	There   bool        `json:"there,omitempty"`   // the source had it before that accept
}

// Merged is a file that was merged with what the source had.
type Merged struct {
	Path      string   `json:"path"`
	Also      []string `json:"also,omitempty"`      // its names before, in the cell or in the source
	Conflicts int      `json:"conflicts,omitempty"` // places that are marked in it
}

// Spent is what the registry keeps of a cell's commands outside of runs. It is a
// record of its own: such a command doesn't hold the cell's lock.
type Spent struct {
	Cell  cell.ID `json:"cell"`
	Execs int64   `json:"execs"`
}

// ImageAgain says how to bring a cell's image back.
func (c *Cell) ImageAgain() string {
	if strings.HasPrefix(c.Image, image.KindDockerfile+":") {
		return "run with --image " + c.Image + " in another cell, which makes it again if nothing changed"
	}
	ref, ok := strings.CutPrefix(c.Image, image.KindOCI+":")
	if !ok {
		return "bring it back to where it was, or remove the cell"
	}
	if !strings.HasPrefix(ref, "/") && !strings.Contains(ref, "@") && c.ImageID != "" {
		ref += "@" + c.ImageID
	}
	return "run `pando image pull " + ref + "`"
}

// Keeper names the family of a cell.
func (c *Cell) Keeper() cell.ID {
	if c.Family != "" {
		return c.Family
	}
	return c.ID
}

// Talks reports whether commands of a cell have a way to the outside.
func (c *Cell) Talks() bool { return c.Setup.Talks }

// Selector is how people write a checkpoint of a cell.
func (c *Cell) Selector(k *Checkpoint) string { return fmt.Sprintf("%s@%d", c.Title(), k.Number) }

// How long results and cells are kept after the verdict that made them superfluous.
const (
	KeepResult    = 7 * 24 * time.Hour  // of restored and discarded runs
	KeepAnonymous = 30 * 24 * time.Hour // cells without a name
)

// The ways in which a restore is proven.
const (
	ProofLayers = "layer identity: the cell is at layers that nothing has written since their digest was computed"
	ProofWalk   = "full walk: every file was read, and the digest is the checkpoint's"
)

// Hostname is a valid host name made of the cell's name, or that of the cell that it stands in for.
func (c *Cell) Hostname() string {
	if c.Host != "" {
		return c.Host
	}
	name := strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '-'
	}, c.Title()), "-")
	return cmp.Or(name, string(c.ID))
}

// JoinedBytes is how much of what a cell may write joined links may be, at most limit.
func (c *Cell) JoinedBytes(limit int64) int64 {
	if disk := c.Limits().Disk; disk > 0 {
		return min(limit, disk/8)
	}
	return limit
}
