package receipt

import (
	"fmt"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pando-dev/pando/internal/cell"
)

// Tiles are those of https://c2sp.org/tlog-tiles: 256 hashes each.
const (
	tileHeight = 8
	tileWidth  = 1 << tileHeight
)

// A tree is a Merkle tree that grows. It keeps in memory only its right edge;
// complete tiles are handed to the caller through full and come back through
// load.
type tree struct {
	size  int64
	peaks []tlog.Hash   // roots of the complete subtrees, the largest first
	edge  [][]tlog.Hash // for each level of tiles, the one that is not complete
	full  []tile        // complete and not yet taken by the caller
	load  func(level int, n int64) ([]byte, error)
}

// add puts a leaf at the end.
func (t *tree) add(leaf tlog.Hash) {
	h := leaf
	for n := t.size; n&1 == 1; n >>= 1 {
		last := len(t.peaks) - 1
		h = tlog.NodeHash(t.peaks[last], h)
		t.peaks = t.peaks[:last]
	}
	t.peaks = append(t.peaks, h)
	t.size++
	t.addToTile(0, leaf)
}

func (t *tree) addToTile(level int, h tlog.Hash) {
	if len(t.edge) == level {
		t.edge = append(t.edge, make([]tlog.Hash, 0, tileWidth))
	}
	t.edge[level] = append(t.edge[level], h)
	if len(t.edge[level]) < tileWidth {
		return
	}
	done := tile{level: level, n: t.size>>(tileHeight*(level+1)) - 1, data: pack(t.edge[level])}
	t.full = append(t.full, done)
	row := t.edge[level]
	for len(row) > 1 {
		for i := 0; i < len(row); i += 2 {
			row[i/2] = tlog.NodeHash(row[i], row[i+1])
		}
		row = row[:len(row)/2]
	}
	root := row[0]
	t.edge[level] = t.edge[level][:0]
	t.addToTile(level+1, root)
}

func pack(hashes []tlog.Hash) []byte {
	b := make([]byte, 0, len(hashes)*tlog.HashSize)
	for i := range hashes {
		b = append(b, hashes[i][:]...)
	}
	return b
}

// root is the tree's hash, after RFC 6962.
func (t *tree) root() cell.Digest {
	if t.size == 0 {
		return cell.Sum(nil)
	}
	h := t.peaks[len(t.peaks)-1]
	for i := len(t.peaks) - 2; i >= 0; i-- {
		h = tlog.NodeHash(t.peaks[i], h)
	}
	return cell.Digest(h)
}

// clone returns a tree that can grow on its own.
func (t *tree) clone() *tree {
	c := *t
	c.peaks = slices.Clone(t.peaks)
	c.full = slices.Clone(t.full)
	c.edge = make([][]tlog.Hash, len(t.edge))
	for i, e := range t.edge {
		c.edge[i] = append(make([]tlog.Hash, 0, tileWidth), e...)
	}
	return &c
}

// ReadHashes implements tlog.HashReader, for proofs.
func (t *tree) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	hashes := make([]tlog.Hash, len(indexes))
	var last tile
	for i, index := range indexes {
		at := tlog.TileForIndex(tileHeight, index)
		var data []byte
		switch complete := t.size >> (tileHeight * (at.L + 1)); {
		case at.N > complete || at.N == complete && at.L >= len(t.edge):
			return nil, fmt.Errorf("hash %d is not in a tree of %d leaves", index, t.size)
		case at.N == complete:
			data = pack(t.edge[at.L])
		default:
			if last.data == nil || last.level != at.L || last.n != at.N {
				data, err := t.read(at.L, at.N)
				if err != nil {
					return nil, err
				}
				last = tile{at.L, at.N, data}
			}
			data = last.data
		}
		at.W = min(len(data)/tlog.HashSize, tileWidth)
		h, err := tlog.HashFromTile(at, data, index)
		if err != nil {
			return nil, err
		}
		hashes[i] = h
	}
	return hashes, nil
}

// read returns a complete tile.
func (t *tree) read(level int, n int64) ([]byte, error) {
	for _, f := range t.full {
		if f.level == level && f.n == n {
			return f.data, nil
		}
	}
	data, err := t.load(level, n)
	if err == nil && len(data) != tileWidth*tlog.HashSize {
		err = cell.Errorf(cell.Corrupt, "receipt.Export", "remove it, pando makes it again", "cannot use %s: it has %d bytes", tile{level: level, n: n}.path(), len(data))
	}
	return data, err
}
