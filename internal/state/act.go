package state

import (
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
)

// Act is what the receipt of a later verdict, or of a restore or fork by hand, says. See ActOn.
type Act struct {
	Act      string      `json:"act"`            // "accept", "revert", "discard", "restore", "fork", "reopen", "sync", "fetch", "replay", "approve", "reject", "hold", "release", "erase"
	Run      string      `json:"run,omitempty"`  // of Runs, when it is one
	Runs     []Decided   `json:"runs,omitempty"` // that it decides
	Cell     string      `json:"cell"`
	CellName string      `json:"cell_name,omitempty"`
	Pando    string      `json:"pando"`
	At       time.Time   `json:"at"`
	Verdict  *Verdict    `json:"verdict,omitempty"`
	Forced   bool        `json:"forced,omitempty"`
	From     *Point      `json:"from,omitempty"`
	To       *Point      `json:"to,omitempty"`
	Proof    string      `json:"proof,omitempty"`
	Lost     []string    `json:"lost,omitempty"`
	Children []string    `json:"children,omitempty"`
	Digest   string      `json:"digest,omitempty"` // of the changes that were accepted, as pando diff prints it
	Applied  []string    `json:"applied,omitempty"`
	Paths    []string    `json:"paths,omitempty"`   // that were asked for; none: all
	Parts    []string    `json:"parts,omitempty"`   // of which some hunks alone were asked for
	Left     int         `json:"left,omitempty"`    // changed files that were not asked for, and wait
	During   cell.RunID  `json:"during,omitempty"`  // the run that went on meanwhile, of which this is what it had made so far
	Merged   []Merged    `json:"merged,omitempty"`  // with what the source had
	Synced   []string    `json:"synced,omitempty"`  // paths of the cell that became as in the source, or were merged with that
	Fetched  []Fetched   `json:"fetched,omitempty"` // branches of the cell in the repository of its source
	Branch   *BranchMove `json:"branch,omitempty"`  // of the source, that commits of the cell moved, or that was moved back
	Also     []string    `json:"also,omitempty"`    // paths that the commits change, and that the source had so
	Caches   []string    `json:"caches,omitempty"`  // kept for the source from then on, with what the cell wrote to them
	Reverted []string    `json:"reverted,omitempty"`
	Already  []string    `json:"already,omitempty"` // not Reverted: they were as before the accept
	Held     []Held      `json:"held,omitempty"`
	Source   string      `json:"source,omitempty"` // the directory that paths are relative to
	// Repositories are the directories of its cell beside the first one.
	Repositories []string   `json:"repositories,omitempty"`
	Head         *HeadMoved `json:"head,omitempty"` // of the source: it was applied to another branch
	Downgrades   []string   `json:"downgrades,omitempty"`
	Backend      string     `json:"backend"`
	Isolation    string     `json:"isolation"` // "isolated" or "not isolated"
	// Parents are the receipts that the cell's state before the act comes from.
	Parents []string `json:"parents,omitempty"`
	// SignOff is that of an approver, for "approve" and "reject".
	SignOff *SignOff `json:"sign_off,omitempty"`
	// SignedBy are the approvals that an accept went by, where the policy demanded some.
	SignedBy []SignedBy `json:"signed_by,omitempty"`
	// By and Reason are of "hold", "release" and "erase": the caller, and why. Erased is what was erased.
	By     string      `json:"by,omitempty"`
	Reason string      `json:"reason,omitempty"`
	Erased []ErasedRun `json:"erased,omitempty"`
}

// SignedBy names an approval by its approver and its time.
type SignedBy struct {
	Approver string    `json:"approver"`
	Key      string    `json:"key"` // public, as in the policy
	At       time.Time `json:"at"`
}

// ErasedRun is a file of a run's evidence that was erased.
type ErasedRun struct {
	Run    string `json:"run"`
	File   string `json:"file"`
	Digest string `json:"digest"`          // as the receipt of the run has it; of what was there, if that names none
	Found  string `json:"found,omitempty"` // digest of what was there, if that was something else; "unreadable"
	Bytes  int64  `json:"bytes"`
}

// Decided is a run with the verdict that an act gave it.
type Decided struct {
	Run     string       `json:"run"`
	Receipt string       `json:"receipt,omitempty"` // the run's own
	Verdict cell.Verdict `json:"verdict"`
}

// Fetched is a branch of a cell that was brought into the repository of its source.
type Fetched struct {
	Ref    string `json:"ref"`              // there
	Commit string `json:"commit,omitempty"` // "": it was removed there
	Was    string `json:"was,omitempty"`    // the commit of the ref before
}

// Held is a changed path that an accept did not bring into the source.
type Held struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// HeadMoved is what the source had checked out when changes were applied to another branch.
type HeadMoved struct {
	Source     string      `json:"source"`
	Was        gitdir.Head `json:"was"` // the head that the changes belong to
	Now        gitdir.Head `json:"now"`
	OtherFiles bool        `json:"other_files"`
}

// ActOn is an act of the user in a cell.
func ActOn(c *Cell, act string, verdict cell.Verdict, reason string) Act {
	return Act{Act: act, Cell: string(c.ID), CellName: c.Name, Backend: c.Backend, Verdict: &Verdict{verdict, reason, "user"}}
}

// Verdict is a verdict with what gave it.
type Verdict struct {
	Verdict cell.Verdict `json:"verdict"`
	Reason  string       `json:"reason,omitempty"`
	By      string       `json:"by"`
}

// SignOff is what an approver signed about the changes of a cell.
type SignOff struct {
	Approver string    `json:"approver"`
	Key      string    `json:"key"`              // public, as in the policy
	Decision string    `json:"decision"`         // "approve" or "reject"
	Digest   string    `json:"digest"`           // of the changes
	Commit   string    `json:"commit,omitempty"` // checked out in the cell
	Runs     []string  `json:"runs"`
	Message  string    `json:"message,omitempty"`
	At       time.Time `json:"at"`
	// Envelope is the signed statement (DSSE).
	Envelope string `json:"envelope,omitempty"`
}

// API is what the API shows of it.
func (s SignOff) API() api.SignOff { return api.SignOff(s) }

// Kept is it as records of runs have it: without the envelope.
func (s SignOff) Kept() SignOff {
	s.Envelope = ""
	return s
}

// SignOffNeed says how many sign-offs a result needs, and why.
type SignOffNeed struct {
	Needs int64    `json:"needs"`
	Why   []string `json:"why"`
}

// API is what the API shows of it; nil for nil.
func (n *SignOffNeed) API() *api.SignOffNeed { return (*api.SignOffNeed)(n) }
