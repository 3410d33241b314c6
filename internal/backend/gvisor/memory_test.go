package gvisor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

// What another build of gVisor has captured is refused before anything is made, with
// both; what can't be read is corrupt.
func TestD45ImageOfAnotherBuild(t *testing.T) {
	back := New(config(t))
	defer back.Close()
	now, err := back.build()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(b []byte) {
		if err := os.WriteFile(filepath.Join(dir, "cell.json"), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		build string
		want  cell.Kind
	}{{now, ""}, {"sha256:0123", cell.Unsupported}} {
		b, err := json.Marshal(map[string]any{"needs": map[string]string{"build of gVisor": c.build}, "guest": map[string]any{}})
		if err != nil {
			t.Fatal(err)
		}
		write(b)
		o, err := back.open(&cell.Spec{Memory: dir})
		if cell.KindOf(err) != c.want || c.want != "" && (!strings.Contains(err.Error(), c.build) || !strings.Contains(err.Error(), now)) {
			t.Errorf("an image of build %s: %v", c.build, err)
		}
		for _, f := range o.Files {
			f.Close()
		}
	}
	write([]byte("{"))
	o, err := back.open(&cell.Spec{Memory: dir})
	if cell.KindOf(err) != cell.Corrupt {
		t.Errorf("an image that can't be read: %v", err)
	}
	for _, f := range o.Files {
		f.Close()
	}
}
