package disk

import (
	"os"
	"path/filepath"
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
