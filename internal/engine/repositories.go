package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
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
		real, err := workspace.CleanSource(dir)
		if err != nil {
			return err
		}
		if !slices.Contains(p.cell.Repositories, real) {
			return cell.Errorf(cell.Conflict, "engine.StartRun", "leave out --with, or choose another --cell",
				"cell %s was made without %s: what is in a workspace is said when its cell is made", p.cell.Title(), real)
		}
	}
	return nil
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

// letInto is the path in a directory of a workspace that --with-secret names; in is false if it names none there. Paths in the
// first directory are also named from that.
func letInto(name, at string, first bool) (rel string, in bool) {
	if at == "" {
		return name, true
	}
	if rel, in = strings.CutPrefix(name, at+"/"); in {
		return rel, true
	}
	return name, first
}

// withOf are the secrets that come along with a directory of a workspace.
func withOf(with secret.With, at string, first bool) secret.With {
	out := secret.With{}
	for name, how := range with {
		if rel, in := letInto(name, at, first); in {
			out[rel] = how
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
