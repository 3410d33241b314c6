package gitdir

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"sort"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// A Set is the paths that git tracks below some folder, relative to it, in
// order of bytes. A submodule is one path, that of its folder. nil means that
// there is no repository, which differs from one that tracks nothing.
type Set []string

// Has reports whether path is tracked, or is a folder with something tracked
// below it.
func (s Set) Has(path string) bool {
	i := sort.SearchStrings(s, path)
	if i < len(s) && s[i] == path {
		return true
	}
	// "a-b" and "a.b" sort between "a" and "a/b".
	dir := path + "/"
	i += sort.SearchStrings(s[i:], dir)
	return i < len(s) && strings.HasPrefix(s[i], dir)
}

// below returns the part of s that lies below dir, relative to dir. It is
// never nil.
func (s Set) below(dir string) Set {
	if dir == "" {
		return s
	}
	from := sort.SearchStrings(s, dir+"/")
	to := from + sort.Search(len(s)-from, func(i int) bool { return !strings.HasPrefix(s[from+i], dir+"/") })
	out := make(Set, 0, to-from)
	for _, p := range s[from:to] {
		out = append(out, p[len(dir)+1:])
	}
	return out
}

// The layout of an index, from git's Documentation/gitformat-index.txt.
const (
	indexHeader   = 12 // "DIRC", version, number of entries
	indexStat     = 40 // ctime, mtime, dev, ino, mode, uid, gid, size
	indexMode     = 24 // where mode lies in it
	indexExtended = 0x4000
	indexModeDir  = 0o040000 // a whole folder of a sparse index
)

// ReadIndex returns the tracked paths of an index of version 2, 3 or 4.
// hashLen is the length of the repository's object ids: 20 or 32. A path with
// conflicts has several entries and is listed once. What only some of git's
// modes write (split and sparse index) is Unsupported: part of the paths is
// then not in b. Everything else that is wrong is Corrupt.
func ReadIndex(b []byte, hashLen int) (Set, error) {
	if len(b) < indexHeader+hashLen || string(b[:4]) != "DIRC" {
		return nil, corruptIndex("no header")
	}
	version, count := binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	if version < 2 || version > 4 {
		return nil, unsupportedIndex("version %d is not known", version)
	}
	if err := checkIndexSum(b, hashLen); err != nil {
		return nil, err
	}
	r := indexReader{b: b[indexHeader : len(b)-hashLen], hashLen: hashLen, version: version}
	// An entry has at least its fixed part and a NUL: a count that lies
	// cannot make us allocate more than a fraction of the file.
	if int64(count)*int64(indexStat+hashLen+3) > int64(len(r.b)) {
		return nil, corruptIndex("too many entries announced")
	}
	out := make(Set, 0, count)
	var name []byte
	var bad error // kept until the extensions are seen: a split index has nameless entries
	for range count {
		mode, err := r.entry(&name)
		if err != nil {
			return nil, err
		}
		if mode == indexModeDir {
			return nil, unsupportedIndex("it is a sparse index")
		}
		if err := checkIndexName(string(name)); err != nil {
			bad = err
			continue
		}
		if len(out) > 0 {
			switch last := out[len(out)-1]; {
			case last == string(name): // another stage of a conflict
				continue
			case last > string(name):
				bad = corruptIndex("entries out of order")
			}
		}
		out = append(out, string(name))
	}
	if err := r.extensions(); err != nil {
		return nil, err
	}
	if bad != nil {
		return nil, bad
	}
	return out, nil
}

// checkIndexSum compares the trailing digest. All zeros means that git was
// told not to compute one (index.skipHash).
func checkIndexSum(b []byte, hashLen int) error {
	body, sum := b[:len(b)-hashLen], b[len(b)-hashLen:]
	if bytes.Count(sum, []byte{0}) == hashLen {
		return nil
	}
	ok := false
	if hashLen == sha256.Size {
		ok = sha256.Sum256(body) == [sha256.Size]byte(sum)
	} else {
		ok = sha1.Sum(body) == [sha1.Size]byte(sum)
	}
	if !ok {
		return corruptIndex("checksum does not match")
	}
	return nil
}

// indexReader walks over the entries and extensions of an index.
type indexReader struct {
	b       []byte
	hashLen int
	version uint32
}

// entry reads one entry and sets *name, which holds the name of the previous
// one, to its name.
func (r *indexReader) entry(name *[]byte) (mode uint32, err error) {
	fixed := indexStat + r.hashLen + 2
	if len(r.b) < fixed {
		return 0, corruptIndex("cut off in an entry")
	}
	mode = binary.BigEndian.Uint32(r.b[indexMode:])
	if binary.BigEndian.Uint16(r.b[fixed-2:])&indexExtended != 0 {
		fixed += 2
		if r.version < 3 || len(r.b) < fixed {
			return 0, corruptIndex("extended flags where none may be")
		}
	}
	rest := r.b[fixed:]
	if r.version == 4 {
		drop, n := indexVarint(rest)
		if n == 0 || drop > uint64(len(*name)) {
			return 0, corruptIndex("bad prefix of a name")
		}
		rest = rest[n:]
		*name = (*name)[:uint64(len(*name))-drop]
	} else {
		*name = (*name)[:0]
	}
	end := bytes.IndexByte(rest, 0)
	if end < 0 {
		return 0, corruptIndex("cut off in a name")
	}
	*name = append(*name, rest[:end]...)
	rest = rest[end:]
	if r.version == 4 {
		r.b = rest[1:]
	} else {
		// 1 to 8 NULs up to a multiple of eight.
		pad := 8 - (fixed+end)%8
		if len(rest) < pad || bytes.Count(rest[:pad], []byte{0}) != pad {
			return 0, corruptIndex("bad padding")
		}
		r.b = rest[pad:]
	}
	return mode, nil
}

// checkIndexName refuses names that git never lets into an index. A caller may
// join what we return to a folder.
func checkIndexName(name string) error {
	for rest, more := name, true; more; {
		var part string
		part, rest, more = strings.Cut(rest, "/")
		if part == "" || part == "." || part == ".." {
			return corruptIndex("impossible name")
		}
	}
	return nil
}

// extensions checks that what follows the entries may be skipped: extensions
// whose name begins with a capital letter are optional.
func (r *indexReader) extensions() error {
	for len(r.b) > 0 {
		if len(r.b) < 8 {
			return corruptIndex("cut off in an extension")
		}
		name, size := string(r.b[:4]), binary.BigEndian.Uint32(r.b[4:])
		if uint64(size) > uint64(len(r.b)-8) {
			return corruptIndex("cut off in an extension")
		}
		switch {
		case name == "link":
			return unsupportedIndex("it is a split index")
		case name == "sdir":
			return unsupportedIndex("it is a sparse index")
		case name[0] < 'A' || name[0] > 'Z':
			return unsupportedIndex("extension %q is not known", name)
		}
		r.b = r.b[8+size:]
	}
	return nil
}

// indexVarint decodes git's offset encoding: groups of seven bits, high ones
// first, and one is added for each continuation. n is 0 if b is no number.
func indexVarint(b []byte) (v uint64, n int) {
	for n < len(b) && n < 9 {
		c := b[n]
		v = v<<7 | uint64(c&0x7f)
		n++
		if c&0x80 == 0 {
			return v, n
		}
		v++
	}
	return 0, 0
}

func corruptIndex(what string) error {
	return cell.Errorf(cell.Corrupt, "gitdir.Tracked", "",
		"cannot read git's index: %s", what)
}

func unsupportedIndex(format string, args ...any) error {
	return cell.Errorf(cell.Unsupported, "gitdir.Tracked",
		"run 'git update-index --no-split-index' or 'git sparse-checkout reapply --no-sparse-index' in the source",
		"cannot tell which files git tracks: "+format, args...)
}
