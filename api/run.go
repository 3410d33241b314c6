package api

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// RunRequest starts a governed run.
type RunRequest struct {
	// Command is a program with its arguments; with Agent, arguments for the agent.
	Command []string      `json:"command"`
	Agent   *AgentRequest `json:"agent,omitempty"` // start a coding agent
	// From is the source directory, absolute. Empty with a cell that exists.
	From string `json:"from,omitempty"`
	// Repositories are further directories that come into a new cell beside From, each at its own path; absolute. Their
	// changes are one result with those of From. Paths are relative to the nearest directory above all.
	Repositories []string `json:"repositories,omitempty"`
	// Upload is the id of an uploaded source (Upload.ID), instead of From: its place is
	// /workspace. The run consumes the upload.
	Upload string `json:"upload,omitempty"`
	// Cell names the cell to work in; it is created if it does not exist. Empty: a new anonymous
	// cell that starts from the source.
	Cell    string `json:"cell,omitempty"`
	Backend string `json:"backend,omitempty"` // "auto" (the first that the policy allows), "namespace", "gvisor", "microvm", "none" (not isolated); an existing cell's must be the same
	Prefer  string `json:"prefer,omitempty"`  // backend of a new cell when Backend is empty
	Image   string `json:"image,omitempty"`   // "host" (default), "dir:PATH", "oci:REF", "dockerfile:PATH[#STAGE]"; empty with a cell that exists
	// Kernel is the kernel of a new microVM cell: the path of an image on the daemon's host, or
	// IMAGE:MODULES with the directory of its modules. Default: PANDO_KERNEL of the daemon, or
	// the best of the host's packages.
	Kernel     string   `json:"kernel,omitempty"`
	Policy     string   `json:"policy,omitempty"`      // text of a policy file
	PolicyName string   `json:"policy_name,omitempty"` // name of the policy's file, for messages
	Mounts     []string `json:"mounts,omitempty"`      // SRC:DST[:rw]
	ReadOnly   bool     `json:"read_only,omitempty"`   // commands can't write to the image
	// Caches names the caches that are kept for the source: "ccache", "cargo", "go", "gradle", "maven", "npm",
	// "pip", "pnpm", "uv", "yarn", or paths of directories, absolute or beginning with "~/"; "off": none, also where the
	// cell had some.
	Caches []string `json:"caches,omitempty"`
	// CacheWrite says what is kept of what it writes there: "accepted" (default): when its result is accepted; "always".
	CacheWrite string `json:"cache_write,omitempty"`
	// Services run beside a new cell, which reaches them by name.
	Services   []ServiceRequest `json:"services,omitempty"`
	Env        []string         `json:"env,omitempty"`         // NAME=value, in addition to the image's variables
	WithSecret []string         `json:"with_secret,omitempty"` // paths to import although they look like secrets
	// Allow lists the hosts that the cell may reach: HOST[:PORT], *.HOST, an address or a
	// prefix, @PRESET.
	Allow       []string `json:"allow,omitempty"`
	Credentials []string `json:"credentials,omitempty"` // names of credentials to lend to the cell
	// Anew makes an existing cell forget the policy, grants, mounts and limits of earlier runs.
	// Without it they apply unless this request gives others.
	Anew      bool   `json:"anew,omitempty"`
	Workdir   string `json:"workdir,omitempty"`
	Limits    Limits `json:"limits,omitzero"`
	OnFailure string `json:"on_failure,omitempty"` // "restore" (default), "pending", "ask"
	OnSuccess string `json:"on_success,omitempty"` // "pending" (default), "accept", "apply", "ask"
	Check     string `json:"check,omitempty"`      // shell command, run in a fork of the result
	// Pin lists files, folders and patterns ("*" is any text) of the workspace, as a diff names them, that the check has as they were
	// before the run, whatever the run made of them. What was not there is not there. Of a race, the scorer has them as well.
	Pin []string `json:"pin,omitempty"`
	// ToolLog is a file of the cell in which the command reports its tool calls, in JSON lines: in the workspace, the home
	// ("~/") or /tmp, relative to the command's directory. It is read after the run; of agents, also without it.
	ToolLog string `json:"tool_log,omitempty"`
	// Notify lists ways to give notice when the run has ended or asks something: "desktop"; a web address, which
	// gets a Notice; or "command:" and a command of the host's shell, which has one on its standard input. With Attach
	// the end of a run of less than ten seconds is not told.
	Notify []string `json:"notify,omitempty"`
	// Ref is the reason for the run, for people: a ticket, say. At most 200 bytes; it is in the receipt.
	Ref string `json:"ref,omitempty"`
	// Defaults are the values that the request has of the caller's configuration, and not of flags.
	// They change nothing but the origins of rules and limits.
	Defaults []Default `json:"defaults,omitempty"`
	// Record keeps requests and answers of the run's HTTP, encrypted, for its replay.
	Record bool `json:"record,omitempty"`
	DryRun bool `json:"dry_run,omitempty"`
	// Inspect has a plan name in its field missing what the agent lacks, program or login, where it
	// would be refused for that. A run ignores it.
	Inspect bool   `json:"inspect,omitempty"`
	TTY     bool   `json:"tty,omitempty"`
	Rows    uint16 `json:"rows,omitempty"`
	Cols    uint16 `json:"cols,omitempty"`
	// Attach delays the process until a client attaches, which must be soon. The run is
	// interrupted when that client disconnects.
	Attach bool `json:"attach,omitempty"`
	// CallerEnv and CallerDir are the environment and directory of the caller; the image takes
	// what is safe and useful from them.
	CallerEnv []string `json:"caller_env,omitempty"`
	CallerDir string   `json:"caller_dir,omitempty"`
}

// Asked is the caller that asked for a run, as the daemon knows it.
type Asked struct {
	User      string `json:"user,omitempty"`       // name of the operating system's user, for a caller on this host
	Token     string `json:"token,omitempty"`      // id of the caller's token
	TokenName string `json:"token_name,omitempty"` // the name that the token was given
	Door      string `json:"door,omitempty"`       // the protocol, where that is not pando's own: "e2b", "mcp"
}

// String names the caller for people; "" for none.
func (a *Asked) String() string {
	if a == nil {
		return ""
	}
	words := a.User
	if a.Token != "" {
		words = "token " + a.Token
		if a.TokenName != "" {
			words = "token " + a.TokenName + " (" + a.Token + ")"
		}
	}
	if a.Door != "" && a.Door != "local" {
		words += " by " + a.Door
	}
	return words
}

// Notice says that a run has ended, or asks something. It is sent, as JSON, where RunRequest.Notify says.
type Notice struct {
	What     string `json:"what"`                // "ended"; "asks": something waits for an answer
	Run      string `json:"run,omitempty"`       // id; absent when no run is under way
	Cell     string `json:"cell"`                // id
	CellName string `json:"cell_name,omitempty"` // its name, if it has one
	Source   string `json:"source"`              // the directory that the cell works on; empty when it has none
	Verdict  string `json:"verdict,omitempty"`   // of a run that has ended: as Run.Verdict
	ExitCode *int   `json:"exit_code,omitempty"` // of its command; absent when it did not start
	Approval string `json:"approval,omitempty"`  // id of what waits for an answer
	Title    string `json:"title"`               // a line about it
	Text     string `json:"text"`                // more about it
	Next     string `json:"next"`                // the command that goes on from there
}

// AgentRequest asks for a coding agent. Its hosts, its credential, its variables and the files by
// which its first start asks nothing are added to the run. The cell gets a name when none is given.
type AgentRequest struct {
	Name     string `json:"name"`               // "claude"
	Prompt   string `json:"prompt,omitempty"`   // the task of an agent that works without a terminal, and ends
	Autonomy string `json:"autonomy,omitempty"` // "full" (default): it asks nothing; "prompting": it asks before it uses a tool
	Continue bool   `json:"continue,omitempty"` // go on with its newest conversation in the cell
	// TrustRepository has the agent run what the repository configures for it: hooks, servers,
	// helpers, variables. Without it they are off; instructions are text, and are read.
	TrustRepository bool `json:"trust_repository,omitempty"`
	// TrustContent are digests of what may be run of that, as Content of PlannedAgent says it: when the repository configures
	// something else, it is off.
	TrustContent []string `json:"trust_content,omitempty"`
	// Mode is what it reaches besides its model: "strict" (default): nothing; "development":
	// package registries; "build": these, mirrors of distributions and GitHub; "breakglass": any
	// public host, which Acknowledge (today's date, UTC: 2006-01-02) and Reason ask for.
	Mode        string `json:"mode,omitempty"`
	Acknowledge string `json:"acknowledge,omitempty"` // as Mode says
	Reason      string `json:"reason,omitempty"`      // at most 500 bytes; it is in record and receipt
	// ModelURL is the base URL of a model server in place of the agent's own service. The cell
	// reaches its host and port, and not those of a login. A credential that is asked for and is
	// for that host is the key. A loopback address means the daemon's host.
	ModelURL string `json:"model_url,omitempty"`
	// IdlePause is after how long its cell is paused in which nothing happens: "30m", a second at
	// least; "": never. An attachment with input, or a command in the cell, continues it.
	IdlePause string `json:"idle_pause,omitempty"`
	// Home are files of the caller's home that come along into the agent's. Each must be in the
	// list of the agent (docs/reference/agents.md), and of each comes what that list says: nothing
	// that runs by itself, no variables, nothing that looks like a secret.
	Home []HomeFile `json:"home,omitempty"`
}

// HomeFile is a file of the caller's home.
type HomeFile struct {
	Kind       string `json:"kind"`                 // "settings", "skills", "commands", "memory", "servers"
	Path       string `json:"path"`                 // below the home, with slashes
	Content    []byte `json:"content"`              // its bytes, or those of the part that comes along
	Executable bool   `json:"executable,omitempty"` // it is a program
}

// HomeEntry is a file that would come into the home of a cell, or a part of one.
type HomeEntry struct {
	Kind  string `json:"kind"`  // as in HomeFile; of the policy "instructions", "git", "known_hosts", "gh", "file"
	Path  string `json:"path"`  // below the home
	Bytes int    `json:"bytes"` // of what comes
}

// Autonomies of an agent.
const (
	AutonomyFull      = "full"
	AutonomyPrompting = "prompting"
)

// Limits are limits as people write them; the empty string is no limit.
type Limits struct {
	CPUs    string `json:"cpus,omitempty"`    // "1.5"
	Memory  string `json:"memory,omitempty"`  // "512M", "2GiB"
	PIDs    string `json:"pids,omitempty"`    // "256"
	Disk    string `json:"disk,omitempty"`    // "10G"
	Timeout string `json:"timeout,omitempty"` // "90s", "10m"
	// Budget is what the cell and its forks may use together: "time=2h,requests=500,tokens=200k,usd=5", or some of these.
	Budget string `json:"budget,omitempty"`
}

// Run is one governed run, also while it is in progress.
type Run struct {
	ID       string   `json:"run"`
	Cell     string   `json:"cell"`
	CellName string   `json:"cell_name,omitempty"` // the cell's name, if it has one
	Command  []string `json:"command"`             // redacted
	Agent    string   `json:"agent,omitempty"`     // the coding agent that it started
	Mode     string   `json:"mode,omitempty"`      // of the agent, if not strict
	Autonomy string   `json:"autonomy,omitempty"`  // of the agent, if not full
	ModelURL string   `json:"model_url,omitempty"` // the model server in place of the agent's service
	ReplayOf string   `json:"replay_of,omitempty"` // the run of which it executed the command again, for a replay
	Ref      string   `json:"ref,omitempty"`       // the reason that was given for it: a ticket, say
	Asked    *Asked   `json:"asked,omitempty"`     // by which caller it was asked for
	// NeedsSignOff is what the policy demanded for its result when it ended; null for nothing.
	NeedsSignOff *SignOffNeed `json:"needs_sign_off,omitempty"`
	// SignOffs is what approvers signed about it, oldest first.
	SignOffs []SignOff `json:"sign_offs,omitempty"`
	Hold     *Hold     `json:"hold,omitempty"`   // a legal hold on it
	Erased   []Erased  `json:"erased,omitempty"` // what of its evidence was erased, oldest first
	// ModeReason is the reason that was given for mode breakglass.
	ModeReason string `json:"mode_reason,omitempty"`
	// DowngradeWords are stable words for what was asked for and is weaker than the default.
	DowngradeWords []string `json:"downgrade_words,omitempty"`
	Source         string   `json:"source"`
	// Repositories are the directories that are in its cell beside Source.
	Repositories []string  `json:"repositories,omitempty"`
	Backend      string    `json:"backend"`
	Isolation    string    `json:"isolation"`              // "isolated" or "not isolated" (backend none)
	Image        string    `json:"image"`                  // "host", "dir:PATH", "oci:REF", "dockerfile:PATH": its root file system
	ImageID      string    `json:"image_digest,omitempty"` // of an OCI image: its manifest's digest
	Phase        string    `json:"phase"`                  // preparing, executing, finishing, ended
	Created      time.Time `json:"created"`
	Started      time.Time `json:"started,omitzero"`
	Ended        time.Time `json:"ended,omitzero"` // when it ended
	ExitCode     *int      `json:"exit_code"`      // null: not started, or not ended
	Signal       string    `json:"signal,omitempty"`
	Cause        string    `json:"cause,omitempty"`    // the cause of its end, if not the command's own
	Verdict      string    `json:"verdict,omitempty"`  // pending, accepted, restored, forked or discarded; empty while it runs
	Reason       string    `json:"reason,omitempty"`   // reason of the verdict
	By           string    `json:"by,omitempty"`       // origin of the verdict: "pando", "user"
	Applied      int       `json:"applied,omitempty"`  // number of files written to the source by an accept
	Before       *Point    `json:"before,omitempty"`   // the workspace before it
	After        *Point    `json:"after,omitempty"`    // the workspace after it
	Receipt      string    `json:"receipt,omitempty"`  // digest of the newest receipt
	Receipts     []string  `json:"receipts,omitempty"` // digests of all its receipts, oldest first
	Policy       string    `json:"policy_digest,omitempty"`
	Changes      Changes   `json:"changes"` // size of its changes
	LeftOut      []LeftOut `json:"left_out"`
	Notes        []string  `json:"notes,omitempty"`
	Conflicts    []string  `json:"conflicts,omitempty"` // paths that accept --apply will refuse
	// Commits are the commits that it made in the cell; null when there are none.
	Commits   *CellCommits `json:"commits,omitempty"`
	Check     *Check       `json:"check,omitempty"` // outcome of --check
	Usage     Usage        `json:"usage"`           // its resource usage
	Output    Outputs      `json:"output"`          // sizes and digests of its output
	Timings   Timings      `json:"timings_ms"`      // duration of each part
	Assurance Assurance    `json:"assurance"`       // its isolation, as measured
	Provider  Provider     `json:"workspace"`
	TTY       bool         `json:"tty,omitempty"`
	// Detached says that its command runs at a terminal, and no client with input is attached.
	Detached bool `json:"detached,omitempty"`
	// Interactive says that there was input at its terminal; a failure is then left pending.
	Interactive bool     `json:"interactive,omitempty"`
	Downgrades  []string `json:"downgrades"`
	Network     *Network `json:"network,omitempty"` // its network traffic; null for a cell without a network
	// MissingCalls are system calls, by name, that it used and that the cell's own kernel lacks.
	// The list may be incomplete.
	MissingCalls []string `json:"missing_calls,omitempty"`
	// Caches is what it had of caches that are kept for its source, by name.
	Caches []CacheUse `json:"caches,omitempty"`
	// Services ran beside its cell.
	Services []ServiceUse `json:"services,omitempty"`
	// Recording is what was recorded of its network, with record.
	Recording *Recording `json:"recording,omitempty"`
	Error     *Error     `json:"error,omitempty"`   // why it did not start; with an exit code, why its result could not be read or recorded
	Folder    string     `json:"folder,omitempty"`  // directory of its records
	Secrets   *Secrets   `json:"secrets,omitempty"` // the search for lent credentials; null when none was lent
}

// Recording is what was recorded of a run's network.
type Recording struct {
	Digest    string `json:"digest"`        // of the encrypted file
	Exchanges int64  `json:"exchanges"`     // requests with their answers
	Bytes     int64  `json:"bytes"`         // of bodies and headers, in clear
	Cut       int64  `json:"cut,omitempty"` // bodies that were cut: longer than 8 MiB, or beyond the 64 MiB of a run
	// NotRecorded counts what cannot be recorded, by kind: "tcp", "untrusted", "upgrade", "too-many", "error".
	NotRecorded map[string]int64 `json:"not_recorded,omitempty"`
	Incomplete  string           `json:"incomplete,omitempty"` // why the end of it is missing
}

// Words says what was recorded, and what was not. size writes a number of bytes.
func (r *Recording) Words(size func(int64) string) string {
	of := func(n int64, one, several string) string {
		if n == 1 {
			return "1 " + one
		}
		return strconv.FormatInt(n, 10) + " " + several
	}
	text := of(r.Exchanges, "exchange", "exchanges") + ", " + size(r.Bytes)
	if r.Cut > 0 {
		text += "; " + of(r.Cut, "body was cut", "bodies were cut")
	}
	var not []string
	for _, kind := range slices.Sorted(maps.Keys(r.NotRecorded)) {
		not = append(not, strconv.FormatInt(r.NotRecorded[kind], 10)+" "+kind)
	}
	if len(not) > 0 {
		text += "; not recorded: " + strings.Join(not, ", ")
	}
	if r.Incomplete != "" {
		text += "; incomplete: " + r.Incomplete
	}
	return text
}

// Point is the state of a workspace before or after a run.
type Point struct {
	Checkpoint    string `json:"checkpoint"`
	Number        int    `json:"number"`
	TreeDigest    string `json:"tree_digest"`
	ContentDigest string `json:"content_digest"`
}

// Changes counts the changes of a run.
type Changes struct {
	Files   int   `json:"files"`   // number of changed files
	Added   int   `json:"added"`   // files
	Deleted int   `json:"deleted"` // files
	Ignored int   `json:"ignored"` // how many of Files git ignores
	Bytes   int64 `json:"bytes"`   // size of the files that are new or have other content
	// First lists the changes to look at before the rest, at most 50.
	First     []Look `json:"first,omitempty"`
	FirstMore int    `json:"first_more,omitempty"` // number of changes beyond First
}

// LeftOut is one path that import did not bring into the cell.
type LeftOut struct {
	Path string   `json:"path"`
	Why  string   `json:"why"`
	Kind string   `json:"kind"`             // "secret", "fields", "special", "unreadable"; "outside": the path leads out of the source; "tracked": a tracked secret, which the cell has
	Of   []string `json:"fields,omitempty"` // the fields that were left out, when the rest of the file was imported
	Fix  string   `json:"fix,omitempty"`    // the flag that imports it, if there is one
	// Masked says that git tracks it, and that the policy's rule secrets: mask left it out.
	Masked bool `json:"masked,omitempty"`
	// History says that the cell has its committed versions all the same, in git's objects.
	History bool `json:"history,omitempty"`
}

// Check is the outcome of --check.
type Check struct {
	Command      string   `json:"command"`
	ExitCode     int      `json:"exit_code"`               // of the check
	Cause        string   `json:"cause,omitempty"`         // the cause of its end, if not the check's own
	Output       string   `json:"output,omitempty"`        // the end of its output, redacted
	Pins         []string `json:"pins,omitempty"`          // paths that were as before the run where it was checked
	Restored     []string `json:"restored,omitempty"`      // those of them that the run had changed, at most 100
	RestoredMore int      `json:"restored_more,omitempty"` // how many more there are
	// Changed are the programs and scripts of the workspace that the check runs, as the run had changed them: what judged it. They are
	// known by the words of the check.
	Changed []string `json:"changed,omitempty"`
}

// Usage is the resource usage of a run. Measured names the fields that this host counts.
type Usage struct {
	WallMS     int64    `json:"wall_ms"`            // duration of the command, in milliseconds
	CPUMS      int64    `json:"cpu_ms"`             // CPU time, in milliseconds
	CPUAverage float64  `json:"cpu_average"`        // cores
	PeakMemory int64    `json:"peak_memory"`        // bytes
	PeakPIDs   int64    `json:"peak_pids"`          // maximum number of processes
	Written    int64    `json:"written"`            // bytes
	OOMKills   int64    `json:"oom_kills"`          // processes killed at the memory limit
	LeftOver   int      `json:"left_over"`          // processes ended with the command
	Measured   []string `json:"measured,omitempty"` // names of the fields that this host counts
}

// Outputs describes the output of a command.
type Outputs struct {
	Stdout Output1 `json:"stdout"` // standard output, or the terminal
	Stderr Output1 `json:"stderr"` // standard error
}

// Output1 is one stream. Kept is less than Bytes when the log's limit was reached.
type Output1 struct {
	Bytes  int64  `json:"bytes"`
	Kept   int64  `json:"kept"`   // number of bytes in the log
	SHA256 string `json:"sha256"` // of all bytes, kept or not
}

// Timings are wall times in milliseconds.
type Timings struct {
	Import     float64 `json:"import"`     // reading the source
	Checkpoint float64 `json:"checkpoint"` // keeping the state before the run
	Start      float64 `json:"start"`      // building the cell
	Run        float64 `json:"run"`        // the command
	Freeze     float64 `json:"freeze"`     // making the result a layer
	Digest     float64 `json:"digest"`     // computing digests and the patch
	Restore    float64 `json:"restore"`    // restoring after a failure
	Receipt    float64 `json:"receipt"`    // signing the receipt
	Total      float64 `json:"total"`      // all of it, as seen by the caller
}

// Provider names the storage of the workspace.
type Provider struct {
	Name string `json:"provider"` // overlay or clone
	Why  string `json:"why"`      // why no better one is used; empty for the best
}

// Assurance is the strength of the isolation, as measured.
type Assurance struct {
	Isolation []string       `json:"isolation"` // the mechanisms found in force: namespaces, seccomp, landlock, …
	Limits    []AppliedLimit `json:"limits"`
	Canaries  Canaries       `json:"canaries"` // the canaries that ran before the command
	Network   string         `json:"network"`  // none, or the reachable part of it
	IDs       string         `json:"ids"`      // how users and groups are mapped: a range, or squashed to the caller
}

// AppliedLimit is one limit: requested and in force.
type AppliedLimit struct {
	Name    string `json:"name"`
	Asked   string `json:"asked"`   // the requested value
	Applied string `json:"applied"` // the value in force
	How     string `json:"how"`     // the mechanism: cgroup v2, accounted, …
}

// Canaries is the result of the canaries of a cell.
type Canaries struct {
	Passed  int       `json:"passed"`            // number of canaries that were stopped, as they should be
	Total   int       `json:"total"`             // number of canaries that ran
	Bites   []string  `json:"bites"`             // the enforcements that stopped one; an enforcement not listed was not seen to work
	Skipped []string  `json:"skipped,omitempty"` // canaries that did not run, because the policy allows the operation
	At      time.Time `json:"at,omitzero"`       // when they ran
	Fresh   bool      `json:"fresh,omitempty"`   // they ran in this command's own process
}

// Plan is the answer to a dry run.
type Plan struct {
	Source string `json:"source"`
	// Repositories are the directories that come into its cell beside Source.
	Repositories []string    `json:"repositories,omitempty"`
	Files        int         `json:"files"` // number of files to import
	Bytes        int64       `json:"bytes"`
	LeftOut      []LeftOut   `json:"left_out"`
	Home         []HomeEntry `json:"home,omitempty"` // what would come into the home of the cell, of the caller's and by the policy
	// Services would run beside its cell, or do.
	Services   []ServiceUse   `json:"services,omitempty"`
	Mounts     []Mount        `json:"mounts"` // everything that would be visible
	Env        []string       `json:"env"`    // names
	Notes      []string       `json:"notes"`
	Limits     []AppliedLimit `json:"limits"`
	Allowed    []string       `json:"allowed"`  // hosts it might reach, requests a person would decide on, and credentials lent to it
	Enforced   []string       `json:"enforced"` // the enforced parts
	Downgrades []string       `json:"downgrades"`
	// DowngradeWords are stable words for what is asked for and weaker than the default.
	DowngradeWords []string      `json:"downgrade_words,omitempty"`
	Policy         string        `json:"policy_digest"`
	Backend        string        `json:"backend"`
	Isolation      string        `json:"isolation"` // "isolated" or "not isolated" (backend none)
	Image          string        `json:"image"`     // the root file system
	Command        []string      `json:"command"`
	Cell           string        `json:"cell,omitempty"`        // the name of its cell; empty for one without
	CellExists     bool          `json:"cell_exists,omitempty"` // the cell is there
	Agent          *PlannedAgent `json:"agent,omitempty"`       // the coding agent
	Lines          []PolicyLine  `json:"lines"`                 // the policy, as in Policy.lines
	Budget         *Budget       `json:"budget,omitempty"`      // of a cell that exists
	Defaults       []Default     `json:"defaults,omitempty"`    // as in the request
	Missing        []Finding     `json:"missing,omitempty"`     // what the agent lacks, of a request with inspect
}

// PlannedAgent is the agent that would be started.
type PlannedAgent struct {
	Name    string `json:"name"`              // "claude"
	Title   string `json:"title"`             // "Claude Code"
	Program string `json:"program"`           // the name of its program
	Path    string `json:"path,omitempty"`    // of the program in the cell; empty if that is not known before the start
	Version string `json:"version,omitempty"` // as its package says it, if it does
	Tested  string `json:"tested,omitempty"`  // the version that pando was tried with, if that is another
	// Login is the name of the credential that is lent, or of the variable that is given; empty: none
	// is there, or a model server wants none.
	Login           string `json:"login,omitempty"`
	LoginOrigin     string `json:"login_origin,omitempty"`     // by what it is there, as origins of policy lines
	ModelURL        string `json:"model_url,omitempty"`        // of a model server in place of its service, as the cell names it
	Autonomy        string `json:"autonomy"`                   // "full", "prompting"
	Mode            string `json:"mode"`                       // as in AgentRequest
	TrustRepository bool   `json:"trust_repository,omitempty"` // it runs what the repository configures for it
	// Content is the digest of what the repository configures for it, for TrustContent of a request; "": nothing, or it was not
	// looked at.
	Content string `json:"content,omitempty"`
	// Off are the files and folders of the repository that it leaves alone, of those that are there.
	Off []string `json:"off"`
	// Runs are those that it runs things from, or takes settings of, although the repository is not
	// trusted: its program has no switch for them at a terminal.
	Runs []string `json:"runs,omitempty"`
}

// Mount is one mount of a cell.
type Mount struct {
	Target   string `json:"target"`           // path in the cell
	Source   string `json:"source,omitempty"` // path on the host
	Kind     string `json:"kind"`             // layer, bind, tmpfs, proc, …
	ReadOnly bool   `json:"read_only"`        // the cell can't write to it
	Kept     string `json:"kept,omitempty"`   // of a cache: the name by which it is kept for the source
	Why      string `json:"why,omitempty"`
}

// ReasonNoChanges is the reason of the verdict on a run that succeeded and changed nothing.
const ReasonNoChanges = "no changes"

// Causes of an end that are a failure of the command itself: it exceeded a limit.
const (
	CauseMemoryLimit = "memory limit"
	CauseUnreadable  = "result not readable" // no failure of the command: its result exceeds what is read of it
	CauseDiskLimit   = "disk limit"          // its disk was full, or over its limit, at the end; the exit code may be 0
)

// OverLimit reports whether a cause is an exceeded limit.
func OverLimit(cause string) bool { return cause == CauseMemoryLimit || cause == CauseDiskLimit }
