package gitdir

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
)

// The layout of an index, from git's Documentation/gitformat-index.txt.
const (
	indexHeader   = 12 // "DIRC", version, number of entries
	indexStat     = 40 // ctime, mtime, dev, ino, mode, uid, gid, size
	indexMode     = 24 // where mode lies in it
	indexExtended = 0x4000
	indexModeDir  = 0o040000 // a whole folder of a sparse index
)

// HashLen returns the length in bytes of the object ids of a repository with that config file.
// The format of the index depends on it.
func HashLen(config []byte) (int, error) {
	switch format := configValue(config, "extensions.objectformat"); format {
	case "", "sha1":
		return sha1.Size, nil
	case "sha256":
		return sha256.Size, nil
	default:
		return 0, unsupportedIndex("object format %q is not known", format)
	}
}

// ReadIndex returns the tracked paths of an index of version 2, 3 or 4, which r
// gives and which has size bytes. hashLen is the length of the repository's
// object ids: 20 or 32. A path with conflicts has several entries and is listed
// once. What only some of git's modes write (split and sparse index) is
// Unsupported: part of the paths is then not in it. What exceeds a limit is
// TooLarge. Everything else that is wrong is Corrupt.
//
// It reads r once, in order, and allocates in proportion to what it read,
// whatever the names of version 4 expand to.
func ReadIndex(r io.Reader, size int64, hashLen int) (*Set, error) {
	if size < int64(indexHeader+hashLen) {
		return nil, corruptIndex("no header")
	}
	x := newIndexReader(r, size, hashLen)
	head, err := x.take(indexHeader)
	if err != nil {
		return nil, err
	}
	if string(head[:4]) != "DIRC" {
		return nil, corruptIndex("no header")
	}
	x.version = binary.BigEndian.Uint32(head[4:])
	count := binary.BigEndian.Uint32(head[8:])
	if x.version < 2 || x.version > 4 {
		return nil, unsupportedIndex("version %d is not known", x.version)
	}
	if int64(count)*int64(indexStat+hashLen+3) > x.left {
		return nil, corruptIndex("too many entries announced")
	}
	out := setWriter{limit: maxSet}
	var bad error // reported after the extensions: a split index has nameless entries
	for range count {
		mode, shared, err := x.entry()
		if err != nil {
			return nil, err
		}
		if mode == indexModeDir {
			return nil, unsupportedIndex("it is a sparse index")
		}
		if bad != nil {
			continue
		}
		// Only the part that differs from the previous name is checked: that name was checked
		// completely.
		if out.s.n == 0 {
			shared = 0
		}
		// Versions 2 and 3 have no shared prefixes in their format, but the names have.
		for shared < len(out.last) && shared < len(x.name) && out.last[shared] == x.name[shared] {
			shared++
		}
		if bad = checkIndexName(x.name, shared); bad != nil {
			continue
		}
		if out.s.n > 0 {
			switch bytes.Compare(out.last[shared:], x.name[shared:]) {
			case 0: // another stage of a conflict
				continue
			case 1:
				bad = corruptIndex("entries out of order")
				continue
			}
		}
		if err := out.add(x.name, shared); err != nil {
			return nil, err
		}
	}
	if err := x.extensions(nil); err != nil {
		return nil, err
	}
	if err := x.checkSum(); err != nil {
		return nil, err
	}
	if bad != nil {
		return nil, bad
	}
	return out.set(), nil
}

// indexReader walks over the entries and extensions of an index.
type indexReader struct {
	r       *bufio.Reader // all but the checksum; everything read from it is hashed
	all     io.Reader
	left    int64 // bytes of r that are left
	sum     hash.Hash
	hashLen int
	version uint32
	buf     [128]byte // for take
	name    []byte    // of the last entry

	fixed    []byte // of the last entry, up to its flags
	extended uint16 // its further flags
}

func newIndexReader(r io.Reader, size int64, hashLen int) *indexReader {
	x := &indexReader{all: r, left: size - int64(hashLen), hashLen: hashLen, sum: sha1.New()}
	if hashLen == sha256.Size {
		x.sum = sha256.New()
	}
	x.r = bufio.NewReaderSize(io.TeeReader(io.LimitReader(r, x.left), x.sum), 64<<10)
	return x
}

// take returns the next n bytes, at most len(buf), valid until the next take.
func (x *indexReader) take(n int) ([]byte, error) {
	b := x.buf[:n]
	if int64(n) > x.left {
		return nil, corruptIndex("cut off")
	}
	x.left -= int64(n)
	return b, cutOff(x.read(b))
}

func (x *indexReader) read(b []byte) error {
	_, err := io.ReadFull(x.r, b)
	return err
}

// cutOff turns an early end of the input into a Corrupt error.
func cutOff(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return corruptIndex("cut off")
	}
	return err
}

// checkSum compares the final digest. All zeros means that git was told not to compute one
// (index.skipHash).
func (x *indexReader) checkSum() error {
	var sum [sha256.Size]byte
	if _, err := io.ReadFull(x.all, sum[:x.hashLen]); err != nil {
		return cutOff(err)
	}
	if got := sum[:x.hashLen]; bytes.Count(got, []byte{0}) != x.hashLen && !bytes.Equal(got, x.sum.Sum(nil)) {
		return corruptIndex("checksum does not match")
	}
	return nil
}

// entry reads one entry into x.name, and returns the number of first bytes shared with the entry
// before.
func (x *indexReader) entry() (mode uint32, shared int, err error) {
	fixed := indexStat + x.hashLen + 2
	b, err := x.take(fixed)
	if err != nil {
		return 0, 0, err
	}
	x.fixed, x.extended = append(x.fixed[:0], b...), 0
	mode = binary.BigEndian.Uint32(b[indexMode:])
	if binary.BigEndian.Uint16(b[fixed-2:])&indexExtended != 0 {
		fixed += 2
		if x.version < 3 {
			return 0, 0, corruptIndex("extended flags where none may be")
		}
		more, err := x.take(2)
		if err != nil {
			return 0, 0, err
		}
		x.extended = binary.BigEndian.Uint16(more)
	}
	if x.version == 4 {
		drop, err := x.varint()
		if err != nil {
			return 0, 0, err
		}
		if drop > uint64(len(x.name)) {
			return 0, 0, corruptIndex("bad prefix of a name")
		}
		shared = len(x.name) - int(drop)
	}
	x.name = x.name[:shared]
	for {
		b, err := x.r.ReadSlice(0)
		x.left -= int64(len(b))
		x.name = append(x.name, bytes.TrimSuffix(b, []byte{0})...)
		if len(x.name) > maxName {
			return 0, 0, bound.Exceed("a name in git's index", maxName, "bytes")
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		if err != nil {
			return 0, 0, cutOff(err)
		}
		break
	}
	if x.version != 4 {
		// 1 to 8 NULs up to a multiple of eight, of which one was read.
		pad, err := x.take(7 - (fixed+len(x.name))%8)
		if err != nil {
			return 0, 0, err
		}
		if bytes.Count(pad, []byte{0}) != len(pad) {
			return 0, 0, corruptIndex("bad padding")
		}
	}
	return mode, shared, nil
}

// checkIndexName rejects names that git never lets into an index, since a caller may join them
// to a folder. The first checked bytes are those of a valid name.
func checkIndexName(name []byte, checked int) error {
	for rest, more := name[bytes.LastIndexByte(name[:checked], '/')+1:], true; more; {
		var part []byte
		part, rest, more = bytes.Cut(rest, []byte("/"))
		if s := string(part); s == "" || s == "." || s == ".." {
			return corruptIndex("impossible name")
		}
	}
	return nil
}

// extensions checks that the rest may be skipped: extensions with a name that begins with a
// capital letter are optional. to, which may be nil, takes over some.
func (x *indexReader) extensions(to *indexWriter) error {
	for x.left > 0 {
		head, err := x.take(8)
		if err != nil {
			return err
		}
		name, size := string(head[:4]), int64(binary.BigEndian.Uint32(head[4:]))
		if size > x.left {
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
		x.left -= size
		if to != nil {
			kept, err := to.keep(head, size, x.r)
			if err != nil {
				return cutOff(err)
			}
			if kept {
				continue
			}
		}
		if _, err := x.r.Discard(int(size)); err != nil {
			return cutOff(err)
		}
	}
	return nil
}

// varint decodes git's offset encoding: groups of seven bits, high ones first,
// and one is added for each continuation.
func (x *indexReader) varint() (v uint64, err error) {
	for range 9 {
		c, err := x.r.ReadByte()
		if err != nil {
			return 0, cutOff(err)
		}
		x.left--
		v = v<<7 | uint64(c&0x7f)
		if c&0x80 == 0 {
			return v, nil
		}
		v++
	}
	return 0, corruptIndex("bad prefix of a name")
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
