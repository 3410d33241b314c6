package image

import (
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// systemTops are the directories beside /usr that belong to it: links into it
// on a merged system, else directories of their own.
var systemTops = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// base adds what every cell has of the system: /usr, the directories that
// are links into it, and empty places for what programs write. /proc and /dev
// are the backend's; /srv, /mnt, /media and /sys are not there.
func (p *planner) base() error {
	usr := p.t.resolve("/usr")
	if !usr.isDir() {
		return cell.Errorf(cell.Unsupported, "image.Host", "use --image dir:PATH or --image oci:REF", "cannot make a root file system: this host has no /usr")
	}
	for _, s := range p.g.state {
		if within("/usr", s) {
			return cell.Errorf(cell.Unsupported, "image.Host", "set PANDO_HOME to a directory outside /usr", "cannot make a root file system: pando's own state lies in %s", s)
		}
	}
	p.system("/usr", usr)
	for _, e := range p.t.list("/") {
		if !slices.Contains(systemTops, e.name) {
			continue
		}
		at := "/" + e.name
		pl := p.t.resolve(at)
		switch {
		case !pl.isDir():
		case pl.path == at:
			p.system(at, pl)
		case p.shown(pl.path) || p.mountSystem(pl):
			p.link(pl)
		}
	}
	p.slots["/var/tmp"] = slot{Mount: cell.Mount{Kind: cell.Tmpfs, Target: "/var/tmp", Why: "temporary files"}}
	p.slots["/run"] = slot{Mount: cell.Mount{Kind: cell.Tmpfs, Target: "/run", Why: "empty"}}
	for at, to := range map[string]string{"/var/run": "/run", "/var/lock": "/run/lock"} {
		p.slots[at] = slot{Mount: cell.Mount{Kind: cell.Link, Target: at, Source: to, Why: "as on the host"}}
	}
	return nil
}

func (p *planner) system(at string, pl place) {
	p.slots[at] = slot{own: pl.path == at, Mount: cell.Mount{
		Kind: cell.Bind, Target: at, Source: p.t.disk(pl.path), ReadOnly: true, Why: "system",
	}}
}

// mountSystem shows where a directory of the system really lies, on hosts
// that keep it somewhere else (NixOS).
func (p *planner) mountSystem(pl place) bool {
	m, root, _ := p.managerOf("", pl)
	if m == nil {
		return false
	}
	return p.mount(p.t.resolve(root), cell.Bind, "system") == ""
}

// isSystem reports whether a path lies where the base puts the host's own
// directories.
func isSystem(at string) bool {
	if within("/usr", at) {
		return true
	}
	top, _, _ := strings.Cut(at[1:], "/")
	return slices.Contains(systemTops, top)
}
