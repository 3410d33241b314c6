package receipt

import (
	"bytes"
	"fmt"
	"path"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
)

// A tile is 256 hashes of one level: 32 bytes each.
type tile struct {
	level int
	n     int64
	data  []byte
}

// path is where a tile lies, after tlog-tiles: tile/0/x001/234.
func (t tile) path() string {
	name := fmt.Sprintf("%03d", t.n%1000)
	for n := t.n / 1000; n > 0; n /= 1000 {
		name = fmt.Sprintf("x%03d/%s", n%1000, name)
	}
	return fmt.Sprintf("%s/%d/%s", tileDir, t.level, name)
}

// A tileStore keeps tiles as files. They could be made again from the
// entries; they are there so that proofs don't need all of them.
type tileStore struct {
	fs    durable.FS
	swept map[string]bool // directories in which no partial files are left
	made  map[string]bool // directories that surely exist
}

func newTileStore(fsys durable.FS) tileStore {
	return tileStore{fsys, map[string]bool{}, map[string]bool{}}
}

// check compares a tile with its file.
func (s tileStore) check(t tile) (missing bool, err error) {
	dir := path.Dir(t.path())
	if !s.swept[dir] {
		err := durable.RemovePartial(s.fs, dir)
		if err != nil && cell.KindOf(err) != cell.NotFound {
			return false, err
		}
		s.swept[dir] = true
	}
	data, err := s.load(t.level, t.n)
	switch {
	case cell.KindOf(err) == cell.NotFound:
		return true, nil
	case err == nil && !bytes.Equal(data, t.data):
		err = corrupt("%s does not fit the receipts", t.path())
	}
	return false, err
}

func (s tileStore) load(level int, n int64) ([]byte, error) {
	return durable.ReadFile(s.fs, tile{level: level, n: n}.path())
}

func (s tileStore) write(t tile) error {
	dir := path.Dir(t.path())
	if !s.made[dir] {
		if err := durable.MakeDirs(s.fs, dir, 0o700); err != nil {
			return err
		}
		s.made[dir] = true
	}
	return durable.WriteFile(s.fs, t.path(), t.data, 0o600)
}
