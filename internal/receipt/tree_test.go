package receipt

import (
	"bytes"
	"fmt"
	"testing"

	"golang.org/x/mod/sumdb/tlog"
	"pgregory.net/rapid"

	"github.com/pando-dev/pando/internal/cell"
)

// plain is the tree as tlog stores it, to compare with.
type plain []tlog.Hash

func (p plain) ReadHashes(indexes []int64) (out []tlog.Hash, err error) {
	for _, i := range indexes {
		out = append(out, p[i])
	}
	return out, nil
}

func leafOf(i int64) []byte { return fmt.Appendf(nil, "leaf %d", i) }

// growTree returns a tree with tiles that are stored elsewhere, as on disk.
func growTree(n int64) (*tree, plain, map[string][]byte) {
	stored := map[string][]byte{}
	t := &tree{load: func(level int, n int64) ([]byte, error) {
		b := stored[tile{level: level, n: n}.path()]
		if b == nil {
			return nil, fmt.Errorf("no tile %d/%d", level, n)
		}
		return b, nil
	}}
	var p plain
	for i := range n {
		h, err := tlog.StoredHashes(i, leafOf(i), p)
		if err != nil {
			panic(err)
		}
		p = append(p, h...)
		t.add(tlog.RecordHash(leafOf(i)))
		if i%7 == 0 { // some wait a while
			for _, f := range t.full {
				stored[f.path()] = f.data
			}
			t.full = nil
		}
	}
	return t, p, stored
}

func TestTreeIsRFC6962(t *testing.T) {
	var p plain
	tr := &tree{}
	for i := range int64(1100) {
		want, err := tlog.TreeHash(i, p)
		must(t, err)
		if tr.root() != cell.Digest(want) {
			t.Fatalf("root of %d leaves differs", i)
		}
		h, err := tlog.StoredHashes(i, leafOf(i), p)
		must(t, err)
		p = append(p, h...)
		tr.add(tlog.RecordHash(leafOf(i)))
	}
	if len(tr.full) != 4 || tr.full[3].path() != "tile/0/003" {
		t.Fatalf("%d tiles", len(tr.full))
	}
	for _, f := range tr.full {
		want, err := tlog.ReadTileData(tlog.Tile{H: 8, L: f.level, N: f.n, W: 256}, p)
		if err != nil || !bytes.Equal(f.data, want) {
			t.Errorf("%s differs, %v", f.path(), err)
		}
	}
}

// 70,000 leaves have two levels of tiles and begin a third.
func TestTreeProofsFromTiles(t *testing.T) {
	const n = 70_000
	tr, p, stored := growTree(n)
	if stored["tile/1/000"] == nil || len(tr.edge) != 3 {
		t.Fatalf("%d levels", len(tr.edge))
	}
	root, err := tlog.TreeHash(n, p)
	must(t, err)
	rapid.Check(t, func(t *rapid.T) {
		i := rapid.Int64Range(0, n-1).Draw(t, "leaf")
		proof, err := tlog.ProveRecord(n, i, tr)
		if err != nil || tlog.CheckRecord(proof, n, root, i, tlog.RecordHash(leafOf(i))) != nil {
			t.Fatalf("leaf %d: %v", i, err)
		}
		size := rapid.Int64Range(1, n).Draw(t, "size")
		old, err := tlog.TreeHash(size, tr)
		if err != nil {
			t.Fatal(err)
		}
		ext, err := tlog.ProveTree(n, size, tr)
		if err != nil || tlog.CheckTree(ext, n, root, size, old) != nil {
			t.Fatalf("size %d: %v", size, err)
		}
	})
	if _, err := tr.ReadHashes([]int64{tlog.StoredHashIndex(0, n)}); err == nil {
		t.Error("a hash beyond the end was found")
	}
	stored["tile/0/001"] = stored["tile/0/001"][:100]
	if _, err := tr.ReadHashes([]int64{tlog.StoredHashIndex(0, 300)}); cell.KindOf(err) != cell.Corrupt {
		t.Errorf("%v", err)
	}
}

func TestTreeCloneGrowsAlone(t *testing.T) {
	a, _, _ := growTree(500)
	before := a.root()
	b := a.clone()
	for i := range int64(100) {
		b.add(tlog.RecordHash(leafOf(500 + i)))
	}
	if a.root() != before || a.size != 500 {
		t.Error("the original grew")
	}
	want, _, _ := growTree(600)
	for i := range int64(100) {
		a.add(tlog.RecordHash(leafOf(500 + i)))
	}
	if a.root() != want.root() || b.root() != want.root() {
		t.Error("roots differ")
	}
	if !bytes.Equal(pack(a.edge[0]), pack(want.edge[0])) || !bytes.Equal(pack(b.edge[1]), pack(want.edge[1])) {
		t.Error("edges differ")
	}
}

func TestTilePath(t *testing.T) {
	for n, want := range map[int64]string{0: "tile/0/000", 7: "tile/0/007", 999: "tile/0/999", 1000: "tile/0/x001/000", 1234067: "tile/0/x001/x234/067"} {
		if got := (tile{n: n}).path(); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
