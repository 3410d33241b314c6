package overlay

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/workspacetest"
	"golang.org/x/sys/unix"
)

// TestProviderGlances is the suite of snapshots that look at as little as they can while the processes stand still.
func TestProviderGlances(t *testing.T) {
	for _, most := range []glanceBounds{{0, 1, 1}, {0, 100, 100}} {
		workspacetest.Snapshots(t, func(root string) workspace.Provider {
			p := New(root, os.Geteuid() == 0)
			p.glance = most
			return p
		})
	}
}

// TestGlance: what Take looked at may change before After, and nothing else.
func TestGlance(t *testing.T) {
	for _, c := range []struct {
		change string
		moved  bool
	}{{"", false}, {"d/new", false}, {"d/written last", false}, {"e/written first", true}} {
		p := New(t.TempDir(), os.Geteuid() == 0)
		p.glance = glanceBounds{folders: 10, files: 1}
		g, err := p.Begin(t.Context(), workspace.State{}, workspace.Entry{Type: workspace.Folder, Mode: 0o755}, "")
		must(t, err)
		write := func(name, data string) {
			t.Helper()
			path := filepath.Join(p.fs(g.Layer), name)
			must(t, os.MkdirAll(filepath.Dir(path), 0o755))
			must(t, os.WriteFile(path, []byte(data), 0o644))
		}
		write("e/written first", "before")
		untilTicks(t)
		write("d/written last", "before")
		untilTicks(t)
		s, err := p.Snapshot(t.Context(), g, workspace.SnapshotOptions{})
		must(t, err)
		must(t, s.Ahead(t.Context()))
		write("d/in between", "before")
		untilTicks(t)
		must(t, s.Take(t.Context()))
		untilTicks(t)
		if c.change != "" {
			write(c.change, "after")
		}
		err = s.After(t.Context())
		if errors.Is(err, workspace.ErrMoved) != c.moved || err != nil && !c.moved {
			t.Errorf("with %q changed after it was taken: %v", c.change, err)
		}
		if c.moved {
			must(t, s.Drop())
			continue
		}
		state, err := s.Done(t.Context())
		must(t, err)
		must(t, s.Drop())
		names, err := filepath.Glob(filepath.Join(p.fs(state.Layers[0]), "*", "*"))
		must(t, err)
		for _, name := range names {
			b, err := os.ReadFile(name)
			must(t, err)
			if string(b) != "before" {
				t.Errorf("with %q changed after it was taken the copy of %s has %q", c.change, filepath.Base(name), b)
			}
		}
		if len(names) != 3 {
			t.Errorf("with %q changed after it was taken the copy has %q", c.change, names)
		}
		if left, err := filepath.Glob(filepath.Join(p.root, "*", "staged")); err != nil || len(left) > 0 {
			t.Errorf("left behind: %q, %v", left, err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// untilTicks returns when a change has another time than what was changed before.
func untilTicks(t *testing.T) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ticks")
	at := func() int64 {
		must(t, os.WriteFile(path, nil, 0o600))
		var st unix.Stat_t
		must(t, unix.Stat(path, &st))
		return unix.TimespecToNsec(st.Ctim)
	}
	for first := at(); at()-first <= 2*workspace.RacySlack; {
	}
}
