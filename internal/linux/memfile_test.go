package linux

import (
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A file of which something holds a page for a moment is sealed when that is over; one that stays in
// use is refused.
func TestSealWaitsForPages(t *testing.T) {
	for name, freed := range map[string]int{"at once": 0, "soon": 2, "never": sealTries + 1} {
		f, err := MemoryFile("test", false)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString("text"); err != nil {
			t.Fatal(err)
		}
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		waits := 0
		free := func() {
			if waits != freed {
				return
			}
			if _, err := io.ReadFull(r, make([]byte, 4)); err != nil {
				t.Error(err)
			}
		}
		// The pipe holds the file's page until it is read.
		if n, err := unix.Splice(int(f.Fd()), new(int64), int(w.Fd()), nil, 4, 0); n != 4 || err != nil {
			t.Fatal(n, err)
		}
		free()
		err = seal(f, func() { waits++; free() })
		if freed > sealTries {
			if !errors.Is(err, unix.EBUSY) || waits != sealTries-1 {
				t.Errorf("freed %s: %v after %d waits", name, err, waits)
			}
			continue
		}
		if err != nil || waits != freed {
			t.Errorf("freed %s: %v after %d waits", name, err, waits)
		}
		if _, err := f.WriteString("x"); !errors.Is(err, unix.EPERM) {
			t.Errorf("freed %s: writing after sealing: %v", name, err)
		}
	}
}
