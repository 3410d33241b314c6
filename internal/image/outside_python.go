package image

import (
	"encoding/json"
	"net/url"
	"path"
	"regexp"
	"strings"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
)

// maxDistributions bounds how many packages of an environment are asked
// whether they are editable.
const maxDistributions = 1000

// venv shows what the virtual environment in dir needs from outside: the
// interpreter it was made with, and what is installed in it as a link. With
// ofProject the source says so: then what it needs is only named.
func (p *planner) venv(dir string, ofProject bool) {
	if p.looked["venv "+dir] {
		return
	}
	p.looked["venv "+dir] = true
	cfg := join(dir, "pyvenv.cfg")
	var bases []string
	for line := range strings.Lines(p.t.text(cfg, maxManifest)) {
		k, v, _ := strings.Cut(line, "=")
		v = strings.TrimSpace(v)
		if !path.IsAbs(v) {
			continue
		}
		switch strings.TrimSpace(k) {
		case "home":
			bases = append(bases, join(path.Clean(v), "python3"))
		case "executable", "base-executable":
			bases = append(bases, path.Clean(v))
		}
	}
	for _, name := range []string{"python", "python3"} {
		at := join(dir, "bin/"+name)
		if p.t.lstat(at).isSymlink() {
			if pl := p.t.resolve(at); !pl.exists() {
				p.note(p.rel(at), "leads to "+pl.path+", which does not exist", "")
			} else {
				bases = append(bases, at)
			}
		}
	}
	for _, at := range bases {
		p.python(cfg, at, ofProject)
	}
	for _, lib := range p.t.list(join(dir, "lib")) {
		if lib.mode.IsDir() && (strings.HasPrefix(lib.name, "python") || strings.HasPrefix(lib.name, "pypy")) {
			p.sitePackages(join(dir, "lib/"+lib.name+"/site-packages"), ofProject)
		}
	}
}

// python shows an interpreter that the file from names.
func (p *planner) python(from, at string, ofProject bool) {
	pl := p.t.resolve(at)
	if !pl.isProgram() || p.inSource(pl.path) {
		return
	}
	if ofProject {
		if p.shown(pl.path) {
			p.link(pl)
			return
		}
		fix := ""
		if parts, _ := p.installParts(pl.path, pl); len(parts) > 0 {
			fix = p.mountFix(parts[0].path)
		}
		p.outsider(from, pl, "names the interpreter "+pl.path+", outside the source", orElse(fix, p.mountFix(pl.path)))
		return
	}
	if refused := p.install(at); refused != "" {
		p.note(p.rel(from), "names the interpreter "+pl.path+", which is not in the cell: "+refused, p.mountFix(pl.path))
	}
}

func orElse(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// sitePackages follows what is installed as a link: path files, editable
// installs of all three kinds.
func (p *planner) sitePackages(dir string, ofProject bool) {
	i := p.t.lstat(dir)
	if !i.isDir() {
		return
	}
	for _, to := range remember("site-packages", p.t.disk(dir), i, func() []string { return p.siteLeads(dir) }) {
		pl := p.t.resolve(to)
		switch {
		case ofProject:
			p.lead(dir, pl)
		case !pl.exists() || p.inSource(pl.path):
		case p.isPersonal(pl.path):
			// The caller's own tools: their parts may lie in hidden directories.
			p.showParts([]part{{pl.path, cell.Bind}}, linkedFrom+dir)
		default:
			p.data(dir, pl)
		}
	}
}

var quotedPath = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`['"](/[^'"\n]+)['"]`)
})

// siteLeads returns the absolute paths that the files in a site-packages
// directory name.
func (p *planner) siteLeads(dir string) (out []string) {
	add := func(to string) {
		if to = strings.TrimSpace(to); to == "" {
			return
		}
		if !path.IsAbs(to) {
			to = join(dir, to)
		}
		if to = path.Clean(to); !within(dir, to) {
			out = append(out, to)
		}
	}
	dists := 0
	for _, e := range p.t.list(dir) {
		at := join(dir, e.name)
		switch {
		case e.mode.IsRegular() && strings.HasSuffix(e.name, ".pth"):
			for line := range strings.Lines(string(p.t.read(at, maxManifest))) {
				if !strings.HasPrefix(line, "import ") && !strings.HasPrefix(line, "import\t") && !strings.HasPrefix(line, "#") {
					add(line)
				}
			}
		case e.mode.IsRegular() && strings.HasSuffix(e.name, ".egg-link"):
			first, _, _ := strings.Cut(string(p.t.read(at, maxManifest)), "\n")
			add(first)
		case e.mode.IsRegular() && strings.HasPrefix(e.name, "__editable__") && strings.HasSuffix(e.name, ".py"):
			for _, m := range quotedPath().FindAllStringSubmatch(string(p.t.read(at, maxManifest)), -1) {
				add(m[1])
			}
		case e.mode.IsDir() && strings.HasSuffix(e.name, ".dist-info") && dists < maxDistributions:
			dists++
			if to := editableOf(p.t.read(join(at, "direct_url.json"), maxManifest)); to != "" {
				add(to)
			}
		}
	}
	return out
}

// editableOf returns the directory that a direct_url.json names as an
// editable install (PEP 610), "" for any other.
func editableOf(b []byte) string {
	var d struct {
		URL string `json:"url"`
		Dir struct {
			Editable bool `json:"editable"`
		} `json:"dir_info"`
	}
	if b == nil || json.Unmarshal(b, &d) != nil || !d.Dir.Editable {
		return ""
	}
	u, err := url.Parse(d.URL)
	if err != nil || u.Scheme != "file" || (u.Host != "" && u.Host != "localhost") {
		return ""
	}
	return u.Path
}
