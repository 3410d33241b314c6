package spawn

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/clone"
)

// layers is a Space that drops layers at once.
type layers struct {
	Space
	p workspace.Provider
	t *testing.T
}

func (l layers) DropLayer(_, layer string) {
	if err := l.p.Drop(layer); err != nil {
		l.t.Error(err)
	}
}

// What was written over caches before a template was captured is needed as long as the
// template's image is there; what was copied of it for branches goes with them.
func TestD40LayersOfSnapshots(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	home := paths.Home{State: filepath.Join(dir, "state"), Cache: filepath.Join(dir, "cache"), Run: filepath.Join(dir, "run")}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(home.Make())
	p := clone.New(home.Layers())
	m := New(Config{Home: home, Log: slog.New(slog.DiscardHandler), Space: layers{p: p, t: t}})
	id, upper := cell.NewID(), t.TempDir()
	must(os.WriteFile(filepath.Join(upper, "f"), []byte("over a cache"), 0o644))
	s := &snapshot{m: m, provider: p, above: map[string]workspace.State{}, dir: filepath.Join(m.private(id), imageFolder)}
	must(s.takeAbove(t.Context(), map[string]string{"/cache": upper, "/empty": t.TempDir()}))
	made := s.above["/cache"].Layers
	if len(made) != 1 || len(s.above) != 1 {
		t.Fatalf("%v was made of what was written over a cache", s.above)
	}
	if above := m.Above(id); len(above) > 0 {
		t.Errorf("a template without an image needs %v", above)
	}
	text, err := json.Marshal(imageFacts{Above: s.above})
	must(err)
	must(os.MkdirAll(s.dir, 0o700))
	must(os.WriteFile(filepath.Join(s.dir, imageFile), text, 0o600))
	if above := m.Above(id); len(above) != 1 || !slices.Equal(above[0].Layers, made) {
		t.Errorf("a template's image needs %v, not %v", above, made)
	}
	s.dropAbove()
	if all, err := p.Layers(); err != nil || slices.Contains(all, made[0]) {
		t.Errorf("a copied layer is left: %v", err)
	}
}
