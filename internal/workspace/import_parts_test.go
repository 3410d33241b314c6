package workspace_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

func TestDirectories(t *testing.T) {
	for _, c := range []struct{ sources, top, at string }{
		{"/s/app", "/s/app", ""},
		{"/s/app /s/lib", "/s", "app lib"},
		{"/s/b/app /s/lib /s/b/x/y", "/s", "b/app lib b/x/y"},
		{"/s/app /s/apple", "/s", "app apple"},
		{"/a /b", "/", "a b"},
	} {
		top, dirs, err := workspace.Directories(strings.Fields(c.sources))
		var at []string
		for _, d := range dirs {
			at = append(at, d.At)
		}
		if err != nil || top != c.top || strings.Join(at, " ") != c.at {
			t.Errorf("%s: %s, %q, %v", c.sources, top, at, err)
		}
	}
	for _, bad := range []string{"/s/app /s/app", "/s/app /s/app/lib", "/s/app/lib /s/lib /s/app", "/ /s"} {
		if _, _, err := workspace.Directories(strings.Fields(bad)); cell.KindOf(err) != cell.Invalid {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestImportOfSeveral: random changes of three directories, imported one after the other, give what is there. What is unchanged is
// not read again, and nothing is left of layers that an import did not use.
func TestImportOfSeveral(t *testing.T) {
	bothProviders(t, func(t *testing.T, i *importing) {
		r := rand.New(rand.NewSource(3))
		_, dirs, err := workspace.Directories([]string{i.at("app"), i.at("libs/one"), i.at("libs/two")})
		i.must(err)
		for _, d := range dirs {
			i.must(os.MkdirAll(d.Source, 0o755))
			wt.Model{"a": wt.Plain("AAAA"), "d/b": wt.Plain("BBBB")}.Write(t, d.Source)
			i.must(os.Link(d.Source+"/a", d.Source+"/also"))
		}
		do := func(prev *workspace.Imported) *workspace.Imported {
			t.Helper()
			im, err := workspace.ImportAll(ctx, workspace.ImportRequest{Provider: i.p, Objects: i.objs, Prev: prev}, dirs)
			i.must(err)
			walked, err := i.p.Walk(ctx, im.State, i.objs)
			i.must(err)
			if walked.Digest() != im.Tree.Digest() {
				t.Fatalf("the base is not what its tree says (- base, + tree):\n%s", cmp.Diff(i.view(walked), i.view(im.Tree)))
			}
			for k, d := range dirs {
				part, err := im.Tree.Part(d.At)
				i.must(err)
				want, err := wt.Look(d.Source)
				i.must(err)
				if d := cmp.Diff(want, i.view(part)); d != "" {
					t.Errorf("a part is not its source (- source, + base):\n%s", d)
				}
				if part.Digest() != im.Parts[k].Tree.Digest() || !im.Parts[k].State.Same(im.State) {
					t.Errorf("%s is not what was imported of it", d.At)
				}
				side, err := workspace.Side{Tree: im.Tree, Contents: i.p.Contents(im.State)}.Part(d.At)
				i.must(err)
				e, err := side.Tree.Lookup("d/b")
				i.must(err)
				f, err := side.Contents.Open("d/b", e)
				i.must(err)
				_, err = io.Copy(io.Discard, f) // its digest is checked
				i.must(errors.Join(err, f.Close()))
			}
			if now, err := workspace.Fingerprint(ctx, im, nil); err != nil || now != im.Fingerprint {
				t.Errorf("the fingerprint is %v, %v, and was %v", now, err, im.Fingerprint)
			}
			return im
		}
		age()
		im := do(nil)
		if len(im.Tree.Links) != len(dirs) {
			t.Errorf("files with two names: %q", im.Tree.Links)
		}
		for round := range 12 {
			age()
			again := do(im)
			if again.Copied != 0 || again.Fingerprint != im.Fingerprint {
				t.Errorf("round %d: of what is unchanged %d files were read", round, again.Copied)
			}
			d := dirs[r.Intn(len(dirs))]
			switch r.Intn(4) {
			case 0:
				i.must(os.MkdirAll(d.Source+"/deep/er", 0o755))
				os.Remove(d.Source + "/deep/link")
				i.must(os.Symlink("er", d.Source+"/deep/link"))
			case 1:
				i.must(os.WriteFile(d.Source+"/d/new", []byte{byte(round)}, 0o644))
			case 2:
				os.Remove(d.Source + "/d/new")
				os.Remove(d.Source + "/also") // of a file with two names
			default:
				i.must(os.WriteFile(d.Source+"/d/b", []byte{byte(round)}, 0o600))
			}
			age()
			next := do(im)
			layers, err := i.p.Layers()
			i.must(err)
			for _, l := range layers {
				if !slices.Contains(im.State.Layers, l) && !slices.Contains(next.State.Layers, l) {
					t.Errorf("layer %s is left over", l)
				}
			}
			for _, l := range im.State.Layers {
				if !slices.Contains(next.State.Layers, l) {
					i.must(i.p.Drop(l))
				}
			}
			im = next
		}
		i.must(os.RemoveAll(dirs[1].Source))
		before, err := i.p.Layers()
		i.must(err)
		for _, prev := range []*workspace.Imported{im, nil} {
			if _, err := workspace.ImportAll(ctx, workspace.ImportRequest{Provider: i.p, Objects: i.objs, Prev: prev}, dirs); cell.KindOf(err) != cell.NotFound {
				t.Errorf("without one of the directories: %v", err)
			}
		}
		if after, err := i.p.Layers(); err != nil || !slices.Equal(before, after) {
			t.Errorf("a failed import left %q, there were %q (%v)", after, before, err)
		}
	})
}

// However many there are, what is unchanged is not read again.
func TestImportOfMany(t *testing.T) {
	i := newImporting(t, "overlay")
	var sources []string
	for n := range 12 {
		i.put(fmt.Sprint("d", n, "/f"), "x")
		sources = append(sources, i.at(fmt.Sprint("d", n)))
	}
	_, dirs, err := workspace.Directories(sources)
	i.must(err)
	age()
	var im *workspace.Imported
	for round, want := range []int{12, 0, 1, 0} {
		im, err = workspace.ImportAll(ctx, workspace.ImportRequest{Provider: i.p, Objects: i.objs, Prev: im}, dirs)
		if i.must(err); im.Copied != want {
			t.Errorf("round %d: %d files were read, want %d", round, im.Copied, want)
		}
		if round == 1 {
			i.put("d3/f", "y")
			age()
		}
	}
}
