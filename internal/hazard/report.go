package hazard

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// Name is that of the hazards that Report returns.
const Name = "generators"

// maxReported bounds the hazards of one cell.
const maxReported = 64

// Report puts into words what processes of a copy have inherited. kind is that of the
// interpreter among them (cell.Warm.Kind), told what it has renewed itself, which is left
// out. What was renewed from outside is named as such.
func Report(list []Process, kind string, told []cell.Hazard, seen string) (out []cell.Hazard) {
	held, made := map[string][]int{}, map[string][]int{}
	for _, p := range list {
		var names, fresh []string
		for _, g := range p.Generators {
			if p.Interpreter && renewed(kind, g, told) {
				continue
			}
			n := g.Family
			switch {
			case g.Family == Own:
				n = "a generator of " + path.Base(g.File)
			case g.Family == Unknown:
				n = "whatever " + orElse(path.Base(g.File), "code") + " has, which can't be looked into"
			case g.File != p.Program:
				n += " (" + path.Base(g.File) + ")"
			}
			of := &names
			if g.Renewed {
				of = &fresh
			}
			if !slices.Contains(*of, n) {
				*of = append(*of, n)
			}
		}
		in := " in " + orElse(p.Program, "a process")
		if len(names) > 0 {
			key := strings.Join(names, ", ") + in
			held[key] = append(held[key], p.PID)
		}
		if len(fresh) > 0 {
			key := strings.Join(fresh, ", ") + in
			made[key] = append(made[key], p.PID)
		}
	}
	if out = hazards(held, cell.Inherited, seen); len(out) == 0 {
		out = append(out, cell.Hazard{Name: Name, Seen: seen, Value: "none in user space that is inherited"})
	}
	return append(out, hazards(made, cell.Renewed, seen)...)
}

// hazards has one for each key, which begins with word, and names its processes.
func hazards(of map[string][]int, word, seen string) (out []cell.Hazard) {
	for i, k := range slices.Sorted(maps.Keys(of)) {
		if i == maxReported {
			return append(out, cell.Hazard{Name: Name, Seen: seen, Value: word + fmt.Sprintf("those of %d more programs", len(of)-i)})
		}
		out = append(out, cell.Hazard{Name: Name, Seen: seen, Value: word + k + numbers(of[k])})
	}
	return out
}

// numbers names processes.
func numbers(pids []int) string {
	switch {
	case len(pids) == 1:
		return fmt.Sprintf(", process %d", pids[0])
	case len(pids) > 8:
		return fmt.Sprintf(", %d processes", len(pids))
	}
	return ", processes " + strings.Trim(strings.ReplaceAll(fmt.Sprint(pids), " ", ", "), "[]")
}

// renewals say which hazards, told as fresh, mean that a family was renewed in an
// interpreter of this kind. The table is short on purpose: a row is added with the script
// that draws from a source and its copies. For Python that is x09-strict-python of e2e.
var renewals = map[string]map[string][]string{
	cell.WarmPython: {"Python": {"kernel randomness"}, "OpenSSL": {"ssl randomness"}},
}

// perFile begins the name of the hazard that says of which files generators were renewed:
// a process may have several OpenSSLs.
const perFile = "ssl "

// renewed reports whether an interpreter has renewed a generator of its own.
func renewed(kind string, g Generator, told []cell.Hazard) bool {
	needs := renewals[kind][g.Family]
	for _, n := range needs {
		if !slices.ContainsFunc(told, func(h cell.Hazard) bool {
			of := strings.Fields(h.Value)
			return h.Name == n && strings.HasPrefix(h.Value, "fresh,") && (!strings.HasPrefix(h.Name, perFile) || slices.Contains(of, path.Base(g.File)))
		}) {
			return false
		}
	}
	return len(needs) > 0
}

func orElse(s, other string) string {
	if s == "" || s == "." {
		return other
	}
	return s
}
