package workspace

import (
	"encoding/binary"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// Encode encodes the parts of a Tree that are not directory objects.
func (t *Tree) Encode() []byte {
	b := []byte("pando tree 1\n")
	b = t.Root.append(b)
	b = binary.AppendUvarint(b, uint64(len(t.Links)))
	for _, g := range t.Links {
		b = binary.AppendUvarint(b, uint64(len(g)))
		for _, p := range g {
			b = appendString(b, p)
		}
	}
	return b
}

// DecodeTree decodes the result of Encode.
func DecodeTree(b []byte, objs Objects) (*Tree, error) {
	rest, ok := strings.CutPrefix(string(b), "pando tree 1\n")
	if !ok {
		return nil, corrupt("tree header")
	}
	r := reader{b: []byte(rest)}
	t := &Tree{objs: objs}
	t.Root = r.entry()
	for n := r.count(); n > 0 && r.err == nil; n-- {
		var g []string
		for m := r.count(); m > 0 && r.err == nil; m-- {
			g = append(g, r.str())
		}
		t.Links = append(t.Links, g)
	}
	if r.err != nil || len(r.b) != 0 || t.Root.Type != Folder || t.Root.Name != "" {
		return nil, corrupt("tree")
	}
	return t, nil
}

// encode gives the canonical bytes of a directory: the number of entries,
// then each entry (see Entry.append).
func (d Dir) encode() []byte {
	b := make([]byte, 0, 16+len(d)*96)
	b = binary.AppendUvarint(b, uint64(len(d)))
	for i := range d {
		b = d[i].append(b)
	}
	return b
}

// append writes: name; type; mode; mtime as zigzag varint; number of xattrs
// with name and value each; then by type: file size and digest; folder digest
// and content digest; symlink target; device number. Strings are preceded by
// their length, numbers are unsigned varints.
func (e *Entry) append(b []byte) []byte {
	b = appendString(b, e.Name)
	b = append(b, byte(e.Type))
	b = binary.AppendUvarint(b, uint64(e.Mode))
	b = binary.AppendVarint(b, e.MTime)
	b = binary.AppendUvarint(b, uint64(len(e.XAttrs)))
	for _, x := range e.XAttrs {
		b = appendString(b, x.Name)
		b = appendString(b, x.Value)
	}
	switch e.Type {
	case File:
		b = binary.AppendUvarint(b, uint64(e.Size))
		b = append(b, e.Digest[:]...)
	case Folder:
		b = append(b, e.Digest[:]...)
		b = append(b, e.Content[:]...)
	case Symlink:
		b = appendString(b, e.Target)
	case CharDev, Block:
		b = binary.AppendUvarint(b, e.Rdev)
	}
	return b
}

func decodeDir(b []byte) (Dir, error) {
	r := reader{b: b}
	n := r.count()
	d := make(Dir, 0, n)
	for ; n > 0 && r.err == nil; n-- {
		e := r.entry()
		if !isName(e.Name) || (len(d) > 0 && d[len(d)-1].Name >= e.Name) {
			return nil, corrupt("directory object")
		}
		d = append(d, e)
	}
	if r.err != nil || len(r.b) != 0 {
		return nil, corrupt("directory object")
	}
	return d, nil
}

// isName reports whether a directory can have an entry of that name.
func isName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\x00")
}

// reader decodes; after the first error it returns zero values.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail() { r.err, r.b = corrupt("encoding"), nil }

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

// count reads a number of things that take at least one byte each.
func (r *reader) count() int {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.fail()
		return 0
	}
	return int(n)
}

func (r *reader) bytes(n int) []byte {
	if r.err != nil || n > len(r.b) {
		r.fail()
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) str() string {
	n := r.count()
	return string(r.bytes(n))
}

func (r *reader) digest() (d cell.Digest) {
	copy(d[:], r.bytes(len(d)))
	return d
}

func (r *reader) entry() Entry {
	var e Entry
	e.Name = r.str()
	if t := r.bytes(1); t != nil {
		e.Type = Type(t[0])
	}
	e.Mode = uint32(r.uvarint())
	e.MTime = r.varint()
	for n := r.count(); n > 0 && r.err == nil; n-- {
		e.XAttrs = append(e.XAttrs, XAttr{r.str(), r.str()})
	}
	switch e.Type {
	case File:
		e.Size = int64(r.uvarint())
		e.Digest = r.digest()
	case Folder:
		e.Digest = r.digest()
		e.Content = r.digest()
	case Symlink:
		e.Target = r.str()
	case CharDev, Block:
		e.Rdev = r.uvarint()
	case Fifo, Socket:
	default:
		r.fail()
	}
	return e
}

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func corrupt(what string) error {
	return cell.Errorf(cell.Corrupt, "workspace", "", "%s is damaged", what)
}
