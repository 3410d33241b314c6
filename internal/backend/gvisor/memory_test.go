package gvisor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

// What another version of gVisor has captured is refused before anything is made, with
// both versions; what can't be read is corrupt.
func TestD45ImageOfAnotherVersion(t *testing.T) {
	cfg := config(t)
	now := version(cfg.Runsc)
	if !strings.HasPrefix(now, "v0.0.0-") {
		t.Fatalf("pando-runsc is gVisor %q", now)
	}
	dir := t.TempDir()
	write := func(b []byte) {
		if err := os.WriteFile(filepath.Join(dir, factsFile), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		version string
		want    cell.Kind
	}{{now, ""}, {"v0.0.0-earlier", cell.Unsupported}} {
		b, err := json.Marshal(facts{GVisor: c.version, Guest: known{Token: make([]byte, 32)}})
		if err != nil {
			t.Fatal(err)
		}
		write(b)
		o, err := cfg.open(&cell.Spec{Memory: dir})
		if cell.KindOf(err) != c.want || c.want != "" && (!strings.Contains(err.Error(), c.version) || !strings.Contains(err.Error(), now)) {
			t.Errorf("an image of version %s: %v", c.version, err)
		}
		for _, f := range o.Files {
			f.Close()
		}
	}
	write([]byte("{"))
	o, err := cfg.open(&cell.Spec{Memory: dir})
	if cell.KindOf(err) != cell.Corrupt {
		t.Errorf("an image that can't be read: %v", err)
	}
	for _, f := range o.Files {
		f.Close()
	}
}
