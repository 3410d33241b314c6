package state

import (
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// Program is a file that a template is made of, such as that of its interpreter:
// where it lies on the host, what it holds, and what it looked like when that was
// found out.
type Program struct {
	Path  string      `json:"path"` // on the host
	Sum   cell.Digest `json:"sum"`
	Looks FileStamp   `json:"looks"`
}

// FileStamp tells whether a file was changed, without reading it.
type FileStamp struct {
	Dev, Ino     uint64
	Size         int64
	MTime, CTime int64 // nanoseconds
}

// Template is what the registry keeps of a template: what it was built from,
// and its present cell. Whether it is warm, its cell says.
type Template struct {
	Name    string              `json:"name"`
	Cell    cell.ID             `json:"cell"`
	Spec    api.TemplateRequest `json:"spec"` // without the caller's environment
	Digest  cell.Digest         `json:"digest"`
	Built   time.Time           `json:"built"`
	TookMS  float64             `json:"took_ms"`
	Version string              `json:"version"`
	Program Program             `json:"program"`
	Paths   []string            `json:"paths"` // of the interpreter in a cell, to be tried
	Forks   int64               `json:"forks,omitempty"`
	Failed  string              `json:"failed,omitempty"` // why its last warming failed
	Receipt string              `json:"receipt,omitempty"`
	Notes   []string            `json:"notes,omitempty"`
	Slow    string              `json:"slow,omitempty"` // why forks of it take longer than they could
	// Inherited: see api.Template.
	Inherited []string `json:"inherited,omitempty"`
	// Unkept are the names of variables with values that look like secrets, which are in
	// no record.
	Unkept []string `json:"unkept,omitempty"`
}

// ForkedOnly refuses work in the cell of a template: whatever it changed would
// be in all its forks.
func (c *Cell) ForkedOnly() error {
	if c.Template == "" {
		return nil
	}
	return cell.Errorf(cell.Conflict, "engine", "fork it: pando fork "+c.Template+"; remove it: pando template rm "+c.Template,
		"cannot work in the cell of template %s: it is only forked", c.Template)
}

// Template returns the template of a name.
func (r *Registry) Template(name string) (Template, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if t := r.templates[name]; t != nil {
		return *t, nil
	}
	return Template{}, NoTemplate(name)
}

// Templates returns all templates, by name.
func (r *Registry) Templates() []Template {
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := make([]Template, 0, len(r.templates))
	for _, t := range r.templates {
		out = append(out, *t)
	}
	slices.SortFunc(out, func(a, b Template) int { return strings.Compare(a.Name, b.Name) })
	return out
}
