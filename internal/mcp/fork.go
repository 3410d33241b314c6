package mcp

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/pando-dev/pando/api"
)

type forkIn struct {
	Of         string   `json:"of" jsonschema:"name of a template, or name or id of a cell"`
	Checkpoint int      `json:"checkpoint,omitempty" jsonschema:"of a cell: number of the checkpoint; default its present state"`
	Count      int      `json:"count,omitempty" jsonschema:"number of forks; default 1"`
	Name       string   `json:"name,omitempty" jsonschema:"of one cell, or the prefix of several: NAME-1, NAME-2"`
	Files      bool     `json:"files,omitempty" jsonschema:"for a checkpoint with memory: its files alone"`
	Eval       string   `json:"eval,omitempty" jsonschema:"for a template: code to evaluate in each"`
	Command    []string `json:"command,omitempty" jsonschema:"for a template: a command to run in each; PANDO_CELL is the name of its cell"`
	Timeout    string   `json:"timeout,omitempty" jsonschema:"of each evaluation or command, such as 10s"`
	Remove     bool     `json:"remove,omitempty" jsonschema:"remove each cell after its answer"`
	Certify    string   `json:"certify,omitempty" jsonschema:"strict: refuse copies that inherit random number generators"`
	AtFork     string   `json:"at_fork,omitempty" jsonschema:"where processes are copied: a command that a shell runs in each copy before any of its processes continues"`
}

// generators lists the random number generators that copies share with their source, and those
// that are renewed in each copy.
func generators(inherited, renewed []string) string {
	var same, anew string
	if len(inherited) > 0 {
		same = "they may draw the same random numbers as their source, inherited: " + strings.Join(inherited, "; ")
	}
	if len(renewed) > 0 {
		anew = "seeded anew in each copy, renewed: " + strings.Join(renewed, "; ")
	}
	return lines(same, anew)
}

// forked are the new cells, each with its answer.
type forked struct {
	Cells     []forkedCell `json:"cells"`
	Took      string       `json:"took"`                // what the forks have
	Dropped   string       `json:"dropped,omitempty"`   // what the forks lack
	Inherited []string     `json:"inherited,omitempty"` // shared random number generators
	Renewed   []string     `json:"renewed,omitempty"`   // renewed random number generators
	Notes     []string     `json:"notes,omitempty"`     // differences from the source
}

type forkedCell struct {
	Cell   string     `json:"cell"`
	ID     string     `json:"id"`
	Answer *evaluated `json:"answer,omitempty"`
	Exit   *int       `json:"exit_code,omitempty"`
	Stdout string     `json:"stdout,omitempty"`
	Stderr string     `json:"stderr,omitempty"`
	Error  *api.Error `json:"error,omitempty"`
}

func (s *Server) fork(ctx context.Context, c *call, in forkIn) (answer, error) {
	if err := needed("template or cell", in.Of); err != nil {
		return answer{}, err
	}
	if in.Count < 0 {
		return answer{}, invalid("give a count of 1 or more", fmt.Sprintf("cannot make %d cells", in.Count))
	}
	if in.Checkpoint == 0 {
		_, err := s.cfg.Client.Template(ctx, in.Of)
		if err == nil {
			return s.forkTemplate(ctx, c, in)
		}
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Kind != "not-found" && e.Kind != "invalid" {
			return answer{}, err
		}
	}
	if in.Eval != "" || len(in.Command) > 0 || in.Timeout != "" || in.Remove {
		return answer{}, invalid("fork it without, and use eval or exec; or branch it, with its interpreter",
			fmt.Sprintf("cannot evaluate or run in forks of %s: there is no template of that name", in.Of))
	}
	c.tell("forking " + in.Of)
	res, err := s.cfg.Client.Fork(ctx, in.Of, api.ForkRequest{Number: in.Checkpoint, Name: in.Name, Count: in.Count, Files: in.Files, Certify: in.Certify, AtFork: in.AtFork})
	if err != nil {
		return answer{}, err
	}
	f := forked{Took: res.Took, Dropped: res.Dropped, Inherited: res.Inherited, Renewed: res.Renewed, Notes: res.Notes, Cells: []forkedCell{}}
	var text []string
	for _, made := range res.Cells {
		f.Cells, text = append(f.Cells, forkedCell{Cell: made.Name, ID: made.ID}), append(text, made.Name)
	}
	return answer{text: lines(append(text, fmt.Sprintf("they have %s, and not %s", f.Took, f.Dropped), generators(f.Inherited, f.Renewed), lines(f.Notes...))...), data: f}, nil
}

func (s *Server) forkTemplate(ctx context.Context, c *call, in forkIn) (answer, error) {
	if in.Files {
		return answer{}, invalid("leave out files", fmt.Sprintf("cannot fork template %s without its memory", in.Of))
	}
	on, n := c.listener(), 0
	on.Fork = func(f api.WarmFork) {
		n++
		c.tell(fmt.Sprintf("%s has answered, %d of %d", f.Cell.Name, n, max(in.Count, 1)))
	}
	res, err := s.cfg.Client.ForkTemplate(ctx, in.Of, api.WarmForkRequest{Count: in.Count, Name: in.Name, Eval: in.Eval, Command: in.Command, Timeout: in.Timeout, Remove: in.Remove, Certify: in.Certify, AtFork: in.AtFork}, on)
	if err != nil {
		return answer{}, err
	}
	f := forked{Took: res.Took, Dropped: res.Dropped, Inherited: res.Inherited, Renewed: res.Renewed, Notes: res.Notes, Cells: []forkedCell{}}
	limit := max(Limit/max(len(res.Forks), 1), 256) // all of them share an answer
	var text []string
	for _, w := range res.Forks {
		x := forkedCell{Cell: w.Cell.Name, ID: w.Cell.ID, Exit: w.Exit, Error: w.Error,
			Stdout: s.cut(w.Stdout, limit).Text, Stderr: s.cut(w.Stderr, limit).Text}
		said := lines(x.Stdout, x.Stderr)
		if len(w.Result) > 0 {
			a, err := s.evaluation(w.Cell.Name, w.Result, &collector{}, &collector{}, limit, nil)
			if err != nil {
				return answer{}, err
			}
			ev := a.data.(evaluated)
			x.Answer, said = &ev, lines(said, a.text)
		}
		if w.Error != nil {
			said = lines(said, w.Error.Message)
		}
		if w.Exit != nil {
			said = lines(said, howEnded(w.Exit, "", ""))
		}
		f.Cells = append(f.Cells, x)
		text = append(text, strings.TrimSuffix(w.Cell.Name+": "+said, ": "))
	}
	return answer{text: lines(append(text, generators(f.Inherited, f.Renewed), lines(f.Notes...))...), data: f}, nil
}

type branchIn struct {
	Cell    string `json:"cell" jsonschema:"name or id of a running cell"`
	Count   int    `json:"count,omitempty" jsonschema:"number of branches; default 1"`
	Name    string `json:"name,omitempty" jsonschema:"of one branch, or the prefix of several; default CELL-b"`
	Certify string `json:"certify,omitempty" jsonschema:"strict: refuse branches that inherit random number generators"`
	AtFork  string `json:"at_fork,omitempty" jsonschema:"a command that a shell runs in each branch before any of its processes continues"`
}

func (s *Server) branch(ctx context.Context, c *call, in branchIn) (answer, error) {
	if err := needed("cell", in.Cell); err != nil {
		return answer{}, err
	}
	if in.Count < 0 {
		return answer{}, invalid("give a count of 1 or more", fmt.Sprintf("cannot make %d branches", in.Count))
	}
	c.tell("branching " + in.Cell)
	res, err := s.cfg.Client.Branch(ctx, in.Cell, api.BranchRequest{Count: in.Count, Name: in.Name, Certify: in.Certify, AtFork: in.AtFork})
	if err != nil {
		return answer{}, err
	}
	cells, text := []cellView{}, []string{}
	for _, b := range res.Cells {
		v := viewCell(b)
		cells, text = append(cells, v), append(text, v.line())
	}
	text = append(text, fmt.Sprintf("they have %s; %s was paused for %.1f ms", res.Took, res.Source, res.PauseMS))
	if len(res.Dropped) > 0 {
		text = append(text, "left behind: "+strings.Join(res.Dropped, ", "))
	}
	text = append(text, generators(res.Inherited, res.Renewed), lines(res.Notes...))
	return answer{text: lines(text...), data: map[string]any{"source": res.Source, "cells": cells, "took": res.Took, "dropped": res.Dropped, "inherited": res.Inherited, "renewed": res.Renewed,
		"notes": res.Notes, "checkpoint": res.Checkpoint, "pause_ms": res.PauseMS}}, nil
}
