package daemon

import (
	"net/http"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
)

// Access is the access level that a route needs. On the unix socket every caller has all levels.
type Access = access.Level

// The levels of access.
const (
	Read  = access.Read
	Sign  = access.Approve
	Act   = access.Run
	Admin = access.Admin
)

// Traits are further columns of the table: what else is checked before a handler runs.
type Traits uint16

// The traits of routes.
const (
	// labelled is for tokens that are restricted to labels, too: the answer comes from the
	// engine alone, which checks labels, or is the same for all callers. Other routes are about
	// the whole installation.
	labelled Traits = 1 << iota
	begins          // it begins work: a draining daemon refuses it
	// The object with the ETag that If-Match and If-None-Match are compared with. Routes
	// without one refuse these headers.
	fileTag
	cellTag
	runTag
	templateTag
	// What it does is in records, of which the next daemon makes the answer when this one ends
	// first: see outcome.go.
	inRecords
	repeats // to do it twice is as good as once
)

// has reports whether any of the traits is among those of t.
func (t Traits) has(any Traits) bool { return t&any != 0 }

// Route is one row of the table, which has everything that the API can do.
type Route struct {
	Method string // or ANY
	Path   string // with the names of the query parameters: "/v1/runs?cell"
	Access Access
	Traits Traits
	Does   string // one sentence
	In     any    // a value of the type of the request's JSON body; nil for none
	Out    any    // likewise for the answer
	Takes  string // media type of the request's body, when it is not JSON
	Gives  string // media type of the answer, when it is not JSON, or WebSocket or Lines
	cannot string // the failed action in errors; {cell} and other parameters are filled in
	handle func(*Daemon, http.ResponseWriter, *http.Request) (any, error)
}

// WebSocket in Route.Gives: the connection becomes a WebSocket of frames.
const WebSocket = "websocket"

const (
	tarball   = "application/x-tar"
	jsonLines = "application/jsonl"
)

// anyMethod in Route.Method stands for all methods.
const anyMethod = "ANY"

// Lines in Route.Gives: the answer is Out or, with Accept: application/jsonl, a stream of lines
// (api.StreamLine), the last of which has Out.
const Lines = "lines"

// Routes is the API, version 1.
var Routes = []Route{
	{"GET", "/v1/daemon", Read, labelled, "Describes the daemon that answers.", nil, api.Daemon{}, "", "", "look at the daemon", (*Daemon).getDaemon},
	{"POST", "/v1/daemon/stop", Admin, 0, "Ends the daemon; cells survive.", nil, api.Daemon{}, "", "", "stop the daemon", (*Daemon).stopDaemon},
	{"POST", "/v1/daemon/drain", Admin, repeats, "Makes the daemon refuse new work; running work continues, and can be inspected, stopped and removed.", api.DrainRequest{}, api.Daemon{}, "", "", "drain the daemon", (*Daemon).setDrain},
	{"GET", "/metrics", Read, 0, "Returns metrics in Prometheus' text format.", nil, nil, "", metricsText, "tell metrics", (*Daemon).getMetrics},
	{"GET", "/v1/openapi.json", Read, labelled, "Describes this API.", nil, nil, "", "application/json", "describe the API", (*Daemon).getOpenAPI},
	{"GET", "/v1/tokens?limit&cursor", Admin, 0, "Lists the tokens of callers over the network, oldest first.", nil, []api.Token{}, "", "", "list tokens", (*Daemon).listTokens},
	{"POST", "/v1/tokens", Admin, 0, "Makes a token; only this answer has its secret.", api.TokenRequest{}, api.Token{}, "", "", "make the token", (*Daemon).createToken},
	{"DELETE", "/v1/tokens/{token}", Admin, 0, "Revokes a token at once, and ends the requests begun with it.", nil, api.Token{}, "", "", "remove token {token}", (*Daemon).removeToken},
	{"GET", "/v1/ssh", Read, labelled, "Tells the key by which clients know the SSH servers of this installation.", nil, api.SSHHost{}, "", "", "look at the SSH server", (*Daemon).sshHost},
	{"GET", "/v1/doctor", Read, labelled, "Checks what works on this host, and what each missing part would add.", nil, api.Diagnosis{}, "", "", "examine this host", (*Daemon).getDoctor},
	{"GET", "/v1/disk?objects", Read, 0, "Returns the disk usage, its budget, and what is removed next.", nil, api.Disk{}, "", "", "measure the disk", (*Daemon).getDisk},
	{"POST", "/v1/gc", Admin, repeats, "Collects garbage: frees unneeded disk space.", api.GCRequest{}, api.GCResult{}, "", Lines, "free disk space", (*Daemon).gc},
	{"GET", "/v1/tree", Read, labelled, "Shows all families of cells as trees.", nil, []api.TreeNode{}, "", "", "show the families of cells", (*Daemon).getForest},

	{"GET", "/v1/cells?limit&cursor&label", Read, labelled, "Lists cells, or those with all given labels, newest first; cells made together by name.", nil, []api.Cell{}, "", "", "list cells", (*Daemon).listCells},
	{"POST", "/v1/cells", Act, labelled | inRecords, "Makes a cell without a run.", api.CreateRequest{}, api.Cell{}, "", Lines, "create the cell", (*Daemon).createCell},
	{"POST", "/v1/cells/{cell}/lease?dir", Act, labelled | cellTag, "Changes the lifetime of a cell, and its labels.", api.LeaseRequest{}, api.Cell{}, "", "", "change the lease of cell {cell}", (*Daemon).leaseCell},
	{"GET", "/v1/cells/{cell}?dir", Read, labelled, "Shows a cell.", nil, api.Cell{}, "", "", "show cell {cell}", (*Daemon).getCell},
	{"DELETE", "/v1/cells/{cell}?dry_run&dir", Act, labelled, "Removes a cell with its processes, files and checkpoints: one made with the same token, or any with scope admin.", nil, api.Cell{}, "", "", "remove cell {cell}", (*Daemon).removeCell},
	{"POST", "/v1/cells/{cell}/pause?dir", Act, labelled | repeats, "Pauses a cell's processes.", nil, api.Cell{}, "", "", "pause cell {cell}", (*Daemon).pauseCell},
	{"POST", "/v1/cells/{cell}/resume?dir", Act, labelled | repeats, "Resumes a paused cell's processes.", nil, api.Cell{}, "", "", "resume cell {cell}", (*Daemon).resumeCell},
	{"POST", "/v1/cells/{cell}/stop?dir&timeout", Act, labelled | repeats, "Ends a cell's processes; its files stay. The command of a run is asked to end (SIGTERM), and killed after timeout (10s).", nil, api.Cell{}, "", "", "stop cell {cell}", (*Daemon).stopCell},
	{"GET", "/v1/cells/{cell}/processes?dir", Read, labelled, "Lists the processes of a cell.", nil, []api.Process{}, "", "", "list the processes of cell {cell}", (*Daemon).listProcesses},
	{"GET", "/v1/cells/{cell}/output/{name}?dir", Read, labelled, "Reads what the service in a cell wrote to a stream, stdout or stderr, since it was last started.", nil, nil, "", octets, "read {name} of the service in cell {cell}", (*Daemon).getServiceOutput},
	{"GET", "/v1/cells/{cell}/stats?dir", Read, labelled, "Returns the present resource usage of a cell.", nil, api.Stats{}, "", "", "measure cell {cell}", (*Daemon).getStats},
	{"GET", "/v1/cells/{cell}/history?limit&cursor&dir", Read, labelled, "Lists a cell's checkpoints.", nil, []api.Checkpoint{}, "", "", "show the history of cell {cell}", (*Daemon).getHistory},
	{"GET", "/v1/cells/{cell}/steps?limit&cursor&dir", Read, labelled, "Lists what was done in a cell, oldest first: runs, commands, evaluations and turns of an agent, each with the checkpoint that it began with and the files that it changed.", nil, []api.Step{}, "", "", "list the steps of cell {cell}", (*Daemon).getSteps},
	{"GET", "/v1/cells/{cell}/report?dir", Read, labelled, "Draws a report of all that was done in a cell: its runs, commands and turns since its beginning, and what it changed by now.", nil, api.CellReport{}, "", "", "report on cell {cell}", (*Daemon).cellReport},
	{"GET", "/v1/cells/{cell}/report.html?dir", Read, labelled, "Draws a report of a cell as one page of HTML that needs nothing else.", nil, nil, "", pageHTML, "report on cell {cell}", (*Daemon).cellReportHTML},
	{"GET", "/v1/cells/{cell}/report.md?dir", Read, labelled, "Draws a report of a cell as Markdown.", nil, nil, "", pageMarkdown, "report on cell {cell}", (*Daemon).cellReportMarkdown},
	{"GET", "/v1/cells/{cell}/tree?dir", Read, labelled, "Shows a cell's family as a tree.", nil, []api.TreeNode{}, "", "", "show the family of cell {cell}", (*Daemon).getTree},
	{"GET", "/v1/cells/{cell}/diff?from&from_cell&to&form&colour&width&ignored&include&only&dir", Read, labelled, "Shows the changes of a cell against its source, which accept takes; with from and to compares two checkpoints, with from_cell of two cells.", nil, api.Diff{}, "", "", "compare states of cell {cell}", (*Daemon).diff},
	{"GET", "/v1/cells/{cell}/changes?form&colour&width&ignored&dir", Read, labelled, "Streams what changes in a cell as server-sent events, each a DiffChange, until the caller hangs up: at once what differs from its source, then what changed since the event before. Without a name it is the cell of the newest run that goes on, else the one with the newest pending result. The cell is looked at up to three times a second, and is not started for it.", nil, nil, "", eventStream, "follow the changes of cell {cell}", (*Daemon).watchDiff},
	{"POST", "/v1/cells/{cell}/accept?dir", Admin, labelled | cellTag | inRecords, "Accepts the present state of a cell, with all results in it; with apply, applies it to the source, also while a run goes on in it.", api.AcceptRequest{}, api.AcceptResult{}, "", Lines, "accept cell {cell}", (*Daemon).accept},
	{"POST", "/v1/cells/{cell}/revert?dir", Admin, labelled | cellTag | inRecords, "Undoes the latest apply of a cell in its source.", api.RevertRequest{}, api.RevertResult{}, "", "", "take back what was applied of cell {cell}", (*Daemon).revert},
	{"POST", "/v1/cells/{cell}/sync?dir", Admin, labelled | cellTag | inRecords, "Brings what became of a cell's source into the cell, by three ways.", api.SyncRequest{}, api.SyncResult{}, "", Lines, "sync cell {cell}", (*Daemon).sync},
	{"GET", "/v1/cells/{cell}/source?dir", Read, labelled, "Lists what became of a cell's source since both last had the same: what sync would bring.", nil, api.SourceChanges{}, "", "", "compare cell {cell} with its source", (*Daemon).sourceChanges},
	{"POST", "/v1/cells/{cell}/fetch?dir", Admin, labelled | repeats, "Brings the commits that were made in a cell, checked, into the repository of its source, as refs/remotes/pando/CELL/*.", nil, api.FetchResult{}, "", "", "fetch from cell {cell}", (*Daemon).fetch},
	{"GET", "/v1/cells/{cell}/sign-offs?dir", Read, labelled, "Shows what approvers have to sign before the present state of a cell is accepted, and what they signed.", nil, api.SignOffs{}, "", "", "show the sign-offs of cell {cell}", (*Daemon).signOffs},
	{"POST", "/v1/cells/{cell}/sign-offs?dir", Sign, labelled, "Gives a sign-off of the present state of a cell: a statement that an approver has signed. The signature is what counts, and not the caller.", api.SignOffRequest{}, api.SignOffs{}, "", "", "sign off cell {cell}", (*Daemon).signOff},
	{"POST", "/v1/cells/{cell}/hold?dir", Admin, labelled, "Puts a legal hold on a cell and its runs, or releases it: nothing of them is removed or erased meanwhile. Both are receipts.", api.HoldRequest{}, api.OnHold{}, "", "", "hold cell {cell}", (*Daemon).hold},
	{"POST", "/v1/cells/{cell}/discard?dir", Act, labelled | cellTag | inRecords, "Discards the pending changes of a cell.", api.DiscardRequest{}, api.DiscardResult{}, "", "", "discard the work in cell {cell}", (*Daemon).discard},
	{"POST", "/v1/cells/{cell}/checkpoints?dir", Act, labelled | repeats, "Makes the present state of a cell a checkpoint.", api.CheckpointRequest{}, api.Checkpoint{}, "", Lines, "checkpoint cell {cell}", (*Daemon).checkpoint},
	{"POST", "/v1/cells/{cell}/restore?dir", Act, labelled | cellTag | inRecords, "Restores a cell to a checkpoint.", api.RestoreRequest{}, api.RestoreResult{}, "", Lines, "restore cell {cell}", (*Daemon).restore},
	{"POST", "/v1/cells/{cell}/undo?dir", Act, labelled | cellTag | inRecords, "Restores a cell to before its latest change, or to before a turn of its agent.", api.UndoRequest{}, api.RestoreResult{}, "", Lines, "undo in cell {cell}", (*Daemon).undo},
	{"POST", "/v1/cells/{cell}/fork?dir", Act, labelled | begins | inRecords, "Makes new cells from a checkpoint.", api.ForkRequest{}, api.ForkResult{}, "", Lines, "fork cell {cell}", (*Daemon).fork},
	{"POST", "/v1/uploads", Act, labelled | begins, "Uploads a source, a tar archive, for one run, cell or template within the hour.", nil, api.Upload{}, tarball, "", "take the source", (*Daemon).upload},
	{"GET", "/v1/cells/{cell}/files?path&dir", Read, labelled, "Reads files out of a cell.", nil, nil, "", tarball, "read files of cell {cell}", (*Daemon).readFiles},
	{"PUT", "/v1/cells/{cell}/files?path&dir", Act, labelled, "Writes the files of a tar archive into a cell.", nil, nil, tarball, "", "write files into cell {cell}", (*Daemon).writeFiles},
	{"GET", "/v1/cells/{cell}/stat?path&digest&dir", Read, labelled, "Describes a file of a cell, without following a symlink; with digest, its digest, which is its ETag.", nil, api.File{}, "", "", "look at a file of cell {cell}", (*Daemon).statFile},
	{"GET", "/v1/cells/{cell}/list?path&depth&limit&cursor&dir", Read, labelled, "Lists a directory of a cell, by name.", nil, []api.File{}, "", "", "list files of cell {cell}", (*Daemon).listFiles},
	{"GET", "/v1/cells/{cell}/file?path&dir", Read, labelled, "Reads one file of a cell; up to 4 MiB with its digest as ETag.", nil, nil, "", octets, "read a file of cell {cell}", (*Daemon).readFile},
	{"PUT", "/v1/cells/{cell}/file?path&dir", Act, labelled | fileTag, "Writes one file of a cell, making the directories above it. If-Match: only if it has this ETag; If-None-Match: * only if it does not exist.", nil, api.File{}, octets, "", "write a file of cell {cell}", (*Daemon).writeFile},
	{"DELETE", "/v1/cells/{cell}/file?path&dir", Act, labelled | fileTag, "Removes a file or directory of a cell with everything in it.", nil, api.File{}, "", "", "remove a file of cell {cell}", (*Daemon).removeFile},
	{"POST", "/v1/cells/{cell}/mkdir?dir", Act, labelled, "Makes a directory in a cell, and those above it.", api.FileRequest{}, api.File{}, "", "", "make a directory in cell {cell}", (*Daemon).makeDirectory},
	{"POST", "/v1/cells/{cell}/rename?dir", Act, labelled, "Moves a file of a cell to another path, and replaces a file there.", api.FileRequest{}, api.File{}, "", "", "rename a file of cell {cell}", (*Daemon).renameFile},
	{"GET", "/v1/cells/{cell}/watch?path&below&dir", Read, labelled, "Streams changes in a directory of a cell as server-sent events, each a FileEvent, until the caller hangs up.", nil, nil, "", eventStream, "watch files of cell {cell}", (*Daemon).watchFiles},
	{"GET", "/v1/cells/{cell}/ports?dir", Read, labelled, "Lists the TCP ports on which processes of a cell listen.", nil, []api.Port{}, "", "", "list the ports of cell {cell}", (*Daemon).listPorts},
	{"GET", "/v1/cells/{cell}/ports/{port}/connect?dir", Act, labelled, "Connects to a port of a cell: the messages are its bytes; an empty one ends a direction.", nil, nil, "", WebSocket, "connect to port {port} of cell {cell}", (*Daemon).connectPort},
	{"GET", "/v1/cells/{cell}/git?dir", Act, labelled, "Takes the commits made in a cell, checks them, and serves them by git's upload-pack: the messages are its bytes; an empty one ends a direction.", nil, nil, "", WebSocket, "fetch the commits of cell {cell}", (*Daemon).fetchFrom},
	{"GET", "/v1/cells/{cell}/ssh?dir", Act, labelled, "Connects to an SSH server in front of a cell: the messages are its bytes. It asks for no key, and its own is that of GET /v1/ssh.", nil, nil, "", WebSocket, "connect to cell {cell} by SSH", (*Daemon).serveSSH},
	{"ANY", "/v1/cells/{cell}/ports/{port}/http/{rest...}", Act, labelled, "Passes an HTTP request on to a server on a port of a cell.", nil, nil, "", "*/*", "ask port {port} of cell {cell}", (*Daemon).proxyPort},
	{"GET", "/v1/cells/{cell}/execs?dir", Read, labelled, "Lists the commands in a cell, outside any run, that can be attached to, oldest first.", nil, []api.Exec{}, "", "", "list the commands in cell {cell}", (*Daemon).listExecs},
	{"POST", "/v1/execs/{exec}/signal", Act, labelled, "Sends a command in a cell a signal.", api.SignalRequest{}, api.Exec{}, "", "", "signal exec {exec}", (*Daemon).signalExec},
	{"POST", "/v1/cells/{cell}/execs?dir", Act, labelled | begins, "Starts a command in a cell, outside any run.", api.ExecRequest{}, api.Exec{}, "", "", "run a command in cell {cell}", (*Daemon).startExec},
	{"GET", "/v1/execs/{exec}", Read, labelled, "Shows a command that was started in a cell.", nil, api.Exec{}, "", "", "show exec {exec}", (*Daemon).getExec},
	{"GET", "/v1/execs/{exec}/attach?input&stdout&stderr&screen&rows&cols&client", Act, labelled, "Attaches to it.", nil, nil, "", WebSocket, "attach to exec {exec}", (*Daemon).attachExec},
	{"POST", "/v1/cells/{cell}/eval?dir", Act, labelled | begins, "Evaluates code in a cell's interpreter, which is started in a cell without one.", api.EvalRequest{}, api.EvalResult{}, "", Lines, "evaluate in cell {cell}", (*Daemon).eval},
	{"POST", "/v1/cells/{cell}/branch?dir", Act, labelled | begins | inRecords, "Forks a running cell with its interpreter; the cell continues.", api.BranchRequest{}, api.BranchResult{}, "", Lines, "branch cell {cell}", (*Daemon).branch},

	{"GET", "/v1/operations?limit&cursor", Read, labelled, "Lists the caller's operations (for scope admin all), newest first, without their results.", nil, []api.Operation{}, "", "", "list operations", (*Daemon).listOperations},
	{"GET", "/v1/operations/{operation}?wait", Read, labelled, "Shows an operation: a request with Prefer: respond-async.", nil, api.Operation{}, "", "", "show operation {operation}", (*Daemon).getOperation},
	{"GET", "/v1/operations/{operation}/events?after", Read, labelled, "Streams the progress of an operation as server-sent events: each a StreamLine with its number as id; gap, where some are no longer kept; and end, with the Operation.", nil, nil, "", eventStream, "follow operation {operation}", (*Daemon).operationEvents},
	{"POST", "/v1/operations/{operation}/abort", Act, labelled | repeats, "Stops an operation, and answers when it is undone; an ended one stays as it is.", nil, api.Operation{}, "", "", "abort operation {operation}", (*Daemon).abortOperation},

	{"GET", "/v1/templates?limit&cursor", Read, labelled, "Lists templates.", nil, []api.Template{}, "", "", "list templates", (*Daemon).listTemplates},
	{"POST", "/v1/templates", Act, labelled | begins | templateTag | inRecords, "Builds a template: a cell with a warm interpreter that is kept to be forked.", api.TemplateRequest{}, api.Template{}, "", Lines, "build the template", (*Daemon).buildTemplate},
	{"GET", "/v1/templates/{template}", Read, labelled, "Shows a template.", nil, api.Template{}, "", "", "show template {template}", (*Daemon).getTemplate},
	{"DELETE", "/v1/templates/{template}?cascade&force&dry_run", Act, labelled, "Removes a template, with cascade its forks, too: one made with the same token, or any with scope admin.", nil, api.Template{}, "", "", "remove template {template}", (*Daemon).removeTemplate},
	{"POST", "/v1/templates/{template}/fork", Act, labelled | begins | inRecords, "Makes cells from a template, and evaluates code or runs a command in each.", api.WarmForkRequest{}, api.WarmForkResult{}, "", Lines, "fork template {template}", (*Daemon).forkTemplate},
	{"GET", "/v1/stats", Read, labelled, "Returns the usage of templates, pools and cells, and the resources of the host.", nil, api.Overview{}, "", "", "measure what is used", (*Daemon).getOverview},

	{"GET", "/v1/images?limit&cursor", Read, labelled, "Lists the OCI images that are unpacked here.", nil, []api.Image{}, "", "", "list images", (*Daemon).listImages},
	{"POST", "/v1/images", Act, labelled | begins | repeats, "Fetches and unpacks an OCI image, or checks whether its name has a newer one.", api.ImagePullRequest{}, api.Image{}, "", Lines, "pull the image", (*Daemon).pullImage},
	{"DELETE", "/v1/images?image&dry_run&dir", Admin, 0, "Removes an image that no cell is made from.", nil, api.Image{}, "", "", "remove the image", (*Daemon).removeImage},

	{"GET", "/v1/caches?source&limit&cursor", Read, 0, "Lists the caches that are kept for sources.", nil, []api.Cache{}, "", "", "list caches", (*Daemon).listCaches},
	{"GET", "/v1/caches/{cache}/check", Read, 0, "Compares the files of a cache that are named by what they hold with their names.", nil, api.CacheCheck{}, "", "", "verify cache {cache}", (*Daemon).checkCache},
	{"DELETE", "/v1/caches/{cache}", Admin, 0, "Removes a cache; cells that have it keep what they began with.", nil, api.Cache{}, "", "", "remove cache {cache}", (*Daemon).removeCache},

	{"POST", "/v1/plans", Read, labelled | repeats, "Returns what a run would import, mount and enforce; starts nothing.", api.RunRequest{}, api.Plan{}, "", "", "plan the run", (*Daemon).planRun},
	{"POST", "/v1/runs", Act, labelled | begins | inRecords, "Starts a governed run.", api.RunRequest{}, api.Run{}, "", "", "start the run", (*Daemon).startRun},
	{"GET", "/v1/runs?cell&limit&cursor&dir", Read, labelled, "Lists runs, newest first.", nil, []api.Run{}, "", "", "list runs", (*Daemon).listRuns},
	{"GET", "/v1/runs/{run}?wait&dir", Read, labelled, "Shows a run.", nil, api.Run{}, "", "", "show run {run}", (*Daemon).getRun},
	{"GET", "/v1/runs/{run}/attach?input&stdout&stderr&screen&rows&cols&client&dir", Act, labelled, "Attaches to a run: to its output, and with input also to its input. For a terminal, screen begins with its screen, as pando attach does; several clients may be attached, and the latest size counts. A run with a terminal continues without clients.", nil, nil, "", WebSocket, "attach to run {run}", (*Daemon).attachRun},
	{"POST", "/v1/runs/{run}/interrupt?dir", Act, labelled, "Ends a run's command; the run becomes pending.", nil, api.Run{}, "", "", "interrupt run {run}", (*Daemon).interruptRun},
	{"GET", "/v1/runs/{run}/diff?form&colour&width&ignored&include&only&dir", Read, labelled, "Shows the changes of a run.", nil, api.Diff{}, "", "", "show what run {run} changed", (*Daemon).diff},
	{"GET", "/v1/runs/{run}/files/{name}?dir", Read, labelled, "Reads one of a run's records.", nil, nil, "", "application/octet-stream", "read {name} of run {run}", (*Daemon).getRunFile},
	{"GET", "/v1/runs/{run}/events?kind&denied&not_before&follow&format&after&dir", Read, labelled, "Streams a run's events as JSON lines and checks their hash chain; an error is the last line. With Accept: text/event-stream as server-sent events with their numbers as ids, and end after the last.", nil, nil, "", jsonLines, "tell the events of run {run}", (*Daemon).getEvents},
	{"GET", "/v1/runs/{run}/report?dir", Read, labelled, "Draws a report of a run from its evidence.", nil, api.Report{}, "", "", "report on run {run}", (*Daemon).report},
	{"GET", "/v1/runs/{run}/report.html?dir", Read, labelled, "Draws a report of a run as one page of HTML that needs nothing else.", nil, nil, "", pageHTML, "report on run {run}", (*Daemon).reportHTML},
	{"GET", "/v1/runs/{run}/report.md?dir", Read, labelled, "Draws a report of a run as Markdown.", nil, nil, "", pageMarkdown, "report on run {run}", (*Daemon).reportMarkdown},
	{"GET", "/v1/comparison?of&dir", Read, labelled, "Sets runs, cells and checkpoints side by side.", nil, api.Comparison{}, "", "", "compare", (*Daemon).compare},
	{"GET", "/v1/comparison.html?of&dir", Read, labelled, "Sets runs, cells and checkpoints side by side, as one page of HTML that needs nothing else.", nil, nil, "", pageHTML, "compare", (*Daemon).compareHTML},
	{"GET", "/v1/comparison.md?of&dir", Read, labelled, "Sets runs, cells and checkpoints side by side, as Markdown.", nil, nil, "", pageMarkdown, "compare", (*Daemon).compareMarkdown},
	{"POST", "/v1/runs/{run}/replay?dir", Act, labelled | begins, "Has a run again in a new cell, compared with its receipt: from its patch, at a state within it, or with verify by executing its command again.", api.ReplayRequest{}, api.Replay{}, "", Lines, "replay run {run}", (*Daemon).replayRun},
	{"GET", "/v1/runs/{run}/export?dir", Read, labelled, "Exports all kept data of a run.", nil, nil, "", tarball, "export run {run}", (*Daemon).exportRun},
	{"POST", "/v1/runs/{run}/accept?dir", Admin, labelled | runTag | inRecords, "Accepts the changes of a run; with apply, applies them to the source.", api.AcceptRequest{}, api.AcceptResult{}, "", Lines, "accept {run}", (*Daemon).accept},
	{"GET", "/v1/runs/{run}/sign-offs?dir", Read, labelled, "Shows what approvers have to sign before the changes of a run are accepted, and what they signed.", nil, api.SignOffs{}, "", "", "show the sign-offs of {run}", (*Daemon).signOffs},
	{"POST", "/v1/runs/{run}/sign-offs?dir", Sign, labelled, "Gives a sign-off of the changes of a run: a statement that an approver has signed. The signature is what counts, and not the caller.", api.SignOffRequest{}, api.SignOffs{}, "", "", "sign off {run}", (*Daemon).signOff},
	{"GET", "/v1/holds", Read, labelled, "Lists the runs and cells on hold, oldest hold first.", nil, []api.OnHold{}, "", "", "list holds", (*Daemon).holds},
	{"POST", "/v1/runs/{run}/hold?dir", Admin, labelled, "Puts a legal hold on a run, or releases it: nothing of its evidence is erased meanwhile, nor its cell removed. Both are receipts.", api.HoldRequest{}, api.OnHold{}, "", "", "hold {run}", (*Daemon).hold},
	{"POST", "/v1/runs/{run}/erase?dir", Admin, labelled, "Erases contents of a run's evidence for good. The receipts of the run stay, and a new one says what was erased.", api.EraseRequest{}, api.Erasure{}, "", "", "erase evidence of {run}", (*Daemon).erase},
	{"POST", "/v1/runs/{run}/discard?dir", Act, labelled | runTag | inRecords, "Discards a run's result.", api.DiscardRequest{}, api.DiscardResult{}, "", "", "discard {run}", (*Daemon).discard},
	{"POST", "/v1/runs/{run}/revert?dir", Admin, labelled | runTag | inRecords, "Undoes the apply of a run in its source.", api.RevertRequest{}, api.RevertResult{}, "", "", "take back what was applied of run {run}", (*Daemon).revert},

	{"POST", "/v1/races?dir", Act, labelled | begins | inRecords, "Starts a race: attempts at one task, each a governed run in a fork of its own. It goes on without its caller.", api.RaceRequest{}, api.Race{}, "", "", "start the race", (*Daemon).startRace},
	{"GET", "/v1/races?limit&cursor", Read, labelled, "Lists races, newest first.", nil, []api.Race{}, "", "", "list races", (*Daemon).listRaces},
	{"GET", "/v1/races/{race}?wait", Read, labelled, "Shows a race.", nil, api.Race{}, "", "", "show race {race}", (*Daemon).getRace},
	{"GET", "/v1/races/{race}/events", Read, labelled, "Streams a race as server-sent events, each the Race as it is: at once, and when something has changed, until it has ended.", nil, nil, "", eventStream, "follow race {race}", (*Daemon).watchRace},
	{"POST", "/v1/races/{race}/interrupt", Act, labelled | repeats, "Ends a race with all its attempts; one that has ended stays as it is.", nil, api.Race{}, "", "", "end race {race}", (*Daemon).interruptRace},

	{"POST", "/v1/policies/check", Read, labelled | repeats, "Checks a policy file and returns remarks about it.", api.PolicyCheckRequest{}, api.PolicyCheck{}, "", "", "use the policy", (*Daemon).checkPolicy},
	{"POST", "/v1/policies/show", Read, labelled | repeats, "Shows the effective policy of a cell, a run or a planned run.", api.PolicyRequest{}, api.Policy{}, "", "", "show the policy", (*Daemon).showPolicy},
	{"POST", "/v1/policies/why", Read, labelled | repeats, "Returns a policy's decision on a request, with the reason.", api.PolicyRequest{}, api.PolicyAnswer{}, "", "", "ask the policy", (*Daemon).whyPolicy},
	{"POST", "/v1/policies/diff", Read, labelled | repeats, "Lists the differences between two policies.", api.PolicyDiffRequest{}, api.PolicyDiff{}, "", "", "compare the policies", (*Daemon).diffPolicies},
	{"POST", "/v1/runs/{run}/policy/replay?dir", Read, labelled | repeats, "Repeats the decisions of a run with another policy.", api.PolicyReplayRequest{}, api.PolicyReplay{}, "", "", "replay the decisions of run {run}", (*Daemon).replayPolicy},
	{"GET", "/v1/policies/allowed", Read, 0, "Lists the projects' policy files that the user allowed.", nil, []api.PolicyAllowed{}, "", "", "list the policies that were allowed", (*Daemon).allowedPolicies},
	{"POST", "/v1/policies/allow", Admin, repeats, "Allows a project's policy file, as it is now.", api.PolicyAllowRequest{}, api.PolicyAllowed{}, "", "", "allow the policy", (*Daemon).allowPolicy},
	{"GET", "/v1/policies/schema", Read, labelled, "Returns the JSON Schema of policy files.", nil, nil, "", "application/schema+json", "show the schema", (*Daemon).policySchema},
	{"GET", "/v1/credentials", Read, labelled, "Lists credentials, with the cells that have them.", nil, []api.Credential{}, "", "", "list credentials", (*Daemon).listCredentials},
	{"POST", "/v1/credentials", Admin, 0, "Stores a credential.", api.CredentialRequest{}, api.Credential{}, "", "", "store the credential", (*Daemon).addCredential},
	{"DELETE", "/v1/credentials/{credential}", Admin, 0, "Deletes a credential, and takes it back from all cells.", nil, api.RevokeResult{}, "", "", "remove credential {credential}", (*Daemon).removeCredential},
	{"POST", "/v1/credentials/{credential}/revoke", Act, labelled, "Takes a credential back from cells, at once.", api.RevokeRequest{}, api.RevokeResult{}, "", "", "revoke credential {credential}", (*Daemon).revokeCredential},
	{"POST", "/v1/credentials/{credential}/check", Read, labelled | repeats, "Checks whether a credential can be used.", nil, api.CredentialCheck{}, "", "", "check credential {credential}", (*Daemon).checkCredential},
	{"GET", "/v1/approvals?all&limit&cursor", Read, labelled, "Lists approvals, newest first.", nil, []api.Approval{}, "", "", "list approvals", (*Daemon).listApprovals},
	{"POST", "/v1/approvals/{approval}/approve", Admin, labelled, "Allows the request of an approval.", api.ApprovalRequest{}, api.Approval{}, "", "", "approve {approval}", (*Daemon).approve},
	{"POST", "/v1/approvals/{approval}/deny", Admin, labelled, "Denies the request of an approval.", nil, api.Approval{}, "", "", "deny {approval}", (*Daemon).deny},

	{"GET", "/v1/receipts?limit&cursor", Read, labelled, "Lists receipts, newest first.", nil, []api.Receipt{}, "", "", "list receipts", (*Daemon).listReceipts},
	{"GET", "/v1/receipts/{receipt}?dir", Read, labelled, "Shows a receipt: by digest, or the final one of a run.", nil, api.Receipt{}, "", "", "show receipt {receipt}", (*Daemon).getReceipt},
	{"GET", "/v1/receipts/{receipt}/bundle?dir", Read, labelled, "Exports receipts with the proofs that verify them.", nil, nil, "", "application/json", "export receipt {receipt}", (*Daemon).exportReceipts},
	{"GET", "/v1/bundle?of&first&end&dir", Read, labelled, "Exports receipts of runs and cells with what leads to them, the files that they name, and the proofs that verify all of it; with end, a range of all receipts.", nil, nil, "", tarball, "export receipts", (*Daemon).getBundle},
	{"GET", "/v1/ledger?since", Read, labelled, "Shows the newest signed head of the ledger of receipts; with since, the size of an older one, with the proof that it goes on from that.", nil, api.Ledger{}, "", "", "look at the ledger", (*Daemon).getLedger},
	{"POST", "/v1/ledger/keys", Admin, 0, "Has another key sign receipts from now on, or revokes one; both are receipts of the ledger.", api.KeyChangeRequest{}, api.Ledger{}, "", "", "change the key of the ledger", (*Daemon).changeKey},
	{"POST", "/v1/receipts/{receipt}/verify?dir", Read, labelled | repeats, "Verifies a receipt and the files it names.", nil, api.Verification{}, "", "", "verify receipt {receipt}", (*Daemon).verifyReceipts},
	{"GET", "/v1/key", Read, labelled, "Returns the installation's public key.", nil, nil, "", "application/x-pem-file", "show the public key", (*Daemon).getKey},
}

// routes makes the mux of a table of routes.
func (d *Daemon) routes(table []Route) *http.ServeMux {
	mux := http.NewServeMux()
	for _, r := range table {
		path, _ := r.Split()
		pattern := r.Method + " " + path
		if r.Method == anyMethod {
			pattern = path
		}
		mux.HandleFunc(pattern, func(w http.ResponseWriter, req *http.Request) {
			d.answer(w, req, r)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		noRoute(mux, w, req)
	})
	return mux
}
