package image

import (
	"path"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// gitDir shows the git directory of a linked worktree or a submodule, and the
// object stores that a repository borrows from. Each must be what it claims:
// a git directory that names this worktree, or a directory of objects.
func (p *planner) gitDir(at string, isDir bool) {
	dir := at
	if !isDir {
		to, ok := strings.CutPrefix(strings.TrimSpace(p.t.text(at, 1<<16)), "gitdir:")
		if !ok {
			return
		}
		if to = strings.TrimSpace(to); !path.IsAbs(to) {
			to = join(path.Dir(at), to)
		}
		pl := p.t.resolve(to)
		if within(p.source, pl.path) {
			return
		}
		if dir = p.repository(at, pl); dir == "" {
			return
		}
	}
	p.alternates(at, join(dir, "objects/info/alternates"))
}

// repository mounts the git directory pl of the worktree whose .git file is
// at, and returns the directory that holds its objects.
func (p *planner) repository(at string, pl place) string {
	if !pl.isDir() {
		p.note(p.rel(at), "names the git directory "+pl.path+", which does not exist", "")
		return ""
	}
	common := pl
	if to := strings.TrimSpace(p.t.text(join(pl.path, "commondir"), 1<<16)); to != "" {
		if !path.IsAbs(to) {
			to = join(pl.path, to)
		}
		common = p.t.resolve(to)
	}
	isRepo := p.t.lstat(join(common.path, "objects")).isDir() && p.t.lstat(join(common.path, "HEAD")).isFile()
	if !isRepo || !p.pointsBack(at, pl) {
		p.note(p.rel(at), "names "+pl.path+", which is not this worktree's git directory", p.mountFix(pl.path))
		return ""
	}
	for _, d := range []place{common, pl} {
		if p.shown(d.path) {
			p.link(d)
			continue
		}
		if refused := p.show(d.path, cell.Bind, "git directory"); refused != "" {
			p.note(p.rel(at), "names the git directory "+d.path+", which is not in the cell: "+refused, p.mountFix(d.path))
			return ""
		}
	}
	p.link(pl)
	for _, config := range []string{join(common.path, "config"), join(pl.path, "config.worktree")} {
		if hasSecret(p.t.text(config, maxManifest)) {
			p.slots[config] = slot{cover: true, Mount: cell.Mount{Kind: cell.Bind, Target: config, Source: p.empty, ReadOnly: true, Why: "hidden"}}
			p.note(config, "is empty in the cell: it holds what looks like a password", "")
		}
	}
	return common.path
}

// pointsBack reports whether the git directory says that it belongs to the
// worktree whose .git file is at.
func (p *planner) pointsBack(at string, dir place) bool {
	if to := strings.TrimSpace(p.t.text(join(dir.path, "gitdir"), 1<<16)); to != "" {
		if !path.IsAbs(to) {
			to = join(dir.path, to)
		}
		return p.t.resolve(to).path == at
	}
	for line := range strings.Lines(p.t.text(join(dir.path, "config"), maxManifest)) {
		k, v, ok := strings.Cut(line, "=")
		if !ok || strings.TrimSpace(strings.ToLower(k)) != "worktree" {
			continue
		}
		if v = strings.Trim(strings.TrimSpace(v), `"`); !path.IsAbs(v) {
			v = join(dir.path, v)
		}
		return p.t.resolve(v).path == path.Dir(at)
	}
	return false
}

// alternates shows the object stores that a repository borrows from.
func (p *planner) alternates(from, file string) {
	objects := path.Dir(path.Dir(file))
	for line := range strings.Lines(p.t.text(file, 1<<16)) {
		to := strings.TrimSpace(line)
		if to == "" || to[0] == '#' {
			continue
		}
		if !path.IsAbs(to) {
			to = join(objects, to)
		}
		pl := p.t.resolve(to)
		if within(p.source, pl.path) || !pl.exists() {
			continue
		}
		isStore := path.Base(pl.path) == "objects" && p.t.lstat(join(pl.path, "pack")).isDir()
		if !isStore {
			p.note(p.rel(from), "borrows from "+pl.path+", which is no store of git objects", p.mountFix(pl.path))
			continue
		}
		if refused := p.show(pl.path, cell.Bind, "git objects"); refused != "" {
			p.note(p.rel(from), "borrows from "+pl.path+", which is not in the cell: "+refused, p.mountFix(pl.path))
		}
	}
}
