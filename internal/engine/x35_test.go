package engine

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/pando-dev/pando/internal/backend"
)

// mendable is a backend that counts how often it is asked what works here.
type mendable struct {
	backend.Backend
	asked int
	lacks string
}

func (m *mendable) Probe(context.Context) (backend.Caps, error) {
	m.asked++
	return backend.Caps{DiskLimit: m.lacks}, nil
}

// What a backend can do is asked again when a device, a program or a setting of the host
// has come, changed or gone, and not before.
func TestX35MendedHostIsSeen(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	tool := filepath.Join(t.TempDir(), "mke2fs")
	b.Engine.hostParts = []string{tool}
	m := &mendable{Backend: b.cfg.Backends[0], lacks: "mke2fs is not installed"}
	expect := func(what, lacks string, asked int) {
		t.Helper()
		c, err := b.caps(b.ctx, m)
		if err != nil || c.DiskLimit != lacks || m.asked != asked {
			t.Errorf("%s: it lacks %q (%v), asked %d times; want %q, %d", what, c.DiskLimit, err, m.asked, lacks, asked)
		}
	}
	expect("at first", m.lacks, 1)
	expect("unchanged", m.lacks, 1)
	b.must(os.WriteFile(tool, nil, 0o755))
	m.lacks = ""
	expect("installed", "", 2)
	expect("unchanged", "", 2)
	b.must(os.Chmod(tool, 0o600))
	expect("of another mode", "", 3)
	b.must(os.Remove(tool))
	m.lacks = "gone"
	expect("removed", "gone", 4)
}
