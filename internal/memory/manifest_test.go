package memory

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"testing"

	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
)

func sampleRoot() []byte {
	d := cell.Sum([]byte("x"))
	m := manifest{files: []file{
		{name: "empty"},
		{name: "pages.img", size: 300 << 20, leaves: []leafRef{{d, 100 << 20}, {d, 200 << 20}}},
	}}
	return m.encode()
}

func sampleLeaf() ([]byte, int64) {
	d := cell.Sum([]byte("x"))
	return encodeLeaf([]*span{{size: page, stored: d, plain: d}, {size: 1 << 30}, {size: maxChunk, stored: d, plain: d}, {size: 7}}), page + 1<<30 + maxChunk + 7
}

// Whatever bytes a root has, it is refused or is exactly what is written of
// what was read.
func FuzzRoot(f *testing.F) {
	f.Add(sampleRoot())
	f.Add([]byte(rootHeader))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m *manifest
		var err error
		boundtest.Allocates(t, len(b), func() { m, err = decodeRoot(b) })
		if err != nil {
			if cell.KindOf(err) != cell.Corrupt {
				t.Fatal(err)
			}
			return
		}
		if !bytes.Equal(m.encode(), b) {
			t.Fatalf("%q is accepted and is written as %q", b, m.encode())
		}
		for _, f := range m.files {
			for _, l := range f.leaves {
				f.size -= l.size
			}
			if f.size != 0 || !isName(f.name) {
				t.Fatalf("accepted: %+v", f)
			}
		}
	})
}

// So with a leaf; its spans are as long as its stretch of the file.
func FuzzLeaf(f *testing.F) {
	leaf, size := sampleLeaf()
	f.Add(leaf, size)
	f.Add([]byte(leafHeader), int64(0))
	f.Fuzz(func(t *testing.T, b []byte, size int64) {
		var spans []span
		var err error
		boundtest.Allocates(t, len(b), func() { spans, err = decodeLeaf(b, size) })
		if err != nil {
			return
		}
		var again []*span
		for i := range spans {
			s := &spans[i]
			if size -= s.size; s.size <= 0 || !s.hole() && s.size > maxChunk {
				t.Fatalf("accepted: %+v", s)
			}
			again = append(again, s)
		}
		if size != 0 || !bytes.Equal(encodeLeaf(again), b) {
			t.Fatalf("%q is accepted and is written as %q", b, encodeLeaf(again))
		}
	})
}

// Every cut and every changed length is noticed.
func TestMalformed(t *testing.T) {
	root := sampleRoot()
	leaf, size := sampleLeaf()
	if _, err := decodeRoot(root); err != nil {
		t.Fatal(err)
	}
	if _, err := decodeLeaf(leaf, size); err != nil {
		t.Fatal(err)
	}
	for n := range root {
		if _, err := decodeRoot(root[:n]); err == nil {
			t.Errorf("a root cut at %d is accepted", n)
		}
	}
	for n := range leaf {
		if _, err := decodeLeaf(leaf[:n], size); err == nil {
			t.Errorf("a leaf cut at %d is accepted", n)
		}
	}
	for _, n := range []int64{0, size - 1, size + 1, -1} {
		if _, err := decodeLeaf(leaf, n); err == nil {
			t.Errorf("a leaf is accepted for %d bytes", n)
		}
	}
	long := append([]byte(rootHeader), 0x80, 0) // no files, in two bytes
	if _, err := decodeRoot(long); err == nil {
		t.Error("a number that is longer than need be is accepted")
	}
	d := cell.Sum(nil)
	for _, m := range []manifest{
		{files: []file{{name: "b"}, {name: "a"}}},
		{files: []file{{name: "a"}, {name: "a"}}},
		{files: []file{{name: "../a"}}},
		{files: []file{{name: "a", size: 1}}},
		{files: []file{{name: "a", size: 1, leaves: []leafRef{{d, 2}}}}},
		{files: []file{{name: "a", size: 1, leaves: []leafRef{{d, 1}, {d, 0}}}}},
		{files: []file{{name: "a", size: 1, leaves: []leafRef{{cell.Digest{}, 1}}}}},
	} {
		if _, err := decodeRoot(m.encode()); err == nil {
			t.Errorf("accepted: %+v", m)
		}
	}
	if _, err := decodeLeaf(encodeLeaf([]*span{{size: maxChunk + 1, stored: d}}), maxChunk+1); err == nil {
		t.Error("a chunk larger than any is accepted")
	}
}

// One span more at the beginning changes the leaves there, and no other.
func TestLeavesFindTheirBordersAgain(t *testing.T) {
	spans := []*span{{size: page, plain: cell.Sum(nil), stored: cell.Sum(nil)}}
	for i := range 10000 {
		d := cell.Sum([]byte{byte(i), byte(i >> 8)})
		spans = append(spans, &span{size: page, plain: d, stored: d})
	}
	old := map[string]bool{}
	for _, l := range split(spans[1:]) {
		old[string(encodeLeaf(l))] = true
	}
	total, fresh := 0, 0
	for _, l := range split(spans) {
		total += len(l)
		if len(l) > maxLeaf {
			t.Errorf("a leaf of %d", len(l))
		}
		if !old[string(encodeLeaf(l))] {
			fresh++
		}
	}
	if total != len(spans) || len(old) < 50 || fresh > 5 {
		t.Errorf("%d of %d spans in leaves; %d of %d leaves are new", total, len(spans), fresh, len(old))
	}
}

type objects map[cell.Digest][]byte

func (o objects) Put(d cell.Digest, b []byte) error { o[d] = b; return nil }
func (o objects) Get(d cell.Digest) ([]byte, error) { return o[d], nil }
func (o objects) Has(d cell.Digest) bool            { return o[d] != nil }
func (o objects) add(b []byte) cell.Digest          { d := cell.Sum(b); o[d] = b; return d }

// An image that claims sizes and numbers allocates none of it.
func TestX02HeadersThatClaim(t *testing.T) {
	num := func(head string, list ...uint64) []byte {
		b := []byte(head)
		for _, n := range list {
			b = binary.AppendUvarint(b, n)
		}
		return b
	}
	roots := map[string][]byte{
		"files":        num(rootHeader, 1<<40),
		"all files":    num(rootHeader, 1<<64-1),
		"a name":       num(rootHeader, 1, 1<<40),
		"a whole name": num(rootHeader, 1, 1<<63),
		"leaves":       append(num(rootHeader, 1, 1), append([]byte("a"), num("", 1<<55, 1<<50)...)...),
	}
	for name, b := range roots {
		boundtest.Allocates(t, len(b), func() {
			if _, err := decodeRoot(b); cell.KindOf(err) != cell.Corrupt {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	for _, n := range []uint64{1<<56<<1 | 1, 1<<63 | 1, 1<<64 - 1, maxChunk<<1 + 2} {
		b := num(leafHeader, n)
		boundtest.Allocates(t, len(b), func() {
			if _, err := decodeLeaf(b, 1<<20); cell.KindOf(err) != cell.Corrupt {
				t.Errorf("a span of %d: %v", n, err)
			}
		})
	}
	// One that is right in itself: a hole as long as a file can be, and a chunk that is
	// none of what the leaf says.
	for name, spans := range map[string][]*span{
		"a hole":  {{size: 1 << 55}},
		"a chunk": {{size: 1 << 55}, {size: maxChunk, stored: cell.Sum([]byte("x")), plain: cell.Sum([]byte("y"))}},
	} {
		st := objects{}
		st.add([]byte("x"))
		size := int64(0)
		for _, s := range spans {
			size += s.size
		}
		m := manifest{files: []file{{name: "pages.img", size: size, leaves: []leafRef{{st.add(encodeLeaf(spans)), size}}}}}
		boundtest.AllocatesBeside(t, 0, 4<<20, func() { // the decoder, and what is written at once
			err := LoadDir(t.Context(), st, st.add(m.encode()), filepath.Join(t.TempDir(), "image"))
			if name == "a chunk" && err == nil {
				t.Errorf("%s is loaded", name)
			}
		})
	}
}
