package api

import "time"

// RunRequest asks for a governed run.
type RunRequest struct {
	Command []string `json:"command"`
	// From is the source directory, absolute. Empty with a cell that exists.
	From string `json:"from,omitempty"`
	// Upload is the id of a source that was sent to the daemon (Upload.ID), in the place
	// of From: it is seen at /workspace. The run ends the upload.
	Upload string `json:"upload,omitempty"`
	// Cell names the cell to work in; it is created if there is none. Empty:
	// a new anonymous cell that starts from the source.
	Cell    string `json:"cell,omitempty"`
	Backend string `json:"backend,omitempty"` // "auto" (the first that the policy allows), "namespace", "gvisor", "microvm", "none" (not isolated); an existing cell's must be the same
	Prefer  string `json:"prefer,omitempty"`  // backend of a new cell where Backend is not given
	Image   string `json:"image,omitempty"`   // "host" (default), "dir:PATH", "oci:REF"; empty with a cell that exists
	// Kernel is what the machine of a new microVM cell boots: the path of an image on
	// the daemon's host, or IMAGE:MODULES with the directory of its modules. Default:
	// PANDO_KERNEL of the daemon, or the best of the host's packages.
	Kernel     string   `json:"kernel,omitempty"`
	Policy     string   `json:"policy,omitempty"`      // text of a policy file
	PolicyName string   `json:"policy_name,omitempty"` // name of the policy's file, for messages
	Mounts     []string `json:"mounts,omitempty"`      // SRC:DST[:rw]
	Env        []string `json:"env,omitempty"`         // NAME=value, on top of what the image passes on
	WithSecret []string `json:"with_secret,omitempty"` // paths to import although they look like secrets
	// Allow is whom the cell may reach: HOST[:PORT], *.HOST, an address or a
	// prefix, @PRESET.
	Allow       []string `json:"allow,omitempty"`
	Credentials []string `json:"credentials,omitempty"` // names of credentials to lend to the cell
	// Anew has a cell that exists forget the policy, grants, mounts and limits that earlier
	// runs in it were told: without, a run goes by them where it says nothing else.
	Anew      bool   `json:"anew,omitempty"`
	Workdir   string `json:"workdir,omitempty"`
	Limits    Limits `json:"limits,omitzero"`
	OnFailure string `json:"on_failure,omitempty"` // "restore" (default), "pending", "ask"
	OnSuccess string `json:"on_success,omitempty"` // "pending" (default), "accept", "apply", "ask"
	Check     string `json:"check,omitempty"`      // shell command, run in a fork of the result
	DryRun    bool   `json:"dry_run,omitempty"`
	TTY       bool   `json:"tty,omitempty"`
	Rows      uint16 `json:"rows,omitempty"`
	Cols      uint16 `json:"cols,omitempty"`
	// Attach: the process starts when a client attaches, which must be soon,
	// and the run is interrupted when that client goes away.
	Attach bool `json:"attach,omitempty"`
	// CallerEnv and CallerDir are the environment and directory of the person
	// who asks; the image takes what is safe and useful from it.
	CallerEnv []string `json:"caller_env,omitempty"`
	CallerDir string   `json:"caller_dir,omitempty"`
}

// Limits as people write them; the empty string asks for nothing.
type Limits struct {
	CPUs    string `json:"cpus,omitempty"`    // "1.5"
	Memory  string `json:"memory,omitempty"`  // "512M", "2GiB"
	PIDs    string `json:"pids,omitempty"`    // "256"
	Disk    string `json:"disk,omitempty"`    // "10G"
	Timeout string `json:"timeout,omitempty"` // "90s", "10m"
}

// Run is one governed run, as far as it has come.
type Run struct {
	ID        string    `json:"run"`
	Cell      string    `json:"cell"`
	CellName  string    `json:"cell_name,omitempty"` // the cell's name, if it has one
	Command   []string  `json:"command"`             // redacted
	Source    string    `json:"source"`
	Backend   string    `json:"backend"`
	Isolation string    `json:"isolation"`              // "isolated" or "not isolated" (backend none)
	Image     string    `json:"image"`                  // "host", "dir:PATH", "oci:REF": its root file system
	ImageID   string    `json:"image_digest,omitempty"` // of an OCI image: its manifest's digest
	Phase     string    `json:"phase"`                  // preparing, executing, finishing, ended
	Created   time.Time `json:"created"`
	Started   time.Time `json:"started,omitzero"`
	Ended     time.Time `json:"ended,omitzero"` // when it ended
	ExitCode  *int      `json:"exit_code"`      // null: it did not start or has not ended
	Signal    string    `json:"signal,omitempty"`
	Cause     string    `json:"cause,omitempty"`    // why, when it was not the command's own doing
	Verdict   string    `json:"verdict,omitempty"`  // pending, accepted, restored, forked or discarded; empty while it goes on
	Reason    string    `json:"reason,omitempty"`   // of the verdict
	By        string    `json:"by,omitempty"`       // who gave it: "pando", "user"
	Applied   int       `json:"applied,omitempty"`  // files written to the source when it was accepted
	Before    *Point    `json:"before,omitempty"`   // the workspace before it
	After     *Point    `json:"after,omitempty"`    // the workspace after it
	Receipt   string    `json:"receipt,omitempty"`  // digest of the newest receipt
	Receipts  []string  `json:"receipts,omitempty"` // digests of all its receipts, oldest first
	Policy    string    `json:"policy_digest,omitempty"`
	Changes   Changes   `json:"changes"` // how much it changed
	LeftOut   []LeftOut `json:"left_out"`
	Notes     []string  `json:"notes,omitempty"`
	Conflicts []string  `json:"conflicts,omitempty"` // paths that accept --apply will refuse
	// Commits were made by it in the cell; null when there are none.
	Commits   *CellCommits `json:"commits,omitempty"`
	Check     *Check       `json:"check,omitempty"` // outcome of --check
	Usage     Usage        `json:"usage"`           // what it used
	Output    Outputs      `json:"output"`          // what it wrote
	Timings   Timings      `json:"timings_ms"`      // how long each part took
	Assurance Assurance    `json:"assurance"`       // what isolated it, as measured
	Provider  Provider     `json:"workspace"`
	TTY       bool         `json:"tty,omitempty"`
	// Detached: its command goes on at a terminal, and no client is attached that feeds it.
	Detached bool `json:"detached,omitempty"`
	// Interactive: somebody typed at its terminal; its failure is left for them
	// to judge.
	Interactive bool     `json:"interactive,omitempty"`
	Downgrades  []string `json:"downgrades"`
	Network     *Network `json:"network,omitempty"` // what it said to the outside; null for a cell that does not talk
	// MissingCalls are the system calls that it made and the cell's kernel, which is
	// not the host's, does not have, by name. Not all that failed for that are known.
	MissingCalls []string `json:"missing_calls,omitempty"`
	Error        *Error   `json:"error,omitempty"`   // why it did not start; with an exit code, why its result could not be read or recorded
	Folder       string   `json:"folder,omitempty"`  // where its records are
	Secrets      *Secrets `json:"secrets,omitempty"` // what the search for lent credentials found; null when none was lent
}

// Point is the state of a workspace at one end of a run.
type Point struct {
	Checkpoint    string `json:"checkpoint"`
	Number        int    `json:"number"`
	TreeDigest    string `json:"tree_digest"`
	ContentDigest string `json:"content_digest"`
}

// Changes counts what a run changed.
type Changes struct {
	Files   int   `json:"files"`   // how many files differ
	Added   int   `json:"added"`   // files
	Deleted int   `json:"deleted"` // files
	Ignored int   `json:"ignored"` // of Files: those that git ignores
	Bytes   int64 `json:"bytes"`   // in the files that are new or have other content
	// First is what to look at before the rest, at most 50 entries.
	First     []Look `json:"first,omitempty"`
	FirstMore int    `json:"first_more,omitempty"` // how many entries First leaves out
}

// LeftOut is one thing that import did not bring into the cell.
type LeftOut struct {
	Path string   `json:"path"`
	Why  string   `json:"why"`
	Kind string   `json:"kind"`             // "secret", "fields", "special", "unreadable"; "outside": the path leads out of the source; "tracked": a secret that is in the cell, since git tracks it
	Of   []string `json:"fields,omitempty"` // which fields of the file, when only they were left out
	Fix  string   `json:"fix,omitempty"`    // the flag that lets it in, when one does
	// Masked says that git tracks it, and that it was left out by the rule
	// secrets: mask of the policy.
	Masked bool `json:"masked,omitempty"`
	// History says that what was committed of it is in the cell all the same, in git's
	// objects.
	History bool `json:"history,omitempty"`
}

// Check is the outcome of --check.
type Check struct {
	Command  string `json:"command"`
	ExitCode int    `json:"exit_code"`        // of the check
	Cause    string `json:"cause,omitempty"`  // why, when it was not the check's own doing
	Output   string `json:"output,omitempty"` // last part, redacted
}

// Usage is what a run used. Measured names the fields that this host counts.
type Usage struct {
	WallMS     int64    `json:"wall_ms"`            // time from start to end of the command, in milliseconds
	CPUMS      int64    `json:"cpu_ms"`             // CPU time, in milliseconds
	CPUAverage float64  `json:"cpu_average"`        // cores
	PeakMemory int64    `json:"peak_memory"`        // bytes
	PeakPIDs   int64    `json:"peak_pids"`          // most processes at once
	Written    int64    `json:"written"`            // bytes
	OOMKills   int64    `json:"oom_kills"`          // processes killed at the memory limit
	LeftOver   int      `json:"left_over"`          // processes ended with the command
	Measured   []string `json:"measured,omitempty"` // names of the fields that this host counts
}

// Outputs is what the command wrote.
type Outputs struct {
	Stdout Output1 `json:"stdout"` // standard output, or the terminal
	Stderr Output1 `json:"stderr"` // standard error
}

// Output1 is one stream: kept is less than bytes when the log's limit was
// reached.
type Output1 struct {
	Bytes  int64  `json:"bytes"`
	Kept   int64  `json:"kept"`   // bytes that the log has
	SHA256 string `json:"sha256"` // of all bytes, kept or not
}

// Timings are wall times in milliseconds.
type Timings struct {
	Import     float64 `json:"import"`     // reading the source
	Checkpoint float64 `json:"checkpoint"` // keeping the state before it
	Start      float64 `json:"start"`      // building the cell
	Run        float64 `json:"run"`        // the command
	Freeze     float64 `json:"freeze"`     // making the result a layer
	Digest     float64 `json:"digest"`     // computing digests and the patch
	Restore    float64 `json:"restore"`    // going back, when it failed
	Receipt    float64 `json:"receipt"`    // signing the receipt
	Total      float64 `json:"total"`      // all of it, as the caller felt it
}

// Provider says how the workspace is kept.
type Provider struct {
	Name string `json:"provider"` // overlay or clone
	Why  string `json:"why"`      // why not a better one; empty when it is the best
}

// Assurance is how strong the isolation was, as measured.
type Assurance struct {
	Isolation []string       `json:"isolation"` // what was found in force: namespaces, seccomp, landlock, …
	Limits    []AppliedLimit `json:"limits"`
	Canaries  Canaries       `json:"canaries"` // forbidden acts tried inside before the command
	Network   string         `json:"network"`  // none, or what can be reached
	IDs       string         `json:"ids"`      // how users and groups are mapped: a range, or squashed to the caller
}

// AppliedLimit is one limit, asked and in force.
type AppliedLimit struct {
	Name    string `json:"name"`
	Asked   string `json:"asked"`   // what was asked for
	Applied string `json:"applied"` // what is in force
	How     string `json:"how"`     // by what means: cgroup v2, accounted, …
}

// Canaries is what was tried in the cell before the command.
type Canaries struct {
	Passed  int       `json:"passed"`            // how many were refused, as they should be
	Total   int       `json:"total"`             // how many were tried
	Bites   []string  `json:"bites"`             // the enforcements that one of them ran into: what is not listed was not seen to work
	Skipped []string  `json:"skipped,omitempty"` // those that were not tried, because the policy allows what they would do
	At      time.Time `json:"at,omitzero"`       // when they were tried
	Fresh   bool      `json:"fresh,omitempty"`   // they were tried by this command's own process
}

// Plan is the answer to a dry run.
type Plan struct {
	Source     string         `json:"source"`
	Files      int            `json:"files"` // how many would be imported
	Bytes      int64          `json:"bytes"`
	LeftOut    []LeftOut      `json:"left_out"`
	Mounts     []Mount        `json:"mounts"` // everything that would be visible
	Env        []string       `json:"env"`    // names
	Notes      []string       `json:"notes"`
	Limits     []AppliedLimit `json:"limits"`
	Allowed    []string       `json:"allowed"`  // whom it might reach, what a person would be asked about, and what is lent to it
	Enforced   []string       `json:"enforced"` // what would be in force
	Downgrades []string       `json:"downgrades"`
	Policy     string         `json:"policy_digest"`
	Backend    string         `json:"backend"`
	Isolation  string         `json:"isolation"` // "isolated" or "not isolated" (backend none)
	Image      string         `json:"image"`     // the root file system
	Command    []string       `json:"command"`
}

// Mount is one thing that is visible in a cell.
type Mount struct {
	Target   string `json:"target"`           // where in the cell
	Source   string `json:"source,omitempty"` // what of the host is shown there
	Kind     string `json:"kind"`             // what it is: layer, bind, tmpfs, proc, …
	ReadOnly bool   `json:"read_only"`        // the cell can't write it
	Why      string `json:"why,omitempty"`
}

// Causes of an end that are the command's own failure: it wanted more than it
// was given.
const (
	CauseMemoryLimit = "memory limit"
	CauseUnreadable  = "result not readable" // no failure of its own: what the run left exceeds what is read of it
	CauseDiskLimit   = "disk limit"          // its disk was full, or over its limit, at the end; the exit code may be 0
)

// OverLimit reports whether a cause is that something ran out.
func OverLimit(cause string) bool { return cause == CauseMemoryLimit || cause == CauseDiskLimit }
