package workspace_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/workspace"
)

const leaked = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZWQyNTUxOQAAACBq0mGd3a5u\n-----END OPENSSH PRIVATE KEY-----\n"

// A file that stays outside stays outside under each of its names, and each is listed;
// names of other files are one file in the base, too.
func TestX26NamesOfOneFile(t *testing.T) {
	bothProviders(t, func(t *testing.T, i *importing) {
		link := func(from, to string) {
			t.Helper()
			i.must(os.MkdirAll(i.at(to+"/.."), 0o755))
			i.must(os.Link(i.at(from), i.at(to)))
		}
		i.put("b/.env", "S=1") // by its name
		i.must(os.Mkdir(i.at("a"), 0o755))
		i.must(os.Mkdir(i.at("z"), 0o755))
		link("b/.env", "a/first.txt")
		link("b/.env", "z/last.txt")
		i.put("settings.ini", leaked) // by its content, which only some names have looked at
		link("settings.ini", "a/picture.png")
		link("settings.ini", "z/picture.png")
		i.put(".ssh/id_ed25519", "x") // in a folder that stays outside
		link(".ssh/id_ed25519", "a/notes")
		i.put("m/.npmrc", "//registry/:_authToken=abcdefgh\nsave-exact=true\n") // without a field
		link("m/.npmrc", "a/rc")
		i.put("one", "1")
		link("one", "z/two")
		link("one", "a/three")
		check := func(when string, im *workspace.Imported) {
			t.Helper()
			for _, want := range []string{"secret b/.env", "secret a/first.txt", "secret z/last.txt", "secret settings.ini", "secret a/picture.png",
				"secret z/picture.png", "secret .ssh", "secret a/notes", "fields m/.npmrc", "fields a/rc"} {
				if !slices.Contains(left(im.LeftOut), want) {
					t.Errorf("%s: %s is not listed: %v", when, want, left(im.LeftOut))
				}
			}
			if n := len(im.LeftOut); n != 10 {
				t.Errorf("%s: %d paths are listed: %v", when, n, left(im.LeftOut))
			}
			got := paths(i.view(im.Tree))
			if want := []string{"a", "a/rc", "a/three", "b", "m", "m/.npmrc", "one", "z", "z/two"}; !slices.Equal(got, want) {
				t.Errorf("%s: the base has %v, want %v", when, got, want)
			}
			if want := [][]string{{"a/rc", "m/.npmrc"}, {"a/three", "one", "z/two"}}; !slices.EqualFunc(im.Tree.Links, want, slices.Equal) {
				t.Errorf("%s: one file are %v, want %v", when, im.Tree.Links, want)
			}
		}
		age()
		im := i.do(nil)
		check("at first", im)
		sv, err := workspace.Survey(ctx, i.source, nil, false, nil)
		i.must(err)
		list := left(im.LeftOut)
		if got := left(sv.LeftOut); !slices.Equal(got, list) {
			t.Errorf("a survey lists %v", got)
		}
		for _, l := range im.LeftOut {
			if l.Path == "a/first.txt" && l.Why != "another name of b/.env: environment file" {
				t.Errorf("%s: %s", l.Path, l.Why)
			}
		}

		// A further name, later; and without the name that says so.
		age()
		link("b/.env", "new.txt")
		im = i.do(im)
		if !slices.Contains(left(im.LeftOut), "secret new.txt") || slices.Contains(paths(i.view(im.Tree)), "new.txt") {
			t.Errorf("the new name: %v", left(im.LeftOut))
		}
		age()
		i.must(os.Remove(i.at("new.txt")))
		check("again", i.do(im))
		age()
		i.must(os.Remove(i.at("b/.env")))
		im = i.do(im)
		if got := paths(i.view(im.Tree)); !slices.Contains(got, "a/first.txt") || !slices.Contains(got, "z/last.txt") {
			t.Errorf("what has no name of a secret any more: %v", got)
		}
	})
}

// A name that git tracks comes in, as its content is in git's objects; the others do not.
func TestX26TrackedNames(t *testing.T) {
	i := newImporting(t, "overlay")
	i.put("fixture.pem", leaked)
	gitIn(t, i.source, "init", "-q")
	gitIn(t, i.source, "add", "fixture.pem")
	i.must(os.Link(i.at("fixture.pem"), i.at("copy.pem")))
	i.must(os.Link(i.at("fixture.pem"), i.at(".env")))
	age()
	im := i.do(nil)
	all := strings.Join(left(im.LeftOut), ", ")
	if all != "secret .env, secret copy.pem, tracked fixture.pem" {
		t.Errorf("left out: %s", all)
	}
	got := paths(i.view(im.Tree))
	if !slices.Contains(got, "fixture.pem") || slices.Contains(got, "copy.pem") || slices.Contains(got, ".env") {
		t.Errorf("the base has %v", got)
	}
}
