package workspace

import (
	"fmt"
	"sort"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
)

// Type is the kind of a directory entry, as one letter.
type Type byte

// The types of entries.
const (
	File    Type = 'f'
	Folder  Type = 'd'
	Symlink Type = 'l'
	Fifo    Type = 'p'
	Socket  Type = 's'
	CharDev Type = 'c'
	Block   Type = 'b'
)

// String gives the type's name, for people.
func (t Type) String() string {
	switch t {
	case File:
		return "file"
	case Folder:
		return "folder"
	case Symlink:
		return "symlink"
	case Fifo:
		return "fifo"
	case Socket:
		return "socket"
	case CharDev, Block:
		return "device"
	}
	return "nothing"
}

// Entry describes one name in a directory: everything that a restore must bring back, except
// ownership, which import normalises.
type Entry struct {
	Name    string // one path component; "" for the root
	Type    Type
	Mode    uint32      // permission bits with setuid, setgid and sticky: 07777
	MTime   int64       // nanoseconds since 1970
	Size    int64       // bytes; files only
	Rdev    uint64      // devices only
	Target  string      // symlinks only
	XAttrs  []XAttr     // sorted by name
	Digest  cell.Digest // files: of the content; folders: of the Dir object
	Content cell.Digest // folders: content digest; zero when git would see nothing
}

// XAttr is one extended attribute.
type XAttr struct{ Name, Value string }

// Dir is the content of one directory, sorted by name, bytewise.
type Dir []Entry

// Objects stores encoded directories by digest. Put may be called for an existing object. Get
// returns exactly what was put, or a Corrupt or NotFound error.
type Objects interface {
	Put(d cell.Digest, b []byte) error
	Get(d cell.Digest) ([]byte, error)
}

// A Tree is one immutable state of a workspace: a Merkle tree of directories
// and the table of hard links.
//
// The tree digest is the SHA-256 of "pando tree 1\n", the encoded root entry,
// and the link table. It covers names, types, modes, mtimes, link structure,
// xattrs and contents. The content digest covers what git can represent:
// names, file contents, the executable bit and symlink targets; no empty
// directories, no special files, nothing named ".git" or like it (git refuses
// ".GIT" and "git~1" too), no symlink ".gitmodules".
type Tree struct {
	Root  Entry      // a Folder with Name ""
	Links [][]string // groups of paths that are one file; each sorted, groups sorted by first path
	objs  Objects
}

// EmptyTree returns the tree of an empty directory with mode 0755 and mtime 0.
func EmptyTree(objs Objects) (*Tree, error) {
	b := Dir(nil).encode()
	d := cell.Sum(b)
	if err := objs.Put(d, b); err != nil {
		return nil, err
	}
	return &Tree{Root: Entry{Type: Folder, Mode: 0o755, Digest: d}, objs: objs}, nil
}

// Objects is where the tree's directories are kept.
func (t *Tree) Objects() Objects { return t.objs }

// Digest returns the tree digest.
func (t *Tree) Digest() cell.Digest {
	return cell.Sum(t.Encode())
}

// ContentDigest returns the digest of what git can represent. A workspace
// in which git would see nothing has the digest of the empty directory.
func (t *Tree) ContentDigest() cell.Digest {
	if t.Root.Content.IsZero() {
		return cell.Sum([]byte("pando content 1\n"))
	}
	return t.Root.Content
}

// ReadDir returns the entries of the directory object d.
func (t *Tree) ReadDir(d cell.Digest) (Dir, error) { return readDir(t.objs, d) }

func readDir(objs Objects, d cell.Digest) (Dir, error) {
	b, err := objs.Get(d)
	if err != nil {
		return nil, err
	}
	if cell.Sum(b) != d {
		return nil, corrupt("directory object " + d.Short())
	}
	return decodeDir(b)
}

// Lookup returns the entry at path ("" is the root). It does not follow
// symlinks. A path that is not there is a NotFound error.
func (t *Tree) Lookup(path string) (Entry, error) {
	e := t.Root
	for rest := path; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		if e.Type != Folder {
			return Entry{}, notThere(path)
		}
		d, err := t.ReadDir(e.Digest)
		if err != nil {
			return Entry{}, err
		}
		i, ok := d.find(name)
		if !ok {
			return Entry{}, notThere(path)
		}
		e = d[i]
	}
	return e, nil
}

// Walk calls f for every entry below path, parents first, in order of names.
// The path given to f is relative to the root. Returning SkipDir for a folder
// skips its content.
func (t *Tree) Walk(path string, f func(path string, e Entry) error) error {
	e, err := t.Lookup(path)
	if err != nil {
		return err
	}
	return t.walk(path, e, f)
}

func (t *Tree) walk(path string, e Entry, f func(string, Entry) error) error {
	if path != "" {
		if err := f(path, e); err != nil {
			if err == ErrSkipDir {
				return nil
			}
			return err
		}
	}
	if e.Type != Folder {
		return nil
	}
	d, err := t.ReadDir(e.Digest)
	if err != nil {
		return err
	}
	for _, c := range d {
		if err := t.walk(join(path, c.Name), c, f); err != nil {
			return err
		}
	}
	return nil
}

// ErrSkipDir makes Walk leave out a folder's content.
var ErrSkipDir = fmt.Errorf("skip this folder")

func (d Dir) find(name string) (int, bool) {
	i := sort.Search(len(d), func(i int) bool { return d[i].Name >= name })
	return i, i < len(d) && d[i].Name == name
}

// contentDigest returns the digest of what git would see of d, zero if nothing.
func (d Dir) contentDigest() cell.Digest {
	b := []byte("pando content 1\n")
	empty := len(b)
	for _, e := range d {
		if !gitTakes(e.Name, e.Type) {
			continue
		}
		switch e.Type {
		case File:
			kind := byte('f')
			if e.Mode&0o100 != 0 {
				kind = 'x'
			}
			b = append(b, kind)
			b = appendString(b, e.Name)
			b = append(b, e.Digest[:]...)
		case Symlink:
			b = append(b, 'l')
			b = appendString(b, e.Name)
			b = appendString(b, e.Target)
		case Folder:
			if e.Content.IsZero() {
				continue
			}
			b = append(b, 'd')
			b = appendString(b, e.Name)
			b = append(b, e.Content[:]...)
		}
	}
	if len(b) == empty {
		return cell.Digest{}
	}
	return cell.Sum(b)
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

func notThere(path string) error {
	return cell.Errorf(cell.NotFound, "workspace.Lookup", "", "no %s in the workspace", path)
}

// Reach adds the digests of all directory objects of the tree to seen, and
// does not go below those that are in it already.
func (t *Tree) Reach(seen map[cell.Digest]bool) error { return t.reach(t.Root.Digest, seen) }

func (t *Tree) reach(d cell.Digest, seen map[cell.Digest]bool) error {
	if seen[d] {
		return nil
	}
	seen[d] = true
	dir, err := t.ReadDir(d)
	if err != nil {
		return err
	}
	for i := range dir {
		if dir[i].Type == Folder {
			if err := t.reach(dir[i].Digest, seen); err != nil {
				return err
			}
		}
	}
	return nil
}

// gitTakes reports whether git can hold an entry of that name and type.
func gitTakes(name string, t Type) bool {
	return !gitdir.IsDotGit(name) && (t != Symlink || !gitdir.IsDotGitmodules(name))
}
