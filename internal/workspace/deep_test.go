package workspace_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/store/mem"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/clone"
)

// deepTree makes n folders in one another below dir, the way a program does that
// changes its directory: no path is ever too long for it. Every step-th holds a
// file with its own number, a second name of that file, and a symlink.
func deepTree(t *testing.T, dir string, n, step int) {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	must(os.Mkdir(dir, 0o755))
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(err)
	for i := range n {
		if i%step == 0 {
			fd, err := unix.Openat(at, "f", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
			must(err)
			_, err = unix.Write(fd, fmt.Append(nil, i))
			must(err)
			unix.Close(fd)
			must(unix.Linkat(at, "f", at, "g", 0))
			must(unix.Symlinkat("f", at, "l"))
		}
		must(unix.Mkdirat(at, "d", 0o755))
		next, err := unix.Openat(at, "d", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(err)
		unix.Close(at)
		at = next
	}
	unix.Close(at)
}

// A tree deeper than any path is imported, copied, digested, read and removed as
// any other.
func TestX08DeepTree(t *testing.T) {
	const depth, step = 6000, 500
	ctx, objs := context.Background(), mem.New()
	dir := t.TempDir()
	src := filepath.Join(dir, "src")
	deepTree(t, src, depth, step)
	want, err := workspace.Walk(ctx, src, objs)
	if err != nil {
		t.Fatal(err)
	}
	folders, files := 0, map[string]workspace.Entry{}
	err = want.Walk("", func(path string, e workspace.Entry) error {
		switch e.Type {
		case workspace.Folder:
			folders++
		case workspace.File:
			files[path] = e
		}
		return nil
	})
	if err != nil || folders != depth || len(files) != 2*depth/step || len(want.Links) != depth/step {
		t.Fatalf("%d folders, %d files, %d links, %v", folders, len(files), len(want.Links), err)
	}

	p := clone.New(filepath.Join(dir, "layers"))
	im, err := workspace.Import(ctx, workspace.ImportRequest{Source: src, Provider: p, Objects: objs})
	if err != nil {
		t.Fatal(err)
	}
	if im.Tree.Digest() != want.Digest() || len(im.LeftOut) > 0 {
		t.Errorf("the import is another tree: %s, not %s; left out: %v", im.Tree.Digest(), want.Digest(), im.LeftOut)
	}
	g, err := p.Begin(ctx, im.State, im.Tree.Root, "")
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.Freeze(ctx, g)
	if err != nil {
		t.Fatal(err)
	}
	got, err := p.Walk(ctx, s, objs)
	if err != nil || got.Digest() != want.Digest() {
		t.Fatalf("the copy is another tree: %v", err)
	}
	for path, e := range files {
		r, err := p.Contents(s).Open(path, e)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 10)
		n, _ := r.Read(b)
		r.Close()
		if n := string(b[:n]); n != fmt.Sprint(strings.Count(path, "/")) {
			t.Errorf("the file below %d folders holds %q", strings.Count(path, "/"), n)
		}
	}
	if n, err := p.Size(s.Layers[0]); err != nil || n < depth {
		t.Errorf("the layer takes %d bytes, %v", n, err)
	}
	if _, err := p.Claims(ctx, g); err != nil {
		t.Error(err)
	}
	layers, err := p.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		if err := p.Drop(l); err != nil {
			t.Error(err)
		}
	}
	if left, err := p.Layers(); err != nil || len(left) > 0 {
		t.Errorf("layers are left: %v, %v", left, err)
	}
	if err := workspace.RemoveTree(src); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(src); !os.IsNotExist(err) {
		t.Errorf("the source is still there: %v", err)
	}
}

// A tree with more bytes of paths than fit into memory is refused with an error, never taken for
// empty, and can be removed.
func TestX08TreeTooDeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "src")
	deepTree(t, dir, 12000, 12000)
	objs := mem.New()
	tree, err := workspace.Walk(context.Background(), dir, objs)
	if cell.KindOf(err) != cell.TooLarge || !strings.Contains(err.Error(), "too deep") || len(err.Error()) > 1000 {
		t.Errorf("%v, %v", tree, err)
	}
	if err := workspace.RemoveTree(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
}

// Folders that their owner may not enter, deep down, are removed, too.
func TestX08RemoveTreeWithoutRights(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "src")
	deepTree(t, dir, 3000, 100)
	at, err := workspace.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	for n := 2900; n > 0; n -= 70 { // deepest first: the way there goes with each
		err := at.At(strings.Repeat("d/", n)[:2*n-1], func(at string) error { return os.Chmod(at, 0) })
		if err != nil {
			t.Fatal(err)
		}
	}
	at.Close()
	if err := workspace.RemoveTree(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
}
