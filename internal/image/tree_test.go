package image

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"testing"
)

// resolve goes where the kernel goes, on random trees of files and symlinks.
func TestResolveIsTheKernels(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"a", "b", "c"}
	word := func() string {
		switch rng.IntN(6) {
		case 0:
			return ".."
		case 1:
			return "."
		}
		return names[rng.IntN(len(names))]
	}
	random := func() string {
		p := ""
		for range 1 + rng.IntN(5) {
			p += "/" + word()
		}
		return p
	}
	for n := range 60 {
		base := filepath.Join(root, fmt.Sprint(n))
		for range 12 {
			at := filepath.Join(base, names[rng.IntN(3)], names[rng.IntN(3)], names[rng.IntN(3)])
			os.MkdirAll(filepath.Dir(at), 0o755)
			switch rng.IntN(3) {
			case 0:
				os.Mkdir(at, 0o755)
			case 1:
				os.WriteFile(at, nil, 0o644)
			case 2:
				text := random()
				if rng.IntN(2) == 0 {
					text = text[1:]
				} else {
					text = base + text
				}
				os.Symlink(text, at)
			}
		}
		tr := newTree("/")
		for range 200 {
			at := base + random()
			pl := tr.resolve(at)
			want, err := filepath.EvalSymlinks(at)
			st, statErr := os.Stat(at)
			if (statErr == nil) != pl.exists() {
				t.Fatalf("%s: exists %v, the kernel says %v", at, pl.exists(), statErr)
			}
			if statErr == nil && (err != nil || pl.path != want || pl.isDir() != st.IsDir()) {
				t.Fatalf("%s leads to %s, want %s (%v)", at, pl.path, want, err)
			}
			if path.Clean(pl.path) != pl.path {
				t.Fatalf("%s leads to %q, which is not clean", at, pl.path)
			}
		}
	}
}

// Absolute symlinks stay below the prefix.
func TestResolveBelowAPrefix(t *testing.T) {
	f := newFake(t)
	f.link("/data/abs", "/home/u")
	f.link("/data/out", "../../../../../../../../etc/os-release")
	tr := newTree(f.root)
	if pl := tr.resolve("/data/abs/src"); pl.path != "/home/u/src" || !pl.isDir() {
		t.Errorf("%+v", pl)
	}
	if pl := tr.resolve("/data/out"); pl.path != "/etc/os-release" || pl.size != int64(len("ID=fake\n")) {
		t.Errorf("%+v", pl)
	}
	f.link("/data/loop", "loop")
	if pl := tr.resolve("/data/loop/x"); pl.exists() {
		t.Errorf("%+v", pl)
	}
}

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		dir, p string
		want   bool
	}{{"/a", "/a", true}, {"/a", "/a/b", true}, {"/a", "/ab", false}, {"/a/b", "/a", false}, {"/", "/a", true}, {"/", "/", true}, {"", "/a", false}, {"", "", false}} {
		if within(c.dir, c.p) != c.want {
			t.Errorf("within(%q, %q) = %v", c.dir, c.p, !c.want)
		}
	}
}

func TestRememberForgetsWhatChanged(t *testing.T) {
	at := filepath.Join(t.TempDir(), "x")
	reads := 0
	get := func(id info) int {
		return remember("test", at, id, func() int { reads++; return reads })
	}
	old := info{ino: 1, mode: 1, ctime: 1}
	//lint:ignore SA4000 the second answer is the remembered one
	if get(old) != 1 || get(old) != 1 {
		t.Error("not remembered")
	}
	for _, changed := range []info{{ino: 2, mode: 1, ctime: 1}, {ino: 1, mode: 1, ctime: 2}, {ino: 1, mode: 1, ctime: 1, size: 9}, {ino: 1, mode: 1, ctime: 1, mtime: 9}} {
		before := reads
		get(changed)
		if reads != before+1 {
			t.Errorf("%+v is taken for what it was", changed)
		}
	}
}

// What changed a moment ago may change again within the same tick.
func TestF17FreshFilesAreNotRemembered(t *testing.T) {
	f := newFake(t)
	f.file("/data/fresh", "1")
	i := newTree(f.root).lstat("/data/fresh")
	reads := 0
	for range 3 {
		remember("fresh", f.root+"/data/fresh", i, func() int { reads++; return reads })
	}
	if reads != 3 {
		t.Errorf("read %d times, want 3", reads)
	}
}
