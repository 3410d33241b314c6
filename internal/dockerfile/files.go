package dockerfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
)

// files is what can be copied from: the context, or another image. Paths are clean and relative, "" is the root.
type files interface {
	// stat does not follow symlinks. What isn't there is fs.ErrNotExist.
	stat(p string) (info, error)
	names(p string) ([]string, error) // of a folder, sorted
	open(p string, i info) (io.ReadCloser, error)
}

// info describes a file, a folder or a symlink.
type info struct {
	kind   fs.FileMode // 0, fs.ModeDir, fs.ModeSymlink; any other kind is not copied
	mode   int64       // permissions, with setuid, setgid and sticky
	uid    int         // of files in images; else 0, as in Docker
	gid    int
	size   int64
	target string // of a symlink
	mtime  time.Time
	id     string // another one for other content; of files in the context alone
	// ignored says of a folder that only what is excepted below it can be copied.
	ignored bool

	entry workspace.Entry
}

// contextFiles is the context of a build, as it was imported, without what its .dockerignore names.
type contextFiles struct {
	side   workspace.Side
	hidden []string
	ignore *patterns
	below  map[string]patternmatcher.MatchInfo // what the patterns said of folders
}

// patterns are those of a .dockerignore, or of --exclude. nil has none.
type patterns struct{ *patternmatcher.PatternMatcher }

// newPatterns reads patterns. of is where they are written.
func newPatterns(of string, list []string) (*patterns, error) {
	if len(list) == 0 {
		return nil, nil
	}
	if len(list) > maxPatterns {
		return nil, wrong("cannot read %s: it has more than %d patterns", of, maxPatterns)
	}
	m, err := patternmatcher.New(list)
	if err != nil {
		return nil, wrong("cannot read %s: %w", of, err)
	}
	return &patterns{m}, nil
}

// match reports whether a path is named. above is what was said of the folder that it is in.
func (p *patterns) match(at string, above patternmatcher.MatchInfo) (named bool, said patternmatcher.MatchInfo, err error) {
	if p == nil {
		return false, said, nil
	}
	return p.MatchesUsingParentResults(at, above)
}

// exceptions reports whether there are patterns that except what others name.
func (p *patterns) exceptions() bool { return p != nil && p.Exclusions() }

// ignoreNames are where a build's ignored files are named: beside a Dockerfile of another name, or in the context.
func ignoreNames(dockerfile string) []string {
	return []string{dockerfile + ".dockerignore", ".dockerignore"}
}

// The bounds of a .dockerignore: each pattern is compared with each file.
const (
	maxIgnore   = 64 << 10 // bytes
	maxPatterns = 2000
)

// newContext opens a context. dockerfile is the path of the Dockerfile in it.
func newContext(from Context, dockerfile string) (*contextFiles, error) {
	side := from.Side
	c := &contextFiles{side: side, hidden: from.Hidden, below: map[string]patternmatcher.MatchInfo{}}
	for _, name := range ignoreNames(dockerfile) {
		e, err := side.Tree.Lookup(name)
		if err != nil && cell.KindOf(err) != cell.NotFound {
			return nil, err
		}
		if err != nil || e.Type != workspace.File {
			continue
		}
		if e.Size > maxIgnore {
			return nil, wrong("cannot read %s: it has more than %d bytes", name, maxIgnore)
		}
		f, err := side.Contents.Open(name, e)
		if err != nil {
			return nil, err
		}
		list, err := ignorefile.ReadAll(io.LimitReader(f, maxIgnore))
		f.Close()
		if err != nil {
			return nil, wrong("cannot read %s: %w", name, err)
		}
		if c.ignore, err = newPatterns(name, list); err != nil {
			return nil, err
		}
		break
	}
	return c, nil
}

func (c *contextFiles) stat(p string) (info, error) {
	e, err := c.side.Tree.Lookup(p)
	if cell.KindOf(err) == cell.NotFound {
		return info{}, fs.ErrNotExist
	}
	if err != nil {
		return info{}, err
	}
	if slices.ContainsFunc(c.hidden, func(h string) bool { return p == h || strings.HasPrefix(p, h+"/") || h == "." }) {
		return info{}, fs.ErrNotExist
	}
	ignored, err := c.ignored(p)
	if err != nil {
		return info{}, err
	}
	if ignored && !(e.Type == workspace.Folder && c.ignore.exceptions()) { // something below it may be excepted
		return info{}, fs.ErrNotExist
	}
	i := info{ignored: ignored, mode: int64(e.Mode & 0o777), size: e.Size, target: e.Target, mtime: time.Unix(0, e.MTime), entry: e}
	switch e.Type {
	case workspace.File:
		i.id = e.Digest.String()
	case workspace.Folder:
		i.kind = fs.ModeDir
	case workspace.Symlink:
		i.kind = fs.ModeSymlink
	default:
		i.kind = fs.ModeIrregular
	}
	return i, nil
}

func (c *contextFiles) ignored(p string) (bool, error) {
	if c.ignore == nil || p == "" {
		return false, nil
	}
	above, err := c.said(parentOf(p))
	if err != nil {
		return false, err
	}
	yes, _, err := c.ignore.match(p, above)
	return yes, err
}

// said is what the patterns say of a folder.
func (c *contextFiles) said(dir string) (patternmatcher.MatchInfo, error) {
	said, ok := c.below[dir]
	if ok || dir == "" {
		return said, nil
	}
	above, err := c.said(parentOf(dir))
	if err == nil {
		_, said, err = c.ignore.match(dir, above)
	}
	c.below[dir] = said
	return said, err
}

func (c *contextFiles) names(p string) (out []string, err error) {
	e, err := c.side.Tree.Lookup(p)
	if err != nil {
		return nil, err
	}
	dir, err := c.side.Tree.ReadDir(e.Digest)
	if err != nil {
		return nil, err
	}
	for _, e := range dir {
		out = append(out, e.Name)
	}
	return out, nil
}

func (c *contextFiles) open(p string, i info) (io.ReadCloser, error) {
	return c.side.Contents.Open(p, i.entry)
}

// imageFiles is an image that is kept: no cell writes to it.
type imageFiles struct {
	root *os.Root
	one  bool // all files are this process's: the image's owners are not known
}

func (m *imageFiles) stat(p string) (info, error) {
	st, err := m.root.Lstat(dot(p))
	if err != nil {
		switch {
		case errors.Is(err, syscall.ENOTDIR):
			err = fs.ErrNotExist
		case errors.Is(err, syscall.ENAMETOOLONG):
			err = wrong("the path %s is too long", cell.Clip(p))
		}
		return info{}, err
	}
	sys := st.Sys().(*syscall.Stat_t)
	i := info{kind: st.Mode().Type(), mode: int64(sys.Mode & 0o7777), size: st.Size(), mtime: st.ModTime()}
	if !m.one {
		i.uid, i.gid = int(sys.Uid), int(sys.Gid)
	}
	if i.kind == fs.ModeSymlink {
		i.target, err = m.root.Readlink(dot(p))
	}
	return i, err
}

func (m *imageFiles) names(p string) ([]string, error) {
	f, err := m.root.Open(dot(p))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out, err := f.Readdirnames(-1)
	slices.Sort(out)
	return out, err
}

func (m *imageFiles) open(p string, _ info) (io.ReadCloser, error) { return m.root.Open(dot(p)) }

// readAll reads a small file.
func readAll(r io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxAccounts))
	return string(b), err
}

func dot(p string) string {
	if p == "" {
		return "."
	}
	return p
}

// maxLinks bounds the symlinks on one path, as the kernel does.
const maxLinks = 40

// resolve follows the symlinks of a path within an image. What is not there, or its rest, stays as it is.
func resolve(f files, p string) (real string, i info, err error) {
	rest, links := strings.Split(strings.Trim(path.Clean("/"+p), "/"), "/"), 0
	if i, err = f.stat(""); err != nil || rest[0] == "" {
		return "", i, err
	}
	for len(rest) > 0 {
		name := rest[0]
		if rest = rest[1:]; name == ".." {
			real = parentOf(real)
			continue
		}
		at := strings.TrimPrefix(path.Join(real, name), "/")
		if i, err = f.stat(at); errors.Is(err, fs.ErrNotExist) {
			return strings.TrimPrefix(path.Join(append([]string{"/", at}, rest...)...), "/"), i, err
		} else if err != nil {
			return "", i, err
		}
		if i.kind != fs.ModeSymlink {
			real = at
			continue
		}
		if links++; links > maxLinks {
			return "", i, &os.PathError{Op: "follow", Path: p, Err: syscall.ELOOP}
		}
		if path.IsAbs(i.target) {
			real = ""
		}
		// "..", after a link, is above where that leads.
		to := slices.DeleteFunc(strings.Split(i.target, "/"), func(s string) bool { return s == "" || s == "." })
		rest = append(to, rest...)
	}
	i, err = f.stat(real)
	return real, i, err
}

// isPattern reports whether a name is a pattern, as BuildKit does (fsutil, containsWildcards).
func isPattern(name string) bool {
	for i := 0; i < len(name); i++ {
		switch name[i] {
		case '\\':
			i++
		case '*', '?', '[':
			return true
		}
	}
	return false
}

// match returns the paths that a pattern of COPY names, sorted. Components are matched as path.Match does.
func match(f files, pattern string) ([]string, error) {
	pattern = strings.Trim(path.Clean("/"+pattern), "/")
	parts := strings.Split(pattern, "/")
	plain := slices.IndexFunc(parts, isPattern)
	if plain < 0 {
		return []string{pattern}, nil
	}
	top, _, err := resolve(f, strings.Join(parts[:plain], "/"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	found := []string{top}
	for _, part := range parts[plain:] {
		var next []string
		for _, dir := range found {
			if i, err := f.stat(dir); err != nil || i.kind != fs.ModeDir {
				continue
			}
			names, err := f.names(dir)
			if err != nil {
				return nil, err
			}
			for _, n := range names {
				ok, err := path.Match(part, n)
				if err != nil {
					return nil, wrong("%q is no pattern: %w", cell.Clip(pattern), err)
				}
				if at := strings.TrimPrefix(dir+"/"+n, "/"); ok {
					if _, err := f.stat(at); err == nil { // not ignored
						next = append(next, at)
					}
				}
			}
		}
		found = next
	}
	slices.Sort(found)
	return found, nil
}
