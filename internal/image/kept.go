package image

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// A kept cache is named: what commands write to its directories can be kept for later
// cells of the same source.

// kept are the names of the caches that can be kept, beside paths, and the stores that each is.
var kept = map[string][]string{
	"ccache": {"ccache"},
	"cargo":  {"cargo registry", "cargo git", "cargo target"},
	"go":     {"go modules", "go build"},
	"gradle": {"gradle", "gradle wrapper", "gradle native"},
	"maven":  {"maven", "maven wrapper"},
	"npm":    {"npm", "npm headers"},
	"pip":    {"pip"},
	"pnpm":   {storePNPM, "pnpm metadata"},
	"uv":     {"uv"},
	"yarn":   {"yarn", "yarn berry"},
}

// storePNPM is the store of pnpm, which it looks for beside the project if it is not told.
const storePNPM = "pnpm"

// KeptNames lists the names of the caches that can be kept.
func KeptNames() []string { return slices.Sorted(maps.Keys(kept)) }

// CheckKept checks the names of kept caches: one of KeptNames, or a clean path, absolute or
// below the home ("~/"). It returns them sorted, each once.
func CheckKept(names []string) ([]string, error) {
	var out []string
	for _, n := range names {
		at := strings.TrimPrefix(n, "~")
		if kept[n] == nil && (!path.IsAbs(at) || path.Clean(at) != at || at == "/" || strings.ContainsAny(n, ":\x00\n")) {
			return nil, cell.Errorf(cell.Invalid, "image.CheckKept", "name "+strings.Join(KeptNames(), ", ")+", or a path like ~/.cache/tool",
				"cannot keep cache %q: it is neither a known name nor a clean absolute path", cell.Clip(n))
		}
		out = append(out, n)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// keptDir is a directory of a kept cache.
type keptDir struct{ name, dir, label string }

// keptDirs lists the directories of the caches that are asked for, most of which the host has.
func (p *planner) keptDirs() (list []keptDir) {
	for _, name := range p.req.Caches {
		if kept[name] == nil {
			list = append(list, keptDir{name, p.expand(name), "cache"})
			continue
		}
		for _, s := range stores {
			if !slices.Contains(kept[name], s.name) {
				continue
			}
			dirs := s.dirs
			if v := p.setting(s.env); path.IsAbs(v) {
				dirs = []string{path.Join(v, s.sub)}
			}
			if len(dirs) == 0 {
				continue
			}
			at := p.expand(dirs[0])
			for _, d := range dirs {
				if d = p.expand(d); p.t.resolve(d).isDir() {
					at = d
					break
				}
			}
			list = append(list, keptDir{name, at, "cache " + s.name})
		}
	}
	return list
}

// keep shows the kept caches that are asked for, after caches: what the host has of them lies
// below.
func (p *planner) keep() error {
	for _, k := range p.keptDirs() {
		pl := p.t.resolve(k.dir)
		if why := p.refuseKept(k, pl); why != "" {
			return cell.Errorf(cell.Denied, "image.Host", "choose another directory for it", "cannot keep cache %s in %s: %s", k.name, k.dir, why)
		}
		p.link(pl)
		m := cell.Mount{Kind: cell.Cache, Target: pl.path, Owned: true, Why: k.label, Kept: k.name}
		own := pl.isDir()
		if own {
			m.Source = p.t.disk(pl.path)
		}
		p.slots[pl.path] = slot{own: own, asked: true, Mount: m}
		p.tellKept(k, pl.path)
	}
	return nil
}

// tellKept tells the tool of a cache where that is, if it would look elsewhere in a cell.
func (p *planner) tellKept(k keptDir, at string) {
	if k.label == "cache "+storePNPM {
		p.told = append(p.told, "npm_config_store_dir="+at, "pnpm_config_store_dir="+at)
	}
}

// tell adds what tools are told to an environment.
func (p *planner) tell(env map[string]string) {
	for _, kv := range p.told {
		if k, v, _ := strings.Cut(kv, "="); env[k] == "" {
			env[k] = v
		}
	}
}

// refuseKept says why a directory can't be a kept cache. Of the host it shows what a cache could show
// without being kept, or a path of the caller's what --mount could, and nothing else.
func (p *planner) refuseKept(k keptDir, pl place) string {
	if p.inSource(pl.path) || p.holdsSource(pl.path) {
		return "it is part of the source, or holds it"
	}
	if p.redirected(pl) {
		return "a symlink of the source leads there"
	}
	if why := p.refuseTarget(pl.path, pl); why != "" {
		return why
	}
	if s, ok := p.slots[pl.path]; ok && s.asked {
		return "--mount puts something else there"
	}
	switch {
	case !pl.exists():
		return p.g.refusePlace(pl)
	case !pl.isDir():
		return "it is no directory"
	case p.broad(pl.path):
		return "it holds more than a cache"
	}
	if kept[k.name] != nil { // the path is a tool's, or of a variable
		return p.g.refuseAuto(pl)
	}
	return p.refuseAsked(pl)
}

// keepIn is keep for another image: nothing of the host's caches is in it.
func (r *rooted) keepIn() error {
	for _, k := range r.keptDirs() {
		pl := r.in.resolve(k.dir)
		why := r.refuseTargetIn(pl.path)
		switch {
		case why != "":
		case slices.ContainsFunc(r.plan.Workspaces, func(w string) bool { return within(w, pl.path) || within(pl.path, w) }):
			why = "it is part of the workspace, or holds it"
		case pl.exists() && !pl.isDir():
			why = "it is no directory"
		case strings.Count(pl.path, "/") < 2:
			why = "it holds more than a cache"
		case r.slots[pl.path].asked:
			why = "--mount puts something else there"
		}
		if why != "" {
			return cell.Errorf(cell.Denied, "image.Rooted", "choose another directory for it", "cannot keep cache %s in %s: %s", k.name, k.dir, why)
		}
		r.slots[pl.path] = slot{asked: true, Mount: cell.Mount{Kind: cell.Cache, Target: pl.path, Owned: true, Why: k.label, Kept: k.name}}
		r.tellKept(k, pl.path)
	}
	return nil
}
