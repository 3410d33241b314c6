package image

import (
	"path"
	"strings"
)

// Bounds on what is looked at of one plan.
const (
	maxPath     = 128 // directories in PATH
	maxScan     = 512 // maximum of programs in them that are searched for their interpreters
	maxChain    = 6   // interpreters of interpreters
	shebangSize = 256 // the kernel's bound
)

// toolchains makes the programs on PATH and the command's reachable.
func (p *planner) toolchains() {
	if len(p.path) > maxPath {
		p.path = p.path[:maxPath]
	}
	for _, dir := range p.path {
		p.pathDir(dir)
	}
	p.scan("/etc/alternatives", false)
	for i := range managers {
		p.managerByProgram(&managers[i])
	}
	p.command()
}

// pathDir makes one directory of PATH usable.
func (p *planner) pathDir(dir string) {
	if p.looked[dir] || p.foreign(dir) {
		return
	}
	p.looked[dir] = true
	pl := p.t.resolve(dir)
	if !pl.isDir() || within("/etc", pl.path) {
		return
	}
	m, _, _ := p.managerOf(dir, pl)
	if refused := p.install(dir); refused != "" {
		p.note(dir, "is on PATH and not in the cell: "+refused, p.mountFix(dir))
		return
	}
	switch {
	case p.inSource(pl.path):
	case isSystem(pl.path):
		p.scan(pl.path, within("/usr/local", pl.path))
	case m == nil || m.loose:
		p.scan(pl.path, true)
	}
}

// foreign reports whether a directory of PATH holds programs that can't work
// in any cell: Windows' (shared by WSL), snaps, and those that talk to an
// editor on the host.
func (p *planner) foreign(dir string) bool {
	if within("/snap", dir) || within("/var/lib/snapd", dir) || strings.Contains(dir, "/.vscode") || strings.Contains(dir, "/.cursor-server") {
		return true
	}
	if p.env["WSL_DISTRO_NAME"] == "" && p.env["WSL_INTEROP"] == "" {
		return false
	}
	rest, ok := strings.CutPrefix(dir, "/mnt/")
	return ok && (len(rest) == 1 || len(rest) > 1 && rest[1] == '/')
}

// scan follows what lies in a directory of programs and leads out of it:
// symlinks, and with files also the interpreters of scripts.
func (p *planner) scan(dir string, files bool) {
	for _, l := range p.linksOut(dir) {
		if p.scanned++; p.scanned > maxScan {
			return
		}
		p.program(join(dir, l.name), 0)
	}
	if !files {
		return
	}
	for _, e := range p.t.list(dir) {
		if !e.mode.IsRegular() {
			continue
		}
		if p.scanned++; p.scanned > maxScan {
			return
		}
		p.interpreter(join(dir, e.name), 0)
	}
}

// linksOut returns the symlinks in dir that lead outside of it and of the system
// directories.
func (p *planner) linksOut(dir string) []entry {
	return remember("links out", p.t.disk(dir), p.t.lstat(dir), func() (out []entry) {
		for _, e := range p.t.list(dir) {
			if e.text == "" {
				continue
			}
			to := e.text
			if !path.IsAbs(to) {
				to = join(dir, to)
			}
			if to = path.Clean(to); !isSystem(to) && !within("/etc", to) && !within(dir, to) {
				out = append(out, e)
			}
		}
		return out
	})
}

// program makes the program at the path usable, with its interpreters. It
// says why not if it can't.
func (p *planner) program(at string, depth int) (refused string) {
	if p.looked[at] || depth > maxChain {
		return ""
	}
	p.looked[at] = true
	pl := p.t.resolve(at)
	if !pl.isProgram() {
		return ""
	}
	if refused := p.install(at); refused != "" {
		return refused
	}
	return p.interpreter(pl.path, depth)
}

// interpreter makes what the script at the path names in its first line
// usable.
func (p *planner) interpreter(at string, depth int) (refused string) {
	words := p.shebang(at)
	if len(words) == 0 || depth > maxChain {
		return ""
	}
	if p.inSource(at) { // the source names it
		p.lead(at, p.t.resolve(words[0]))
		return ""
	}
	refused = p.program(words[0], depth+1)
	if path.Base(words[0]) != "env" {
		return refused
	}
	if name := envProgram(words[1:]); name != "" && refused == "" {
		if found := p.lookupOwn(name); found != "" {
			refused = p.program(found, depth+1)
		}
	}
	return refused
}

// shebang returns the words of a script's first line, nil for other files.
func (p *planner) shebang(at string) []string {
	i := p.t.lstat(at)
	if !i.isProgram() || i.size < 4 {
		return nil
	}
	return remember("shebang", p.t.disk(at), i, func() []string {
		line, ok := strings.CutPrefix(p.t.head(at, shebangSize), "#!")
		if !ok {
			return nil
		}
		line, _, _ = strings.Cut(line, "\n")
		words := strings.Fields(line)
		if len(words) == 0 || !path.IsAbs(words[0]) {
			return nil
		}
		return words
	})
}

// envProgram returns the program that env(1) with these arguments executes.
func envProgram(args []string) string {
	for _, a := range args {
		if rest, ok := strings.CutPrefix(a, "-S"); ok && rest != "" {
			return rest
		}
		if strings.HasPrefix(a, "-") || strings.Contains(a, "=") {
			continue
		}
		return a
	}
	return ""
}

// lookup finds a program by name in the caller's PATH, "" if there is none.
func (p *planner) lookup(name string) string { return p.lookFor(name, true) }

// lookupOwn is lookup without what lies in the source: what the source has is
// no reason to show anything of the host.
func (p *planner) lookupOwn(name string) string { return p.lookFor(name, false) }

func (p *planner) lookFor(name string, inSource bool) string {
	key := name
	if !inSource {
		key = "\x00" + name
	}
	if found, ok := p.found[key]; ok {
		return found
	}
	found := ""
	for _, dir := range p.path {
		pl := p.t.resolve(dir)
		if !pl.isDir() || p.foreign(dir) || !inSource && (p.inSource(pl.path) || p.redirected(pl)) || !p.names(pl.path)[name] {
			continue
		}
		if at := join(dir, name); p.t.resolve(at).isProgram() {
			found = at
			break
		}
	}
	p.found[key] = found
	return found
}

func (p *planner) names(dir string) map[string]bool {
	return remember("names", p.t.disk(dir), p.t.lstat(dir), func() map[string]bool {
		names := map[string]bool{}
		for _, e := range p.t.list(dir) {
			names[e.name] = true
		}
		return names
	})
}

// managerByProgram mounts what a manager's own program needs, if that program
// is on PATH.
func (p *planner) managerByProgram(m *manager) {
	for _, name := range m.programs {
		if p.lookupOwn(name) == "" {
			continue
		}
		for dir, row := range p.rows {
			if row != m || !p.t.resolve(dir).isDir() || p.refuseRedirected(p.t.resolve(dir)) != "" {
				continue
			}
			p.showParts(m.always(p.t.resolve(dir).path), "toolchain "+m.name)
			p.link(p.t.resolve(dir))
		}
		return
	}
}

// command makes the program of the command reachable, and says so if it is
// not.
func (p *planner) command() {
	if len(p.req.Command) == 0 {
		return
	}
	name := p.req.Command[0]
	at := name
	if !strings.Contains(name, "/") {
		at = p.lookup(name)
	} else if !path.IsAbs(name) {
		at = orElse(p.req.Workdir, p.workdir) + "/" + name // not cleaned: ".." after a symlink is the kernel's
	}
	if at == "" {
		return // LookPath says it when it is needed
	}
	if p.req.Confined && strings.Contains(name, "/") {
		if at = path.Clean(at); !isSystem(at) {
			return // the cell has it or not
		}
	}
	p.looked[at] = false // also when it was scanned: now a refusal matters
	pl := p.t.resolve(at)
	if path.Base(pl.path) == "snap" && isSystem(pl.path) && path.Base(at) != "snap" {
		p.note(name, "is a snap: snaps can't run in a cell", "install "+name+" without snap")
		return
	}
	if refused := p.program(at, 0); refused != "" {
		p.note(name, "is not wholly in the cell: "+refused, p.mountFix(pl.path))
	}
}
