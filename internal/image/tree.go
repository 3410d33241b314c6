package image

import (
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// A tree looks at the host's files for the time of one plan. Paths are the
// host's; the files lie below prefix, which is empty except in tests. What it
// has seen once it does not ask the kernel again.
type tree struct {
	prefix string
	infos  map[string]info
	texts  map[string]string
	places map[string]place
}

func newTree(root string) *tree {
	prefix := strings.TrimSuffix(path.Clean("/"+root), "/")
	return &tree{prefix: prefix, infos: map[string]info{}, texts: map[string]string{}, places: map[string]place{}}
}

// disk is where the file with the host's path p really lies.
func (t *tree) disk(p string) string { return t.prefix + p }

// An info is what lstat(2) says. The zero info stands for no file, or for one
// that can't be seen.
type info struct {
	dev, ino     uint64
	mode, uid    uint32
	size         int64
	mtime, ctime int64 // nanoseconds
}

func (i info) exists() bool    { return i.mode != 0 }
func (i info) isDir() bool     { return i.mode&unix.S_IFMT == unix.S_IFDIR }
func (i info) isFile() bool    { return i.mode&unix.S_IFMT == unix.S_IFREG }
func (i info) isSymlink() bool { return i.mode&unix.S_IFMT == unix.S_IFLNK }

// isProgram reports whether any user may execute the file.
func (i info) isProgram() bool { return i.isFile() && i.mode&0o111 != 0 }

func (t *tree) lstat(p string) info {
	if i, ok := t.infos[p]; ok {
		return i
	}
	var st unix.Stat_t
	var i info
	if unix.Lstat(t.disk(p), &st) == nil {
		i = info{
			dev: uint64(st.Dev), ino: st.Ino, mode: st.Mode, uid: st.Uid, size: st.Size,
			mtime: st.Mtim.Nano(), ctime: st.Ctim.Nano(),
		}
	}
	t.infos[p] = i
	return i
}

func (t *tree) readlink(p string) string {
	if s, ok := t.texts[p]; ok {
		return s
	}
	var buf [4096]byte
	n, err := unix.Readlink(t.disk(p), buf[:])
	s := ""
	if err == nil {
		s = string(buf[:n])
	}
	t.texts[p] = s
	return s
}

// A link is a symlink of the host.
type link struct{ at, text string }

// A place is where a path leads.
type place struct {
	path  string // without symlinks; of a missing file, what could be told
	links []link // met on the way
	info
}

// maxLinks is the kernel's bound on the symlinks in one path.
const maxLinks = 40

// resolve follows p as the kernel does, ".." after symlinks included.
func (t *tree) resolve(p string) place {
	if pl, ok := t.places[p]; ok {
		return pl
	}
	pl := t.walk(p)
	t.places[p] = pl
	return pl
}

func (t *tree) walk(p string) place {
	pl := place{path: "/", info: t.lstat("/")}
	rest := p
	for rest != "" {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		switch name {
		case "", ".":
			continue
		case "..":
			pl.path = path.Dir(pl.path)
			pl.info = t.lstat(pl.path)
			continue
		}
		next := join(pl.path, name)
		i := t.lstat(next)
		if !i.isSymlink() {
			pl.path, pl.info = next, i
			if !i.exists() || !i.isDir() && strings.Trim(rest, "/") != "" {
				// What follows is not there; it only completes the name.
				return place{path: path.Join(next, rest), links: pl.links}
			}
			continue
		}
		text := t.readlink(next)
		if text == "" || len(pl.links) == maxLinks {
			return place{path: path.Join(next, rest), links: pl.links}
		}
		pl.links = append(pl.links, link{next, text})
		if within("/proc", next) {
			// Its target depends on the process that follows it, which is not the cell's.
			return place{path: path.Join(next, rest), links: pl.links}
		}
		if rest != "" {
			text += "/" + rest
		}
		rest = text
		if strings.HasPrefix(text, "/") {
			pl.path = "/"
		}
	}
	return pl
}

// join appends a name to a clean absolute path.
func join(dir, name string) string {
	if dir == "/" {
		return "/" + name
	}
	return dir + "/" + name
}

// within reports whether the clean path p is dir or below it. Nothing is
// within "".
func within(dir, p string) bool {
	return dir != "" && (p == dir || dir == "/" || len(p) > len(dir) && p[len(dir)] == '/' && p[:len(dir)] == dir)
}

// below reports whether p is below dir and not dir itself.
func below(dir, p string) bool { return p != dir && within(dir, p) }

// An entry is one name in a directory. text is a symlink's.
type entry struct {
	name string
	mode os.FileMode // the type only
	text string
}

// maxEntries bounds what is read of one directory.
const maxEntries = 8192

// list returns what is in the directory p, which has no symlinks, with the
// text of each symlink. It is nil if p is no directory that can be read.
func (t *tree) list(p string) []entry {
	i := t.lstat(p)
	if !i.isDir() {
		return nil
	}
	return remember("list", t.disk(p), i, func() []entry {
		f, err := os.Open(t.disk(p))
		if err != nil {
			return nil
		}
		defer f.Close()
		found, _ := f.ReadDir(maxEntries)
		out := make([]entry, 0, len(found))
		for _, e := range found {
			n := entry{name: e.Name(), mode: e.Type()}
			if n.mode == os.ModeSymlink {
				n.text, _ = os.Readlink(t.disk(join(p, n.name)))
			}
			out = append(out, n)
		}
		return out
	})
}

// read returns the content of the regular file p, which has no symlinks, or
// nil if it is larger than limit or can't be read.
func (t *tree) read(p string, limit int64) []byte {
	if i := t.lstat(p); !i.isFile() || i.size > limit {
		return nil
	}
	f, err := os.OpenFile(t.disk(p), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil || int64(len(b)) > limit {
		return nil
	}
	return b
}

// head returns the first n bytes of the regular file p, fewer if it is shorter.
func (t *tree) head(p string, n int) string {
	f, err := os.OpenFile(t.disk(p), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	b := make([]byte, n)
	got, _ := io.ReadFull(f, b)
	return string(b[:got])
}

// text is read, following symlinks, as a string.
func (t *tree) text(p string, limit int64) string {
	pl := t.resolve(p)
	if !pl.isFile() {
		return ""
	}
	return remember("text", t.disk(pl.path), pl.info, func() string { return string(t.read(pl.path, limit)) })
}
