package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/pando-dev/pando/api"
)

// cellView is a cell for an agent.
type cellView struct {
	Cell   string `json:"cell"` // its name, which identifies it
	ID     string `json:"id"`
	State  string `json:"state"`
	Cause  string `json:"cause,omitempty"`
	Source string `json:"source,omitempty"` // path of the workspace, also in the cell
	// Repositories are directories that are in it beside that one, each at its own path.
	Repositories []string `json:"repositories,omitempty"`
	Backend      string   `json:"backend"`
	Isolation    string   `json:"isolation"` // "isolated" or "not isolated"
	Head         int      `json:"head"`      // number of its checkpoint
	Checkpoints  int      `json:"checkpoints"`
	Processes    int      `json:"processes"`
	LatestRun    string   `json:"latest_run,omitempty"`
	Verdict      string   `json:"verdict,omitempty"`
	Parent       string   `json:"parent,omitempty"` // CELL@N
	Interpreter  string   `json:"interpreter,omitempty"`
	Network      string   `json:"network,omitempty"`
	Weaker       []string `json:"weaker,omitempty"` // what isolates less than it could
}

func viewCell(c api.Cell) cellView {
	v := cellView{Cell: c.Name, ID: c.ID, State: c.State, Cause: c.Cause, Source: c.Source, Repositories: c.Repositories, Backend: c.Backend, Isolation: c.Isolation, Head: c.Head,
		Checkpoints: c.Checkpoints, Processes: c.Processes, LatestRun: c.LatestRun, Verdict: c.Verdict, Weaker: c.Downgrades}
	if c.Parent != nil {
		v.Parent = fmt.Sprintf("%s@%d", c.Parent.Name, c.Parent.Number)
	}
	if i := c.Interpreter; i != nil {
		v.Interpreter = i.Version
		if i.Ended != "" {
			v.Interpreter += ", ended: " + i.Ended
		}
	}
	if c.Assurance != nil {
		v.Network = c.Assurance.Network
	}
	return v
}

func (v cellView) line() string {
	text := fmt.Sprintf("%s: %s, at checkpoint %d", v.Cell, v.State, v.Head)
	if v.Interpreter != "" {
		text += ", " + v.Interpreter
	}
	if v.Parent != "" {
		text += ", from " + v.Parent
	}
	if v.Source != "" {
		text += ", workspace " + v.Source
	}
	return text
}

// place says what a new cell is made from.
type place struct {
	From    string   `json:"from,omitempty" jsonschema:"directory to copy into the cell, absolute; it is seen at the same path there. Default: the directory this server was started in, if it was in one"`
	Backend string   `json:"backend,omitempty" jsonschema:"auto (default), namespace; or gvisor or microvm: a kernel of its own, with checkpoints and branches of running programs"`
	Image   string   `json:"image,omitempty" jsonschema:"root file system: host (default) or oci:REFERENCE"`
	Allow   []string `json:"allow,omitempty" jsonschema:"what the cell may reach: HOST[:PORT], *.HOST, or a preset such as @npm or @pypi; default nothing"`
	Env     []string `json:"env,omitempty" jsonschema:"variables, as NAME=value"`
	CPUs    string   `json:"cpus,omitempty" jsonschema:"limit: cores, such as 1.5"`
	Memory  string   `json:"memory,omitempty" jsonschema:"limit: bytes, such as 512M"`
	PIDs    string   `json:"pids,omitempty" jsonschema:"limit: processes and threads"`
	Disk    string   `json:"disk,omitempty" jsonschema:"limit: bytes written and kept, such as 10G"`
}

// request converts it to a run's request. What only people may request is no argument of tools,
// and cells without isolation are rejected.
func (s *Server) request(p place) (api.RunRequest, error) {
	req := api.RunRequest{From: p.From, Backend: p.Backend, Image: p.Image, Allow: p.Allow, Env: p.Env, CallerDir: s.cfg.Dir, Credentials: s.cfg.Credentials,
		Limits: api.Limits{CPUs: p.CPUs, Memory: p.Memory, PIDs: p.PIDs, Disk: p.Disk}}
	switch p.Backend {
	case "", "auto", "namespace", "gvisor", "microvm":
	default:
		return req, invalid("leave backend out, or use auto, namespace, gvisor or microvm", fmt.Sprintf("cannot make cells with backend %q for an agent", p.Backend))
	}
	if p.Image != "" && p.Image != "host" && !strings.HasPrefix(p.Image, "oci:") {
		return req, invalid("leave image out, or use host or oci:REFERENCE", fmt.Sprintf("cannot make cells from image %q for an agent", p.Image))
	}
	if req.From == "" {
		req.From = s.cfg.Dir
	}
	if req.From != "" && !filepath.IsAbs(req.From) {
		if s.cfg.Dir == "" {
			return req, invalid("give the directory as an absolute path", fmt.Sprintf("cannot tell where %q is", req.From))
		}
		req.From = filepath.Join(s.cfg.Dir, req.From)
	}
	return req, nil
}

type createIn struct {
	Name     string `json:"name,omitempty" jsonschema:"the cell's name; default a generated one"`
	Template string `json:"template,omitempty" jsonschema:"fork this warm template, with its interpreter; everything else is then that of the template"`
	Empty    bool   `json:"empty,omitempty" jsonschema:"start with an empty workspace, /workspace"`
	place
}

func (s *Server) create(ctx context.Context, c *call, in createIn) (answer, error) {
	if in.Template != "" {
		return s.createWarm(ctx, c, in)
	}
	req, err := s.request(in.place)
	if err != nil {
		return answer{}, err
	}
	if in.Empty {
		if in.From != "" {
			return answer{}, invalid("leave one of them out", "cannot make a cell both empty and from a directory")
		}
		req.From = ""
	}
	c.tell("making a cell")
	made, err := s.cfg.Client.Create(ctx, api.CreateRequest{Name: in.Name, From: req.From, Backend: req.Backend, Image: req.Image, Env: req.Env, Allow: req.Allow,
		Limits: req.Limits, CallerDir: req.CallerDir, Credentials: req.Credentials})
	if err != nil {
		return answer{}, err
	}
	v := viewCell(made)
	text := v.line()
	for _, l := range made.LeftOut {
		word := "left out"
		if l.Kind == "tracked" {
			word = "secret"
		}
		text += fmt.Sprintf("\n%s: %s (%s)", word, l.Path, l.Why)
		if l.Fix != "" {
			text += "; pando " + l.Fix + " lets it in"
		}
	}
	return answer{text: text, data: v}, nil
}

func (s *Server) createWarm(ctx context.Context, c *call, in createIn) (answer, error) {
	p := in.place
	if in.Empty || p.From+p.Backend+p.Image+p.CPUs+p.Memory+p.PIDs+p.Disk != "" || len(p.Allow)+len(p.Env) > 0 {
		return answer{}, invalid("leave out all but name and template", "cannot change the options of a cell of a template")
	}
	res, err := s.cfg.Client.ForkTemplate(ctx, in.Template, api.WarmForkRequest{Name: in.Name}, c.listener())
	if err != nil {
		return answer{}, err
	}
	if len(res.Forks) != 1 {
		return answer{}, &api.Error{Kind: "internal", Message: fmt.Sprintf("cannot fork template %s: it made %d cells", in.Template, len(res.Forks))}
	}
	if e := res.Forks[0].Error; e != nil {
		return answer{}, e
	}
	v := viewCell(res.Forks[0].Cell)
	return answer{text: v.line(), data: v}, nil
}

type killIn struct {
	Cell string `json:"cell" jsonschema:"name or id of the cell"`
	Keep bool   `json:"keep,omitempty" jsonschema:"only end its processes: its files and checkpoints stay"`
}

func (s *Server) kill(ctx context.Context, _ *call, in killIn) (answer, error) {
	if err := needed("cell", in.Cell); err != nil {
		return answer{}, err
	}
	if in.Keep {
		c, err := s.cfg.Client.Stop(ctx, in.Cell)
		if err != nil {
			return answer{}, err
		}
		v := viewCell(c)
		return answer{text: v.line(), data: v}, nil
	}
	c, err := s.cfg.Client.Remove(ctx, in.Cell, false)
	if err != nil {
		return answer{}, err
	}
	return answer{text: c.Name + " was removed, with its processes, files and checkpoints", data: map[string]any{"cell": c.Name, "id": c.ID, "removed": true}}, nil
}

// needed rejects "", which the daemon would take for the latest cell of a directory: an agent
// must name one.
func needed(what, value string) error {
	if value == "" || value == "-" {
		return invalid("give its name or id; list shows them", "cannot tell which "+what+" is meant")
	}
	return nil
}

type listIn struct {
	What string `json:"what,omitempty" jsonschema:"cells (default), templates or runs"`
	Cell string `json:"cell,omitempty" jsonschema:"for runs: those of this cell alone"`
}

// listed bounds the items of a list.
const listed = 200

func (s *Server) list(ctx context.Context, _ *call, in listIn) (answer, error) {
	switch in.What {
	case "", "cells":
		cells, err := s.cfg.Client.Cells(ctx)
		if err != nil {
			return answer{}, err
		}
		return enumerate("cells", cells, viewCell, cellView.line), nil
	case "templates":
		templates, err := s.cfg.Client.Templates(ctx)
		if err != nil {
			return answer{}, err
		}
		return enumerate("templates", templates, viewTemplate, templateView.line), nil
	case "runs":
		var of *string
		if in.Cell != "" {
			of = &in.Cell
		}
		runs, err := s.cfg.Client.Runs(ctx, of)
		if err != nil {
			return answer{}, err
		}
		return enumerate("runs", runs, viewRun, runView.line), nil
	}
	return answer{}, invalid("use cells, templates or runs", fmt.Sprintf("cannot list %q", in.What))
}

// enumerate makes an answer from the first items of a list.
func enumerate[T, V any](what string, all []T, view func(T) V, line func(V) string) answer {
	views, text := []V{}, []string{}
	for _, x := range all[:min(len(all), listed)] {
		v := view(x)
		views, text = append(views, v), append(text, line(v))
	}
	data := map[string]any{what: views, "total": len(all)}
	if len(all) > listed {
		text = append(text, fmt.Sprintf("… and %d more, older ones", len(all)-listed))
	}
	if len(all) == 0 {
		text = append(text, "there are no "+what)
	}
	return answer{text: lines(text...), data: data}
}

type templateView struct {
	Template string   `json:"template"`
	State    string   `json:"state"`
	Version  string   `json:"version"`
	Cells    []string `json:"cells"`
}

func viewTemplate(t api.Template) templateView {
	return templateView{Template: t.Name, State: t.State, Version: t.Version, Cells: t.Cells}
}

func (v templateView) line() string { return fmt.Sprintf("%s: %s, %s", v.Template, v.State, v.Version) }

type showIn struct {
	ID string `json:"id" jsonschema:"name or id of a cell, name of a template, or id of a run (r-…)"`
}

func (s *Server) showTool(ctx context.Context, _ *call, in showIn) (answer, error) {
	if err := needed("cell or run", in.ID); err != nil {
		return answer{}, err
	}
	if strings.HasPrefix(in.ID, "r-") {
		r, err := s.cfg.Client.Run(ctx, in.ID, false)
		if err != nil {
			return answer{}, err
		}
		return s.detailed(viewRun(r).line(), r), nil
	}
	c, err := s.cfg.Client.Cell(ctx, in.ID)
	if err == nil {
		history, herr := s.cfg.Client.History(ctx, c.ID)
		if herr != nil {
			return answer{}, herr
		}
		text := []string{viewCell(c).line()}
		for _, p := range history[max(len(history)-listed, 0):] {
			text = append(text, viewCheckpoint(p).line())
		}
		return s.detailed(lines(text...), struct {
			api.Cell
			History []api.Checkpoint `json:"history"`
		}{c, history}), nil
	}
	if e, ok := errors.AsType[*api.Error](err); ok && e.Kind == "not-found" {
		if t, terr := s.cfg.Client.Template(ctx, in.ID); terr == nil {
			return s.detailed(viewTemplate(t).line(), t), nil
		}
	}
	return answer{}, err
}

// detailed is an answer with all details of the daemon's, up to the limit.
func (s *Server) detailed(text string, v any) answer {
	b, err := json.Marshal(v)
	if err != nil || len(b) <= Limit {
		return answer{text: text, data: v}
	}
	c := &collector{}
	c.add(b)
	uri := s.out.put(c.b)
	return answer{text: lines(text, "all of it: read "+uri), data: map[string]any{"rest": uri, "bytes": len(b)}}
}
