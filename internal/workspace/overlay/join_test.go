package overlay

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/pando-dev/pando/internal/workspace"
)

// A daemon that is killed while it takes out what nothing touched leaves a layer with
// some of it; the next one takes out the rest, and no name is left alone.
func TestX26PartingIsRepeated(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := New(filepath.Join(t.TempDir(), "layers"), os.Geteuid() == 0)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	w, err := p.Extend(ctx, workspace.State{})
	must(err)
	must(os.Mkdir(filepath.Join(w.Dir(), "d"), 0o755))
	must(os.WriteFile(filepath.Join(w.Dir(), "a"), []byte("a"), 0o644))
	must(os.Link(filepath.Join(w.Dir(), "a"), filepath.Join(w.Dir(), "d/b")))
	base, err := w.Done()
	must(err)
	g, err := p.Begin(ctx, base, workspace.Entry{Type: workspace.Folder, Mode: 0o755, MTime: 5e17}, "")
	must(err)
	must(p.Join(ctx, g, []workspace.LinkGroup{{Names: []string{"a", "d/b"}, Size: 1}}))
	at := func(name string) string { return filepath.Join(p.fs(g.Layer), name) }
	must(os.WriteFile(at("new"), nil, 0o644))

	rec, err := p.readJoined(g.Layer)
	must(err)
	same, err := p.untouchedJoins(g.Layer, rec)
	must(err)
	if len(same.Files) != 1 || len(same.Dirs) != 2 || !same.Dirs[1].Same {
		t.Fatalf("%+v", same)
	}
	same.Removing = true
	must(p.writeJoined(g.Layer, same))
	must(os.Remove(at("a"))) // as far as it got

	s, err := p.Freeze(ctx, g)
	must(err)
	for _, name := range []string{"a", "d/b", "d"} {
		if _, err := os.Lstat(at(name)); !os.IsNotExist(err) {
			t.Errorf("%s is in the layer (%v)", name, err)
		}
	}
	if _, err := os.Lstat(p.joinedPath(g.Layer)); !os.IsNotExist(err) {
		t.Errorf("the record is still there (%v)", err)
	}
	again, err := p.Freeze(ctx, g)
	must(err)
	if !again.Same(s) {
		t.Error("another state the second time")
	}
}
