package result

import (
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/apply"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// homesOf returns the home directories of the users of a source: the
// one that pando runs as, and the source's owner.
func (m *Manager) homesOf(source string) []string {
	homes := []string{m.cfg.Home}
	st, err := os.Stat(source)
	if err != nil {
		return homes
	}
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		if u, err := user.LookupId(strconv.Itoa(int(s.Uid))); err == nil && filepath.IsAbs(u.HomeDir) && !slices.Contains(homes, u.HomeDir) {
			homes = append(homes, u.HomeDir)
		}
	}
	return homes
}

// gitConfigs returns the configuration files that the environment names for
// git beside those in the usual places.
func gitConfigs() (list []string) {
	for _, f := range []string{os.Getenv("GIT_CONFIG_GLOBAL"), os.Getenv("GIT_CONFIG_SYSTEM"), filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "git/config")} {
		if filepath.IsAbs(f) {
			list = append(list, f)
		}
	}
	return list
}

// maxFirst is how many entries of what to look at first a run's record keeps.
const maxFirst = 50

// review returns what people are told of the changes from a to b before they are applied:
// what to look at first, and what accept would hold back without what include names.
// ignored reports what git ignores; nil: nothing.
func (m *Manager) review(c *state.Cell, a, b workspace.Side, ignored func(string, bool) bool, include []string) (first []state.Look, held []api.Held, err error) {
	req := apply.Request{Base: a.Tree, After: b, IsIgnored: ignored, Include: include}
	for _, l := range c.LeftOut {
		req.Reserved = append(req.Reserved, l.Path)
	}
	parts := m.parts(c, req)
	for i := range parts {
		p := &parts[i]
		if p.Source, err = filepath.EvalSymlinks(p.Source); err != nil || c.NoSource {
			p.Source, p.Homes, p.GitConfigs = "", nil, nil
		}
	}
	r, err := apply.ReviewOf(parts)
	first = make([]state.Look, 0, len(r.First))
	for _, l := range r.First {
		first = append(first, state.Look{Path: l.Path, Why: l.Why, Files: l.Files})
	}
	return first, heldAPI(r.Held), err
}

func heldAPI(list []apply.Held) []api.Held {
	out := make([]api.Held, 0, len(list))
	for _, h := range list {
		out = append(out, api.Held{Path: h.Path, Why: h.Why})
	}
	return out
}

// withoutHeld takes what is held back out of a comparison without renames: its
// patch then has what accept would apply.
func withoutHeld(d *diff.Diff, held []api.Held) {
	if len(held) == 0 {
		return
	}
	is := map[string]bool{}
	for _, h := range held {
		is[h.Path] = true
	}
	d.Files = slices.DeleteFunc(d.Files, func(f diff.FileChange) bool { return is[f.Path] })
}

// writeFirst writes what is to be looked at first, one line for each entry.
func writeFirst(w io.Writer, list []state.Look) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintln(w, " look at these first:")
	for _, l := range list {
		fmt.Fprintf(w, "  %s\n", l.Line())
	}
	fmt.Fprintln(w)
}
