package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/govern"
	"github.com/pando-dev/pando/internal/secret"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// A cell can have several directories of the host in its workspace, each at its own path. The workspace is one tree: its paths
// are relative to the nearest directory above all of them, of which nothing else is in it. So checkpoints, forks, diffs and
// accepts are of all of them, and the backend shows each as a mount of its own (cell.Mount.Part).

// planRepositories checks the directories that are to come into a new cell beside its source.
func (v *View) planRepositories(p *runPlan) error {
	const opName = "engine.StartRun"
	for _, dir := range p.req.Repositories {
		if strings.ContainsRune(dir, 0) {
			return cell.Errorf(cell.Invalid, opName, "", "cannot run: an argument contains a NUL")
		}
		if !filepath.IsAbs(dir) {
			return cell.Errorf(cell.Invalid, opName, "give an absolute path", "cannot bring in %s: it is relative", clip(dir))
		}
		if err := v.mayImport(dir, ""); err != nil {
			return err
		}
		real, err := workspace.CleanSource(dir)
		if err != nil {
			return err
		}
		for _, at := range []string{dir, real} {
			if err := v.e.checkSource(at); err != nil {
				return err
			}
		}
		p.further = append(p.further, real)
	}
	of := map[string]string{} // the repositories that they are of
	for _, dir := range append([]string{p.source}, p.further...) {
		own, err := gitdir.Own(dir)
		if err != nil || own == nil {
			continue
		}
		if other := of[own.Common]; other != "" && other != dir {
			return cell.Errorf(cell.Invalid, opName, "make a cell for each", "cannot bring in %s: it is a work tree of the same repository as %s", dir, other)
		}
		of[own.Common] = dir
	}
	_, _, err := workspace.Directories(append([]string{p.source}, p.further...))
	return err
}

// parts are the directories of a plan, that of the source first.
func (p *runPlan) parts() []workspace.Directory {
	c := state.Cell{Source: p.source, Repositories: p.further}
	return c.Parts()
}

// sources are the directories that a plan imports.
func (p *runPlan) sources() []workspace.Directory {
	if p.from != "" {
		return []workspace.Directory{{Source: p.from}}
	}
	return p.parts()
}

// sameRepositories refuses further directories for a cell that exists, unless it has them.
func (p *runPlan) sameRepositories() error {
	for _, dir := range p.req.Repositories {
		real, err := p.cleanSource(dir)
		if err != nil {
			return err
		}
		if real != p.cell.Source && !slices.Contains(p.cell.Repositories, real) {
			return cell.Errorf(cell.Conflict, "engine.StartRun", "leave out --with, or choose another --cell",
				"cell %s was made without %s: what is in a workspace is said when its cell is made", p.cell.Title(), real)
		}
	}
	return nil
}

// cleanSource is the canonical form of a directory that a request for a cell which exists names. A confined caller learns
// nothing of the host by it.
func (p *runPlan) cleanSource(dir string) (string, error) {
	if p.confined {
		return filepath.Clean(dir), nil
	}
	return workspace.CleanSource(dir)
}

// furtherPolicies names the policies of further repositories, none of which is in force: a cell has that of its source.
func (p *runPlan) furtherPolicies() string {
	var names []string
	for _, dir := range p.further {
		if at := filepath.Join(dir, govern.ProjectPolicy); p.cell == nil {
			if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
				names = append(names, at)
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("%s: not in force, a cell has the policy of its first repository", join(names))
}

// letIn refuses to let in what is in none of a plan's directories. Of several it makes the names those in the workspace: what is
// no path of that is one in the first directory.
func (p *runPlan) letIn(dirs []workspace.Directory) error {
	named := secret.With{}
	for name := range p.with {
		full, there := "", false
		for _, d := range dirs { // a path of the workspace comes first
			rel, in := name, d.At == ""
			if !in {
				rel, in = strings.CutPrefix(name, d.At+"/")
			}
			if name == d.At {
				return cell.Errorf(cell.Invalid, "engine.StartRun", "give the path of a file or folder in it", "cannot let in %s: it is a whole directory", name)
			}
			if _, err := os.Lstat(filepath.Join(d.Source, rel)); in && err == nil {
				full, there = name, true
			}
		}
		if !there {
			_, err := os.Lstat(filepath.Join(dirs[0].Source, name))
			full, there = filepath.Join(dirs[0].At, name), err == nil
		}
		if !there {
			return cell.Errorf(cell.NotFound, "engine.StartRun", "give the path of a file in the source, as `pando run --dry-run` lists what would be left out",
				"cannot let in %s: there is no such file in the source", name)
		}
		named[full] = true
	}
	if len(dirs) > 1 {
		p.with, p.req.WithSecret = named, slices.Sorted(maps.Keys(named))
	}
	return nil
}

// withOf are the secrets that come along with a directory of a workspace.
func withOf(with secret.With, at string) secret.With {
	if at == "" {
		return with
	}
	out := secret.With{}
	for name := range with {
		if rel, in := strings.CutPrefix(name, at+"/"); in {
			out[rel] = true
		}
	}
	return out
}

// workspaceMounts are the mounts that show a workspace.
func workspaceMounts(targets []string) (list []cell.Mount) {
	for _, t := range targets {
		list = append(list, cell.Mount{Kind: cell.Overlay, Target: t, Role: cell.RoleWorkspace, Why: whyWorkspace})
	}
	return list
}

// workspaceMount points one of the mounts of a cell's workspace at its present layer.
func workspaceMount(c *state.Cell, p workspace.Provider, m *cell.Mount) cell.Mount {
	at := ""
	if len(c.Repositories) > 0 {
		at = strings.TrimPrefix(strings.TrimPrefix(m.Target, c.Top()), "/")
	}
	return workspace.PartOf(p.Mount(*c.Gen, m.Target), at)
}
