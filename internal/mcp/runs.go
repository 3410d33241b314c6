package mcp

import (
	"context"
	"fmt"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
)

// runView is a run for an agent.
type runView struct {
	Run      string   `json:"run"`
	Cell     string   `json:"cell"`
	Command  string   `json:"command"`
	Phase    string   `json:"phase"`
	ExitCode *int     `json:"exit_code"`
	Signal   string   `json:"signal,omitempty"`
	Cause    string   `json:"cause,omitempty"`
	Verdict  string   `json:"verdict,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	Error    string   `json:"error,omitempty"` // why it did not start, or why its result is unknown
	Changed  int      `json:"files_changed"`
	Before   int      `json:"before,omitempty"` // number of the checkpoint before it
	After    int      `json:"after,omitempty"`
	Receipt  string   `json:"receipt,omitempty"`
	Notes    []string `json:"notes,omitempty"`
}

func viewRun(r api.Run) runView {
	v := runView{Run: r.ID, Cell: r.CellName, Command: s200(quoted(r.Command)), Phase: r.Phase, ExitCode: r.ExitCode, Signal: r.Signal, Cause: r.Cause,
		Verdict: r.Verdict, Reason: r.Reason, Changed: r.Changes.Files, Receipt: r.Receipt, Notes: r.Notes}
	if v.Cell == "" {
		v.Cell = r.Cell
	}
	if r.Error != nil {
		v.Error = r.Error.Message
	}
	if r.Before != nil {
		v.Before = r.Before.Number
	}
	if r.After != nil {
		v.After = r.After.Number
	}
	return v
}

func s200(text string) string {
	if len(text) > 200 {
		return cutEnd([]byte(text[:200])) + "…"
	}
	return text
}

func (v runView) line() string {
	how := v.Phase
	if v.Phase == "ended" {
		if how = howEnded(v.ExitCode, v.Signal, v.Cause); how == "" {
			how = "ok"
		}
	}
	if v.Error != "" && v.ExitCode != nil {
		return fmt.Sprintf("%s in %s: %s; %s, but its changes are unknown: %s", v.Run, v.Cell, v.Command, how, v.Error)
	}
	return fmt.Sprintf("%s in %s: %s; %s, %s changed, %s", v.Run, v.Cell, v.Command, how, numbered(v.Changed, "file"), v.Verdict)
}

type runIn struct {
	Cell      string   `json:"cell,omitempty" jsonschema:"work in this cell; created if it does not exist, kept afterwards. Default: a new one, removed with the run"`
	Command   []string `json:"command,omitempty" jsonschema:"the program and its arguments; no shell is involved"`
	Shell     string   `json:"shell,omitempty" jsonschema:"instead of command: a line for sh -c"`
	Stdin     string   `json:"stdin,omitempty" jsonschema:"what the command reads from its standard input"`
	Timeout   string   `json:"timeout,omitempty" jsonschema:"such as 10m"`
	Check     string   `json:"check,omitempty" jsonschema:"a line for sh that must succeed in a copy of the result"`
	OnFailure string   `json:"on_failure,omitempty" jsonschema:"restore (default) or pending"`
	Limit     int      `json:"limit,omitempty" jsonschema:"bytes of each output stream in the answer, at most 262144; default 24576"`
	place
}

// ran is a run with its output.
type ran struct {
	runView
	Denied []string `json:"denied,omitempty"` // denied requests
	Check  string   `json:"check,omitempty"`  // output of a failed check
	Stdout shown    `json:"stdout"`
	Stderr shown    `json:"stderr"`
}

func (s *Server) run(ctx context.Context, c *call, in runIn) (answer, error) {
	cmd, err := command(in.Command, in.Shell)
	if err != nil {
		return answer{}, err
	}
	req, err := s.request(in.place)
	if err != nil {
		return answer{}, err
	}
	switch in.OnFailure {
	case "", "restore", "pending":
	default:
		return answer{}, invalid("use restore or pending", fmt.Sprintf("cannot answer a failure with %q", in.OnFailure))
	}
	req.Cell, req.Command, req.Check, req.OnFailure, req.Limits.Timeout = in.Cell, cmd, in.Check, in.OnFailure, in.Timeout
	if in.Cell != "" && in.From == "" {
		if _, err := s.cfg.Client.Cell(ctx, in.Cell); err == nil {
			req.From, req.Credentials = "", nil // it has its source, and its credentials
		}
	}
	out, errs, done, err := s.collect(ctx, c)
	if err != nil {
		return answer{}, err
	}
	defer done()
	r, err := s.governed(ctx, c, req, in.Stdin, out, errs)
	if err != nil {
		return answer{}, err
	}
	s.announce(r)
	if r.Error != nil && r.ExitCode == nil {
		return answer{}, r.Error
	}
	limit, base := limitOf(in.Limit), "pando://runs/"+r.ID
	d := ran{runView: viewRun(r), Stdout: s.show(out, limit, base+"/stdout"), Stderr: s.show(errs, limit, base+"/stderr")}
	if r.Network != nil {
		for _, n := range r.Network.Denials {
			d.Denied = append(d.Denied, n.String())
		}
	}
	if r.Check != nil && r.Check.ExitCode != 0 {
		d.Check = s.cut(r.Check.Output, limit).Text
	}
	text := []string{d.Stdout.Text, d.Stderr.Text}
	if d.Check != "" {
		text = append(text, "the check said:", d.Check)
	}
	for _, n := range d.Denied {
		text = append(text, "denied: "+n)
	}
	text = append(text, d.Notes...)
	text = append(text, d.runView.line())
	if r.Verdict == "pending" && r.Error == nil {
		text = append(text, "the user can review and accept it: pando diff "+r.ID+"; pando accept "+r.ID+" --apply")
	}
	a := answer{text: lines(text...), data: d, links: []*sdk.ResourceLink{
		{URI: base + "/diff", Name: "diff", Description: "its changes", MIMEType: "text/x-diff"},
		{URI: base + "/receipt", Name: "receipt", Description: "the signed receipt, for people", MIMEType: "text/markdown"},
		{URI: base + "/events", Name: "events", Description: "its events, as JSON lines", MIMEType: "application/jsonl"},
	}}
	return a, nil
}

// governed executes a run to its end.
func (s *Server) governed(ctx context.Context, c *call, req api.RunRequest, stdin string, out, errs *collector) (r api.Run, err error) {
	req.Attach = true
	if r, err = s.cfg.Client.StartRun(ctx, req); err != nil {
		return r, err
	}
	at, err := s.cfg.Client.AttachRun(ctx, r.ID, client.AttachOptions{Input: true})
	if err != nil {
		return r, err
	}
	defer at.Close()
	return carry[api.Run](ctx, c, at, stdin, out, errs)
}
