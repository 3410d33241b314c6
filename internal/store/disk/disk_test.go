package disk

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/store"
	"github.com/pando-dev/pando/internal/store/mem"
	"github.com/pando-dev/pando/internal/store/storetest"
)

func TestContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		s, err := Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	})
}

func TestContractInMemory(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store { return mem.New() })
}

func TestReopenAndTornTail(t *testing.T) {
	dir := t.TempDir()
	s, _ := Open(dir)
	a, b := []byte("first"), []byte("second")
	s.Put(cell.Sum(a), a)
	s.Put(cell.Sum(b), b)
	s.Close()
	os.Truncate(filepath.Join(dir, "000001.pack"), int64(len(a))+2)
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got, err := s.Get(cell.Sum(a)); err != nil || string(got) != "first" {
		t.Fatal(err)
	}
	if s.Has(cell.Sum(b)) {
		t.Fatal("claims to have what is torn")
	}
	if err := s.Put(cell.Sum(b), b); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get(cell.Sum(b)); err != nil || string(got) != "second" {
		t.Fatalf("%q %v", got, err)
	}
}

func TestDamageIsNoticed(t *testing.T) {
	dir := t.TempDir()
	s, _ := Open(dir)
	defer s.Close()
	a := []byte("some object")
	s.Put(cell.Sum(a), a)
	f, _ := os.OpenFile(filepath.Join(dir, "000001.pack"), os.O_WRONLY, 0)
	f.WriteAt([]byte("X"), 3)
	f.Close()
	if _, err := s.Get(cell.Sum(a)); cell.KindOf(err) != cell.Corrupt {
		t.Fatalf("damaged object: %v", err)
	}
	if err := s.Put(cell.Sum(a), a); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(cell.Sum(a)); err != nil {
		t.Fatal(err)
	}
}

// A collection costs what is dropped, not what is kept: packs without garbage
// are not touched, packs of nothing else go unread.
func TestKeepLeavesWholePacksAlone(t *testing.T) {
	dir := t.TempDir()
	s, _ := Open(dir)
	defer func() { s.Close() }()
	s.full = 99
	var ds []cell.Digest
	put := func(s *Store, i byte) cell.Digest {
		b := bytes.Repeat([]byte{i}, 50)
		if err := s.Put(cell.Sum(b), b); err != nil {
			t.Fatal(err)
		}
		return cell.Sum(b)
	}
	for i := range byte(7) { // 0 1 | 2 3 | 4 5 | 6
		ds = append(ds, put(s, i))
	}
	const dropped = 1<<2 | 1<<4 | 1<<5
	keep := func(d cell.Digest) bool { return 1<<slices.Index(ds, d)&dropped == 0 }
	look := func() (all []string) {
		names, _ := filepath.Glob(filepath.Join(dir, "*.pack"))
		for _, n := range names {
			all = append(all, filepath.Base(n))
		}
		return all
	}
	if freed, err := s.Keep(keep); freed != 150 || err != nil {
		t.Fatalf("freed %d, %v", freed, err)
	}
	// 3 has joined 6, in the pack that had room.
	if got, want := look(), []string{"000001.pack", "000004.pack"}; !slices.Equal(got, want) {
		t.Errorf("packs are %v, want %v", got, want)
	}
	if freed, err := s.Keep(keep); freed != 0 || err != nil {
		t.Errorf("freed again %d, %v", freed, err)
	}
	for range 2 {
		for i, d := range ds {
			if b, err := s.Get(d); (err == nil) != keep(d) || err == nil && b[0] != byte(i) {
				t.Errorf("object %d: %v", i, err)
			}
		}
		s.Close()
		s, _ = Open(dir)
	}
	if freed, err := s.Keep(func(cell.Digest) bool { return false }); freed != 200 || err != nil || len(look()) != 0 {
		t.Errorf("freed all: %d, %v, left %v", freed, err, look())
	}
	stale := slices.Concat(ds[0][:], make([]byte, 11), []byte{50}) // of a pack that a crash took
	os.WriteFile(filepath.Join(dir, "000005.idx"), slices.Concat(stale, stale), 0o600)
	d := put(s, 9)
	s.Close()
	s, _ = Open(dir)
	if _, err := s.Get(d); err != nil || s.Has(ds[0]) {
		t.Errorf("%v; it has what is gone: %v", err, s.Has(ds[0]))
	}
}

// A disk that was full while a row was written: what is put later is found.
func TestTornRow(t *testing.T) {
	dir := t.TempDir()
	s, _ := Open(dir)
	a, b := []byte("first"), []byte("second")
	s.Put(cell.Sum(a), a)
	s.cur.idx.Seek(0, io.SeekEnd)
	s.cur.idx.WriteString("torn")
	s.Put(cell.Sum(b), b)
	s.Close()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, x := range [][]byte{a, b} {
		if got, err := s.Get(cell.Sum(x)); err != nil || !bytes.Equal(got, x) {
			t.Errorf("%q: %q, %v", x, got, err)
		}
	}
}
