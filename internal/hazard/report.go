package hazard

import (
	"fmt"
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// Name is that of the hazards that Report returns.
const Name = "generators"

// maxReported bounds the hazards of one cell.
const maxReported = 64

// Report puts into words what processes of a copy have inherited. kind is that of the
// interpreter among them (cell.Warm.Kind), told what it has renewed itself. Only what was
// shown to be renewed is left out.
func Report(list []Process, kind string, told []cell.Hazard, seen string) (out []cell.Hazard) {
	held := map[string][]int{}
	for _, p := range list {
		var names []string
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
			if !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
		if len(names) > 0 {
			key := strings.Join(names, ", ") + " in " + orElse(p.Program, "a process")
			held[key] = append(held[key], p.PID)
		}
	}
	keys := make([]string, 0, len(held))
	for k := range held {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for i, k := range keys {
		if i == maxReported {
			out = append(out, cell.Hazard{Name: Name, Seen: seen, Value: cell.Inherited + fmt.Sprintf("those of %d more programs", len(keys)-i)})
			break
		}
		out = append(out, cell.Hazard{Name: Name, Seen: seen, Value: cell.Inherited + k + numbers(held[k])})
	}
	if len(out) == 0 {
		out = append(out, cell.Hazard{Name: Name, Seen: seen, Value: "none in user space that is inherited"})
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
