package workspace_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/workspace"
)

// importWhile imports with a function that is called each time when 64 files of a look at
// the source have been copied, which is when progress is reported.
func (i *importing) importWhile(prev *workspace.Imported, f func(round int)) *workspace.Imported {
	i.t.Helper()
	round := 0
	im, err := workspace.Import(ctx, workspace.ImportRequest{Source: i.source, Provider: i.p, Objects: i.objs, Prev: prev, Progress: func(int64, int64) {
		round++
		f(round)
	}})
	i.must(err)
	walked, err := i.p.Walk(ctx, im.State, i.objs)
	i.must(err)
	if walked.Digest() != im.Tree.Digest() {
		i.t.Errorf("the base is not what its tree says: %v and %v", paths(i.view(walked)), paths(i.view(im.Tree)))
	}
	layers, err := i.p.Layers()
	i.must(err)
	for _, l := range layers {
		if !slices.Contains(im.State.Layers, l) && (prev == nil || !slices.Contains(prev.State.Layers, l)) {
			i.t.Errorf("layer %s is left of a look whose result is not used", l)
		}
	}
	return im
}

// rewrite makes the 64 files anew that bring a look to its report.
func (i *importing) rewrite(text string) {
	for n := range 64 {
		i.put(fmt.Sprintf("a%02d", n), text)
	}
}

// Folders and files that go away while they are read are as if they had gone before, and
// what they became is seen.
func TestX28WhatGoesAway(t *testing.T) {
	for _, again := range []bool{false, true} {
		bothProviders(t, func(t *testing.T, i *importing) {
			i.rewrite("one")
			var prev *workspace.Imported
			if again { // a look that only brings up to date
				for n := range 400 {
					i.put(fmt.Sprintf("same/%d", n), "x")
				}
				age()
				prev = i.do(nil)
				i.rewrite("two")
			}
			for _, p := range []string{"A/in/f", "A/g", "zd/f", "zf", "zdir", "zfifo", "zlink", "zmoved/deep/f"} {
				i.put(p, p)
			}
			i.must(os.Symlink("x", i.at("zsym")))
			im := i.importWhile(prev, func(round int) {
				if round > 1 {
					return
				}
				i.must(os.Rename(i.at("A/g"), i.at("a00"))) // into what was read
				i.must(os.RemoveAll(i.at("A")))
				i.must(os.RemoveAll(i.at("zd")))
				i.must(os.Symlink("/", i.at("zd")))
				for _, p := range []string{"zf", "zdir", "zfifo", "zlink", "zsym"} {
					i.must(os.Remove(i.at(p)))
				}
				i.must(os.Mkdir(i.at("zdir"), 0o755))
				i.put("zdir/f", "new")
				i.must(unix.Mkfifo(i.at("zfifo"), 0o644))
				i.must(os.Symlink("/etc/passwd", i.at("zlink")))
				i.put("zsym", "a file")
				i.must(os.Rename(i.at("zmoved/deep"), i.at("moved")))
			})
			if len(im.Notes) > 0 {
				t.Errorf("notes: %q", im.Notes)
			}
			age()
			i.same(i.do(im))
		})
	}
}

// Folders that come and go all the time make no look at the source fail.
func TestX28FoldersComeAndGo(t *testing.T) {
	i := newImporting(t, "overlay")
	for n := range 100 {
		i.put(fmt.Sprintf("d%d/f", n), "x")
	}
	age()
	im := i.do(nil)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				for n := range 20 {
					os.MkdirAll(i.at(fmt.Sprintf("b%d/x/%d", w, n)), 0o755)
				}
				os.RemoveAll(i.at(fmt.Sprintf("b%d", w)))
			}
		})
	}
	for range 100 {
		if _, err := workspace.Fingerprint(ctx, im, nil); err != nil {
			t.Error(err)
		}
		if _, err := workspace.Survey(ctx, i.source, nil, false, nil); err != nil {
			t.Error(err)
		}
	}
	for range 10 {
		_, err := i.try(im)
		i.must(err)
	}
	close(stop)
	wg.Wait()
}

// What the last look missed is named.
func TestX28WhatWasMissedIsNamed(t *testing.T) {
	bothProviders(t, func(t *testing.T, i *importing) {
		i.rewrite("zero")
		i.put("z0", "x")
		last := 0
		im := i.importWhile(nil, func(round int) {
			i.must(os.Remove(i.at(fmt.Sprint("z", round-1))))
			i.rewrite(fmt.Sprint("round ", round))
			i.put(fmt.Sprint("z", round), "x")
			last = round
		})
		want := fmt.Sprint("the source changed while it was read; without the removed files: z", last-1)
		if last < 2 || !slices.Equal(im.Notes, []string{want}) {
			t.Errorf("after %d looks the notes are %q, want %q", last, im.Notes, want)
		}
		age()
		i.same(i.do(im))
	})
}

// Below paths longer than any that the kernel takes, what becomes another thing is
// brought up to date as anywhere.
func TestX28DeepChanges(t *testing.T) {
	bothProviders(t, func(t *testing.T, i *importing) {
		name := strings.Repeat("d", 200)
		deep := strings.TrimSuffix(strings.Repeat(name+"/", 40), "/")
		in := func(f func(at string)) { // the kernel takes no path of that length
			fd, err := unix.Open(i.source, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			i.must(err)
			for range 40 {
				if err := unix.Mkdirat(fd, name, 0o755); err != nil && err != unix.EEXIST {
					t.Fatal(err)
				}
				next, err := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
				i.must(err)
				unix.Close(fd)
				fd = next
			}
			defer unix.Close(fd)
			f(fmt.Sprintf("/proc/self/fd/%d", fd))
		}
		for n := range 400 {
			i.put(fmt.Sprintf("same/%d", n), "x")
		}
		in(func(at string) {
			for _, f := range []string{"file", "gone", "same", "dir/f"} {
				i.must(os.MkdirAll(filepath.Dir(filepath.Join(at, f)), 0o755))
				i.must(os.WriteFile(filepath.Join(at, f), []byte(f), 0o644))
			}
		})
		age()
		first := i.do(nil)
		in(func(at string) {
			i.must(os.Remove(filepath.Join(at, "file")))
			i.must(os.Remove(filepath.Join(at, "gone")))
			i.must(os.RemoveAll(filepath.Join(at, "dir")))
			i.must(os.MkdirAll(filepath.Join(at, "file/x"), 0o755))
			i.must(os.WriteFile(filepath.Join(at, "file/x/y"), []byte("y"), 0o644))
			i.must(os.Symlink("file", filepath.Join(at, "dir")))
		})
		age()
		im := i.do(first)
		if im.Copied > 10 {
			t.Errorf("%d files were copied", im.Copied)
		}
		got := paths(i.view(im.Tree))
		for _, p := range []string{"file/x/y", "same", "dir"} {
			if !slices.Contains(got, deep+"/"+p) {
				t.Errorf("%s is missing", p)
			}
		}
		if slices.Contains(got, deep+"/gone") || slices.Contains(got, deep+"/dir/f") {
			t.Error("what was removed is there")
		}
		want, err := workspace.Walk(ctx, i.source, i.objs)
		i.must(err)
		if want.Digest() != im.Tree.Digest() {
			t.Error("the base is not the source")
		}
	})
}
