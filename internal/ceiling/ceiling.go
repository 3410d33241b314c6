// Package ceiling computes the bounds of callers: defaults and maxima of a cell, the number of
// cells at once, and how long paused ones are kept, for each door, token and label. It is pure:
// from the operator's file and a caller it derives the bounds and where each is set. The engine
// counts and waits.
package ceiling

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

// Doors, by which callers ask for cells.
const (
	Local = "local" // the unix socket: the command line of the daemon's user
	REST  = "rest"  // TCP, and tokens on the unix socket
	E2B   = "e2b"
	MCP   = "mcp"
)

// Doors lists all doors.
func Doors() []string { return []string{Local, REST, E2B, MCP} }

// Path is the default path of the operator's file.
const Path = "/etc/pando/ceilings.yaml"

// builtIn is the origin of rules that no file sets.
const builtIn = "built in"

// none lifts a bound.
const none = "none"

// Limits are limits of a cell; 0 is unlimited. CPUs are cores, Memory, Disk and Egress bytes
// (Egress of one run), PIDs processes and threads.
type Limits struct {
	CPUs   float64
	Memory int64
	PIDs   int64
	Disk   int64
	Egress int64
}

// Names of limits, as in policies.
func Names() []string { return []string{"cpus", "memory", "pids", "disk", "egress"} }

// Get returns a limit by name.
func (l Limits) Get(name string) float64 {
	switch name {
	case "cpus":
		return l.CPUs
	case "memory":
		return float64(l.Memory)
	case "pids":
		return float64(l.PIDs)
	case "disk":
		return float64(l.Disk)
	case "egress":
		return float64(l.Egress)
	}
	return 0
}

func (l *Limits) set(name string, v float64) {
	switch name {
	case "cpus":
		l.CPUs = v
	case "memory":
		l.Memory = int64(v)
	case "pids":
		l.PIDs = int64(v)
	case "disk":
		l.Disk = int64(v)
	case "egress":
		l.Egress = int64(v)
	}
}

// Text is a limit for people: "2.0 GiB of memory".
func Text(name string, v float64) string {
	switch {
	case v == 0:
		return "any number"
	case name == "cpus":
		return strconv.FormatFloat(v, 'g', -1, 64)
	case name == "pids":
		return strconv.FormatInt(int64(v), 10)
	}
	return policy.FormatSize(int64(v))
}

// A Scope is the object of a rule.
type Scope struct {
	Kind string // "door", "token" or "label"
	Name string
}

func (s Scope) String() string { return s.Kind + " " + s.Name }

// A rule is the settings of one scope; nil is unset.
type rule struct {
	dflt, max              map[string]float64
	cells                  *int
	keep                   *time.Duration
	cellsFrom, keepFrom    string
	defaultFrom, limitFrom map[string]string
}

// A Set is all rules. Its methods are safe for concurrent use.
type Set struct {
	rules map[Scope]*rule
	order []Scope
	Queue Queue
}

// Queue bounds the requests that wait for cells to end.
type Queue struct {
	Length int           // maximum number of waiting requests
	Wait   time.Duration // maximum time of waiting
}

// The default queue.
const (
	queueLength = 64
	queueWait   = 20 * time.Second
)

// maxKeep bounds how long a cell is kept.
const maxKeep = 100 * 365 * 24 * time.Hour

// File is the operator's file. All values are texts; none lifts a bound.
type File struct {
	Version int             `yaml:"version"`
	Queue   FileQueue       `yaml:"queue"`
	Doors   map[string]Rule `yaml:"doors"`
	Tokens  map[string]Rule `yaml:"tokens"`
	Labels  map[string]Rule `yaml:"labels"` // NAME=VALUE
}

// FileQueue is the section queue.
type FileQueue struct {
	Length string `yaml:"length"`
	Wait   string `yaml:"wait"`
}

// Rule is a file's settings for one door, token or label.
type Rule struct {
	Default FileLimits `yaml:"default"` // of a cell that requests nothing
	Max     FileLimits `yaml:"max"`     // of any cell
	Cells   string     `yaml:"cells"`   // number of cells that are not paused
	Keep    string     `yaml:"keep"`    // how long a paused or stopped cell is kept: 30d, 12h
}

// FileLimits are limits with the keys of policies.
type FileLimits struct {
	CPUs   string `yaml:"cpus"`
	Memory string `yaml:"memory"`
	PIDs   string `yaml:"pids"`
	Disk   string `yaml:"disk"`
	Egress string `yaml:"egress"`
}

// BuiltIn is the rules without a file: the doors of programs have bounds that keep a host
// usable, and those of people have none.
func BuiltIn(h policy.Host) *Set {
	size := func(n int64) string { return strconv.FormatInt(n>>20, 10) + "M" }
	program := func(cells string) Rule {
		r := Rule{
			Default: FileLimits{Memory: size(min(2<<30, max(512<<20, h.Memory/4))), PIDs: "2048", Disk: "10G"},
			Max:     FileLimits{Memory: size(max(512<<20, h.Memory/2)), PIDs: "4096", Disk: "20G"},
			Cells:   cells, Keep: "30d",
		}
		return r
	}
	f := File{Version: 1, Doors: map[string]Rule{E2B: program("1000"), MCP: program("200")}}
	s := &Set{rules: map[Scope]*rule{}, Queue: Queue{queueLength, queueWait}}
	if err := s.add(&f, builtIn); err != nil { // a bug in the lines above, which the test finds
		panic(err)
	}
	return s
}

// Parse reads an operator's file over the built-in rules.
func Parse(name string, text []byte, h policy.Host) (*Set, error) {
	var f File
	if err := yaml.UnmarshalWithOptions(text, &f, yaml.Strict()); err != nil {
		return nil, cell.Errorf(cell.Invalid, "ceiling.Parse", "see docs/howto/operate.md for the format of the file", "cannot read %s: %w", name, err)
	}
	if f.Version != 1 {
		return nil, cell.Errorf(cell.Invalid, "ceiling.Parse", "begin it with: version: 1", "cannot read %s: version %d is unknown", name, f.Version)
	}
	s := BuiltIn(h)
	return s, s.add(&f, name)
}

// add merges the rules of a file over the existing ones.
func (s *Set) add(f *File, from string) error {
	bad := func(where, format string, args ...any) error {
		return cell.Errorf(cell.Invalid, "ceiling.Parse", "see docs/howto/operate.md for the format of the file", "cannot read %s: %s: %s", from, where, fmt.Sprintf(format, args...))
	}
	if f.Queue.Length != "" {
		n, err := number(f.Queue.Length)
		if err != nil {
			return bad("queue.length", "%v", err)
		}
		s.Queue.Length = n
	}
	if f.Queue.Wait != "" {
		d, err := period(f.Queue.Wait)
		if err != nil {
			return bad("queue.wait", "%v", err)
		}
		s.Queue.Wait = d
	}
	for name := range f.Doors {
		if !slices.Contains(Doors(), name) {
			return bad("doors."+name, "there are %s", strings.Join(Doors(), ", "))
		}
	}
	for name := range f.Labels {
		if k, v, _ := strings.Cut(name, "="); k == "" || v == "" {
			return bad("labels."+name, "write it as NAME=VALUE")
		}
	}
	for _, g := range []struct {
		kind  string
		rules map[string]Rule
	}{{"door", f.Doors}, {"token", f.Tokens}, {"label", f.Labels}} {
		for _, name := range slices.Sorted(maps.Keys(g.rules)) {
			sc := Scope{g.kind, name}
			r := s.rules[sc]
			if r == nil {
				r = &rule{dflt: map[string]float64{}, max: map[string]float64{}, defaultFrom: map[string]string{}, limitFrom: map[string]string{}}
				s.rules[sc], s.order = r, append(s.order, sc)
			}
			if err := r.take(g.rules[name], from); err != nil {
				return bad(g.kind+"s."+name, "%v", err)
			}
		}
	}
	for sc, r := range s.rules {
		for _, n := range Names() {
			if d, m := r.dflt[n], r.max[n]; m > 0 && d > m && r.defaultFrom[n] == from {
				return bad(sc.Kind+"s."+sc.Name, "the default of %s is more than its maximum", n)
			}
		}
	}
	return nil
}

// take merges a file's rule over the existing one.
func (r *rule) take(f Rule, from string) error {
	for _, part := range []struct {
		what string
		f    FileLimits
		to   map[string]float64
		by   map[string]string
	}{{"default", f.Default, r.dflt, r.defaultFrom}, {"max", f.Max, r.max, r.limitFrom}} {
		for name, text := range map[string]string{"cpus": part.f.CPUs, "memory": part.f.Memory, "pids": part.f.PIDs, "disk": part.f.Disk, "egress": part.f.Egress} {
			if text == "" {
				continue
			}
			v, err := limit(name, text)
			if err != nil {
				return fmt.Errorf("%s.%s: %w", part.what, name, err)
			}
			part.to[name], part.by[name] = v, from
		}
	}
	if f.Cells != "" {
		n, err := number(f.Cells)
		if err != nil {
			return fmt.Errorf("cells: %w", err)
		}
		r.cells, r.cellsFrom = &n, from
	}
	if f.Keep != "" {
		d, err := period(f.Keep)
		if err != nil {
			return fmt.Errorf("keep: %w", err)
		}
		r.keep, r.keepFrom = &d, from
	}
	return nil
}

// limit parses one limit; 0 for none.
func limit(name, text string) (float64, error) {
	if text == none {
		return 0, nil
	}
	switch name {
	case "cpus":
		return policy.ParseCPUs(text)
	case "pids":
		n, err := policy.ParseCount("processes", text)
		return float64(n), err
	}
	n, err := policy.ParseSize(text)
	return float64(n), err
}

// number parses a number of cells or requests; 0 for none.
func number(text string) (int, error) {
	if text == none {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q is no number from 1 on; write none for no bound", text)
	}
	return int(n), nil
}

// period parses a duration; 0 for none.
func period(text string) (time.Duration, error) {
	if text == none {
		return 0, nil
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n > 0 && n <= int(maxKeep/(24*time.Hour)) {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second || d > maxKeep {
		return 0, fmt.Errorf("%q is no time: write it as 20s, 12h or 30d, or none", text)
	}
	return d, nil
}

// A Caller is a door, a token (its id and name; "" for none) and the labels of the requested
// cell.
type Caller struct {
	Door, Token, TokenName string
	Labels                 map[string]string
}

// Bounds are the bounds of a caller.
type Bounds struct {
	Default   Limits            // of a cell that requests nothing; 0 is unset
	DefaultBy map[string]string // limit → its origin: "door e2b, built in"
	Max       Limits            // 0 is unbounded
	By        map[string]string // limit → origin of its maximum
	Counts    []Count
	Keep      time.Duration // how long a paused cell is kept; 0: unlimited
	KeepBy    string        // its origin
}

// A Count is the number of cells at once in a scope.
type Count struct {
	Scope Scope
	Most  int
	By    string
}

// For returns the bounds of a caller. The least maximum counts; of defaults that of the label,
// then that of the token. A nil Set has no bounds.
func (s *Set) For(c Caller) (b Bounds) {
	if s == nil {
		return b
	}
	b.By, b.DefaultBy = map[string]string{}, map[string]string{}
	for _, sc := range s.order {
		r := s.rules[sc]
		if !sc.Of(c) {
			continue
		}
		for _, n := range Names() {
			if d, ok := r.dflt[n]; ok {
				b.Default.set(n, d)
				b.DefaultBy[n] = sc.String() + ", " + r.defaultFrom[n]
			}
			if m := r.max[n]; m > 0 && (b.Max.Get(n) == 0 || m < b.Max.Get(n)) {
				b.Max.set(n, m)
				b.By[n] = sc.String() + ", " + r.limitFrom[n]
			}
		}
		if r.cells != nil && *r.cells > 0 {
			b.Counts = append(b.Counts, Count{Scope: sc, Most: *r.cells, By: sc.String() + ", " + r.cellsFrom})
		}
		if r.keep != nil && *r.keep > 0 && (b.Keep == 0 || *r.keep < b.Keep) {
			b.Keep, b.KeepBy = *r.keep, sc.String()+", "+r.keepFrom
		}
	}
	for _, n := range Names() {
		if m := b.Max.Get(n); m > 0 && b.Default.Get(n) > m {
			b.Default.set(n, m)
			b.DefaultBy[n] = b.By[n]
		}
	}
	return b
}

// Of reports whether a scope applies to a caller.
func (s Scope) Of(c Caller) bool {
	switch s.Kind {
	case "door":
		return s.Name == c.Door
	case "token":
		return c.Token != "" && (s.Name == c.Token || s.Name == c.TokenName)
	}
	k, v, _ := strings.Cut(s.Name, "=")
	got, ok := c.Labels[k]
	return ok && got == v
}

// Whole is the rule of one scope, for people.
type Whole struct {
	Scope
	Default, Max Limits
	Cells        int // at once; 0 is unlimited
	Keep         time.Duration
	By           string
}

// List returns all rules, doors first.
func (s *Set) List() (out []Whole) {
	if s == nil {
		return nil
	}
	for _, sc := range s.order {
		r := s.rules[sc]
		w := Whole{Scope: sc}
		by := map[string]bool{}
		for _, n := range Names() {
			w.Max.set(n, r.max[n])
			if w.Default.set(n, r.dflt[n]); w.Max.Get(n) > 0 {
				w.Default.set(n, min(r.dflt[n], r.max[n]))
			}
			by[r.defaultFrom[n]], by[r.limitFrom[n]] = true, true
		}
		if r.cells != nil {
			w.Cells = *r.cells
		}
		if r.keep != nil {
			w.Keep = *r.keep
		}
		by[r.cellsFrom], by[r.keepFrom] = true, true
		delete(by, "")
		w.By = strings.Join(slices.Sorted(maps.Keys(by)), ", ")
		out = append(out, w)
	}
	slices.SortStableFunc(out, func(a, b Whole) int { return cmp.Compare(rank(a.Kind), rank(b.Kind)) })
	return out
}

func rank(kind string) int { return slices.Index([]string{"door", "token", "label"}, kind) }
