package image

import (
	"bytes"
	"crypto/md5"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// Bounds on what is taken of the host's /etc.
const (
	maxEtcFile  = 4 << 20
	maxEtcTotal = 48 << 20
	maxEtcNames = 8192
)

// An etcBuilder copies what is allowed of /etc.
type etcBuilder struct {
	t     *tree
	g     *guard
	to    string
	note  *etcNote
	owner uint32 // of /etc: root, on a host
	total int64
	count int
	// conffiles is what dpkg knows of packages, with the sums of their files in /etc.
	conffiles []byte
}

func (b *etcBuilder) build(names []string, own map[string]string) error {
	if err := os.Chmod(b.to, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		if _, ours := own[name]; ours {
			continue
		}
		if err := b.add(name, "/etc/"+name, 0); err != nil {
			return err
		}
	}
	for name, text := range own {
		if err := writeFile(filepath.Join(b.to, name), []byte(text), 0o644, 0); err != nil {
			return err
		}
	}
	if err := os.Symlink("/proc/self/mounts", filepath.Join(b.to, "mtab")); err != nil {
		return err
	}
	// Made after everything else, so that no file of the host is in it.
	if err := os.MkdirAll(filepath.Join(b.to, "profile.d"), 0o755); err != nil {
		return err
	}
	return os.Chmod(filepath.Join(b.to, "profile.d"), 0o755)
}

// add copies the host's file at src, which the cell sees as rel in /etc.
func (b *etcBuilder) add(rel, src string, depth int) error {
	if b.count++; b.count > maxEtcNames || depth > 12 || !etcAllows(rel) {
		return nil
	}
	to := filepath.Join(b.to, rel)
	i := b.t.lstat(src)
	switch {
	case i.isSymlink():
		pl := b.t.resolve(src)
		if strings.HasPrefix(rel, "alternatives/") || pl.exists() && cellHas(pl) {
			return os.Symlink(b.t.readlink(src), to)
		}
		// It leads where the cell has nothing: the content is taken instead.
		if pl.exists() && b.g.refusePlace(pl) == "" {
			return b.add(rel, pl.path, depth+1)
		}
	case i.isDir():
		b.see(src, i)
		if i.mode&0o005 != 0o005 {
			return nil
		}
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(to, 0o755); err != nil {
			return err
		}
		if b.share(rel, src) {
			return nil
		}
		for _, e := range b.t.list(src) {
			if err := b.add(rel+"/"+e.name, join(src, e.name), depth+1); err != nil {
				return err
			}
		}
	case i.isFile():
		b.see(src, i)
		if i.mode&0o004 == 0 || i.uid != b.owner || i.size > maxEtcFile || b.total+i.size > maxEtcTotal {
			return nil
		}
		content := b.t.read(src, maxEtcFile)
		if content == nil && i.size > 0 {
			return nil
		}
		if holdsSecret(rel, content) && !b.packaged(src, content) {
			b.note.Left = append(b.note.Left, "/etc/"+rel)
			return nil
		}
		b.total += i.size
		return writeFile(to, content, 0o644|fs.FileMode(i.mode)&0o111, i.mtime)
	}
	return nil
}

// shareFrom is how many names below a directory make it worth a mount of its
// own, which every start of a cell pays for, instead of a copy, which one
// start does: a mount takes 0.05 ms, making a file up to 1 ms.
const shareFrom = 24

// share decides that the directory src is mounted as it is: it is large, and
// nothing in it would be left out. What it looked at is noted as seen.
func (b *etcBuilder) share(rel, src string) bool {
	if "/etc/"+rel != src {
		return false
	}
	seen, count := len(b.note.Seen), b.count
	if !b.public(rel, src) || b.count-count < shareFrom {
		b.note.Seen, b.count = b.note.Seen[:seen], count
		return false
	}
	b.note.Shared = append(b.note.Shared, src)
	return true
}

// public reports whether the cell may see everything in the directory src.
func (b *etcBuilder) public(rel, src string) bool {
	for _, e := range b.t.list(src) {
		at, name := join(src, e.name), rel+"/"+e.name
		i := b.t.lstat(at)
		if b.count++; b.count > maxEtcNames || !etcAllows(name) {
			return false
		}
		switch {
		case i.isSymlink():
			continue
		case i.isDir():
			b.see(at, i)
			if i.mode&0o005 != 0o005 || !b.public(name, at) {
				return false
			}
		case i.isFile():
			b.see(at, i)
			if i.mode&0o004 == 0 || i.uid != b.owner || i.size > maxEtcFile {
				return false
			}
			if content := b.t.read(at, maxEtcFile); holdsSecret(name, content) && !b.packaged(at, content) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// cellHas reports whether a symlink works in the cell as it is.
func cellHas(pl place) bool {
	for _, l := range pl.links[1:] {
		if !isSystem(l.at) && !etcShows(l.at) {
			return false
		}
	}
	return isSystem(pl.path) || etcShows(pl.path)
}

func (b *etcBuilder) see(at string, i info) {
	b.note.Seen = append(b.note.Seen, etcSeen{at, i.dev, i.ino, i.mode, i.uid, i.size, i.mtime, i.ctime})
}

// packaged reports whether a file is as its Debian package brought it. Such content is public,
// whatever it looks like (keys that a browser is built with, patterns that describe keys).
func (b *etcBuilder) packaged(at string, content []byte) bool {
	if b.conffiles == nil {
		b.conffiles = append(b.t.read("/var/lib/dpkg/status", 64<<20), '\n')
	}
	sum := md5.Sum(content)
	return bytes.Contains(b.conffiles, fmt.Appendf(nil, "\n %s %x\n", at, sum))
}

func holdsSecret(rel string, content []byte) bool {
	switch ext := path.Ext(rel); {
	case bytes.IndexByte(content, 0) >= 0:
		return false
	case ext == ".pem" || ext == ".crt" || ext == ".0":
		return isPrivateKey(content)
	case rel == "bash.bashrc" || rel == "bashrc":
		return hasSecret(string(content))
	}
	top, _, _ := strings.Cut(rel, "/")
	return hasToken(string(content)) || !matchAny(etcNames, top) && hasSetting(string(content))
}

// writeFile makes a file with exactly mode, last modified at mtime if that is
// not 0.
func writeFile(at string, content []byte, mode fs.FileMode, mtime int64) error {
	if err := os.WriteFile(at, content, mode); err != nil {
		return err
	}
	if err := os.Chmod(at, mode); err != nil {
		return err
	}
	if mtime == 0 {
		return nil
	}
	return os.Chtimes(at, time.Time{}, time.Unix(0, mtime))
}
