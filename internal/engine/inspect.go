package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/workspace"
)

// lacks notes what an agent that is inspected lacks, and reports whether it did: other errors, and
// those of runs, are refusals.
func (p *runPlan) lacks(what string, err error) bool {
	if kind := cell.KindOf(err); !p.req.Inspect || kind != cell.NotFound && kind != cell.NoSuchBinary {
		return false
	}
	p.missing = append(p.missing, api.Finding{Name: what, Status: "missing", Found: err.Error(), Fix: cell.HintOf(err), For: p.agent.adapter.About().Title})
	return true
}

// planCell says in which cell a plan works.
func (e *Engine) planCell(p *runPlan, out *api.Plan) {
	switch {
	case p.cell != nil:
		out.Cell, out.CellExists, out.Budget = p.cell.Title(), true, e.govern.BudgetView(p.cell)
	case p.req.Cell != "":
		out.Cell = p.req.Cell
	case p.agent != nil:
		out.Cell = e.agentName(p.source)
	}
}

// plannedAgent says how the agent of a plan would be started. files are what may be its program, or
// lookErr says why there are none.
func (x *execution) plannedAgent(ctx context.Context, files []string, lookErr error) (*api.PlannedAgent, error) {
	p, a := x.p, x.p.agent
	about := a.adapter.About()
	out := &api.PlannedAgent{Name: about.Name, Title: about.Title, Program: about.Program, ModelURL: a.start.Model, Autonomy: orElse(p.req.Agent.Autonomy, api.AutonomyFull),
		Mode: orElse(p.req.Agent.Mode, policy.AgentStrict), TrustRepository: a.start.Trusts, Content: a.content}
	if i := slices.IndexFunc(files, x.plan.Has); i >= 0 {
		out.Path = files[i]
	} else if lookErr == nil && p.cell == nil && p.req.Inspect { // it could be in a home alone, which is empty
		lookErr = x.plan.NotFound(about.Program)
	}
	if lookErr != nil {
		if err := a.install(lookErr); !p.lacks("program", err) {
			return nil, err
		}
	}
	if out.Path != "" {
		if out.Version = p.agentVersion(out.Path); out.Version != "" && out.Version != about.Tested {
			out.Tested = about.Tested
		}
	}
	out.Login, out.LoginOrigin = a.login(&p.policy)
	var err error
	out.Off, out.Runs, err = x.repository(ctx)
	return out, err
}

// login is the credential or the variable by which the agent is logged in, and its origin.
func (a *agentPlan) login(pol *policy.Result) (name, origin string) {
	list := []string{a.key}
	if a.served == "" {
		list = []string{a.start.Login.Credential}
		for _, l := range a.adapter.About().Logins {
			list = append(list, l.Credential)
		}
	}
	for _, handle := range list {
		if handle != "" && slices.Contains(pol.Handles(), handle) {
			return handle, pol.Origins.Lines["credential "+handle]
		}
	}
	for _, l := range a.adapter.About().Logins {
		for _, v := range append(slices.Clone(l.Variables), l.Bearer) {
			if v != "" && given(pol.Env, []string{v}) {
				return v, pol.Origins.Lines["variable "+v]
			}
		}
	}
	return "", ""
}

// repository says of the source, or of the newest checkpoint of the cell, what the agent leaves alone, and
// what it runs although it leaves that alone with a task.
func (x *execution) repository(ctx context.Context) (off, runs []string, err error) {
	var list func(dir string) []string
	if c := x.p.cell; c != nil && c.Head != "" {
		k, err := x.e.reg.Checkpoint(c.Head)
		if err != nil {
			return nil, nil, err
		}
		tree, err := x.e.tree(ctx, &k)
		if err != nil {
			return nil, nil, err
		}
		list = func(dir string) (names []string) {
			if dir == "." {
				dir = ""
			}
			if e, err := tree.Lookup(dir); err == nil && e.Type == workspace.Folder {
				d, _ := tree.ReadDir(e.Digest) // what can't be read configures nothing
				for _, e := range d {
					names = append(names, e.Name)
				}
			}
			return names
		}
	} else {
		root, err := os.OpenRoot(orElse(x.p.from, x.p.source))
		if err != nil {
			return nil, nil, err
		}
		defer root.Close()
		list = func(dir string) (names []string) {
			entries, _ := fs.ReadDir(root.FS(), dir)
			for _, e := range entries {
				names = append(names, e.Name())
			}
			return names
		}
	}
	off, runs = configures(x.p.agent.adapter, x.p.agent.start, list)
	return off, runs, nil
}

// configures are the files of a repository that an agent leaves alone, of those that are there, and those
// that it leaves alone with a task only. list has the names in a folder of the repository.
func configures(a agent.Adapter, start agent.Start, list func(dir string) []string) (off, runs []string) {
	is := func(at string) bool { return slices.Contains(list(path.Dir(at)), path.Base(at)) }
	task := start
	task.Prompt = "a task"
	never := a.Off(start)
	off = []string{}
	for _, at := range never {
		if is(at) {
			off = append(off, at)
		}
	}
	for _, at := range a.Off(task) {
		parts := []string{at}
		if names := list(at); len(names) > 0 && slices.ContainsFunc(never, func(n string) bool { return strings.HasPrefix(n, at+"/") }) {
			parts = nil
			for _, name := range names {
				parts = append(parts, path.Join(at, name))
			}
		}
		for _, part := range parts {
			if is(part) && !slices.Contains(never, part) {
				runs = append(runs, part)
			}
		}
	}
	return off, runs
}

// Bounds of what is read of a package of npm.
const (
	maxPackageFile = 1 << 20
	maxPackageUp   = 6 // folders above a program
)

var versionForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9][0-9A-Za-z.+-]{0,63}$`) })

// agentVersion is the version of an agent's program; "" if it is not known.
func (p *runPlan) agentVersion(program string) string {
	if p.image.Kind != image.KindHost || p.confined {
		return ""
	}
	return packageVersion(program, p.agent.adapter.About().Package)
}

// noteUntested notes that an agent is of another version than the one that was tried. files are what may be its program.
func (x *execution) noteUntested(files []string) {
	if x.p.agent == nil || x.p.image.Kind != image.KindHost || x.p.confined {
		return
	}
	about := x.p.agent.adapter.About()
	for _, at := range files {
		if st, err := os.Stat(at); err != nil || st.IsDir() || x.plan != nil && !x.plan.Has(at) {
			continue
		}
		if v := x.p.agentVersion(at); v != "" && v != about.Tested {
			x.run.Notes = append(x.run.Notes, fmt.Sprintf("%s %s is untested: pando was tried with %s", about.Title, v, about.Tested))
		}
		return
	}
}

// packageVersion is the version of a program of the host: that of the package of npm that it lies in,
// or of a folder of versions. It starts nothing. "": it is not known.
func packageVersion(program, name string) string {
	at, err := filepath.EvalSymlinks(program)
	if err != nil {
		return ""
	}
	if v := filepath.Base(at); filepath.Base(filepath.Dir(at)) == "versions" && versionForm().MatchString(v) {
		return v
	}
	for dir, n := filepath.Dir(at), 0; n < maxPackageUp && dir != "/"; dir, n = filepath.Dir(dir), n+1 {
		st, err := os.Stat(filepath.Join(dir, "package.json"))
		if err != nil || !st.Mode().IsRegular() {
			continue
		}
		f, err := os.Open(filepath.Join(dir, "package.json"))
		if err != nil {
			continue
		}
		var of struct{ Name, Version string }
		err = json.NewDecoder(io.LimitReader(f, maxPackageFile)).Decode(&of)
		f.Close()
		if err == nil && of.Name == name && versionForm().MatchString(of.Version) {
			return of.Version
		}
	}
	return ""
}
