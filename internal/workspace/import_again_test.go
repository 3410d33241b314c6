package workspace_test

import (
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// TestF17SecondImport: what changed is found without trusting the modification
// time, and nothing else is read again.
func TestF17SecondImport(t *testing.T) {
	bothProviders(t, func(t *testing.T, i *importing) {
		for n := range 20 {
			i.put(fmt.Sprint("d", n%4, "/f", n), "AAAA")
		}
		age()
		im := i.do(nil)
		again := i.do(im)
		if again.Copied != 0 || !again.State.Same(im.State) || again.Fingerprint != im.Fingerprint {
			t.Fatalf("the same again: %d copied, %v after %v", again.Copied, again.State, im.State)
		}
		was, err := os.Stat(i.at("d0/f0"))
		i.must(err)
		i.put("d0/f0", "BBBB") // in place, same size, time set back
		i.must(os.Chtimes(i.at("d0/f0"), time.Time{}, was.ModTime()))
		i.must(wt.Act(wt.Op{Do: "map", Path: i.at("d1/f1"), Data: "CC"}))
		i.put("other", "DDDD") // another file in its place, same size and time
		i.must(os.Chtimes(i.at("other"), time.Time{}, was.ModTime()))
		i.must(os.Rename(i.at("other"), i.at("d2/f2")))
		next := i.do(again)
		i.same(next)
		if next.Copied != 3 || next.Fingerprint == im.Fingerprint {
			t.Errorf("%d copied of 3 that changed; fingerprint changed: %v", next.Copied, next.Fingerprint != im.Fingerprint)
		}
	})
}

// TestF17SameTick: a file that is written in the same tick as the import is
// read again by the next one.
func TestF17SameTick(t *testing.T) {
	i := newImporting(t, "overlay")
	for round := range 30 {
		i.put("f", fmt.Sprintf("A%02d", round))
		im := i.do(nil)
		i.put("f", fmt.Sprintf("B%02d", round)) // most likely the same tick, the same size
		i.must(os.Chtimes(i.at("f"), time.Time{}, time.Unix(0, mtime(t, im, "f"))))
		i.same(i.do(im))
	}
}

func mtime(t *testing.T, im *workspace.Imported, path string) int64 {
	t.Helper()
	e, err := im.Tree.Lookup(path)
	if err != nil {
		t.Fatal(err)
	}
	return e.MTime
}

// TestImportIncrements: random changes, imported one after the other, give
// what an import from nothing gives.
func TestImportIncrements(t *testing.T) {
	bothProviders(t, func(t *testing.T, i *importing) {
		r := rand.New(rand.NewSource(7))
		m := wt.Model{}
		for range 20 {
			for p, f := range wt.Random(r) {
				m.Put(p, f)
			}
		}
		m.Write(t, i.source)
		i.must(os.Chmod(i.source, 0o755))
		age()
		im := i.do(nil)
		most, anew := 1, 0
		for range 25 {
			next := wt.Mutate(r, m)
			for _, p := range m.Paths() { // what is gone, or another kind of thing
				if n, ok := next[p]; !ok || n.Link != m[p].Link || (n.Link != "") {
					i.must(os.RemoveAll(i.at(p)))
				}
			}
			removeUnless(t, i.source, next)
			for p, f := range next {
				if old, ok := m[p]; !ok || !cmp.Equal(old, f) {
					wt.Model{p: f}.Write(t, i.source)
				} else if _, err := os.Lstat(i.at(p)); err != nil {
					wt.Model{p: f}.Write(t, i.source)
				}
			}
			if r.Intn(4) == 0 { // read-only folders, as in module caches
				i.must(filepath.WalkDir(i.source, func(at string, d os.DirEntry, err error) error {
					if err == nil && d.IsDir() && at != i.source && r.Intn(3) == 0 {
						return os.Chmod(at, 0o555)
					}
					return err
				}))
			}
			m = next
			age()
			im = i.do(im)
			i.same(im)
			if n := len(im.State.Layers); n == 1 && most > 1 {
				anew++
			} else {
				most = max(most, n)
			}
			i.must(filepath.WalkDir(i.source, func(at string, d os.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					return os.Chmod(at, 0o755)
				}
				return err
			}))
		}
		if i.p.Mounts() && (most < 3 || most > 8) {
			t.Errorf("a base of %d layers", most)
		}
	})
}

// removeUnless removes files and folders that a model has not.
func removeUnless(t *testing.T, dir string, m wt.Model) {
	t.Helper()
	have := map[string]bool{"": true}
	for p := range m {
		for ; p != ""; p = workspace.Parent(p) {
			have[p] = true
		}
	}
	err := filepath.WalkDir(dir, func(at string, d os.DirEntry, err error) error {
		p, _ := filepath.Rel(dir, at)
		if err != nil || p == "." {
			return err
		}
		_, leaf := m[p]
		if !have[p] || leaf == d.IsDir() {
			if err := os.RemoveAll(at); err != nil {
				return err
			}
			if d.IsDir() {
				return filepath.SkipDir
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestF16SwappedMeanwhile: a folder that becomes a symlink, and back, while it
// is imported, never makes the import read what the symlink leads to.
func TestF16SwappedMeanwhile(t *testing.T) {
	i := newImporting(t, "overlay")
	outside := t.TempDir()
	for n := range 50 {
		i.put(fmt.Sprint("d/f", n), "inside")
		if err := os.WriteFile(filepath.Join(outside, fmt.Sprint("f", n)), []byte("OUTSIDE"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	i.must(os.Symlink(outside, i.at("link")))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			err := unix.Renameat2(unix.AT_FDCWD, i.at("d"), unix.AT_FDCWD, i.at("link"), unix.RENAME_EXCHANGE)
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer wg.Wait()
	defer close(stop)
	tried, whole := 0, 0
	for end := time.Now().Add(time.Second); time.Now().Before(end); tried++ {
		im, err := i.try(nil)
		if err != nil {
			continue // it may say that the folder went away
		}
		whole++
		for _, l := range im.State.Layers {
			err := filepath.WalkDir(filepath.Join(i.layers, l), func(at string, d os.DirEntry, err error) error {
				if err == nil && d.Type().IsRegular() {
					if b, err := os.ReadFile(at); err != nil || string(b) != "inside" {
						return fmt.Errorf("%s holds %q, %w", at, b, errors.Join(err))
					}
				}
				return err
			})
			i.must(err)
			i.must(i.p.Drop(l))
		}
	}
	if whole == 0 {
		t.Errorf("of %d imports none came to an end", tried)
	}
}

// TestImportWhileFilesChange: files that grow, shrink, come and go while they
// are read. Each comes in as it was at one moment of the reading, and the next
// import sees the rest.
func TestImportWhileFilesChange(t *testing.T) {
	bothProviders(t, func(t *testing.T, i *importing) {
		for n := range 200 {
			i.put(fmt.Sprint("d", n%10, "/f", n), strings.Repeat("x", 100*n))
		}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for w := range 2 {
			wg.Go(func() {
				r := rand.New(rand.NewSource(int64(w)))
				for {
					select {
					case <-stop:
						return
					default:
					}
					n := r.Intn(200)
					at := i.at(fmt.Sprint("d", n%10, "/f", n))
					switch r.Intn(4) {
					case 0:
						os.Truncate(at, int64(r.Intn(50_000)))
					case 1:
						os.WriteFile(at, []byte(strings.Repeat("y", r.Intn(50_000))), 0o644)
					case 2:
						os.Remove(at)
					case 3:
						os.WriteFile(at+".tmp", []byte("z"), 0o644)
						os.Rename(at+".tmp", at)
					}
				}
			})
		}
		var im *workspace.Imported
		for n := range 8 {
			next, err := i.try(im)
			i.must(err)
			walked, err := i.p.Walk(ctx, next.State, i.objs)
			i.must(err)
			if d := cmp.Diff(i.view(walked), i.view(next.Tree)); d != "" {
				t.Fatalf("import %d: the base is not what its tree says (- base, + tree):\n%s", n, d)
			}
			im = next
		}
		close(stop)
		wg.Wait()
		age()
		i.same(i.do(im))
	})
}

// TestImportGone: a source that is not there leaves nothing.
func TestImportGone(t *testing.T) {
	i := newImporting(t, "overlay")
	i.source = filepath.Join(i.source, "no such")
	if _, err := i.try(nil); cell.KindOf(err) != cell.NotFound {
		t.Errorf("no source: %v", err)
	}
	if all, err := i.p.Layers(); err != nil || len(all) > 0 {
		t.Errorf("layers %v, %v", all, err)
	}
}

// TestIndex: the stored form is read back, and rubbish is not.
func TestIndex(t *testing.T) {
	i := newImporting(t, "overlay")
	i.put("a/b", "1")
	i.put(".env", "S=1")
	i.must(os.Symlink("x", i.at("s")))
	age()
	im := i.do(nil)
	b := im.Index.Encode()
	back, err := workspace.DecodeIndex(b)
	i.must(err)
	if back.Fingerprint() != im.Fingerprint || !slices.Equal(back.Encode(), b) {
		t.Error("an index is not the same when it is read back")
	}
	im.Index = back
	if again := i.do(im); again.Copied != 0 || !again.State.Same(im.State) {
		t.Errorf("with the index read back %d files were copied", again.Copied)
	}
	fp, err := workspace.Fingerprint(ctx, im, nil)
	i.must(err)
	if fp != im.Fingerprint {
		t.Error("the fingerprint is not that of the import")
	}
	i.put("a/c", "2")
	if fp, err = workspace.Fingerprint(ctx, im, nil); err != nil || fp == im.Fingerprint {
		t.Errorf("a new file does not change the fingerprint, %v", err)
	}
	for n := range b {
		if _, err := workspace.DecodeIndex(b[:n]); cell.KindOf(err) != cell.Corrupt {
			t.Fatalf("an index cut after %d bytes: %v", n, err)
		}
		bad := slices.Clone(b)
		bad[n] ^= 0x40
		if _, err := workspace.DecodeIndex(bad); cell.KindOf(err) != cell.Corrupt {
			t.Fatalf("an index with byte %d changed: %v", n, err)
		}
	}
}
