package memory

import (
	"bytes"
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
