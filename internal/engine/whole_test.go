package engine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
)

// What was written over caches before a template was captured stays as long as the
// template; what was copied of it for branches goes with the branch.
func TestD40LayersOfInstants(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	tm := b.template("warm", "x = 1")
	c, err := b.reg.Cell(cell.ID(tm.Cell))
	b.must(err)
	p, err := b.providerOf(c.Provider)
	b.must(err)
	upper := t.TempDir()
	b.must(os.WriteFile(filepath.Join(upper, "f"), []byte("over a cache"), 0o644))
	in := &instant{e: b.Engine, provider: p, above: map[string]workspace.State{}, dir: filepath.Join(b.private(c.ID), imageFolder)}
	b.must(in.takeAbove(b.ctx, map[string]string{"/cache": upper}))
	layers := in.above["/cache"].Layers
	if len(layers) != 1 {
		t.Fatalf("%d layers were made of what was written over a cache", len(layers))
	}
	if !b.isGarbage(layers[0]) {
		t.Error("a layer is needed that nothing names")
	}
	text, err := json.Marshal(wholeFacts{Above: in.above})
	b.must(err)
	b.must(os.Mkdir(in.dir, 0o700))
	b.must(os.WriteFile(filepath.Join(in.dir, wholeFile), text, 0o600))
	if b.isGarbage(layers[0]) {
		t.Error("a layer of a template's image is not needed")
	}
	in.dropAbove()
	if all, err := p.Layers(); err != nil || slices.Contains(all, layers[0]) {
		t.Errorf("a copied layer is left: %v", err)
	}
}
