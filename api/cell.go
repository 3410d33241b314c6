package api

import (
	"encoding/json"
	"time"
)

// Cell is an isolated place where commands run.
type Cell struct {
	ID          string       `json:"cell"`
	Name        string       `json:"name"`      // the id when it has none
	Anonymous   bool         `json:"anonymous"` // made by a run without --cell; it goes with its run
	State       string       `json:"state"`
	Cause       string       `json:"cause,omitempty"` // of state failed, or of the last end of its processes
	Source      string       `json:"source,omitempty"`
	Backend     string       `json:"backend"`
	Isolation   string       `json:"isolation"`              // "isolated" or "not isolated" (backend none)
	Image       string       `json:"image"`                  // "host", "dir:PATH", "oci:REF"
	ImageID     string       `json:"image_digest,omitempty"` // of an OCI image: its manifest's digest
	Created     time.Time    `json:"created"`
	Expires     time.Time    `json:"expires,omitzero"`
	Head        int          `json:"head"`                 // number of the checkpoint its workspace started from or is at
	Checkpoints int          `json:"checkpoints"`          // how many it has
	Runs        int          `json:"runs"`                 // how many it had
	Detached    string       `json:"detached,omitempty"`   // the run whose command goes on at a terminal that no client is attached to
	LatestRun   string       `json:"latest_run,omitempty"` // id of its latest run
	Verdict     string       `json:"verdict,omitempty"`    // of the latest run
	Pending     []string     `json:"pending,omitempty"`    // ids of the runs whose results wait for a verdict, newest first
	Parent      *Parent      `json:"parent,omitempty"`     // where it was forked from
	Provider    Provider     `json:"workspace"`
	Assurance   *Assurance   `json:"assurance,omitempty"` // while it has processes
	Downgrades  []string     `json:"downgrades"`
	Processes   int          `json:"processes"`      // how many run in it now
	Disk        int64        `json:"disk,omitempty"` // bytes of its own layers
	Policy      string       `json:"policy_digest,omitempty"`
	LeftOut     []LeftOut    `json:"left_out"`
	Interpreter *Interpreter `json:"interpreter,omitempty"` // of a cell that has, or had, one
	// Certificate is what was measured of the hazards of a cell that was forked with
	// its memory (type Certificate).
	Certificate json.RawMessage `json:"certificate,omitempty"`
	Template    string          `json:"template,omitempty"` // the template that it is the cell of; such a cell is only forked
	// Labels are words of its maker's own.
	Labels map[string]string `json:"labels,omitempty"`
	Lease  *Lease            `json:"lease,omitempty"` // how long it lives; absent: until somebody removes it
}

// Parent is where a forked cell comes from.
type Parent struct {
	Cell       string `json:"cell"`
	Name       string `json:"name"`
	Checkpoint string `json:"checkpoint"`
	Number     int    `json:"number"`
}

// Checkpoint is an immutable state of a cell.
type Checkpoint struct {
	ID            string    `json:"checkpoint"`
	Cell          string    `json:"cell"`
	Isolation     string    `json:"isolation"` // "isolated" or "not isolated" (backend none), as its cell
	Number        int       `json:"number"`
	Parent        int       `json:"parent,omitempty"` // number; 0 for the first
	Kind          string    `json:"kind"`             // "base", "before", "after", "manual", "fork", "branch", "template"
	Run           string    `json:"run,omitempty"`
	Message       string    `json:"message,omitempty"` // what the person said who made it
	Created       time.Time `json:"created"`
	Expires       time.Time `json:"expires,omitzero"`
	TreeDigest    string    `json:"tree_digest,omitempty"` // empty while it is being computed
	ContentDigest string    `json:"content_digest,omitempty"`
	Layers        int       `json:"layers"` // how deep its stack of layers is
	Head          bool      `json:"head"`   // the workspace started from it or is at it
	TookMS        float64   `json:"took_ms,omitempty"`
	Under         string    `json:"under,omitempty"`        // "living processes": the top layer was copied
	Memory        bool      `json:"memory,omitempty"`       // it has what ran in the cell, too
	PauseMS       float64   `json:"pause_ms,omitempty"`     // for which the cell stood still for it
	MemoryTaken   string    `json:"memory_taken,omitempty"` // how its memory was, as of a branch
}

// CheckpointRequest asks for a checkpoint.
type CheckpointRequest struct {
	Message string `json:"message,omitempty"` // a note to find it by
}

// RestoreRequest asks for a cell to go back to a checkpoint.
type RestoreRequest struct {
	Number int    `json:"number"`
	Digest string `json:"digest,omitempty"` // instead of Number: a prefix of the checkpoint's id or tree digest
	// Lose confirms that the results of later runs leave the cell's workspace.
	Lose   bool `json:"lose,omitempty"`
	Verify bool `json:"verify,omitempty"` // prove by walking everything
	Files  bool `json:"files,omitempty"`  // of a checkpoint with memory, its files alone
	DryRun bool `json:"dry_run,omitempty"`
	// Certify "strict": it is an error if what goes on inherits a generator of random
	// numbers, and the cell stays as it was. Of a checkpoint with memory it is tried first
	// in a copy that is thrown away.
	Certify string `json:"certify,omitempty"`
	// AtFork is a command that a shell runs in the cell, of a checkpoint with memory, before
	// anything else of it goes on. When it fails, nothing runs. With Certify it runs in the
	// copy, too; when it fails there, the cell stays as it was.
	AtFork string `json:"at_fork,omitempty"`
}

// RestoreResult says what a restore did.
type RestoreResult struct {
	Cell       Cell     `json:"cell"` // the cell, as it is now
	Number     int      `json:"number"`
	Lost       []string `json:"lost"`               // runs whose results are no longer in the workspace
	Applied    []string `json:"applied,omitempty"`  // of Lost: those whose changes are in the source, and stay there
	Reverted   []string `json:"reverted,omitempty"` // paths that undo took back from the source
	Ended      int      `json:"ended"`              // processes; in a dry run, those that would end
	Proof      string   `json:"proof"`              // "layer identity", "full walk"
	TreeDigest string   `json:"tree_digest"`
	TookMS     float64  `json:"took_ms"`
	Receipt    string   `json:"receipt,omitempty"`
	Reopened   []string `json:"reopened,omitempty"` // runs that are pending again
	Memory     string   `json:"memory,omitempty"`   // of a checkpoint with memory: "restored", or why it was not and nothing runs
	Resumed    int      `json:"resumed,omitempty"`  // processes that go on
	// Inherited names the generators of random numbers in user space that the copies have in
	// common with their source: they may draw the same numbers.
	Inherited []string `json:"inherited,omitempty"`
	// Renewed names the generators of random numbers in user space that the copies would have
	// in common with their source, and that seed themselves anew in each copy instead.
	Renewed []string `json:"renewed,omitempty"`
	Notes   []string `json:"notes,omitempty"` // what is not as it was, such as hard links that come apart
}

// MemoryRestored is RestoreResult.Memory when it was.
const MemoryRestored = "restored"

// UndoRequest asks to go back before the latest run, or to step To.
type UndoRequest struct {
	To     int  `json:"to,omitempty"` // number of the checkpoint to go back to; 0: before the latest change
	DryRun bool `json:"dry_run,omitempty"`
	Lose   bool `json:"lose,omitempty"`
	// KeepSource leaves in the source what was applied there of what is undone. Without it
	// that is taken back; if a file is not what was written there, nothing is changed.
	KeepSource bool `json:"keep_source,omitempty"`
}

// ForkRequest asks for new cells from a checkpoint.
type ForkRequest struct {
	Number  int    `json:"number,omitempty"`  // 0: the cell's present state
	Name    string `json:"name,omitempty"`    // of one cell, or the stem of several: NAME-1, NAME-2; default one made of the cell's
	Count   int    `json:"count,omitempty"`   // default 1
	Files   bool   `json:"files,omitempty"`   // of a checkpoint with memory, its files alone
	Certify string `json:"certify,omitempty"` // "strict": it is an error if a copy inherits a generator of random numbers
	// AtFork is a command that a shell runs in each copy, before anything else of it goes
	// on. A copy in which it fails is not made.
	AtFork string `json:"at_fork,omitempty"`
}

// ForkResult lists the new cells.
type ForkResult struct {
	Cells   []Cell `json:"cells"`   // the new cells
	Took    string `json:"took"`    // what the children have: "files"
	Dropped string `json:"dropped"` // what they have not
	// Inherited names the generators of random numbers in user space that the copies have in
	// common with their source: they may draw the same numbers.
	Inherited []string `json:"inherited,omitempty"`
	// Renewed names the generators of random numbers in user space that the copies would have
	// in common with their source, and that seed themselves anew in each copy instead.
	Renewed []string `json:"renewed,omitempty"`
	Notes   []string `json:"notes,omitempty"` // what is not as in the source, such as hard links that come apart
	TookMS  float64  `json:"took_ms"`
	Receipt string   `json:"receipt,omitempty"`
}

// AcceptRequest accepts what a cell is now, or what a run changed.
type AcceptRequest struct {
	// Expect is the digest of the changes that were looked at, as Diff has it, or at least
	// 16 digits of it: others are refused.
	Expect  string   `json:"expect,omitempty"`
	Apply   bool     `json:"apply,omitempty"`   // write the changes to the source
	Include []string `json:"include,omitempty"` // held paths to apply nevertheless
	Strict  bool     `json:"strict,omitempty"`  // hold back all that is to be looked at first
	Ignored bool     `json:"ignored,omitempty"` // apply files that git ignores, too
	Force   bool     `json:"force,omitempty"`   // accept although a run failed, or a credential's value is in it
	// OtherBranch applies the changes although the source is on another branch, with another
	// commit, than the one that they are known to go with.
	OtherBranch bool   `json:"other_branch,omitempty"`
	Reason      string `json:"reason,omitempty"` // why force is right; it goes into the receipt
	DryRun      bool   `json:"dry_run,omitempty"`
}

// AcceptResult says what was accepted and applied.
type AcceptResult struct {
	Cell      string   `json:"cell"`
	CellName  string   `json:"cell_name"`         // the cell's name, or its id
	Isolation string   `json:"isolation"`         // "isolated" or "not isolated" (backend none), as its cell
	Source    string   `json:"source"`            // the directory that was, or could be, written to
	Runs      []Run    `json:"runs"`              // that have a verdict by it
	Digest    string   `json:"digest"`            // of the changes, as Diff has it
	Receipt   string   `json:"receipt,omitempty"` // with DryRun none
	Applied   []string `json:"applied"`           // paths written to the source
	Held      []Held   `json:"held"`              // not applied: needs --include
	First     []Look   `json:"first"`             // of the changes: what to look at before the rest
	Ignored   int      `json:"ignored"`           // not applied: git ignores them
	Kept      []string `json:"kept"`              // what git can't represent, and was not applied
	Patch     string   `json:"patch,omitempty"`   // the file with a patch of what was applied; none of files that hold more than 256 MiB
	DryRun    bool     `json:"dry_run,omitempty"`
	// Head says that the source is on another branch than the one that the changes are known
	// to go with; null otherwise, and without apply.
	Head    *HeadMoved   `json:"head,omitempty"`
	Commits *CellCommits `json:"commits,omitempty"` // that stay in the cell; null when there are none
}

// Held is a change to a file that controls what runs on the host.
type Held struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// Look is a change to look at before all others: a file that controls what runs
// on the host, that is executable, or hidden.
type Look struct {
	Path  string `json:"path"` // with a slash at the end: of all that lies there
	Why   string `json:"why"`
	Files int    `json:"files"` // how many changed files it stands for
}

// DiscardRequest throws away what waits in a cell, or a run's result.
type DiscardRequest struct {
	DryRun bool `json:"dry_run,omitempty"`
	Lose   bool `json:"lose,omitempty"` // confirms that the results of several runs are thrown away, or for good what is kept of one
	// Reason goes into the receipt.
	Reason string `json:"reason,omitempty"`
}

// DiscardResult says what was thrown away.
type DiscardResult struct {
	Cell     Cell   `json:"cell"`            // the cell, as it is now
	CellName string `json:"cell_name"`       // the name of the cell, or its id
	Runs     []Run  `json:"runs"`            // that are discarded now
	Number   int    `json:"number"`          // of the checkpoint that the cell is at
	Kept     int    `json:"kept,omitempty"`  // of the checkpoint that has what was thrown away, for 7 days
	Ended    int    `json:"ended,omitempty"` // processes; in a dry run, those that would end
	Freed    int64  `json:"freed,omitempty"` // bytes that held what was kept of a run that was restored or discarded before
	Receipt  string `json:"receipt,omitempty"`
	DryRun   bool   `json:"dry_run,omitempty"`
}

// RevertRequest takes back from the source what an accept applied.
type RevertRequest struct {
	Reason string `json:"reason,omitempty"` // it goes into the receipt
	DryRun bool   `json:"dry_run,omitempty"`
}

// RevertResult says what was taken back.
type RevertResult struct {
	Cell     Cell     `json:"cell"`      // the cell itself
	CellName string   `json:"cell_name"` // the name of the cell, or its id
	Source   string   `json:"source"`    // the directory that was, or could be, written to
	Runs     []Run    `json:"runs"`      // whose results are no longer in the source
	Reverted []string `json:"reverted"`  // paths written to the source
	Already  []string `json:"already"`   // paths that were in the source as before the accept, so that nothing was to be written
	Receipt  string   `json:"receipt,omitempty"`
	DryRun   bool     `json:"dry_run,omitempty"`
}

// ExecRequest runs a command in a living or idle cell, outside any run.
type ExecRequest struct {
	Command []string `json:"command"`
	Env     []string `json:"env,omitempty"`
	Workdir string   `json:"workdir,omitempty"`
	Timeout string   `json:"timeout,omitempty"`
	TTY     bool     `json:"tty,omitempty"`
	Rows    uint16   `json:"rows,omitempty"`
	Cols    uint16   `json:"cols,omitempty"`
	Attach  bool     `json:"attach,omitempty"` // the command starts when a client attaches, and ends with it
	// Wait: the answer comes when the command has ended, and has what it wrote.
	// Its input is empty; it is ended when the client goes away.
	Wait      bool     `json:"wait,omitempty"`
	CallerEnv []string `json:"caller_env,omitempty"`
}

// Exec is a command in a cell.
type Exec struct {
	ID        string    `json:"exec"` // id of the exec
	Cell      string    `json:"cell"`
	Isolation string    `json:"isolation"`         // "isolated" or "not isolated" (backend none), as its cell
	Command   []string  `json:"command,omitempty"` // what it is, redacted; where execs are listed or shown
	Began     time.Time `json:"began,omitzero"`    // when it was started; the same
	Running   bool      `json:"running"`           // it has not ended
	PID       int       `json:"pid,omitempty"`     // its number in the cell, where that is known
	ExitCode  *int      `json:"exit_code"`         // null while it runs
	Signal    string    `json:"signal,omitempty"`
	Cause     string    `json:"cause,omitempty"` // why it ended, when it was not its own doing
	Output    Outputs   `json:"output"`          // what it wrote
	WallMS    float64   `json:"wall_ms"`         // how long it ran, in milliseconds
	// Notes are said once: by the answer that starts it, and by the one that says how it
	// ended.
	Notes []string `json:"notes,omitempty"`
	// Stdout and Stderr are what it wrote, up to a mebibyte each, when the
	// answer was waited for; base64.
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"` // the same of standard error
}

// Process is one process of a cell.
type Process struct {
	PID     int       `json:"pid"`
	PPID    int       `json:"ppid"`   // its parent's process id; 0 outside the cell
	State   string    `json:"state"`  // as the kernel has it: R, S, D, T, Z, …
	RSS     int64     `json:"rss"`    // bytes
	CPU     int64     `json:"cpu_ms"` // milliseconds
	Started time.Time `json:"started"`
	Command string    `json:"command"`
}

// Stats is what a cell uses now.
type Stats struct {
	Cell       string   `json:"cell"`
	Name       string   `json:"name"`
	Isolation  string   `json:"isolation"` // "isolated" or "not isolated" (backend none), as its cell
	State      string   `json:"state"`
	Processes  int      `json:"processes"`              // how many run
	Memory     int64    `json:"memory"`                 // bytes
	PeakMemory int64    `json:"peak_memory"`            // bytes
	MemoryMax  int64    `json:"memory_limit,omitempty"` // bytes it may use
	CPU        int64    `json:"cpu_us"`                 // microseconds of CPU time
	Written    int64    `json:"written"`                // bytes written to disks
	Disk       int64    `json:"disk"`                   // bytes of the writable layer, home and /tmp
	OOMKills   int64    `json:"oom_kills"`              // processes killed at the memory limit
	Measured   []string `json:"measured"`               // names of the fields that this host counts
}

// FileChange is one changed file.
type FileChange struct {
	Path      string `json:"path"`
	OldPath   string `json:"old_path,omitempty"` // where it was, when it was renamed
	Status    string `json:"status"`             // added, modified, deleted, renamed, type-changed, mode-changed
	OldMode   string `json:"old_mode,omitempty"` // octal, as git has it
	NewMode   string `json:"new_mode,omitempty"` // octal, as git has it
	Binary    bool   `json:"binary,omitempty"`
	Added     int    `json:"added"`                // lines
	Deleted   int    `json:"deleted"`              // lines
	OldDigest string `json:"old_digest,omitempty"` // SHA-256 of the content before
	NewDigest string `json:"new_digest,omitempty"` // SHA-256 of the content after
}

// Diff is what differs between two states.
type Diff struct {
	Cell      string       `json:"cell"`
	Isolation string       `json:"isolation"` // "isolated" or "not isolated" (backend none), as its cell
	From      string       `json:"from"`      // "web@1", or "the source"
	To        string       `json:"to"`
	Runs      []string     `json:"runs"`             // ids of runs that wait for a verdict and changed something, whose results are in it
	Digest    string       `json:"digest,omitempty"` // of the changes; of two checkpoints there is none
	Held      []Held       `json:"held"`             // changes that accept would hold back; a patch is without them
	Files     []FileChange `json:"files"`            // what differs, in order of path
	Ignored   int          `json:"ignored"`          // how many files more differ that git ignores
	First     []Look       `json:"first"`            // what to look at before the rest
	Notes     []string     `json:"notes"`            // what git can't represent
	Text      string       `json:"text,omitempty"`
	// Head says that the source is on another branch than the one that the changes are known
	// to go with; null otherwise, and of two checkpoints.
	Head    *HeadMoved   `json:"head,omitempty"`
	Commits *CellCommits `json:"commits,omitempty"` // that were made from one state to the other; null when there are none
}

// TreeNode is one cell in the picture of a family.
type TreeNode struct {
	Cell        Cell         `json:"cell"`        // the cell itself
	Checkpoints []Checkpoint `json:"checkpoints"` // its checkpoints, oldest first
	Children    []TreeNode   `json:"children"`    // cells that were forked from it
}

// GCRequest asks to free disk space.
type GCRequest struct {
	DryRun bool `json:"dry_run"`
}

// GCResult lists what was, or would be, freed.
type GCResult struct {
	DryRun bool     `json:"dry_run"`
	Items  []GCItem `json:"items"` // what nothing needs
	Bytes  int64    `json:"bytes"`
}

// GCItem is one thing that nothing needs any more.
type GCItem struct {
	What  string `json:"what"` // "layer", "cell", "checkpoint", "cgroup", …
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	Why   string `json:"why"`
}

// Disk is what pando holds on disk, in blocks that are allocated.
type Disk struct {
	State    string       `json:"state"`             // directory
	Held     int64        `json:"held"`              // bytes, of all that follows
	Budget   int64        `json:"budget"`            // bytes it may hold before the oldest of what is no longer needed is removed
	Free     int64        `json:"free"`              // bytes free in the file system of the state directory
	Freeable int64        `json:"freeable"`          // bytes that gc would free
	Kinds    []DiskKind   `json:"kinds"`             // what it is
	Objects  []DiskObject `json:"objects,omitempty"` // each thing, if that was asked for
	Next     []DiskObject `json:"next"`              // removed next if the state grows beyond its budget; none while it is not near
	Removed  []DiskObject `json:"removed"`           // removed for the budget by this daemon, latest first; the last 20
	Warning  string       `json:"warning,omitempty"` // the state is near its budget
}

// DiskKind is the sum of what is of one kind.
type DiskKind struct {
	Kind     string `json:"kind"`  // cell, result, checkpoint, template, memory, source, image, run, receipts, trees, log, cache, unneeded, shared, other
	Count    int    `json:"count"` // of things
	Bytes    int64  `json:"bytes"`
	Freeable int64  `json:"freeable"` // of that, bytes which the budget or gc may remove
}

// DiskObject is one thing on disk.
type DiskObject struct {
	Kind    string    `json:"kind"` // as DiskKind has it
	Name    string    `json:"name"`
	Bytes   int64     `json:"bytes"`             // of it alone: what its removal frees
	Shared  int64     `json:"shared"`            // bytes that it has in common with others, which the kind shared counts
	State   string    `json:"state"`             // "in use", "pending", "kept", "kept for a while", …
	Expires time.Time `json:"expires,omitzero"`  // until when it is kept
	Used    time.Time `json:"used,omitzero"`     // when it was made, or used last
	Command string    `json:"command,omitempty"` // that frees it
}

// Daemon says who answers.
type Daemon struct {
	Version  string    `json:"version"` // of the program that answers
	PID      int       `json:"pid"`
	Started  time.Time `json:"started"`
	Home     string    `json:"home"`               // directory of its state
	Socket   string    `json:"socket"`             // path of its unix socket
	Listen   []string  `json:"listen,omitempty"`   // URLs at which it answers besides, to who has a token
	Cells    int       `json:"cells"`              // how many there are
	Alive    int       `json:"alive"`              // with processes
	Working  int       `json:"working,omitempty"`  // runs, commands, evaluations and other work under way; not told to tokens with labels
	Draining bool      `json:"draining,omitempty"` // it takes no new work
	Space    string    `json:"space,omitempty"`    // a warning: the state is near its budget, and this is removed next
	Ending   bool      `json:"ending,omitempty"`   // it was told to end, or pando serve that it belongs to is gone
}

// DrainRequest has a daemon take no new work.
type DrainRequest struct {
	Undo bool `json:"undo,omitempty"` // take work again
}
