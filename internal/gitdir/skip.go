package gitdir

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io"
	"path"
	"slices"
	"strings"
)

// Flags of an entry, from git's Documentation/gitformat-index.txt.
const (
	indexStage        = 0x3000 // of the first two bytes: not 0 in a conflict
	indexSkipWorktree = 0x4000 // of the second two
)

// A Repo is the repository of one work tree.
type Repo struct {
	dir     string // has HEAD and index
	common  string // has config and info/exclude; dir, except in linked worktrees
	top     string // the work tree
	prefix  string // the requested folder in it; "" is the top
	hashLen int
}

// SkipWorktree copies an index of the repository from r, which gives size bytes,
// to w. It sets the skip-worktree bit of the given paths, relative to the folder
// that the repository was found for, and of all below them: git does not look for
// such a file in the work tree, and does not take its absence for a deletion.
// What is in conflict keeps its entries.
//
// It reads r once, in order, in memory that does not depend on the size. Of the
// extensions it keeps the cached trees and resolved conflicts; what git
// computes anew is left out. Errors are those of ReadIndex, or w's; what is in w
// then is no index.
func (r *Repo) SkipWorktree(from io.Reader, size int64, w io.Writer, paths []string) error {
	if size < int64(indexHeader+r.hashLen) {
		return corruptIndex("no header")
	}
	x := newIndexReader(from, size, r.hashLen)
	out := newIndexWriter(w, r.hashLen)
	head, err := x.take(indexHeader)
	if err != nil {
		return err
	}
	if string(head[:4]) != "DIRC" {
		return corruptIndex("no header")
	}
	x.version = binary.BigEndian.Uint32(head[4:])
	if x.version < 2 || x.version > 4 {
		return unsupportedIndex("version %d is not known", x.version)
	}
	count := binary.BigEndian.Uint32(head[8:])
	if x.version == 2 { // it has no such bit
		binary.BigEndian.PutUint32(head[4:], 3)
	}
	out.Write(head)
	skips := newPathCursor(r.prefix, paths)
	for range count {
		before := len(x.name)
		mode, shared, err := x.entry()
		if err != nil {
			return err
		}
		if mode == indexModeDir {
			return unsupportedIndex("it is a sparse index")
		}
		flags := len(x.fixed) - 2
		two, extended := binary.BigEndian.Uint16(x.fixed[flags:]), x.extended
		if two&indexStage == 0 && skips.covers(x.name) {
			two, extended = two|indexExtended, extended|indexSkipWorktree
		}
		binary.BigEndian.PutUint16(x.fixed[flags:], two)
		out.Write(x.fixed)
		length := len(x.fixed)
		if two&indexExtended != 0 {
			out.Write(binary.BigEndian.AppendUint16(nil, extended))
			length += 2
		}
		if x.version == 4 {
			out.Write(appendOffset(nil, uint64(before-shared)))
			out.Write(x.name[shared:])
			out.Write([]byte{0})
		} else {
			out.Write(x.name)
			out.Write(make([]byte, 8-(length+len(x.name))%8))
		}
	}
	if err := x.extensions(out); err != nil {
		return err
	}
	if err := x.checkSum(); err != nil {
		return err
	}
	return out.end()
}

// pathCursor decides whether sorted names are given paths or below one. All names together cost
// one walk over the paths.
type pathCursor struct {
	rest   []string // sorted: each path, and each with a slash
	folder string   // the last one passed, with its slash
}

func newPathCursor(prefix string, paths []string) *pathCursor {
	c := &pathCursor{}
	for _, p := range paths {
		p = path.Join(prefix, p)
		c.rest = append(c.rest, p, p+"/")
	}
	slices.Sort(c.rest)
	return c
}

func (c *pathCursor) covers(name []byte) bool {
	is := false
	for len(c.rest) > 0 && c.rest[0] <= string(name) {
		if strings.HasSuffix(c.rest[0], "/") {
			c.folder = c.rest[0]
		}
		is = c.rest[0] == string(name)
		c.rest = c.rest[1:]
	}
	return is || c.folder != "" && bytes.HasPrefix(name, []byte(c.folder))
}

// indexWriter hashes what it writes. It keeps its first error for end.
type indexWriter struct {
	*bufio.Writer
	w   io.Writer
	sum hash.Hash
}

func newIndexWriter(w io.Writer, hashLen int) *indexWriter {
	sum := sha1.New()
	if hashLen == sha256.Size {
		sum = sha256.New()
	}
	return &indexWriter{bufio.NewWriterSize(io.MultiWriter(w, sum), 64<<10), w, sum}
}

// keep copies the extension with that head, if it stays valid.
func (o *indexWriter) keep(head []byte, size int64, from io.Reader) (bool, error) {
	switch string(head[:4]) {
	case "TREE", "REUC":
	default:
		return false, nil
	}
	o.Write(head)
	_, err := io.CopyN(o, from, size)
	return true, err
}

func (o *indexWriter) end() error {
	if err := o.Flush(); err != nil {
		return err
	}
	_, err := o.w.Write(o.sum.Sum(nil))
	return err
}

// appendOffset is the inverse of indexReader.varint.
func appendOffset(b []byte, v uint64) []byte {
	var buf [10]byte
	at := len(buf) - 1
	buf[at] = byte(v & 0x7f)
	for v >>= 7; v != 0; v >>= 7 {
		v--
		at--
		buf[at] = 0x80 | byte(v&0x7f)
	}
	return append(b, buf[at:]...)
}
