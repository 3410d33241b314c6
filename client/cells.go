package client

import (
	"context"
	"io"
	"iter"
	"net/url"
	"time"

	"github.com/pando-dev/pando/api"
)

// Cells lists the cells, newest first.
func (c *Client) Cells(ctx context.Context) (out []api.Cell, err error) {
	return out, c.do(ctx, "GET", "/v1/cells", nil, nil, &out)
}

// CellsLabelled lists the cells that have all of the labels, newest first.
func (c *Client) CellsLabelled(ctx context.Context, labels map[string]string) (out []api.Cell, err error) {
	q := url.Values{}
	for k, v := range labels {
		q.Add("label", k+"="+v)
	}
	return out, c.do(ctx, "GET", "/v1/cells", q, nil, &out)
}

// Cell shows a cell; sel is a name, an id, or "" for the latest from this directory.
func (c *Client) Cell(ctx context.Context, sel string) (out api.Cell, err error) {
	return out, c.do(ctx, "GET", "/v1/cells/"+segment(sel), nil, nil, &out)
}

// Remove removes a cell with its processes, files and checkpoints.
func (c *Client) Remove(ctx context.Context, sel string, dryRun bool) (out api.Cell, err error) {
	q := url.Values{}
	flag(q, "dry_run", dryRun)
	return out, c.do(ctx, "DELETE", "/v1/cells/"+segment(sel), q, nil, &out)
}

// Pause pauses a cell's processes.
func (c *Client) Pause(ctx context.Context, sel string) (out api.Cell, err error) {
	return out, c.do(ctx, "POST", "/v1/cells/"+segment(sel)+"/pause", nil, nil, &out)
}

// Resume continues a paused cell's processes.
func (c *Client) Resume(ctx context.Context, sel string) (out api.Cell, err error) {
	return out, c.do(ctx, "POST", "/v1/cells/"+segment(sel)+"/resume", nil, nil, &out)
}

// Stop ends a cell's processes; its files stay. It is StopWithin with api.StopGrace.
func (c *Client) Stop(ctx context.Context, sel string) (out api.Cell, err error) {
	return c.StopWithin(ctx, sel, api.StopGrace)
}

// StopWithin is Stop with another time, at most api.MaxStopGrace, between asking the command of a
// run to end (SIGTERM) and killing it.
func (c *Client) StopWithin(ctx context.Context, sel string, grace time.Duration) (out api.Cell, err error) {
	q := url.Values{}
	if grace != api.StopGrace {
		q.Set("timeout", grace.String())
	}
	return out, c.do(ctx, "POST", "/v1/cells/"+segment(sel)+"/stop", q, nil, &out)
}

// Processes lists the processes of a cell.
func (c *Client) Processes(ctx context.Context, sel string) (out []api.Process, err error) {
	return out, c.do(ctx, "GET", "/v1/cells/"+segment(sel)+"/processes", nil, nil, &out)
}

// Stats returns the present resource usage of a cell.
func (c *Client) Stats(ctx context.Context, sel string) (out api.Stats, err error) {
	return out, c.do(ctx, "GET", "/v1/cells/"+segment(sel)+"/stats", nil, nil, &out)
}

// History lists a cell's checkpoints.
func (c *Client) History(ctx context.Context, sel string) (out []api.Checkpoint, err error) {
	return out, c.do(ctx, "GET", "/v1/cells/"+segment(sel)+"/history", nil, nil, &out)
}

// CellReport draws a report of all that was done in a cell.
func (c *Client) CellReport(ctx context.Context, sel string) (out api.CellReport, err error) {
	return out, c.do(ctx, "GET", "/v1/cells/"+segment(sel)+"/report", nil, nil, &out)
}

// CellReportAs reads a report of a cell in a form for people: "html" or "md".
func (c *Client) CellReportAs(ctx context.Context, sel, form string) (io.ReadCloser, error) {
	return c.raw(ctx, "GET", "/v1/cells/"+segment(sel)+"/report."+form, nil, nil)
}

// Steps lists what was done in a cell, oldest first.
func (c *Client) Steps(ctx context.Context, sel string) (out []api.Step, err error) {
	return out, c.do(ctx, "GET", "/v1/cells/"+segment(sel)+"/steps", nil, nil, &out)
}

// Tree shows a cell's family, or all families with all set.
func (c *Client) Tree(ctx context.Context, sel string, all bool) (out []api.TreeNode, err error) {
	path := "/v1/cells/" + segment(sel) + "/tree"
	if all {
		path = "/v1/tree"
	}
	return out, c.do(ctx, "GET", path, nil, nil, &out)
}

// Checkpoint makes the present state of a cell a checkpoint.
func (c *Client) Checkpoint(ctx context.Context, sel string, req api.CheckpointRequest) (out api.Checkpoint, err error) {
	return out, c.do(ctx, "POST", "/v1/cells/"+segment(sel)+"/checkpoints", nil, req, &out)
}

// Restore restores a cell to a checkpoint.
func (c *Client) Restore(ctx context.Context, sel string, req api.RestoreRequest) (out api.RestoreResult, err error) {
	return out, c.do(ctx, "POST", "/v1/cells/"+segment(sel)+"/restore", nil, req, &out)
}

// Undo restores a cell to before its latest change.
func (c *Client) Undo(ctx context.Context, sel string, req api.UndoRequest) (out api.RestoreResult, err error) {
	return out, c.do(ctx, "POST", "/v1/cells/"+segment(sel)+"/undo", nil, req, &out)
}

// Fork makes new cells from a checkpoint.
func (c *Client) Fork(ctx context.Context, sel string, req api.ForkRequest) (out api.ForkResult, err error) {
	return out, c.do(ctx, "POST", "/v1/cells/"+segment(sel)+"/fork", nil, req, &out)
}

// ReadFiles reads a path of a cell, relative to its workspace or absolute, as
// a tar archive.
func (c *Client) ReadFiles(ctx context.Context, sel, path string) (io.ReadCloser, error) {
	return c.raw(ctx, "GET", "/v1/cells/"+segment(sel)+"/files", url.Values{"path": {path}}, nil)
}

// WriteFiles extracts a tar archive below a directory of a cell.
func (c *Client) WriteFiles(ctx context.Context, sel, path string, archive io.Reader) error {
	return c.do(ctx, "PUT", "/v1/cells/"+segment(sel)+"/files", url.Values{"path": {path}}, archive, nil)
}

// Upload uploads a source, a tar archive, for one run, cell or template.
func (c *Client) Upload(ctx context.Context, archive io.Reader) (out api.Upload, err error) {
	return out, c.do(ctx, "POST", "/v1/uploads", nil, archive, &out)
}

// DiffOptions choose the states that a diff compares, and its form.
type DiffOptions struct {
	From, To int    // numbers of checkpoints; both 0: the pending changes
	FromCell string // the cell that From is of, if that is another; without From its present state
	Form     string // "json", "text", "stat", "patch"
	Colour   bool
	Width    int
	Ignored  bool
	Include  []string // held paths that a patch includes
	Only     []string // changed paths, as patterns of git; none: all
}

func (o DiffOptions) query() url.Values {
	q := url.Values{}
	number(q, "from", int64(o.From))
	if o.FromCell != "" {
		q.Set("from_cell", o.FromCell)
	}
	number(q, "to", int64(o.To))
	number(q, "width", int64(o.Width))
	flag(q, "colour", o.Colour)
	flag(q, "ignored", o.Ignored)
	if o.Form != "" {
		q.Set("form", o.Form)
	}
	for _, p := range o.Include {
		q.Add("include", p)
	}
	for _, p := range o.Only {
		q.Add("only", p)
	}
	return q
}

// DiffCell shows the changes of a cell against its source, which AcceptCell takes, or compares
// two checkpoints. "" is the cell with the newest pending result from this directory.
func (c *Client) DiffCell(ctx context.Context, sel string, o DiffOptions) (out api.Diff, err error) {
	return out, c.do(ctx, "GET", "/v1/cells/"+segment(sel)+"/diff", o.query(), nil, &out)
}

// Changes follows what changes in a cell until ctx ends: at once what differs from its source, then what changed
// since. "" is the cell of the newest run that goes on from this directory, else the cell of DiffCell. o has no checkpoints, and no form "patch".
func (c *Client) Changes(ctx context.Context, sel string, o DiffOptions) iter.Seq2[api.DiffChange, error] {
	return follow[api.DiffChange](ctx, c, "/v1/cells/"+segment(sel)+"/changes", o.query())
}

// AcceptCell accepts the present state of a cell, with all results in it.
func (c *Client) AcceptCell(ctx context.Context, sel string, req api.AcceptRequest) (out api.AcceptResult, err error) {
	return out, c.do(ctx, "POST", "/v1/cells/"+segment(sel)+"/accept", nil, req, &out)
}

// SyncCell brings what became of a cell's source into the cell, by three ways.
func (c *Client) SyncCell(ctx context.Context, sel string, req api.SyncRequest) (out api.SyncResult, err error) {
	return out, c.do(ctx, "POST", "/v1/cells/"+segment(sel)+"/sync", nil, req, &out)
}

// SourceChanges returns what became of the source of a cell since both last had the same.
func (c *Client) SourceChanges(ctx context.Context, sel string) (out api.SourceChanges, err error) {
	return out, c.do(ctx, "GET", "/v1/cells/"+segment(sel)+"/source", nil, nil, &out)
}

// FetchCell brings the commits that were made in a cell into the repository of its source, as refs/remotes/pando/CELL/*.
func (c *Client) FetchCell(ctx context.Context, sel string) (out api.FetchResult, err error) {
	return out, c.do(ctx, "POST", "/v1/cells/"+segment(sel)+"/fetch", nil, nil, &out)
}

// RevertCell undoes the latest apply of a cell in its source. "" is the cell of the latest apply
// from this directory.
func (c *Client) RevertCell(ctx context.Context, sel string, req api.RevertRequest) (out api.RevertResult, err error) {
	return out, c.do(ctx, "POST", "/v1/cells/"+segment(sel)+"/revert", nil, req, &out)
}

// DiscardCell discards the pending changes of a cell.
func (c *Client) DiscardCell(ctx context.Context, sel string, req api.DiscardRequest) (out api.DiscardResult, err error) {
	return out, c.do(ctx, "POST", "/v1/cells/"+segment(sel)+"/discard", nil, req, &out)
}

// Create makes a cell without a run.
func (c *Client) Create(ctx context.Context, req api.CreateRequest) (out api.Cell, err error) {
	return out, c.do(ctx, "POST", "/v1/cells", nil, req, &out)
}

// Lease changes the lifetime of a cell, and its labels.
func (c *Client) Lease(ctx context.Context, sel string, req api.LeaseRequest) (out api.Cell, err error) {
	return out, c.do(ctx, "POST", "/v1/cells/"+segment(sel)+"/lease", nil, req, &out)
}
