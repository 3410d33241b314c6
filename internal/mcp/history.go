package mcp

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
)

// checkpointView is a checkpoint for an agent.
type checkpointView struct {
	Cell    string  `json:"cell"`
	Number  int     `json:"number"`
	Kind    string  `json:"kind"`
	Message string  `json:"message,omitempty"`
	Run     string  `json:"run,omitempty"`
	Memory  bool    `json:"memory,omitempty"` // it has the memory of the cell's processes, too
	Head    bool    `json:"head,omitempty"`
	Pause   float64 `json:"pause_ms,omitempty"`
}

func viewCheckpoint(p api.Checkpoint) checkpointView {
	return checkpointView{Cell: p.Cell, Number: p.Number, Kind: p.Kind, Message: p.Message, Run: p.Run, Memory: p.Memory, Head: p.Head, Pause: p.PauseMS}
}

func (v checkpointView) line() string {
	text := fmt.Sprintf("checkpoint %d, %s", v.Number, v.Kind)
	if v.Message != "" {
		text += ": " + v.Message
	}
	if v.Memory {
		text += ", with memory"
	}
	if v.Run != "" {
		text += ", " + v.Run
	}
	if v.Head {
		text += " (here)"
	}
	return text
}

type checkpointIn struct {
	Cell    string `json:"cell" jsonschema:"name or id of the cell"`
	Message string `json:"message,omitempty" jsonschema:"a note that describes it"`
}

func (s *Server) checkpoint(ctx context.Context, c *call, in checkpointIn) (answer, error) {
	if err := needed("cell", in.Cell); err != nil {
		return answer{}, err
	}
	c.tell("making a checkpoint of " + in.Cell)
	p, err := s.cfg.Client.Checkpoint(ctx, in.Cell, api.CheckpointRequest{Message: in.Message})
	if err != nil {
		return answer{}, err
	}
	v := viewCheckpoint(p)
	return answer{text: v.line(), data: v}, nil
}

type restoreIn struct {
	Cell       string `json:"cell" jsonschema:"name or id of the cell"`
	Checkpoint int    `json:"checkpoint" jsonschema:"its number"`
	Lose       bool   `json:"lose,omitempty" jsonschema:"confirm that the results of later runs leave the workspace"`
	Files      bool   `json:"files,omitempty" jsonschema:"of a checkpoint with memory: its files alone"`
	DryRun     bool   `json:"dry_run,omitempty" jsonschema:"only return what would be done"`
	Certify    string `json:"certify,omitempty" jsonschema:"strict: fail on inherited random number generators; the cell stays as it was"`
	AtFork     string `json:"at_fork,omitempty" jsonschema:"for a checkpoint with memory: a command that a shell runs before any process continues"`
}

func (s *Server) restore(ctx context.Context, c *call, in restoreIn) (answer, error) {
	if err := needed("cell", in.Cell); err != nil {
		return answer{}, err
	}
	c.tell("restoring " + in.Cell)
	r, err := s.cfg.Client.Restore(ctx, in.Cell, api.RestoreRequest{Number: in.Checkpoint, Lose: in.Lose, Files: in.Files, DryRun: in.DryRun, Certify: in.Certify, AtFork: in.AtFork})
	if err != nil {
		return answer{}, err
	}
	said := fmt.Sprintf("%s is at checkpoint %d, proven by %s; %s ended", r.Cell.Name, r.Number, r.Proof, numbered(r.Ended, "process"))
	if in.DryRun {
		said = fmt.Sprintf("%s would be at checkpoint %d; %s would end", r.Cell.Name, r.Number, numbered(r.Ended, "process"))
	}
	memory := ""
	if r.Memory != "" {
		memory = fmt.Sprintf("memory: %s; going on: %s", r.Memory, numbered(r.Resumed, "process"))
	}
	lost := ""
	if len(r.Lost) > 0 {
		lost = "no longer in the workspace: " + strings.Join(r.Lost, ", ")
	}
	return answer{text: lines(said, memory, generators(r.Inherited, r.Renewed), lines(r.Notes...), lost), data: map[string]any{"cell": r.Cell.Name, "checkpoint": r.Number, "lost": r.Lost, "ended": r.Ended,
		"proof": r.Proof, "tree_digest": r.TreeDigest, "memory": r.Memory, "resumed": r.Resumed, "inherited": r.Inherited, "renewed": r.Renewed, "notes": r.Notes, "receipt": r.Receipt, "dry_run": in.DryRun}}, nil
}

type diffIn struct {
	Cell    string `json:"cell,omitempty" jsonschema:"name or id of the cell; or give run"`
	Run     string `json:"run,omitempty" jsonschema:"id of a run (r-…): what it changed"`
	From    int    `json:"from,omitempty" jsonschema:"of a cell: number of the checkpoint to compare from; default the source"`
	To      int    `json:"to,omitempty" jsonschema:"of a cell: number of the checkpoint to compare to; default its present state"`
	Stat    bool   `json:"stat,omitempty" jsonschema:"only how much changed in which files"`
	Ignored bool   `json:"ignored,omitempty" jsonschema:"with the files that git ignores"`
	Limit   int    `json:"limit,omitempty" jsonschema:"bytes of text in the answer, at most 262144; default 24576"`
}

func (s *Server) diff(ctx context.Context, _ *call, in diffIn) (answer, error) {
	o := client.DiffOptions{From: in.From, To: in.To, Form: "text", Ignored: in.Ignored}
	if in.Stat {
		o.Form = "stat"
	}
	q := url.Values{}
	if in.Stat {
		q.Set("stat", "1")
	}
	if in.Ignored {
		q.Set("ignored", "1")
	}
	var d api.Diff
	var err error
	uri := ""
	switch {
	case in.Run != "" && in.Cell != "":
		return answer{}, invalid("leave one of them out", "cannot compare both a cell and a run")
	case in.Run != "":
		d, err = s.cfg.Client.DiffRun(ctx, in.Run, o)
		uri = "pando://runs/" + url.PathEscape(in.Run) + "/diff"
	default:
		if err := needed("cell or run", in.Cell); err != nil {
			return answer{}, err
		}
		d, err = s.cfg.Client.DiffCell(ctx, in.Cell, o)
		uri = "pando://cells/" + url.PathEscape(in.Cell) + "/diff"
		for name, n := range map[string]int{"from": in.From, "to": in.To} {
			if n != 0 {
				q.Set(name, fmt.Sprint(n))
			}
		}
	}
	if err != nil {
		return answer{}, err
	}
	if len(q) > 0 {
		uri += "?" + q.Encode()
	}
	text := first(d.Text, limitOf(in.Limit), uri)
	type change struct {
		Path    string `json:"path"`
		Status  string `json:"status"`
		Added   int    `json:"added"`
		Deleted int    `json:"deleted"`
	}
	files := []change{}
	names := 0
	for _, f := range d.Files[:min(len(d.Files), listed)] {
		if names += len(f.Path); names > Limit && len(files) > 0 {
			break
		}
		files = append(files, change{f.Path, f.Status, f.Added, f.Deleted})
	}
	ignored := ""
	if d.Ignored > 0 {
		ignored = fmt.Sprintf("%d more files differ that git ignores", d.Ignored)
	}
	said := text.Text
	if len(d.Files) == 0 {
		said = fmt.Sprintf("nothing differs between %s and %s", d.From, d.To)
	}
	return answer{text: lines(append([]string{said, ignored}, d.Notes...)...), data: map[string]any{"from": d.From, "to": d.To, "files": files,
		"changed": len(d.Files), "ignored": d.Ignored, "notes": d.Notes, "text": text}}, nil
}

type whyIn struct {
	Request string   `json:"request" jsonschema:"POST https://api.github.com/repos, connect HOST:PORT, resolve HOST, or execute PROGRAM"`
	Of      string   `json:"of,omitempty" jsonschema:"a cell or a run, for its policy; default the policy of a new cell"`
	Allow   []string `json:"allow,omitempty" jsonschema:"of a new cell: what would be allowed"`
	From    string   `json:"from,omitempty" jsonschema:"of a new cell: its directory"`
}

func (s *Server) why(ctx context.Context, _ *call, in whyIn) (answer, error) {
	req, err := s.request(place{From: in.From, Allow: in.Allow})
	if err != nil {
		return answer{}, err
	}
	if in.Of != "" {
		req = api.RunRequest{}
	}
	a, err := s.cfg.Client.WhyPolicy(ctx, api.PolicyRequest{Of: in.Of, Run: req, Dir: s.cfg.Dir, Request: in.Request})
	if err != nil {
		return answer{}, err
	}
	text := []string{fmt.Sprintf("%s: %s", a.Request, a.Effect)}
	for _, p := range a.Steps {
		text = append(text, fmt.Sprintf("%s: %s, by %s (%s): %s", p.Want, p.Effect, p.Rule, p.Origin, p.Reason))
		if p.Permit != "" {
			text = append(text, "it would be allowed by "+p.Permit)
		}
	}
	return answer{text: lines(text...), data: a}, nil
}

type receiptIn struct {
	ID string `json:"id" jsonschema:"id of a run (r-…), or digest of a receipt"`
}

func (s *Server) receipt(ctx context.Context, _ *call, in receiptIn) (answer, error) {
	if err := needed("run or receipt", in.ID); err != nil {
		return answer{}, err
	}
	r, err := s.cfg.Client.Receipt(ctx, in.ID)
	if err != nil {
		return answer{}, err
	}
	text := first(r.Markdown, Limit, "pando://receipts/"+url.PathEscape(r.ID))
	return answer{text: text.Text, data: map[string]any{"receipt": r.ID, "index": r.Index, "type": r.Type, "run": r.Run, "cell": r.Cell, "verdict": r.Verdict,
		"summary": r.Summary, "at": r.At, "statement": "pando://receipts/" + url.PathEscape(r.ID) + "/statement"}}, nil
}
