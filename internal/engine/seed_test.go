package engine

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/testenv"
)

// A seed takes its predecessor's place, and nothing that the cell wrote or placed there.
func TestSeedsReplaceSeedsAlone(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	text := func(at string) string {
		b, _ := os.ReadFile(at)
		return string(b)
	}
	write := func(at, text string) {
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(victim, "before")
	at := filepath.Join(dir, "file")
	for _, tc := range []struct {
		name, want string
		seed       image.Seed
		put        func()
	}{
		{"nothing there", "new", image.Seed{Text: "new"}, func() {}},
		{"another's", "mine", image.Seed{Text: "new"}, func() { write(at, "mine") }},
		{"predecessor", "new", image.Seed{Text: "new", Instead: "before"}, func() { write(at, "before") }},
		{"predecessor only goes", "", image.Seed{Instead: "before"}, func() { write(at, "before") }},
		{"nothing to go", "", image.Seed{Instead: "before"}, func() {}},
		{"as long as it", "berofe", image.Seed{Instead: "before"}, func() { write(at, "berofe") }},
		{"longer", "before it", image.Seed{Instead: "before"}, func() { write(at, "before it") }},
		{"symlink", "before", image.Seed{Text: "new", Instead: "before"}, func() { os.Symlink(victim, at) }},
	} {
		os.Remove(at)
		tc.put()
		if err := plant(at, tc.seed); err != nil || text(at) != tc.want || text(victim) != "before" {
			t.Errorf("%s: %q, %v, want %q", tc.name, text(at), err, tc.want)
		}
	}
	os.Remove(at)
	if err := unix.Mkfifo(at, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := plant(at, image.Seed{Instead: "before"}); err != nil {
		t.Error(err)
	}
	if st, err := os.Lstat(at); err != nil || st.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("the FIFO is %v, %v", st, err)
	}
}

// A seed that could not be written whole leaves nothing, so that the next start writes it.
func TestSeedsAreWholeOrNotThere(t *testing.T) {
	at := filepath.Join(t.TempDir(), "file")
	testenv.FileSize(t, 4)
	if err := plant(at, image.Seed{Text: "whole"}); !errors.Is(err, unix.EFBIG) {
		t.Fatal(err)
	}
	if err := plant(at, image.Seed{Text: "all"}); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(at); string(b) != "all" {
		t.Errorf("%q, %v", b, err)
	}
}
