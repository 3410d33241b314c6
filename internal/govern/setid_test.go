package govern

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// Programs that run with the rights of another user are covered in what a cell can
// write to, at any depth and with either bit, and in nothing else.
func TestX07ProgramsAreCovered(t *testing.T) {
	b := newBed(t)
	dir := t.TempDir()
	for path, mode := range map[string]os.FileMode{"plain": 0o755, "user": 0o755 | os.ModeSetuid, "a/b/group": 0o750 | os.ModeSetgid, "a/hidden/user": 0o4755 | os.ModeSetuid} {
		p := filepath.Join(dir, path)
		b.must(os.MkdirAll(filepath.Dir(p), 0o755))
		b.must(os.WriteFile(p, nil, 0o600))
		b.must(os.Chmod(p, mode))
	}
	b.must(os.Chmod(filepath.Join(dir, "a"), 0o755|os.ModeSetgid)) // a directory runs nothing
	b.must(os.Symlink("user", filepath.Join(dir, "link")))
	c := &state.Cell{ID: cell.NewID()}
	own := filepath.Join(b.folder(c.ID), "home")
	mounts := []cell.Mount{
		{Kind: cell.Bind, Target: "/home/u", Source: own},
		{Kind: cell.Bind, Target: "/old", Source: dir, ReadOnly: true},
		{Kind: cell.Bind, Target: "/out", Source: dir},
		{Kind: cell.Tmpfs, Target: "/out/a/hidden", ReadOnly: true},
	}
	for range 2 { // what was covered before is found anew
		var err error
		mounts, err = b.coverSetID(c, mounts)
		b.must(err)
		var got []string
		for _, m := range mounts {
			if m.Kind == cell.Protect && m.ReadOnly {
				got = append(got, m.Target)
			}
		}
		if want := []string{"/out/a/b/group", "/out/user"}; !slices.Equal(got, want) {
			t.Errorf("covered are %v, not %v", got, want)
		}
	}
	_, err := b.coverSetID(c, []cell.Mount{{Kind: cell.Bind, Target: "/su", Source: filepath.Join(dir, "user")}})
	b.wantKind("a mount of such a program itself", err, cell.Denied, "so that the cell can write to it")
	if !strings.Contains(cell.HintOf(err), "read-only") {
		t.Error(cell.HintOf(err))
	}
}
