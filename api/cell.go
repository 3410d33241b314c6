package api

import (
	"encoding/json"
	"time"
)

// Cell is an isolated place where commands run.
type Cell struct {
	ID        string `json:"cell"`
	Name      string `json:"name"`      // the id when it has none
	Anonymous bool   `json:"anonymous"` // made by a run without --cell, and removed with it
	State     string `json:"state"`
	Cause     string `json:"cause,omitempty"` // cause of state failed, or of the latest end of its processes
	Source    string `json:"source,omitempty"`
	// Repositories are directories that are in it beside Source, each at its own path.
	Repositories []string     `json:"repositories,omitempty"`
	Backend      string       `json:"backend"`
	Isolation    string       `json:"isolation"`              // "isolated" or "not isolated" (backend none)
	Image        string       `json:"image"`                  // "host", "dir:PATH", "oci:REF", "dockerfile:PATH"
	ImageID      string       `json:"image_digest,omitempty"` // of an OCI image: the digest of its manifest
	Created      time.Time    `json:"created"`
	Expires      time.Time    `json:"expires,omitzero"`
	Hold         *Hold        `json:"hold,omitempty"`       // a legal hold on it
	Head         int          `json:"head"`                 // number of the checkpoint that its workspace is at or started from
	Checkpoints  int          `json:"checkpoints"`          // number of its checkpoints
	Runs         int          `json:"runs"`                 // number of its runs
	Detached     string       `json:"detached,omitempty"`   // the run with a command at a terminal that no client is attached to
	Agent        string       `json:"agent,omitempty"`      // the coding agent that was last started in it
	LatestRun    string       `json:"latest_run,omitempty"` // id of its latest run
	Verdict      string       `json:"verdict,omitempty"`    // of the latest run
	Pending      []string     `json:"pending,omitempty"`    // ids of the runs with pending results, newest first
	Parent       *Parent      `json:"parent,omitempty"`     // the cell that it was forked from
	Provider     Provider     `json:"workspace"`
	Assurance    *Assurance   `json:"assurance,omitempty"` // while it has processes
	Downgrades   []string     `json:"downgrades"`
	Processes    int          `json:"processes"`      // number of its processes now
	Disk         int64        `json:"disk,omitempty"` // bytes of its own layers
	Policy       string       `json:"policy_digest,omitempty"`
	LeftOut      []LeftOut    `json:"left_out"`
	Interpreter  *Interpreter `json:"interpreter,omitempty"` // of a cell that has, or had, an interpreter
	// Certificate is the measurement of the hazards of a cell that was forked with its memory
	// (type Certificate).
	Certificate json.RawMessage `json:"certificate,omitempty"`
	Template    string          `json:"template,omitempty"` // name of the template that this is the cell of; such a cell is only forked
	// Labels are names and values that callers choose.
	Labels   map[string]string `json:"labels,omitempty"`
	Lease    *Lease            `json:"lease,omitempty"`    // its lifetime; absent: until it is removed
	Budget   *Budget           `json:"budget,omitempty"`   // of it and its forks; absent: none
	Services []Service         `json:"services,omitempty"` // that run beside it
	Serves   *Serves           `json:"serves,omitempty"`   // of the cell in which a service runs; absent for all others
}

// Budget is what a cell and its forks may use together.
type Budget struct {
	Cell     string       `json:"cell"`               // id of the cell that it was set for
	Parts    []BudgetPart `json:"parts"`              // one for each limit that was set
	Reached  string       `json:"reached,omitempty"`  // why its cells are paused: a part, "price" or "usage"; empty while they are not
	Approval string       `json:"approval,omitempty"` // id of the approval that lets them continue
	Prices   string       `json:"prices,omitempty"`   // date of the price table, YYYY-MM-DD
	// OwnPrices says that the policy has prices, which come before the table.
	OwnPrices bool `json:"own_prices,omitempty"`
}

// BudgetPart is one amount of a budget.
type BudgetPart struct {
	Name    string `json:"name"`    // time (milliseconds), requests, tokens, usd (millionths of a US dollar)
	Used    int64  `json:"used"`    // by the cell and its forks
	Granted int64  `json:"granted"` // in all
}

// Parent says where a forked cell comes from.
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
	Kind          string    `json:"kind"`             // "base", "before", "after", "manual", "looked", "fork", "branch", "template", "turn", "step", "service"
	Run           string    `json:"run,omitempty"`
	Message       string    `json:"message,omitempty"` // the message given when it was made; of a turn, what the user said; of a step, what was done
	Turn          int       `json:"turn,omitempty"`    // number of the turn of the agent that begins here
	Home          bool      `json:"home,omitempty"`    // it has the cell's home, too
	Created       time.Time `json:"created"`
	Expires       time.Time `json:"expires,omitzero"`
	TreeDigest    string    `json:"tree_digest,omitempty"` // empty while it is being computed
	ContentDigest string    `json:"content_digest,omitempty"`
	Layers        int       `json:"layers"` // number of layers in its stack
	Head          bool      `json:"head"`   // the workspace is at it or started from it
	TookMS        float64   `json:"took_ms,omitempty"`
	Under         string    `json:"under,omitempty"`        // "living processes": the top layer was copied
	Memory        bool      `json:"memory,omitempty"`       // it has the memory of the cell's processes, too
	PauseMS       float64   `json:"pause_ms,omitempty"`     // how long the cell was paused for it
	MemoryTaken   string    `json:"memory_taken,omitempty"` // how its memory was captured, as in a branch
}

// CheckpointRequest asks for a checkpoint.
type CheckpointRequest struct {
	Message string `json:"message,omitempty"` // a note that describes it
}

// RestoreRequest restores a cell to a checkpoint.
type RestoreRequest struct {
	Number int    `json:"number"`
	Digest string `json:"digest,omitempty"` // instead of Number: a prefix of the checkpoint's id or tree digest
	// Lose confirms that the results of later runs leave the cell's workspace.
	Lose   bool `json:"lose,omitempty"`
	Verify bool `json:"verify,omitempty"` // prove by reading everything
	Files  bool `json:"files,omitempty"`  // of a checkpoint with memory, its files alone
	DryRun bool `json:"dry_run,omitempty"`
	// Certify "strict" fails if the restored processes inherit a random number generator, and
	// the cell stays as it was. A restore with memory is then first tried in a copy, which is
	// discarded.
	Certify string `json:"certify,omitempty"`
	// AtFork is a command that a shell runs in the cell before any restored process continues,
	// for a checkpoint with memory. When it fails, nothing runs. With Certify it also runs in
	// the copy; when it fails there, the cell stays as it was.
	AtFork string `json:"at_fork,omitempty"`
}

// RestoreResult is the outcome of a restore.
type RestoreResult struct {
	Cell       Cell     `json:"cell"` // the cell after it
	Number     int      `json:"number"`
	Lost       []string `json:"lost"`               // runs with results that are no longer in the workspace
	Applied    []string `json:"applied,omitempty"`  // the runs of Lost with changes that are, and stay, in the source
	Reverted   []string `json:"reverted,omitempty"` // paths that undo restored in the source
	Ended      int      `json:"ended"`              // number of ended processes; in a dry run, of those that would end
	Proof      string   `json:"proof"`              // "layer identity", "full walk"
	TreeDigest string   `json:"tree_digest"`
	TookMS     float64  `json:"took_ms"`
	Receipt    string   `json:"receipt,omitempty"`
	Reopened   []string `json:"reopened,omitempty"` // runs that are pending again
	Services   []string `json:"services,omitempty"` // names of the services that were restored, too
	Memory     string   `json:"memory,omitempty"`   // for a checkpoint with memory: "restored", or the reason why it was not and nothing runs
	Resumed    int      `json:"resumed,omitempty"`  // number of processes that continue
	// Inherited names the random number generators in user space that the copies share with
	// their source: they may draw the same numbers.
	Inherited []string `json:"inherited,omitempty"`
	// Renewed names the random number generators in user space that seed themselves anew in each
	// copy, and would otherwise be shared with the source.
	Renewed []string `json:"renewed,omitempty"`
	Notes   []string `json:"notes,omitempty"` // differences from the former state, such as hard links that are split
}

// MemoryRestored is RestoreResult.Memory when the memory was restored.
const MemoryRestored = "restored"

// UndoRequest restores a cell to before its latest run, or to checkpoint To, or to before turn Turn of
// its agent, which is ended first.
type UndoRequest struct {
	To     int  `json:"to,omitempty"`   // number of the checkpoint to go back to; 0: before the latest change
	Turn   int  `json:"turn,omitempty"` // instead of To: go back to before this turn of the cell's agent
	DryRun bool `json:"dry_run,omitempty"`
	Lose   bool `json:"lose,omitempty"`
	// KeepSource keeps the undone changes that were applied to the source. Without it they are
	// undone in the source, too; if a file there has changed since, nothing is changed.
	KeepSource bool `json:"keep_source,omitempty"`
}

// ForkRequest makes new cells from a checkpoint.
type ForkRequest struct {
	Number  int    `json:"number,omitempty"`  // 0: the cell's present state
	Turn    int    `json:"turn,omitempty"`    // instead of Number: the beginning of a turn of the cell's agent
	Name    string `json:"name,omitempty"`    // of one cell, or the prefix of several: NAME-1, NAME-2; default derived from the cell's name
	Count   int    `json:"count,omitempty"`   // default 1
	Files   bool   `json:"files,omitempty"`   // the files alone: of a checkpoint with memory, or of a cell in which something runs
	Certify string `json:"certify,omitempty"` // "strict": fail if a copy inherits a random number generator
	// AtFork is a command that a shell runs in each copy before any of its processes continues.
	// A copy in which it fails is not made.
	AtFork string `json:"at_fork,omitempty"`
}

// ForkResult lists the new cells.
type ForkResult struct {
	Cells   []Cell `json:"cells"`   // the new cells
	Took    string `json:"took"`    // what the forks have: "files"
	Dropped string `json:"dropped"` // what the forks lack
	// Inherited names the random number generators in user space that the copies share with
	// their source: they may draw the same numbers.
	Inherited []string `json:"inherited,omitempty"`
	// Renewed names the random number generators in user space that seed themselves anew in each
	// copy, and would otherwise be shared with the source.
	Renewed []string `json:"renewed,omitempty"`
	Notes   []string `json:"notes,omitempty"` // differences from the source, such as hard links that are split
	TookMS  float64  `json:"took_ms"`
	Receipt string   `json:"receipt,omitempty"`
}

// AcceptRequest accepts the present state of a cell, or the changes of a run.
type AcceptRequest struct {
	// Expect is the digest of the reviewed changes, as in Diff, or at least 16 digits of it:
	// other changes are refused.
	Expect string `json:"expect,omitempty"`
	Apply  bool   `json:"apply,omitempty"` // write the changes to the source
	// Paths limits Apply to changes at these paths of the source, or below them; * is any text, also "/".
	// The rest waits.
	Paths []string `json:"paths,omitempty"`
	// Exact takes Paths as they are: each names one file, and * is a character.
	Exact bool `json:"exact,omitempty"`
	// Patch limits Apply, too: of the files in it only its hunks are taken, which are some of a diff's, or edited.
	Patch string `json:"patch,omitempty"`
	// Merge merges files that changed in the source, too, by three ways: what both had, what the cell
	// made of it, and what the source is now. Conflicts are written as git marks them.
	Merge bool `json:"merge,omitempty"`
	// Commits makes the commits on the branch that the cell has checked out those of the source's branch, with Apply: as they
	// are, or, when that has others by now, copies on top of these. What was not committed in the cell is not committed.
	Commits bool `json:"commits,omitempty"`
	// Sign names a credential for signatures of git: with Commits all that come are copies that it signed.
	Sign        string   `json:"sign,omitempty"`
	SSHAgent    string   `json:"ssh_agent,omitempty"`    // with Sign: the socket of the SSH agent with its key, on the daemon's host
	NoConflicts bool     `json:"no_conflicts,omitempty"` // with Merge: write nothing where that leaves conflicts
	Include     []string `json:"include,omitempty"`      // held paths to apply nevertheless
	Strict      bool     `json:"strict,omitempty"`       // hold back all changes to look at first
	Ignored     bool     `json:"ignored,omitempty"`      // also apply files that git ignores
	Force       bool     `json:"force,omitempty"`        // accept although a run failed, or the value of a credential was found
	// OtherBranch applies the changes although the source is on another branch and commit than
	// the one that they belong to.
	OtherBranch bool   `json:"other_branch,omitempty"`
	Reason      string `json:"reason,omitempty"` // the reason for force, which the receipt keeps
	DryRun      bool   `json:"dry_run,omitempty"`
}

// SyncRequest brings what became of a cell's source into the cell.
type SyncRequest struct {
	// Paths limits it to changes at these paths, or below them; * is any text, also "/".
	Paths       []string `json:"paths,omitempty"`
	NoConflicts bool     `json:"no_conflicts,omitempty"` // change nothing where that leaves conflicts
	DryRun      bool     `json:"dry_run,omitempty"`
}

// SyncResult is the outcome of a sync.
type SyncResult struct {
	Cell     string   `json:"cell"`
	CellName string   `json:"cell_name"`        // the cell's name, or its id
	Source   string   `json:"source"`           // the directory
	Synced   []string `json:"synced"`           // paths that changed in the cell
	Missed   []string `json:"missed,omitempty"` // paths that should have, and became something else there meanwhile
	Merged   []Merged `json:"merged"`           // of these: merged with what the cell had
	Before   int      `json:"before,omitempty"` // number of the checkpoint that the cell was at; absent when nothing changed
	Number   int      `json:"number,omitempty"` // of the one that it is at
	Receipt  string   `json:"receipt,omitempty"`
	DryRun   bool     `json:"dry_run,omitempty"`
}

// SourceChanges says what became of the source of a cell since both last had the same: what a sync would bring.
type SourceChanges struct {
	Cell     string   `json:"cell"`
	CellName string   `json:"cell_name"`         // the cell's name, or its id
	Source   string   `json:"source"`            // the directory
	Files    int      `json:"files"`             // how many changed, without those that git ignores
	Paths    []string `json:"paths"`             // the first hundred of them
	Waiting  *int     `json:"waiting,omitempty"` // of a cell of which a part was applied: how many of its changed files wait
}

// SSHHost describes the SSH servers in front of cells.
type SSHHost struct {
	Key string `json:"key"` // their public key, as in files of known hosts: "ssh-ed25519 AAAA…"
}

// FetchResult is the outcome of a fetch.
type FetchResult struct {
	Cell     string          `json:"cell"`
	CellName string          `json:"cell_name"` // the cell's name, or its id
	Source   string          `json:"source"`    // the directory: the refs are of its repository
	Branches []FetchedBranch `json:"branches"`  // those of the cell with commits that its source had not at the import, by name
	Removed  []FetchedBranch `json:"removed"`   // refs there of earlier fetches, removed since the cell has no such branch
	Receipt  string          `json:"receipt,omitempty"`
}

// FetchedBranch is a branch of a cell in the repository of its source.
type FetchedBranch struct {
	Source  string `json:"source"`        // the directory with the repository that it is in
	Ref     string `json:"ref"`           // refs/remotes/pando/CELL/BRANCH, or …/detached-head for what is checked out on no branch
	Commit  string `json:"commit"`        // its object id in hex; empty when the ref was removed
	Was     string `json:"was,omitempty"` // the commit of the ref before; absent when it is new
	Subject string `json:"subject"`       // the first line of the commit's message
}

// Merged is a file that was merged with what the source had.
type Merged struct {
	Path      string   `json:"path"`
	Also      []string `json:"also,omitempty"`      // its names before, in the cell or in the source
	Conflicts int      `json:"conflicts,omitempty"` // places that are marked in it, as git marks them
}

// AcceptResult is the outcome of an accept.
type AcceptResult struct {
	Cell      string    `json:"cell"`
	CellName  string    `json:"cell_name"`         // the cell's name, or its id
	Isolation string    `json:"isolation"`         // "isolated" or "not isolated" (backend none), as its cell
	Source    string    `json:"source"`            // the directory that the changes were, or could be, applied to
	Runs      []Run     `json:"runs"`              // runs that got a verdict
	Digest    string    `json:"digest"`            // of the changes, as in Diff
	Receipt   string    `json:"receipt,omitempty"` // absent with DryRun
	Applied   []string  `json:"applied"`           // paths written to the source
	Parts     []string  `json:"parts,omitempty"`   // with Patch: the files of which its hunks alone were asked for
	Left      int       `json:"left,omitempty"`    // with Paths or Patch: changed files that were not asked for as a whole, and wait
	During    string    `json:"during,omitempty"`  // the run that goes on in the cell: what it had made so far was taken
	Looked    time.Time `json:"looked,omitzero"`   // with During: when the cell was as it was taken, at the last look at it
	Merged    []Merged  `json:"merged"`            // of these, or already there: merged with what the source had
	Held      []Held    `json:"held"`              // not applied: needs --include
	First     []Look    `json:"first"`             // the changes to look at before the rest
	Ignored   int       `json:"ignored"`           // number of files not applied because git ignores them
	Kept      []string  `json:"kept"`              // changes that git can't represent, and that were not applied
	Patch     string    `json:"patch,omitempty"`   // path of the patch of the applied changes; absent above 256 MiB
	DryRun    bool      `json:"dry_run,omitempty"`
	// Head says that the source is on another branch than the one that the changes belong to;
	// null otherwise, and without apply.
	Head    *HeadMoved   `json:"head,omitempty"`
	Commits *CellCommits `json:"commits,omitempty"` // commits made in the cell; null when there are none
	Branch  *BranchMove  `json:"branch,omitempty"`  // what the source's branch became; null when it stayed
	// Also are paths that these commits change, and that the source had so, uncommitted.
	Also []string `json:"also,omitempty"`
}

// BranchMove is a move of the branch that a source has checked out.
type BranchMove struct {
	Branch  string   `json:"branch"`           // without refs/heads/
	Was     string   `json:"was,omitempty"`    // the commit before; absent: there was none
	Now     string   `json:"now"`              // the commit after
	Tip     string   `json:"tip,omitempty"`    // the commit in the cell; another than Now when copies of commits came
	Commits int      `json:"commits"`          // how many came, or were taken back
	Signed  string   `json:"signed,omitempty"` // the fingerprint of the key of SSH that signed those that came
	List    []Commit `json:"list"`             // the first hundred that came, oldest first
}

// Commit is one of git's.
type Commit struct {
	ID      string `json:"id"`           // its object id
	Of      string `json:"of,omitempty"` // the commit in the cell that it is a copy of
	Subject string `json:"subject"`      // the first line of its message
}

// Held is a change to a file that controls what runs on the host.
type Held struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// Look is a change to look at before all others: a file that controls what runs on the host, or
// that is executable or hidden.
type Look struct {
	Path  string `json:"path"` // with a final slash: all files below it
	Why   string `json:"why"`
	Files int    `json:"files"` // number of changed files
}

// DiscardRequest discards the pending changes of a cell, or a run's result.
type DiscardRequest struct {
	DryRun bool `json:"dry_run,omitempty"`
	Lose   bool `json:"lose,omitempty"` // confirms discarding the results of several runs, or deleting a kept one
	// Reason goes into the receipt.
	Reason string `json:"reason,omitempty"`
}

// DiscardResult is the outcome of a discard.
type DiscardResult struct {
	Cell     Cell   `json:"cell"`              // the cell after it
	CellName string `json:"cell_name"`         // the name of the cell, or its id
	Runs     []Run  `json:"runs"`              // the discarded runs
	Number   int    `json:"number"`            // number of the checkpoint that the cell is at
	Kept     int    `json:"kept,omitempty"`    // number of the checkpoint that keeps the discarded result, for 7 days
	Ended    int    `json:"ended,omitempty"`   // number of ended processes; in a dry run, of those that would end
	Applied  int    `json:"applied,omitempty"` // number of files of these runs that were applied to the source, and stay there and in the cell
	// Services are the names of its services that are where they were then, too.
	Services []string `json:"services,omitempty"`
	Freed    int64    `json:"freed,omitempty"` // bytes freed by deleting the kept result of a run restored or discarded before
	Receipt  string   `json:"receipt,omitempty"`
	DryRun   bool     `json:"dry_run,omitempty"`
}

// RevertRequest undoes the changes that an accept applied to the source.
type RevertRequest struct {
	Reason string `json:"reason,omitempty"` // the reason, which the receipt keeps
	DryRun bool   `json:"dry_run,omitempty"`
}

// RevertResult is the outcome of a revert.
type RevertResult struct {
	Cell     Cell     `json:"cell"`      // the cell itself
	CellName string   `json:"cell_name"` // the name of the cell, or its id
	Source   string   `json:"source"`    // the directory that was, or could be, written to
	Runs     []Run    `json:"runs"`      // runs with results that are no longer in the source
	Reverted []string `json:"reverted"`  // paths written to the source
	Already  []string `json:"already"`   // paths that were already as before the accept
	Receipt  string   `json:"receipt,omitempty"`
	DryRun   bool     `json:"dry_run,omitempty"`
	// Branch is what the source's branch became again; null when it stayed.
	Branch *BranchMove `json:"branch,omitempty"`
}

// ExecRequest runs a command in a running or idle cell, outside any run.
type ExecRequest struct {
	Command []string `json:"command"`
	Env     []string `json:"env,omitempty"`
	Workdir string   `json:"workdir,omitempty"`
	Timeout string   `json:"timeout,omitempty"`
	TTY     bool     `json:"tty,omitempty"`
	Rows    uint16   `json:"rows,omitempty"`
	Cols    uint16   `json:"cols,omitempty"`
	Attach  bool     `json:"attach,omitempty"` // the command starts when a client attaches, and ends with it
	// Wait delays the answer until the command has ended; the answer has its output. The input
	// is empty, and the command ends when the client disconnects.
	Wait      bool     `json:"wait,omitempty"`
	CallerEnv []string `json:"caller_env,omitempty"`
}

// Exec is a command in a cell.
type Exec struct {
	ID        string    `json:"exec"` // id of the exec
	Cell      string    `json:"cell"`
	Isolation string    `json:"isolation"`         // "isolated" or "not isolated" (backend none), as its cell
	Command   []string  `json:"command,omitempty"` // redacted; where execs are listed or shown
	Began     time.Time `json:"began,omitzero"`    // when it started; where execs are listed or shown
	Running   bool      `json:"running"`           // it has not ended
	PID       int       `json:"pid,omitempty"`     // its process id in the cell, if known
	ExitCode  *int      `json:"exit_code"`         // null while it runs
	Signal    string    `json:"signal,omitempty"`
	Cause     string    `json:"cause,omitempty"` // the cause of its end, if not its own
	Output    Outputs   `json:"output"`          // sizes and digests of its output
	WallMS    float64   `json:"wall_ms"`         // its duration in milliseconds
	// Notes come once: in the answer that starts it, and in the one that reports its end.
	Notes []string `json:"notes,omitempty"`
	// Stdout and Stderr are its output, up to a mebibyte each, in an answer with Wait; base64.
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"` // standard error, likewise
}

// Process is one process of a cell.
type Process struct {
	PID     int       `json:"pid"`
	PPID    int       `json:"ppid"`   // its parent's process id; 0 outside the cell
	State   string    `json:"state"`  // as the kernel names it: R, S, D, T, Z, …
	RSS     int64     `json:"rss"`    // bytes
	CPU     int64     `json:"cpu_ms"` // milliseconds
	Started time.Time `json:"started"`
	Command string    `json:"command"`
}

// Stats is the present resource usage of a cell.
type Stats struct {
	Cell       string   `json:"cell"`
	Name       string   `json:"name"`
	Isolation  string   `json:"isolation"` // "isolated" or "not isolated" (backend none), as its cell
	State      string   `json:"state"`
	Processes  int      `json:"processes"`              // number of processes
	Memory     int64    `json:"memory"`                 // bytes
	PeakMemory int64    `json:"peak_memory"`            // bytes
	MemoryMax  int64    `json:"memory_limit,omitempty"` // limit of its memory, in bytes
	CPU        int64    `json:"cpu_us"`                 // microseconds of CPU time
	Written    int64    `json:"written"`                // bytes written to disks
	Disk       int64    `json:"disk"`                   // bytes of the writable layer, home and /tmp
	OOMKills   int64    `json:"oom_kills"`              // processes killed at the memory limit
	Measured   []string `json:"measured"`               // names of the fields that this host counts
}

// FileChange is one changed file.
type FileChange struct {
	Path      string `json:"path"`
	OldPath   string `json:"old_path,omitempty"` // its former path, when it was renamed
	Status    string `json:"status"`             // added, modified, deleted, renamed, type-changed, mode-changed
	OldMode   string `json:"old_mode,omitempty"` // octal, as in git
	NewMode   string `json:"new_mode,omitempty"` // octal, as in git
	Binary    bool   `json:"binary,omitempty"`
	Added     int    `json:"added"`                // lines
	Deleted   int    `json:"deleted"`              // lines
	OldDigest string `json:"old_digest,omitempty"` // SHA-256 of the content before
	NewDigest string `json:"new_digest,omitempty"` // SHA-256 of the content after
}

// Diff lists the differences between two states.
type Diff struct {
	Cell      string       `json:"cell"`
	Source    string       `json:"source"`    // the directory that paths are relative to, on the daemon's host; empty when there is none
	Isolation string       `json:"isolation"` // "isolated" or "not isolated" (backend none), as its cell
	From      string       `json:"from"`      // "web@1", or "the source"
	To        string       `json:"to"`
	Runs      []string     `json:"runs"`             // ids of the pending runs with changes in it
	Digest    string       `json:"digest,omitempty"` // of the changes; absent between two checkpoints
	Held      []Held       `json:"held"`             // changes that accept would hold back; they are not in a patch
	Files     []FileChange `json:"files"`            // the changed files, by path
	Ignored   int          `json:"ignored"`          // number of further changed files that git ignores
	First     []Look       `json:"first"`            // changes to look at before the rest
	Notes     []string     `json:"notes"`            // changes that git can't represent
	Text      string       `json:"text,omitempty"`
	// Head says that the source is on another branch than the one that the changes belong to;
	// null otherwise, and between two checkpoints.
	Head    *HeadMoved   `json:"head,omitempty"`
	Commits *CellCommits `json:"commits,omitempty"` // commits made between the two states; null when there are none
}

// DiffChange is what changed in a cell that is watched.
type DiffChange struct {
	At      time.Time    `json:"at"`             // when it was looked at
	Cell    string       `json:"cell"`           // id
	Digest  string       `json:"digest"`         // of all changes since the source: AcceptRequest.Expect
	Files   int          `json:"files"`          // number of files that differ from the source, without those that git ignores
	Added   int          `json:"added"`          // lines in them
	Deleted int          `json:"deleted"`        // lines in them
	Ignored int          `json:"ignored"`        // number of further changed files that git ignores
	Changed []FileChange `json:"changed"`        // the first thousand files that differ from what was told before; in the first message, from the source
	More    int          `json:"more,omitempty"` // number of further ones
	First   []Look       `json:"first"`          // what to look at first in these
	Text    string       `json:"text,omitempty"` // these in the form that was asked for; in the first message, the numbers for each file
}

// TreeNode is one cell in the tree of a family.
type TreeNode struct {
	Cell        Cell         `json:"cell"`        // the cell itself
	Checkpoints []Checkpoint `json:"checkpoints"` // its checkpoints, oldest first
	Children    []TreeNode   `json:"children"`    // cells that were forked from it
}

// GCRequest frees disk space.
type GCRequest struct {
	DryRun bool `json:"dry_run"`
}

// GCResult lists what was, or would be, freed.
type GCResult struct {
	DryRun bool     `json:"dry_run"`
	Items  []GCItem `json:"items"` // the unneeded objects
	Bytes  int64    `json:"bytes"`
}

// GCItem is one unneeded object.
type GCItem struct {
	What  string `json:"what"` // "layer", "cell", "checkpoint", "cgroup", …
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	Why   string `json:"why"`
}

// Disk is the disk usage of pando, in allocated blocks.
type Disk struct {
	State    string       `json:"state"`             // the state directory
	Held     int64        `json:"held"`              // bytes in all
	Budget   int64        `json:"budget"`            // bytes of state above which the oldest unneeded objects are removed
	Free     int64        `json:"free"`              // bytes free in the file system of the state directory
	Freeable int64        `json:"freeable"`          // bytes that gc would free
	Kinds    []DiskKind   `json:"kinds"`             // usage by kind
	Objects  []DiskObject `json:"objects,omitempty"` // each object, if requested
	Next     []DiskObject `json:"next"`              // removed next if the state grows beyond its budget; empty far below the budget
	Removed  []DiskObject `json:"removed"`           // removed for the budget by this daemon, latest first; the last 20
	Warning  string       `json:"warning,omitempty"` // set when the state is near its budget
}

// DiskKind is the usage of one kind of objects.
type DiskKind struct {
	Kind     string `json:"kind"`  // cell, result, checkpoint, template, memory, source, image, run, receipts, trees, log, cache, unneeded, shared, other
	Count    int    `json:"count"` // number of objects
	Bytes    int64  `json:"bytes"`
	Freeable int64  `json:"freeable"` // bytes of it that the budget or gc may remove
}

// DiskObject is one object on disk.
type DiskObject struct {
	Kind    string    `json:"kind"` // as in DiskKind
	Name    string    `json:"name"`
	Bytes   int64     `json:"bytes"`             // bytes that its removal frees
	Shared  int64     `json:"shared"`            // bytes shared with others, which the kind shared counts
	State   string    `json:"state"`             // "in use", "pending", "kept", "kept for a while", …
	Expires time.Time `json:"expires,omitzero"`  // when its retention ends
	Used    time.Time `json:"used,omitzero"`     // when it was made or last used
	Command string    `json:"command,omitempty"` // the command that frees it
}

// Daemon describes the daemon that answers.
type Daemon struct {
	Version  string    `json:"version"` // of the daemon's program
	PID      int       `json:"pid"`
	Started  time.Time `json:"started"`
	Home     string    `json:"home"`               // the directory of its state
	Socket   string    `json:"socket"`             // path of its unix socket
	Listen   []string  `json:"listen,omitempty"`   // further URLs of it, for callers with a token
	Cells    int       `json:"cells"`              // number of cells
	Alive    int       `json:"alive"`              // number of cells with processes
	Working  int       `json:"working,omitempty"`  // runs, commands, evaluations and other work in progress; hidden from tokens with labels
	Draining bool      `json:"draining,omitempty"` // it refuses new work
	Space    string    `json:"space,omitempty"`    // a warning that the state is near its budget, with what is removed next
	Ending   bool      `json:"ending,omitempty"`   // it was told to end, or the pando serve that it belongs to has ended
	Logout   string    `json:"logout,omitempty"`   // the command by which its cells outlive the logout of its user, where they do not
}

// DrainRequest makes a daemon refuse new work.
type DrainRequest struct {
	Undo bool `json:"undo,omitempty"` // accept new work again
}

// StopGrace is how long the command of a run that is stopped has to end after it was asked to,
// unless the request says otherwise, and MaxStopGrace the longest that it may say.
const (
	StopGrace    = 10 * time.Second
	MaxStopGrace = time.Hour
)
