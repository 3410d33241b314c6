// Package disk keeps objects in pack files: appended one after the other, with
// an index of fixed-size rows beside each. It is owned by one process.
//
//	000001.pack   the objects' bytes, one after the other
//	000001.idx    rows of digest (32 bytes), offset (8), length (4), big endian
//
// Neither is synced. Data lost with the power is noticed (rows beyond the pack's end, bytes
// that do not have their digest), and the callers that need it make it again.
package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/store"
)

const (
	rowSize  = 32 + 8 + 4
	packSize = 64 << 20 // bytes after which a new pack begins
)

// Store implements store.Store.
type Store struct {
	dir  string
	full int64 // packSize

	mu    sync.RWMutex // guards what follows
	index map[cell.Digest]row
	packs map[int]*pack
	cur   *pack // takes what is put, if it has room
	last  int   // the highest number that a pack has had
}

type row struct {
	pack   int
	offset int64
	length int
}

type pack struct {
	n    int
	data *os.File
	idx  *os.File
	size int64 // of data
	rows int64 // in idx
}

// Open reads the indexes of the packs in dir, which is made if need be.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s := &Store{dir: dir, full: packSize, index: map[cell.Digest]row{}, packs: map[int]*pack{}}
	names, err := filepath.Glob(filepath.Join(dir, "*.pack"))
	if err != nil {
		return nil, err
	}
	sort.Strings(names)
	for _, name := range names {
		var n int
		if _, err := fmt.Sscanf(filepath.Base(name), "%d.pack", &n); err != nil {
			continue
		}
		if err := s.load(n); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

func (s *Store) path(n int, ext string) string {
	return filepath.Join(s.dir, fmt.Sprintf("%06d.%s", n, ext))
}

func (s *Store) openPack(n int) (*pack, error) {
	data, err := os.OpenFile(s.path(n, "pack"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	idx, err := os.OpenFile(s.path(n, "idx"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		data.Close()
		return nil, err
	}
	return &pack{n: n, data: data, idx: idx}, nil
}

func (s *Store) load(n int) error {
	p, err := s.openPack(n)
	if err != nil {
		return err
	}
	st, err := p.data.Stat()
	if err != nil {
		return err
	}
	rows, err := io.ReadAll(p.idx)
	if err != nil {
		return err
	}
	good := 0
	for ; len(rows) >= rowSize; rows = rows[rowSize:] {
		r := row{pack: n, offset: int64(binary.BigEndian.Uint64(rows[32:])), length: int(binary.BigEndian.Uint32(rows[40:]))}
		if r.offset < 0 || r.offset+int64(r.length) > st.Size() {
			break // written after what power loss left of the pack
		}
		s.index[cell.Digest(rows[:32])] = r
		good++
	}
	if err := p.idx.Truncate(int64(good * rowSize)); err != nil {
		return err
	}
	p.size, p.rows = st.Size(), int64(good)
	s.packs[n], s.cur, s.last = p, p, max(s.last, n)
	return nil
}

// begin makes a new pack the one that takes what is put.
func (s *Store) begin() error {
	p, err := s.openPack(s.last + 1)
	if err != nil {
		return err
	}
	if err := errors.Join(p.data.Truncate(0), p.idx.Truncate(0)); err != nil { // what a crash left of one that was dropped
		p.data.Close()
		p.idx.Close()
		return err
	}
	s.last++
	s.packs[p.n], s.cur = p, p
	return nil
}

// end removes a pack.
func (s *Store) end(p *pack) {
	p.data.Close()
	p.idx.Close()
	os.Remove(s.path(p.n, "pack"))
	os.Remove(s.path(p.n, "idx"))
	delete(s.packs, p.n)
}

// Close closes the files.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, p := range s.packs {
		errs = append(errs, p.data.Close(), p.idx.Close())
	}
	s.packs, s.cur = map[int]*pack{}, nil
	return errors.Join(errs...)
}

// Has implements store.Store.
func (s *Store) Has(d cell.Digest) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, ok := s.index[d]
	return ok
}

// Put implements store.Store.
func (s *Store) Put(d cell.Digest, b []byte) error {
	if err := store.Check(d, b); err != nil {
		return err
	}
	if s.Has(d) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.index[d]; ok {
		return nil
	}
	return s.append(d, b)
}

func (s *Store) append(d cell.Digest, b []byte) error {
	if s.cur == nil || s.cur.size > s.full {
		if err := s.begin(); err != nil {
			return err
		}
	}
	p := s.cur
	failpoint.Step("write an object")
	if _, err := p.data.WriteAt(b, p.size); err != nil {
		return err
	}
	var r [rowSize]byte
	copy(r[:], d[:])
	binary.BigEndian.PutUint64(r[32:], uint64(p.size))
	binary.BigEndian.PutUint32(r[40:], uint32(len(b)))
	failpoint.Step("index an object")
	if _, err := p.idx.WriteAt(r[:], p.rows*rowSize); err != nil { // what was written of it is written over
		return err
	}
	p.rows++
	s.index[d] = row{p.n, p.size, len(b)}
	p.size += int64(len(b))
	return nil
}

// Get implements store.Store.
func (s *Store) Get(d cell.Digest) ([]byte, error) {
	s.mu.RLock()
	b, err := s.read(d)
	s.mu.RUnlock()
	if err == nil && cell.Sum(b) != d {
		err = store.Damaged(d)
	}
	if cell.KindOf(err) == cell.Corrupt {
		s.forget(d)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

func (s *Store) read(d cell.Digest) ([]byte, error) {
	r, ok := s.index[d]
	if !ok {
		return nil, store.NotFound(d)
	}
	b := make([]byte, r.length)
	if _, err := s.packs[r.pack].data.ReadAt(b, r.offset); err != nil {
		return nil, store.Damaged(d)
	}
	return b, nil
}

// Size implements store.Sized.
func (s *Store) Size() (objects int, bytes int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, p := range s.packs {
		bytes += p.size
	}
	return len(s.index), bytes
}

// Length is how many bytes an object takes; 0 for one that is not there.
func (s *Store) Length(d cell.Digest) int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return int64(s.index[d].length)
}

// forget drops the knowledge of a damaged object, so that it can be put again.
func (s *Store) forget(d cell.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.index, d)
}

// Keep implements store.Store. A pack in which everything stays is left as it
// is; what stays of the others is written into new ones, then they go.
func (s *Store) Keep(keep func(cell.Digest) bool) (freed int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	live := map[int]int64{} // bytes that stay, by pack
	kept := map[cell.Digest]row{}
	for d, r := range s.index {
		if keep(d) {
			kept[d] = r
			live[r.pack] += int64(r.length)
		}
	}
	old, was, cur := map[int]*pack{}, s.index, s.cur
	var before, after int64
	for n, p := range s.packs {
		before += p.size
		if live[n] < p.size || p.size == 0 {
			old[n] = p
		}
	}
	if cur != nil && old[cur.n] != nil {
		s.cur = nil
	}
	first := s.last + 1 // of the packs made here
	s.index = map[cell.Digest]row{}
	for d, r := range kept {
		p := old[r.pack]
		if p == nil {
			s.index[d] = r
			continue
		}
		b := make([]byte, r.length)
		if _, err := p.data.ReadAt(b, r.offset); err != nil {
			continue // damaged: as good as gone
		}
		if err := s.append(d, b); err != nil {
			for n, p := range s.packs {
				if n >= first {
					s.end(p)
				}
			}
			s.index, s.cur = was, cur
			return 0, err
		}
	}
	for _, p := range old {
		s.end(p)
	}
	for _, p := range s.packs {
		after += p.size
	}
	return before - after, nil
}
