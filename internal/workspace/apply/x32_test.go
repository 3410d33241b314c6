package apply

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/workspace"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// onDisk is the contents of a directory.
type onDisk string

func (d onDisk) Open(path string, e workspace.Entry) (io.ReadCloser, error) {
	f, err := os.Open(filepath.Join(string(d), path))
	if err != nil {
		return nil, err
	}
	return workspace.Verified(f, path, e), nil
}

// What is applied, and taken back, has the holes of what it is made of.
func TestX32AppliedFilesHaveHoles(t *testing.T) {
	t.Parallel()
	const big = 2 << 30
	disk := func(text string) (string, workspace.Side) {
		dir := t.TempDir()
		f, err := os.Create(filepath.Join(dir, "f"))
		if err == nil {
			err = f.Truncate(big)
		}
		for _, off := range []int64{big - 40<<20, big - 20<<20} {
			if err == nil {
				_, err = f.WriteAt([]byte(text), off)
			}
		}
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		tree, err := workspace.Walk(context.Background(), dir, wt.NewObjects())
		if err != nil {
			t.Fatal(err)
		}
		return dir, workspace.Side{Tree: tree, Contents: onDisk(dir)}
	}
	source, before := disk("old")
	old, base := disk("old")
	edited, after := disk("new")
	blocks := func(dir string) int64 {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, "f"), &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks
	}
	if before.Tree.ContentDigest() != base.Tree.ContentDigest() || blocks(source) != blocks(old) || blocks(source) != blocks(edited) {
		t.Fatalf("blocks: %d, %d, %d", blocks(source), blocks(old), blocks(edited))
	}
	for _, to := range []struct {
		base, after workspace.Side
	}{{base, after}, {after, base}} {
		req := Request{Source: source, Base: to.base.Tree, After: to.after, Backup: filepath.Join(t.TempDir(), "backup")}
		if res := mustApply(t, req); len(res.Applied) != 1 {
			t.Fatalf("%+v", res)
		}
		now, err := workspace.Walk(context.Background(), source, wt.NewObjects())
		if err != nil || now.ContentDigest() != to.after.Tree.ContentDigest() {
			t.Errorf("another content (%v)", err)
		}
		if got, want := blocks(source), blocks(old); got != want {
			t.Errorf("%d blocks, and %d before", got, want)
		}
	}
}
