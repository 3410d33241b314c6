package finding

import (
	"encoding/json"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2"
	"golang.org/x/mod/modfile"

	"github.com/pando-dev/pando/api"
)

// A manifest is what a file says of dependencies.
type manifest struct {
	wants    map[string]string // by name, the version or the place
	prepares map[string]string // by name, what runs when the project itself is prepared
	fetched  map[string]string // by name, where it comes from if not from the registry by its name
	scripts  map[string]string // by name, what runs at installation
	unparsed bool
}

func newManifest() *manifest {
	return &manifest{wants: map[string]string{}, prepares: map[string]string{}, fetched: map[string]string{}, scripts: map[string]string{}}
}

// readers read files that say dependencies, by their names.
var readers = map[string]func([]byte) *manifest{
	"package.json": packageJSON, "package-lock.json": packageLock, "npm-shrinkwrap.json": packageLock,
	"go.mod": goMod, "Cargo.toml": cargoTOML, "Cargo.lock": lockTOML, "pyproject.toml": pyproject, "poetry.lock": lockTOML, "uv.lock": lockTOML,
	"yarn.lock": yarnLock, "pnpm-lock.yaml": pnpmLock,
}

func readerOf(p string) func([]byte) *manifest {
	base := path.Base(p)
	if r := readers[base]; r != nil {
		return r
	}
	if strings.HasPrefix(base, "requirements") && strings.HasSuffix(base, ".txt") || base == "constraints.txt" {
		return requirements
	}
	return nil
}

// isLock reports whether a file says what was chosen, and not what is wanted.
func isLock(p string) bool {
	switch path.Base(p) {
	case "package-lock.json", "npm-shrinkwrap.json", "Cargo.lock", "poetry.lock", "uv.lock", "yarn.lock", "pnpm-lock.yaml", "go.sum":
		return true
	}
	return false
}

// elsewhere reports whether a version of npm's is a place, and no version: "git+https://…", "file:../x", "user/repo".
func elsewhere(v string) bool {
	switch {
	case strings.HasPrefix(v, "workspace:"), strings.HasPrefix(v, "catalog:"):
		return false
	case strings.HasPrefix(v, "link:"), strings.HasPrefix(v, "file:"), strings.HasPrefix(v, "portal:"):
		_, at, _ := strings.Cut(v, ":")
		return strings.HasPrefix(at, "/") || strings.Contains(at, "../") || strings.Contains(at, "://")
	case strings.Contains(v, "://"), strings.HasPrefix(v, "git@"), strings.HasPrefix(v, "github:"), strings.HasPrefix(v, "gitlab:"), strings.HasPrefix(v, "bitbucket:"), strings.HasPrefix(v, "gist:"):
		return true
	}
	owner, repo, is := strings.Cut(v, "/")
	return is && owner != "" && repo != "" && !strings.ContainsAny(v, " <>=^~|*")
}

func packageJSON(b []byte) *manifest {
	var p struct {
		Dependencies, DevDependencies, OptionalDependencies, PeerDependencies map[string]any
		Scripts                                                               map[string]any
	}
	m := newManifest()
	if json.Unmarshal(b, &p) != nil {
		m.unparsed = true
		return m
	}
	for _, list := range []map[string]any{p.Dependencies, p.DevDependencies, p.OptionalDependencies, p.PeerDependencies} {
		for name, v := range list {
			text, _ := v.(string)
			m.wants[name] = text
			if of, is := strings.CutPrefix(text, "npm:"); is { // another package of the registry, by a name of the project's own
				of, _, _ = strings.Cut(strings.TrimPrefix(of, "@"), "@")
				if !strings.Contains(name, path.Base(of)) {
					m.fetched[name] = text
				}
			} else if elsewhere(text) {
				m.fetched[name] = text
			}
		}
	}
	for name, into := range map[string]map[string]string{"preinstall": m.scripts, "install": m.scripts, "postinstall": m.scripts,
		"preprepare": m.prepares, "prepare": m.prepares, "postprepare": m.prepares, "prepublish": m.prepares, "prepublishOnly": m.prepares, "prepack": m.prepares, "postpack": m.prepares} {
		if text, _ := p.Scripts[name].(string); text != "" {
			into[name] = text
		}
	}
	return m
}

// npmHosts are the registries that npm's names mean.
var npmHosts = []string{"registry.npmjs.org", "registry.yarnpkg.com"}

func packageLock(b []byte) *manifest {
	var p struct {
		Packages map[string]struct {
			Version, Resolved string
			HasInstallScript  bool
			Link              bool
		}
	}
	m := newManifest()
	if json.Unmarshal(b, &p) != nil {
		m.unparsed = true
		return m
	}
	for at, pkg := range p.Packages {
		i := strings.LastIndex(at, "node_modules/")
		if i < 0 {
			continue
		}
		name := at[i+len("node_modules/"):]
		m.wants[name] = pkg.Version
		if u, err := url.Parse(pkg.Resolved); pkg.Resolved != "" && !pkg.Link && (err != nil || u.Scheme != "https" || !slices.Contains(npmHosts, u.Host)) {
			m.fetched[name] = pkg.Resolved
		}
		if pkg.HasInstallScript {
			m.scripts[name+"@"+pkg.Version] = "the package's own"
		}
	}
	return m
}

func goMod(b []byte) *manifest {
	m := newManifest()
	f, err := modfile.Parse("go.mod", b, nil)
	if err != nil {
		m.unparsed = true
		return m
	}
	for _, r := range f.Require {
		m.wants[r.Mod.Path] = r.Mod.Version
	}
	for _, r := range f.Replace {
		m.fetched[r.Old.Path] = strings.TrimSpace(r.New.Path + " " + r.New.Version)
	}
	return m
}

// table is a table of TOML; nil if v is none.
func table(v any, names ...string) map[string]any {
	for _, n := range names {
		t, _ := v.(map[string]any)
		v = t[n]
	}
	t, _ := v.(map[string]any)
	return t
}

func cargoTOML(b []byte) *manifest {
	m := newManifest()
	var doc map[string]any
	if toml.Unmarshal(b, &doc) != nil {
		m.unparsed = true
		return m
	}
	tables := []map[string]any{doc, table(doc, "workspace")}
	for _, t := range table(doc, "target") {
		tables = append(tables, table(t))
	}
	for _, t := range tables {
		for _, section := range []string{"dependencies", "dev-dependencies", "build-dependencies"} {
			for name, v := range table(t, section) {
				m.dependency(name, v)
			}
		}
	}
	for _, registry := range table(doc, "patch") {
		for name, v := range table(registry) {
			m.dependency(name, v)
		}
	}
	return m
}

// dependency adds one of Cargo's or Poetry's: a version, or a table.
func (m *manifest) dependency(name string, v any) {
	if text, is := v.(string); is {
		m.wants[name] = text
		return
	}
	t := table(v)
	version, _ := t["version"].(string)
	m.wants[name] = version
	for _, key := range []string{"git", "url", "registry-index", "path"} {
		if at, _ := t[key].(string); at != "" && (key != "path" || strings.HasPrefix(at, "../") || path.IsAbs(at)) {
			m.fetched[name] = at
		}
	}
}

// lockTOML reads the locks of Cargo, Poetry and uv: a list of packages.
func lockTOML(b []byte) *manifest {
	m := newManifest()
	var doc struct {
		Package []struct {
			Name, Version string
			Source        any
		}
	}
	if toml.Unmarshal(b, &doc) != nil {
		m.unparsed = true
		return m
	}
	for _, p := range doc.Package {
		m.wants[p.Name] = p.Version
		at, _ := p.Source.(string)
		for _, key := range []string{"url", "git", "registry"} {
			if text, _ := table(p.Source)[key].(string); text != "" {
				at = text
			}
		}
		if at != "" && !strings.Contains(at, "://github.com/rust-lang/crates.io-index") && !strings.Contains(at, "://index.crates.io") && at != "https://pypi.org/simple" {
			m.fetched[p.Name] = at
		}
	}
	return m
}

func pyproject(b []byte) *manifest {
	m := newManifest()
	var doc map[string]any
	if toml.Unmarshal(b, &doc) != nil {
		m.unparsed = true
		return m
	}
	lists := []any{table(doc, "project")["dependencies"]}
	for _, v := range table(doc, "project", "optional-dependencies") {
		lists = append(lists, v)
	}
	for _, v := range table(doc, "dependency-groups") {
		lists = append(lists, v)
	}
	lists = append(lists, table(doc, "build-system")["requires"])
	for _, l := range lists {
		items, _ := l.([]any)
		for _, item := range items {
			if text, _ := item.(string); text != "" {
				m.requirement(text)
			}
		}
	}
	for name, v := range table(doc, "tool", "poetry", "dependencies") {
		m.dependency(name, v)
	}
	for name, v := range table(doc, "tool", "uv", "sources") {
		m.dependency(name, v)
	}
	return m
}

var requirementName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*`) })

// requirement adds one in the form of PEP 508: "name[extra] >=1; marker", "name @ https://…".
func (m *manifest) requirement(text string) {
	name := requirementName().FindString(text)
	if name == "" {
		return
	}
	name = strings.ToLower(name)
	version, _, _ := strings.Cut(text[len(name):], ";")
	m.wants[name] = strings.TrimSpace(version)
	if _, at, is := strings.Cut(text, "@ "); is {
		m.fetched[name] = strings.TrimSpace(at)
	}
}

func requirements(b []byte) *manifest {
	m := newManifest()
	for l := range strings.Lines(string(b)) {
		l = strings.TrimSpace(l)
		switch {
		case l == "", strings.HasPrefix(l, "#"):
		case strings.HasPrefix(l, "-e "), strings.HasPrefix(l, "--editable"), strings.Contains(l, "://") && !strings.HasPrefix(l, "-"):
			m.wants[l], m.fetched[l] = l, l
			m.requirement(l)
		case strings.HasPrefix(l, "--index-url"), strings.HasPrefix(l, "-i "), strings.HasPrefix(l, "--extra-index-url"), strings.HasPrefix(l, "--find-links"), strings.HasPrefix(l, "-f "), strings.HasPrefix(l, "--trusted-host"):
			m.fetched[l] = "all packages"
		case strings.HasPrefix(l, "-"):
		default:
			m.requirement(l)
		}
	}
	return m
}

var (
	yarnName     = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^"?((?:@[^@/"]+/)?[^@"]+)@`) })
	yarnResolved = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\s+resolved "([^"]+)"`) })
	pnpmPackage  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^  '?/?((?:@[^@/']+/)?[^@/'(:]+)@([^:'(]+)`) })
	pnpmTarball  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\btarball: ([^,}\s]+)`) })
)

// yarnLock reads the locks of Yarn 1; those of later ones have no places.
func yarnLock(b []byte) *manifest {
	m, name := newManifest(), ""
	for l := range strings.Lines(string(b)) {
		if g := yarnName().FindStringSubmatch(l); g != nil && l[0] != ' ' && l[0] != '#' {
			name = g[1]
			m.wants[name] = ""
		}
		if g := yarnResolved().FindStringSubmatch(l); g != nil && name != "" {
			if u, err := url.Parse(g[1]); err != nil || u.Scheme != "https" || !slices.Contains(npmHosts, u.Host) {
				m.fetched[name], _, _ = strings.Cut(g[1], "#")
			}
		}
	}
	return m
}

func pnpmLock(b []byte) *manifest {
	m, name := newManifest(), ""
	for l := range strings.Lines(string(b)) {
		if g := pnpmPackage().FindStringSubmatch(l); g != nil {
			name = g[1]
			m.wants[name] = g[2]
		}
		if g := pnpmTarball().FindStringSubmatch(l); g != nil && name != "" {
			if u, err := url.Parse(g[1]); err != nil || !slices.Contains(npmHosts, u.Host) {
				m.fetched[name] = g[1]
			}
		}
	}
	return m
}

// manifests goes through the changed files that say dependencies, as they were and are.
func (e *Evidence) manifests(do func(c *api.FileChange, was, is *manifest)) {
	for i := range e.Changed {
		c := &e.Changed[i]
		read := readerOf(c.Path)
		if read == nil || c.Status == "deleted" || within(c.Path, "node_modules") {
			continue
		}
		after := e.after(c)
		if !text(after) {
			continue
		}
		was := newManifest()
		if before := e.before(c); text(before) {
			was = read(before)
		}
		do(c, was, read(after))
	}
}

// within reports whether a path is in a folder of this name.
func within(p, folder string) bool { return strings.Contains("/"+path.Dir(p)+"/", "/"+folder+"/") }

// newOnes are the names in is that are not in was, or are something else there.
func newOnes(was, is map[string]string, same bool) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(is)) {
		if v, had := was[name]; !had || !same && v != is[name] {
			names = append(names, name)
		}
	}
	return names
}

func dependencyAdded(e *Evidence, f *found) {
	said := map[string]bool{}
	tell := func(c *api.FileChange, was, is *manifest) {
		if was.unparsed || is.unparsed || c.Status == "added" && isLock(c.Path) {
			return
		}
		for _, name := range newOnes(was.wants, is.wants, true) {
			if !said[name] {
				said[name] = true
				f.at(c.Path, 0, "%s %s", clip(name), clip(is.wants[name]))
			}
		}
	}
	for _, lock := range []bool{false, true} { // what is wanted by name comes first, and then what came with it
		e.manifests(func(c *api.FileChange, was, is *manifest) {
			if isLock(c.Path) == lock {
				tell(c, was, is)
			}
		})
	}
}

func dependencySource(e *Evidence, f *found) {
	e.manifests(func(c *api.FileChange, was, is *manifest) {
		for _, name := range newOnes(was.fetched, is.fetched, false) {
			if c.Status == "added" && isLock(c.Path) && !strings.Contains(is.fetched[name], "git") {
				continue // the first lock of a project with a registry of its own
			}
			f.at(c.Path, 0, "%s: %s", clip(name), clip(is.fetched[name]))
		}
	})
}

func installScript(e *Evidence, f *found) {
	e.scripts(f, func(m *manifest) map[string]string { return m.scripts })
}

func prepareScript(e *Evidence, f *found) {
	e.scripts(f, func(m *manifest) map[string]string { return m.prepares })
}

func (e *Evidence) scripts(f *found, of func(*manifest) map[string]string) {
	e.manifests(func(c *api.FileChange, was, is *manifest) {
		for _, name := range newOnes(of(was), of(is), false) {
			f.at(c.Path, 0, "%s: %s", clip(name), clip(of(is)[name]))
		}
	})
}

// lockDiffers compares manifests of npm and Go with their locks, where either changed.
func lockDiffers(e *Evidence, f *found) {
	done := map[string]bool{}
	for i := range e.Changed {
		c := &e.Changed[i]
		dir := path.Dir(c.Path)
		switch path.Base(c.Path) {
		case "package.json", "package-lock.json":
			if !done[dir] && !within(c.Path, "node_modules") {
				done[dir] = true
				e.npmDiffers(dir, f)
			}
		case "go.mod", "go.sum":
			if !done[dir] {
				done[dir] = true
				e.goDiffers(dir, f)
			}
		}
	}
}

func (e *Evidence) npmDiffers(dir string, f *found) {
	wanted, err := e.After(path.Join(dir, "package.json"), maxRead)
	if err != nil {
		return
	}
	at := path.Join(dir, "package-lock.json")
	lock, err := e.After(at, 16<<20)
	if err != nil {
		return
	}
	type root struct {
		Dependencies, DevDependencies, OptionalDependencies map[string]string
	}
	var has struct{ Packages map[string]root }
	var want root
	if json.Unmarshal(wanted, &want) != nil || json.Unmarshal(lock, &has) != nil || has.Packages == nil {
		return
	}
	got := has.Packages[""]
	for i, list := range []map[string]string{want.Dependencies, want.DevDependencies, want.OptionalDependencies} {
		locked := []map[string]string{got.Dependencies, got.DevDependencies, got.OptionalDependencies}[i]
		for _, name := range newOnes(locked, list, false) {
			f.at(at, 0, "%s is wanted as %q, and the lock was made for %q", clip(name), clip(list[name]), clip(locked[name]))
		}
		for _, name := range newOnes(list, locked, true) {
			f.at(at, 0, "%s is in the lock, and is not wanted", clip(name))
		}
	}
}

func (e *Evidence) goDiffers(dir string, f *found) {
	b, err := e.After(path.Join(dir, "go.mod"), maxRead)
	if err != nil {
		return
	}
	mod, err := modfile.Parse("go.mod", b, nil)
	if err != nil {
		return
	}
	sum, err := e.After(path.Join(dir, "go.sum"), 16<<20)
	if err != nil {
		sum = nil
	}
	has := map[string]bool{}
	for l := range strings.Lines(string(sum)) {
		if w := strings.Fields(l); len(w) == 3 {
			has[w[0]+" "+strings.TrimSuffix(w[1], "/go.mod")] = true
		}
	}
	replaced := map[string]bool{}
	for _, r := range mod.Replace {
		replaced[r.Old.Path] = true
	}
	for _, r := range mod.Require {
		if !replaced[r.Mod.Path] && !has[r.Mod.Path+" "+r.Mod.Version] {
			f.at(path.Join(dir, "go.sum"), 0, "%s %s has no line in it", clip(r.Mod.Path), r.Mod.Version)
		}
	}
}
