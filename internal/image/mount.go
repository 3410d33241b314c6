package image

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// asked adds the mounts that were asked for with --mount.
func (p *planner) asked() error {
	for _, text := range p.req.Mounts {
		if err := p.askedMount(text); err != nil {
			return err
		}
	}
	return nil
}

func (p *planner) askedMount(text string) error {
	const op = "image.Host"
	a, err := p.askedSource(text)
	if err != nil {
		return err
	}
	pl, dst, writable := a.at, a.dst, a.writable
	// Symlinks of the host that lead to the target are made in the cell too:
	// the mount lies where they end.
	at := p.t.resolve(dst)
	for _, target := range []string{dst, at.path} {
		if why := p.refuseTarget(target, pl); why != "" {
			return cell.Errorf(cell.Denied, op, "choose another target", "cannot mount at %s: %s", dst, why)
		}
	}
	if s, there := p.slots[at.path]; there && s.asked {
		return cell.Errorf(cell.Invalid, op, "", "cannot mount at %s twice", dst)
	}
	p.link(at)
	p.slots[at.path] = slot{asked: true, own: at.path == pl.path, Mount: cell.Mount{
		Kind: cell.Bind, Target: at.path, Source: p.t.disk(pl.path), ReadOnly: !writable,
		Owned: true, Why: "--mount",
	}}
	if writable {
		p.plan.Downgrades = append(p.plan.Downgrades, "writable mount "+dst+" is outside rollback")
	}
	for _, hidden := range p.cover(pl.path, at.path, false, 0) {
		p.note(hidden, "is empty in the cell: it is a socket, or its name is a secret's", "")
	}
	return nil
}

// asked is one --mount: what of the host it would show, and where.
type asked struct {
	at       place
	dst      string
	writable bool
}

// askedSource reads one --mount and judges what it would show.
func (p *planner) askedSource(text string) (asked, error) {
	const op = "image.Host"
	src, dst, writable, ok := splitMount(text)
	if !ok {
		return asked{}, cell.Errorf(cell.Invalid, op, "write it as SRC:DST or SRC:DST:rw", "cannot read --mount %s", text)
	}
	if rest, ok := strings.CutPrefix(src, "~/"); ok {
		src = join(p.req.Home, rest)
	}
	if !path.IsAbs(src) {
		if !path.IsAbs(p.req.Cwd) {
			return asked{}, cell.Errorf(cell.Invalid, op, "give an absolute source", "cannot mount %s: it is relative, and the current directory is not known", src)
		}
		src = p.req.Cwd + "/" + src // not cleaned: ".." after a symlink is the kernel's
	}
	// The content of /proc and /dev differs by process.
	for _, dir := range []string{"/proc", "/dev", "/sys"} {
		if p.passes(src, dir) {
			return asked{}, cell.Errorf(cell.Denied, op, "name the file by its own path", "cannot mount %s: it goes through %s", src, dir)
		}
	}
	pl := p.t.resolve(src)
	if !pl.exists() {
		return asked{}, cell.Errorf(cell.NotFound, op, "", "cannot mount %s: there is no such file or directory", src)
	}
	if p.redirected(pl) {
		return asked{}, cell.Errorf(cell.Denied, op, "name it by its own path, if that is what you mean: --mount "+pl.path+":"+dst,
			"cannot mount %s: a symlink of the source leads to %s", src, pl.path)
	}
	if why := p.refuseAsked(pl); why != "" {
		return asked{}, cell.Errorf(cell.Denied, op, p.askedHint(pl), "cannot mount %s: %s", src, why)
	}
	if writable && p.inSource(pl.path) {
		return asked{}, cell.Errorf(cell.Denied, op, "leave out :rw", "cannot mount %s writable: it is part of the source, which a cell never changes", src)
	}
	if !path.IsAbs(dst) || path.Clean(dst) != dst {
		return asked{}, cell.Errorf(cell.Invalid, op, "write the target as an absolute path without \".\" and \"..\"", "cannot mount at %s: it is not an absolute, clean path", dst)
	}
	return asked{pl, dst, writable}, nil
}

// splitMount takes SRC:DST[:rw|:ro] apart.
func splitMount(text string) (src, dst string, writable, ok bool) {
	parts := strings.Split(text, ":")
	if len(parts) == 3 {
		switch parts[2] {
		case "rw":
			writable = true
		case "ro":
		default:
			return "", "", false, false
		}
		parts = parts[:2]
	}
	if len(parts) != 2 || parts[0] == "" || parts[1] == "" || strings.ContainsRune(text, 0) {
		return "", "", false, false
	}
	return parts[0], parts[1], writable, true
}

// passes reports whether following the path goes through something in dir.
func (p *planner) passes(at, dir string) bool {
	for _, l := range p.t.resolve(at).links {
		if within(dir, l.at) || path.IsAbs(l.text) && within(dir, path.Clean(l.text)) {
			return true
		}
	}
	return false
}

// refuseAsked says why pl cannot be mounted even on explicit request.
func (p *planner) refuseAsked(pl place) string {
	if why := p.g.refuse(pl); why != "" {
		return why
	}
	if p.holdsSource(pl.path) {
		return "it holds the source, which is in the cell as the workspace"
	}
	switch pl.mode & unix.S_IFMT {
	case unix.S_IFDIR, unix.S_IFREG:
		return ""
	}
	return "it is neither a file nor a directory"
}

func (p *planner) askedHint(pl place) string {
	switch {
	case pl.isFile() && secretFile(path.Base(pl.path)):
		return "let a secret of the source in with --with-secret, or lend it with --credential"
	case pl.isDir() && secretIn(pl.path) == "":
		return "mount the part of it that is needed"
	}
	return ""
}

// reserved are the places of a cell that can't be targets, with what is below
// them: the backend's and the image's own.
var reserved = []string{"/proc", "/dev", "/sys", "/etc", "/usr", "/run/pando", ownDir, "/oldroot"}

// refuseTarget says why pl can't be mounted at the path dst.
func (p *planner) refuseTarget(dst string, pl place) string {
	for _, r := range reserved {
		if within(r, dst) {
			return "it lies in " + r + ", which is the cell's own"
		}
	}
	if isSystem(dst) {
		return "it is a system directory"
	}
	if dst == "/" {
		return "it is the whole cell"
	}
	for at, s := range p.slots {
		if (s.cells || s.Kind == cell.Tmpfs || s.Target == "/etc") && within(dst, at) {
			return "it is or holds " + at + ", which is the cell's own"
		}
	}
	if s, ok := p.slots[dst]; ok && s.Kind == cell.Link {
		return "it is a link in every cell"
	}
	return ""
}
