package client

import (
	"context"
	"io"
	"net/url"

	"github.com/pando-dev/pando/api"
)

// StartRun starts a governed run. With req.Attach it waits for Attach.
func (c *Client) StartRun(ctx context.Context, req api.RunRequest) (out api.Run, err error) {
	return out, c.do(ctx, "POST", "/v1/runs", nil, req, &out)
}

// PlanRun returns what a run would import, mount and enforce.
func (c *Client) PlanRun(ctx context.Context, req api.RunRequest) (out api.Plan, err error) {
	return out, c.do(ctx, "POST", "/v1/plans", nil, req, &out)
}

// Runs lists runs, newest first; of one cell if sel is not nil.
func (c *Client) Runs(ctx context.Context, sel *string) (out []api.Run, err error) {
	q := url.Values{}
	if sel != nil {
		q.Set("cell", *sel)
	}
	return out, c.do(ctx, "GET", "/v1/runs", q, nil, &out)
}

// Run shows a run; with wait, when it has ended.
func (c *Client) Run(ctx context.Context, sel string, wait bool) (out api.Run, err error) {
	q := url.Values{}
	flag(q, "wait", wait)
	return out, c.do(ctx, "GET", "/v1/runs/"+segment(sel), q, nil, &out)
}

// Interrupt ends a run's command and waits for the run's end.
func (c *Client) Interrupt(ctx context.Context, sel string) (out api.Run, err error) {
	return out, c.do(ctx, "POST", "/v1/runs/"+segment(sel)+"/interrupt", nil, nil, &out)
}

// DiffRun shows what a run changed.
func (c *Client) DiffRun(ctx context.Context, sel string, o DiffOptions) (out api.Diff, err error) {
	return out, c.do(ctx, "GET", "/v1/runs/"+segment(sel)+"/diff", o.query(), nil, &out)
}

// RunFile reads one of a run's records.
func (c *Client) RunFile(ctx context.Context, sel, name string) (io.ReadCloser, error) {
	return c.raw(ctx, "GET", "/v1/runs/"+segment(sel)+"/files/"+url.PathEscape(name), nil, nil)
}

// ServiceOutput reads what the service in a cell wrote to a stream, "stdout" or "stderr", since it was last started.
func (c *Client) ServiceOutput(ctx context.Context, cell, name string) (io.ReadCloser, error) {
	return c.raw(ctx, "GET", "/v1/cells/"+segment(cell)+"/output/"+url.PathEscape(name), nil, nil)
}

// ExportRun exports all kept data of a run as a tar archive.
func (c *Client) ExportRun(ctx context.Context, sel string) (io.ReadCloser, error) {
	return c.raw(ctx, "GET", "/v1/runs/"+segment(sel)+"/export", nil, nil)
}

// Report draws a report of a run from its evidence.
func (c *Client) Report(ctx context.Context, sel string) (out api.Report, err error) {
	return out, c.do(ctx, "GET", "/v1/runs/"+segment(sel)+"/report", nil, nil, &out)
}

// ReportAs reads a report of a run in a form for people: "html" or "md".
func (c *Client) ReportAs(ctx context.Context, sel, form string) (io.ReadCloser, error) {
	return c.raw(ctx, "GET", "/v1/runs/"+segment(sel)+"/report."+form, nil, nil)
}

// Replay has a run again, in a new cell.
func (c *Client) Replay(ctx context.Context, sel string, req api.ReplayRequest) (out api.Replay, err error) {
	return out, c.do(ctx, "POST", "/v1/runs/"+segment(sel)+"/replay", nil, req, &out)
}

// Compare sets runs, cells and checkpoints side by side.
func (c *Client) Compare(ctx context.Context, of []string) (out api.Comparison, err error) {
	return out, c.do(ctx, "GET", "/v1/comparison", url.Values{"of": of}, nil, &out)
}

// CompareAs reads a comparison in a form for people: "html" or "md".
func (c *Client) CompareAs(ctx context.Context, of []string, form string) (io.ReadCloser, error) {
	return c.raw(ctx, "GET", "/v1/comparison."+form, url.Values{"of": of}, nil)
}

// AcceptRun accepts the changes of a run.
func (c *Client) AcceptRun(ctx context.Context, sel string, req api.AcceptRequest) (out api.AcceptResult, err error) {
	return out, c.do(ctx, "POST", "/v1/runs/"+segment(sel)+"/accept", nil, req, &out)
}

// RevertRun undoes the changes of a run that were applied to the source.
func (c *Client) RevertRun(ctx context.Context, sel string, req api.RevertRequest) (out api.RevertResult, err error) {
	return out, c.do(ctx, "POST", "/v1/runs/"+segment(sel)+"/revert", nil, req, &out)
}

// DiscardRun discards a run's result.
func (c *Client) DiscardRun(ctx context.Context, sel string, req api.DiscardRequest) (out api.DiscardResult, err error) {
	return out, c.do(ctx, "POST", "/v1/runs/"+segment(sel)+"/discard", nil, req, &out)
}

// RunExec runs a command in a cell, outside any run, and returns when it has ended, with up to a
// mebibyte of each output. It is one request, where StartExec and AttachExec are several. The
// command has no input, and ends when ctx ends.
func (c *Client) RunExec(ctx context.Context, sel string, req api.ExecRequest) (out api.Exec, err error) {
	req.Wait = true
	return c.StartExec(ctx, sel, req)
}

// StartExec starts a command in a cell, outside any run.
func (c *Client) StartExec(ctx context.Context, sel string, req api.ExecRequest) (out api.Exec, err error) {
	return out, c.do(ctx, "POST", "/v1/cells/"+segment(sel)+"/execs", nil, req, &out)
}

// Exec shows a command that was started in a cell.
func (c *Client) Exec(ctx context.Context, id string) (out api.Exec, err error) {
	return out, c.do(ctx, "GET", "/v1/execs/"+segment(id), nil, nil, &out)
}
