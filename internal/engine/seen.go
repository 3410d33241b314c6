package engine

import (
	"encoding/json"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// A Seen refuses what its caller did not see. It is asked with the tag of what there
// is, "" for nothing, when nothing else can change that any more.
type Seen = func(tag string) error

// unless asks all of them.
func unless(tag func() string, seen []Seen) error {
	for _, s := range seen {
		if s == nil {
			continue
		}
		if err := s(tag()); err != nil {
			return err
		}
	}
	return nil
}

// tagOf makes a tag of what must not have changed.
func tagOf(facts ...any) string {
	b, err := json.Marshal(facts)
	if err != nil { // none of them is made from outside
		return err.Error()
	}
	return cell.Sum(b).String()
}

// cellTag is of the checkpoint that a cell is at, of what of it is in its source, of its latest run with its verdict,
// and of its labels and variables: not of what its processes do, nor of how long it
// lives.
func (e *Engine) cellTag(c *state.Cell) string {
	verdict := ""
	if r, err := e.reg.Run(c.LastRun); err == nil {
		verdict = string(r.Verdict)
	}
	var labels map[string]string
	if l := e.reg.Lease(c.ID); l != nil {
		labels = l.Labels
	}
	applied := ""
	if n := len(c.Applied); n > 0 {
		applied = c.Applied[n-1].ID
	}
	return tagOf("cell", c.ID, c.Head, c.Known, applied, c.LastRun, verdict, labels, e.alive.LeasedEnv(c.ID))
}

// unchanged refuses a cell, or a run of it, that is not what its caller saw.
func (e *Engine) unchanged(c *state.Cell, run *state.Run, seen []Seen) error {
	return unless(func() string {
		if run != nil {
			return runTag(run)
		}
		return e.cellTag(c)
	}, seen)
}

// runTag is of which run it is, how far it has come, and its verdict.
func runTag(r *state.Run) string { return tagOf("run", r.ID, r.Phase, r.Verdict, r.Receipts) }

// templateTag is of one making of a template; "" when there is none.
func (e *Engine) templateTag(name string) string {
	t, err := e.reg.Template(name)
	if err != nil {
		return ""
	}
	return tagOf("template", t.Name, t.Cell, t.Digest, t.Built)
}

// CellTag is the tag of a cell that the caller sees; "" when there is none.
func (v *View) CellTag(id cell.ID) string {
	c, err := v.cell(id)
	if err != nil {
		return ""
	}
	return v.e.cellTag(&c)
}

// RunTag is the tag of a run that the caller sees; "" when there is none.
func (v *View) RunTag(id cell.RunID) string {
	if v.mustRun(id) != nil {
		return ""
	}
	r, err := v.e.reg.Run(id)
	if err != nil {
		return ""
	}
	return runTag(&r)
}

// TemplateTag is the tag of a template that the caller sees; "" when there is none.
func (v *View) TemplateTag(name string) string {
	if v.mustTemplate(name, false) != nil {
		return ""
	}
	return v.e.templateTag(name)
}
