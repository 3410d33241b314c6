package image

import (
	"io/fs"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// A guard decides what of the host may be a mount's source (FAILURES H60).
type guard struct {
	t       *tree
	home    string      // without symlinks; "" if unknown
	homes   []string    // every directory that is known to be a home
	sources []string    // without symlinks
	state   []string    // pando's own, without symlinks
	places  []realPlace // existing places of secrets in the home
	alias   map[inode]string
}

type inode struct{ dev, ino uint64 }

// A realPlace is where a place of secrets really lies.
type realPlace struct {
	path string
	secretPlace
}

// systemPlaces belong to the host, with all that is below them. The user cannot share them
// with a cell.
var systemPlaces = []struct{ path, what string }{
	{"/etc", "the host's configuration"},
	{"/run", "the host's sockets"},
	{"/var/run", "the host's sockets"},
	{"/proc", "the host's processes"},
	{"/sys", "the host's devices"},
	{"/dev", "the host's devices"},
	{"/boot", "the host's kernel"},
	{"/lost+found", "the host's lost files"},
	{"/var/lib/docker", "a container engine's state"},
	{"/var/lib/containerd", "a container engine's state"},
	{"/var/lib/containers", "a container engine's state"},
	{"/var/lib/kubelet", "a cluster's secrets"},
	{"/var/lib/rancher", "a cluster's secrets"},
	{"/var/lib/pando", "pando's own state"},
	{"/var/spool/cron", "the host's configuration"},
	{"/var/lib/sudo", "the host's configuration"},
	{"/var/lib/sss", "the host's accounts"},
	{"/var/lib/lxc", "a container engine's state"},
	{"/var/lib/lxd", "a container engine's state"},
	{"/var/snap", "a container engine's state"},
	{"/var/lib/NetworkManager", "network passwords"},
	{"/var/lib/bluetooth", "keys of devices"},
}

func newGuard(t *tree, home string, sources, state []string) *guard {
	g := &guard{t: t, alias: map[inode]string{}}
	g.homes = []string{"/root"}
	for _, e := range t.list("/home") {
		if e.mode.IsDir() {
			g.homes = append(g.homes, "/home/"+e.name)
		}
	}
	if home != "" {
		pl := t.resolve(home)
		g.home = pl.path
		g.homes = append(g.homes, home, g.home)
		for _, s := range secretPlaces {
			if in := t.resolve(join(g.home, s.name)); in.exists() {
				g.places = append(g.places, realPlace{in.path, s})
				g.alias[inode{in.dev, in.ino}] = "a place of " + s.what
			}
		}
		for dir := g.home; ; dir = path.Dir(dir) {
			if i := t.lstat(dir); i.exists() {
				g.alias[inode{i.dev, i.ino}] = "the home directory or one above it"
			}
			if dir == "/" {
				break
			}
		}
	}
	for _, s := range sources {
		if s != "" {
			g.sources = append(g.sources, t.resolve(s).path)
		}
	}
	for _, s := range state {
		if s != "" {
			g.state = append(g.state, t.resolve(s).path)
		}
	}
	return g
}

// refuse says why pl may not be the source of any mount; "" is yes. It is the
// whole of H60: everything else that decides on mounts only refuses more.
func (g *guard) refuse(pl place) string {
	if why := g.refusePlace(pl); why != "" {
		return why
	}
	return g.refuseContent(pl)
}

// refusePlace decides by where pl lies and what it is under other names.
func (g *guard) refusePlace(pl place) string {
	p := pl.path
	if p == "/" {
		return "it is the whole host"
	}
	if g.home != "" && within(p, g.home) {
		return "it is the home directory or one above it"
	}
	for _, h := range g.homes {
		if strings.EqualFold(h, p) {
			return "it is a home directory"
		}
	}
	switch p {
	case "/home":
		return "it holds the home directories"
	case "/tmp", "/var/tmp":
		return "it holds files and sockets of the host's programs"
	}
	for _, s := range systemPlaces {
		if within(s.path, p) || below(p, s.path) {
			return "it is or holds a place of " + s.what
		}
	}
	if within("/root", p) && g.home != "" && !within("/root", g.home) {
		return "it lies in root's home directory"
	}
	for _, s := range g.state {
		if within(s, p) || within(p, s) {
			return "it is or holds pando's own state"
		}
	}
	if what := secretIn(p); what != "" {
		return "it is a place of " + what
	}
	for _, s := range g.places {
		if within(p, s.path) {
			return "it is or holds a place of " + s.what + ": " + s.path
		}
		if below(s.path, p) && !s.opens(p[len(s.path)+1:]) {
			return "it is a place of " + s.what
		}
	}
	if what, ok := g.alias[inode{pl.dev, pl.ino}]; ok && pl.exists() {
		return "under another name it is " + what
	}
	return ""
}

// refuseContent decides by what pl is and, for a directory, by what lies at
// its top.
func (g *guard) refuseContent(pl place) string {
	switch pl.mode & unix.S_IFMT {
	case unix.S_IFSOCK:
		return "it is a socket"
	case unix.S_IFBLK, unix.S_IFCHR:
		return "it is a device"
	case unix.S_IFIFO:
		return "it is a pipe"
	case unix.S_IFREG:
		if secretFile(path.Base(pl.path)) {
			return "its name is a secret's"
		}
		return ""
	}
	for _, e := range g.t.list(pl.path) {
		if e.mode&fs.ModeSocket != 0 {
			return "it holds a socket of the host: " + e.name
		}
		if e.name[0] == '.' && e.mode.IsDir() && !projectOwn[strings.ToLower(e.name)] {
			if what := secretIn("/" + e.name); what != "" {
				return "it holds a place of " + what + ": " + e.name
			}
		}
	}
	return ""
}

// projectOwn are directories that hold credentials in a home, and settings in
// a project. They are covered where a project is mounted.
var projectOwn = map[string]bool{".claude": true, ".codex": true, ".gemini": true, ".cursor": true, ".copilot": true, ".docker": true, ".aider": true, ".pki": true}

// refuseAuto rejects a place that the user did not name, also one that holds the source: its
// secrets would be visible again.
func (g *guard) refuseAuto(pl place) string {
	if why := g.refuse(pl); why != "" {
		return why
	}
	if slices.ContainsFunc(g.sources, func(s string) bool { return within(pl.path, s) }) {
		return "it holds the source"
	}
	return ""
}

// CheckSource rejects source directories with content that a cell must not have: a home
// directory or one above it, system directories, places of secrets, pando's own state.
// Kinds: NotFound, Invalid, Denied.
func CheckSource(source, home string, state ...string) error {
	t := newTree("/")
	return newGuard(t, home, []string{source}, state).checkSource(source)
}

// systemRoots are mounted in every cell and can't be a workspace.
var systemRoots = []string{"/usr", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64", "/usr/libexec", "/usr/share", "/usr/local", "/usr/local/bin", "/usr/local/lib",
	"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/var", "/var/tmp", "/var/lib", "/opt", "/srv", "/mnt", "/media", "/tmp", "/nix", "/nix/store", "/snap"}

func (g *guard) checkSource(source string) error {
	const op = "image.CheckSource"
	if !path.IsAbs(source) {
		return cell.Errorf(cell.Invalid, op, "", "cannot use %s as the source: the path must be absolute", source)
	}
	pl := g.t.resolve(source)
	if why := ofKernel(source, pl); why != "" {
		return cell.Errorf(cell.Denied, op, "name a project's directory with --from", "cannot use %s as the source: %s", source, why)
	}
	if !pl.exists() {
		return cell.Errorf(cell.NotFound, op, "name a directory that exists with --from", "cannot use %s as the source: there is no such directory", source)
	}
	if !pl.isDir() {
		return cell.Errorf(cell.Invalid, op, "name the directory that holds it with --from", "cannot use %s as the source: it is not a directory", source)
	}
	why := g.refuseSource(source, pl)
	if why == "" {
		return nil
	}
	return cell.Errorf(cell.Denied, op, "name a project's directory with --from", "cannot use %s as the source: %s", source, why)
}

// ofKernel reports that the path of a source begins in or leads through a kernel file
// system: its content differs by process.
func ofKernel(source string, pl place) string {
	names := []string{path.Clean(source)}
	for _, l := range pl.links {
		names = append(names, l.at)
	}
	for _, n := range names {
		for _, s := range []string{"/proc", "/dev", "/sys"} {
			if within(s, n) {
				return "it is a system directory"
			}
		}
	}
	return ""
}

func (g *guard) refuseSource(source string, pl place) string {
	for _, s := range systemRoots {
		if pl.path == s || g.t.resolve(s).path == pl.path {
			return "it is a system directory"
		}
	}
	// What lies in it is the import's to leave out.
	return g.refusePlace(pl)
}
