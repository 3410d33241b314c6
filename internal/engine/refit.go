package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cache"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/secret"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// What the cell's own mounts are, for people.
const (
	whyWorkspace = "workspace"
	whyHome      = "the cell's home"
	whyTmp       = "the cell's /tmp"
)

// refit points a cell's mounts at its present layer and its own folders.
func (e *Engine) refit(c *state.Cell, p workspace.Provider, from *state.Checkpoint) error {
	private := e.private(c.ID)
	failpoint.Step("make the folders of a cell")
	if err := e.makeFolders(c, p, private); err != nil {
		return err
	}
	c.Shared = cell.Digest{} // its setup is its own from here on
	mounts := append([]cell.Mount(nil), c.Setup.Mounts...)
	for i := range mounts {
		m := &mounts[i]
		switch {
		case m.Role == cell.RoleWorkspace:
			*m = workspaceMount(c, p, m)
		case m.Role == cell.RoleHome:
			*m = ownMount(m, p, c.Home, filepath.Join(private, "home"))
		case m.Role == cell.RoleTmp:
			*m = ownMount(m, p, c.Tmp, filepath.Join(private, "tmp"))
		case m.Role == cell.RoleTop:
			m.Source = filepath.Join(private, topFolder)
			if err := e.layTop(c, m.Source); err != nil {
				return err
			}
		case m.Role == cell.RoleNetwork:
			m.Source = e.govern.TalkSource(c.ID, m)
		case m.Kind == cell.Cache:
			m.Upper = cache.Upper(private, c.Roots, m.Target)
			m.Lower = slices.DeleteFunc(slices.Clone(m.Lower), func(l string) bool { // of what it was branched from
				_, err := os.Lstat(l)
				return errors.Is(err, fs.ErrNotExist)
			})
		}
	}
	err := e.layImage(c, mounts)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(mounts, func(m cell.Mount) bool { return m.Kept != "" }) { // what an instance before it wrote comes first
		if err := e.alive.AwaitGone(e.life, c.ID); err != nil {
			return err
		}
	}
	if err := e.caches.Lay(c, mounts); err != nil {
		return err
	}
	if c.Setup.Mounts, err = e.govern.Mask(c, from, mounts); err != nil {
		return err
	}
	if c.Talks() {
		return e.govern.WriteTalk(c)
	}
	return nil
}

// makeFolders makes what belongs to a cell alone, when it first starts.
func (e *Engine) makeFolders(c *state.Cell, p workspace.Provider, private string) error {
	if err := os.MkdirAll(private, 0o700); err != nil {
		return err
	}
	if err := e.moveOwn(c, p); err != nil {
		return err
	}
	for _, g := range []*workspace.Generation{c.Home, c.Tmp} {
		if g != nil {
			if err := p.Resume(e.life, *g); err != nil {
				return err
			}
		}
	}
	if c.Home == nil {
		home := filepath.Join(private, "home")
		err := os.Mkdir(home, 0o700)
		if err == nil && !c.Builds {
			err = e.fillHome(c, home)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if c.Tmp != nil {
		return nil
	}
	tmp := filepath.Join(private, "tmp")
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return err
	}
	return os.Chmod(tmp, 0o777|os.ModeSticky)
}

// ownMount shows a cell its home or /tmp: a layer, or a directory of its own.
func ownMount(m *cell.Mount, p workspace.Provider, g *workspace.Generation, dir string) cell.Mount {
	own := cell.Mount{Kind: cell.Bind, Target: m.Target, Source: dir, Owned: true}
	if g != nil {
		if own = p.Mount(*g, m.Target); len(g.Base.Layers) == 0 {
			own = cell.Mount{Kind: cell.Bind, Target: m.Target, Source: writable(&own), Owned: true}
		}
	}
	own.Role, own.Why = m.Role, m.Why
	return own
}

// writable is the directory of the host that holds what a cell writes below a
// mount.
func writable(m *cell.Mount) string { return orElse(m.Upper, m.Source) }

// fillHome gives a new home what git there needs to answer as the user's does (see
// gitdir.CellSettings). What the cell makes of it later is its own affair. A caller that
// may not name files of the host gets nothing of the user's home.
func (e *Engine) fillHome(c *state.Cell, home string) error {
	s := e.gitSettings(c)
	for _, f := range []struct {
		name string
		data []byte
	}{{".gitconfig", s.Config}, {".config/git/ignore", s.Ignore}, {".config/git/attributes", s.Attributes}} {
		if f.data == nil {
			continue
		}
		at := filepath.Join(home, f.name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(at, f.data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// gitSettings is what git in a cell is told of the user's configuration.
func (e *Engine) gitSettings(c *state.Cell) gitdir.Settings {
	home := e.cfg.User.Home
	if c.Guest {
		home = ""
	}
	return gitdir.CellSettings(home, func(b []byte) bool { return len(secret.Scan("", b)) > 0 })
}

// unsigned reports whether git signs in the source of a cell and not in the cell.
func (e *Engine) unsigned(c *state.Cell, im *workspace.Imported) bool {
	for _, l := range im.LeftOut {
		for _, f := range l.Fields {
			if strings.HasSuffix(f, secret.Unsigned) {
				return true
			}
		}
	}
	_, err := im.Tree.Lookup(".git")
	return err == nil && e.gitSettings(c).Signs
}

// forkSpec is what a cell beside its parent is made of: its mounts are those of the parent,
// with layers of its own in the places that can be written.
func (e *Engine) forkSpec(c *state.Cell, p workspace.Provider) (spec cell.Spec, err error) {
	mounts := slices.Clone(c.Setup.Mounts)
	for i := range mounts {
		m := &mounts[i]
		switch {
		case m.Role == cell.RoleWorkspace:
			*m = workspaceMount(c, p, m)
		case m.Role == cell.RoleHome:
			*m = ownMount(m, p, c.Home, "")
		case m.Role == cell.RoleTmp:
			*m = ownMount(m, p, c.Tmp, "")
		case m.Kind == cell.Cache:
			m.Upper = cache.Upper(e.private(c.ID), c.Roots, m.Target)
			if c.Roots > 0 { // a branch that was given up has left one that was mounted
				if err := workspace.RemoveTree(m.Upper); err != nil {
					return spec, err
				}
			}
		}
	}
	if err := e.layImage(c, mounts); err != nil {
		return spec, err
	}
	if err := durable.Full(e.govern.CopyTalk(c, mounts)); err != nil {
		return spec, err
	}
	return e.spec(c, mounts), nil
}

// overlays are the writable layers over a cell's image and caches, by where they are
// seen.
func (e *Engine) overlays(c *state.Cell) map[string]string {
	list := map[string]string{}
	for i := range c.Setup.Mounts {
		switch m := &c.Setup.Mounts[i]; {
		case m.Kind == cell.Cache:
			list[m.Target] = filepath.Join(cache.Upper(e.private(c.ID), c.Roots, m.Target), "fs")
		case m.Role == cell.RoleImage && m.Kind == cell.Overlay:
			list[m.Target], _ = e.rootLayer(c, m.Target)
		}
	}
	return list
}

// clearOverlays drops what a cell at rest wrote over its image and caches.
func (e *Engine) clearOverlays(c *state.Cell) error {
	if err := e.caches.Clear(c.ID); err != nil {
		return err
	}
	return workspace.RemoveTree(filepath.Join(e.private(c.ID), numbered(rootFolder, c.Roots)))
}
