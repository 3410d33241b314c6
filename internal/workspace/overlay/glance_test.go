package overlay

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
	some, all := glanceBounds{folders: 10, files: 1}, usualGlance
	for _, c := range []struct {
		most   glanceBounds
		change string
		moved  bool
	}{{some, "", false}, {some, "d/new", false}, {some, "d/written last", false}, {some, "e/written first", true}, {all, "d/new", false}, {all, "e/written first", false}} {
		p := New(t.TempDir(), os.Geteuid() == 0)
		p.glance = c.most
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

// TestGlanceOverTheLast: folders above what changed since the last snapshot may change before After reads them.
func TestGlanceOverTheLast(t *testing.T) {
	p := New(t.TempDir(), os.Geteuid() == 0)
	g, err := p.Begin(t.Context(), workspace.State{}, workspace.Entry{Type: workspace.Folder, Mode: 0o755}, "")
	must(t, err)
	at := func(name string) string { return filepath.Join(p.fs(g.Layer), name) }
	must(t, os.Mkdir(at("d"), 0o755))
	must(t, os.WriteFile(at("d/a"), []byte("first"), 0o644))
	untilTicks(t)
	take := func(between func()) workspace.State {
		t.Helper()
		s, err := p.Snapshot(t.Context(), g, workspace.SnapshotOptions{Stands: func(workspace.State) bool { return true }})
		must(t, err)
		must(t, s.Ahead(t.Context()))
		untilTicks(t)
		must(t, s.Take(t.Context()))
		between()
		must(t, s.After(t.Context()))
		state, err := s.Done(t.Context())
		must(t, err)
		must(t, s.Keep(state))
		must(t, s.Drop())
		return state
	}
	take(func() {})
	must(t, os.WriteFile(at("d/a"), []byte("second"), 0o644))
	untilTicks(t)
	second := take(func() {
		must(t, os.WriteFile(at("d/new"), nil, 0o644))
		must(t, os.WriteFile(at("new"), nil, 0o644))
	})
	names, err := filepath.Glob(filepath.Join(p.fs(second.Layers[len(second.Layers)-1]), "*"))
	must(t, err)
	b, err := os.ReadFile(filepath.Join(p.fs(second.Layers[len(second.Layers)-1]), "d/a"))
	if err != nil || string(b) != "second" || len(names) != 1 {
		t.Errorf("the copy has %q, and d/a %q, %v", names, b, err)
	}
}

// TestHeld: what changed since the pass ahead is read while the processes stand still, whatever it is,
// and is in the copy when all of it has changed since.
func TestHeld(t *testing.T) {
	p := New(t.TempDir(), os.Geteuid() == 0)
	g, err := p.Begin(t.Context(), workspace.State{}, workspace.Entry{Type: workspace.Folder, Mode: 0o755}, "")
	must(t, err)
	dir := p.fs(g.Layer)
	must(t, os.WriteFile(filepath.Join(dir, "old"), []byte("old"), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "gone"), []byte("gone"), 0o644))
	s, err := p.Snapshot(t.Context(), g, workspace.SnapshotOptions{})
	must(t, err)
	must(t, s.Ahead(t.Context()))
	untilTicks(t)
	all := []string{"plain", "sparse", "large", "one name", "to", "pipe", "with much", "moved"}
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.WriteFile(at("plain"), []byte("before"), 0o640))
	must(t, unix.Setxattr(at("plain"), "user.a", []byte("before"), 0))
	must(t, os.WriteFile(at("sparse"), []byte("before"), 0o644))
	must(t, os.Truncate(at("sparse"), 1<<20))
	large := bytes.Repeat([]byte("before"), mostHeld/6+1)
	must(t, os.WriteFile(at("large"), large, 0o644))
	must(t, os.WriteFile(at("one name"), []byte("before"), 0o644))
	must(t, os.Link(at("one name"), at("other name")))
	must(t, os.Symlink("before", at("to")))
	must(t, os.WriteFile(at("with much"), []byte("before"), 0o644))
	for i := range 3 { // one file system gives all attributes of a file 4 KiB, others more
		if err := unix.Setxattr(at("with much"), fmt.Sprint("user.", i), bytes.Repeat([]byte("x"), 2000), 0); err != unix.ENOSPC {
			must(t, err)
		}
	}
	must(t, unix.Mkfifo(at("pipe"), 0o600))
	must(t, os.Rename(at("gone"), at("moved")))
	untilTicks(t)
	must(t, s.Take(t.Context()))
	for _, name := range all {
		must(t, os.Remove(at(name)))
		must(t, os.WriteFile(at(name), []byte("after"), 0o600))
	}
	must(t, os.WriteFile(at("other name"), []byte("after"), 0o600))
	must(t, s.After(t.Context()))
	state, err := s.Done(t.Context())
	must(t, err)
	must(t, s.Drop())
	dir = p.fs(state.Layers[0])
	for name, want := range map[string]string{"old": "old", "plain": "before", "one name": "before", "other name": "before", "with much": "before", "moved": "gone", "large": string(large), "sparse": "before" + strings.Repeat("\x00", 1<<20-6)} {
		if b, err := os.ReadFile(at(name)); string(b) != want {
			t.Errorf("%s has %.20q, %v", name, b, err)
		}
	}
	var value [8]byte
	n, err := unix.Getxattr(at("plain"), "user.a", value[:])
	must(t, err)
	target, err := os.Readlink(at("to"))
	must(t, err)
	var plain, sparse, one, other, pipe unix.Stat_t
	for name, st := range map[string]*unix.Stat_t{"plain": &plain, "sparse": &sparse, "one name": &one, "other name": &other, "pipe": &pipe} {
		must(t, unix.Lstat(at(name), st))
	}
	if string(value[:n]) != "before" || target != "before" || plain.Mode != unix.S_IFREG|0o640 || sparse.Blocks*512 >= 1<<20 || one.Ino != other.Ino || pipe.Mode&unix.S_IFMT != unix.S_IFIFO {
		t.Errorf("attribute %q, target %q, mode %o, %d blocks, inodes %d and %d, %o", value[:n], target, plain.Mode, sparse.Blocks, one.Ino, other.Ino, pipe.Mode)
	}
	if _, err := os.Lstat(at("gone")); !os.IsNotExist(err) {
		t.Error("what was moved has its old name, too")
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

// A Stat can show a file that is being cut with its new size and the times of before. Behind its lock it has new times, by which
// After knows that it has changed.
func TestFilesThatAreBeingCut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	write := func() error { return os.WriteFile(path, []byte("1"), 0o644) } // cuts it first
	must(t, write())
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	over, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-over:
				done <- nil
				return
			default:
			}
			if err := write(); err != nil {
				done <- err
				return
			}
		}
	}()
	look := func() workspace.Stat {
		var st unix.Stat_t
		must(t, unix.Fstat(int(f.Fd()), &st))
		return workspace.StatOf(&st)
	}
	was, seen := look(), 0
	for i := 0; i < 3_000_000 && seen < 200; i++ {
		is := look()
		if is.Size < was.Size && is.CTime == was.CTime {
			seen++
			settle(int(f.Fd()))
			if look() == is {
				t.Fatal("a file that is being cut looks as if it were not")
			}
		}
		was = is
	}
	close(over)
	must(t, <-done)
	t.Logf("seen %d times", seen)
}
