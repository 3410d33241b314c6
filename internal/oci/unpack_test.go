package oci

import (
	"archive/tar"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Layers are stacked as the specification says, whatever the order of names in
// one of them.
func TestLayersAreStacked(t *testing.T) {
	dir := func(name string) item { return item{name: name, kind: tar.TypeDir} }
	for name, c := range map[string]struct {
		layers [][]item
		want   []string
	}{
		"one": {[][]item{{dir("./"), dir("d/"), {name: "./d/f", text: "x", mode: 0o755}, {name: "l", kind: tar.TypeSymlink, link: "../../d/f"}, {name: "h", kind: tar.TypeLink, link: "d/f"}}},
			[]string{"drwxr-xr-x d", "-rwxr-xr-x d/f x", "Lrwxrwxrwx l -> ../../d/f", "-rwxr-xr-x h x"}},
		"directories that no layer names": {[][]item{{{name: "a/b/c", text: "x"}}}, []string{"drwxr-xr-x a", "drwxr-xr-x a/b", "-rw-r--r-- a/b/c x"}},
		"a whiteout": {[][]item{{{name: "d/a", text: "1"}, {name: "d/b", text: "2"}}, {{name: "d/.wh.a"}}},
			[]string{"drwxr-xr-x d", "-rw-r--r-- d/b 2"}},
		"a whiteout of a directory":                         {[][]item{{{name: "d/a", text: "1"}}, {{name: ".wh.d"}, {name: "x", text: "x"}}}, []string{"-rw-r--r-- x x"}},
		"a whiteout does not hide its own layer's file":     {[][]item{{{name: "f", text: "old"}}, {{name: "f", text: "new"}, {name: ".wh.f"}}}, []string{"-rw-r--r-- f new"}},
		"a whiteout after what replaces the directory":      {[][]item{{{name: "d/a", text: "old"}}, {{name: "d/b", text: "new"}, {name: ".wh.d"}}}, []string{"drwxr-xr-x d", "-rw-r--r-- d/b new"}},
		"a whiteout of a directory that its layer has, too": {[][]item{{{name: "d/a", text: "old"}}, {dir("d"), {name: ".wh.d"}}}, []string{"drwxr-xr-x d"}},
		"an opaque directory": {[][]item{{{name: "d/a", text: "1"}, {name: "d/s/x", text: "1"}}, {dir("d"), {name: "d/b", text: "2"}, {name: "d/.wh..wh..opq"}, {name: "d/s/y", text: "3"}}},
			[]string{"drwxr-xr-x d", "-rw-r--r-- d/b 2", "drwxr-xr-x d/s", "-rw-r--r-- d/s/y 3"}},
		"an opaque directory hides after it, too": {[][]item{{{name: "d/a", text: "1"}}, {{name: "d/.wh..wh..opq"}, {name: "d/b", text: "2"}}}, []string{"drwxr-xr-x d", "-rw-r--r-- d/b 2"}},
		"aufs's own records":                      {[][]item{{{name: ".wh..wh.aufs"}, {name: ".wh..wh.plnk/x"}, {name: "f", text: "x"}}}, []string{"-rw-r--r-- f x"}},
		"a file replaces a directory":             {[][]item{{{name: "d/a", text: "1"}}, {{name: "d", text: "f"}}}, []string{"-rw-r--r-- d f"}},
		"a directory replaces a file":             {[][]item{{{name: "d", text: "1"}}, {dir("d"), {name: "d/x", text: "2"}}}, []string{"drwxr-xr-x d", "-rw-r--r-- d/x 2"}},
		"a directory replaces a symlink":          {[][]item{{dir("e"), {name: "d", kind: tar.TypeSymlink, link: "e"}}, {dir("d"), {name: "d/x", text: "2"}}}, []string{"drwxr-xr-x e", "drwxr-xr-x d", "-rw-r--r-- d/x 2"}},
		"a hard link keeps the old content":       {[][]item{{{name: "a", text: "old"}, {name: "b", kind: tar.TypeLink, link: "a"}}, {{name: "a", text: "new"}}}, []string{"-rw-r--r-- a new", "-rw-r--r-- b old"}},
		"a lower layer's symlink is followed in the image": {[][]item{{dir("usr/lib"), {name: "lib", kind: tar.TypeSymlink, link: "/usr/lib"}, {name: "up", kind: tar.TypeSymlink, link: "../../../../usr"}},
			{{name: "lib/a", text: "1"}, {name: "lib/n/b", text: "2"}, {name: "up/c", text: "3"}, {name: "up/h", kind: tar.TypeLink, link: "lib/a"}}},
			[]string{"drwxr-xr-x usr", "drwxr-xr-x usr/lib", "Lrwxrwxrwx lib -> /usr/lib", "Lrwxrwxrwx up -> ../../../../usr", "-rw-r--r-- usr/lib/a 1", "drwxr-xr-x usr/lib/n", "-rw-r--r-- usr/lib/n/b 2", "-rw-r--r-- usr/c 3", "-rw-r--r-- usr/h 1"}},
		"a whiteout through a lower layer's symlink": {[][]item{{dir("usr"), {name: "usr/a", text: "1"}, {name: "l", kind: tar.TypeSymlink, link: "usr"}}, {{name: "l/.wh.a"}}}, []string{"drwxr-xr-x usr", "Lrwxrwxrwx l -> usr"}},
		"rights": {[][]item{{{name: "d", kind: tar.TypeDir, mode: 0o500}, {name: "d/f", mode: 0o4711}, {name: "t", kind: tar.TypeDir, mode: 0o1777}, {name: "p", kind: tar.TypeFifo}}, {{name: "d/g", text: "x"}}},
			[]string{"dr-x------ d", "-rwx--x--x d/f ", "-rw-r--r-- d/g x", "dtrwxrwxrwx t"}},
		"long names": {[][]item{{{name: strings.Repeat("a", 255), text: "x"}, {name: strings.Repeat("d/", 199) + "f", text: "x"}}}, append(func() (l []string) {
			for i := 1; i < 200; i++ {
				l = append(l, "drwxr-xr-x "+strings.TrimSuffix(strings.Repeat("d/", i), "/"))
			}
			return l
		}(), "-rw-r--r-- "+strings.Repeat("a", 255)+" x", "-rw-r--r-- "+strings.Repeat("d/", 199)+"f x")},
	} {
		t.Run(name, func(t *testing.T) {
			var tars [][]byte
			for _, l := range c.layers {
				tars = append(tars, tarOf(t, l...))
			}
			s := newStore(t)
			img, err := pull(t, s, buildImage(t, tars...).layout(t))
			must(t, err)
			want := slices.Clone(c.want)
			if os.Getuid() != 0 && name == "rights" {
				os.Chmod(filepath.Join(img.Root, "d"), 0o500)
			}
			wantListing(t, img.Root, want...)
			if img.Counts.Files != len(c.want) {
				t.Errorf("%d files were counted, there are %d", img.Counts.Files, len(c.want))
			}
		})
	}
}

// What can't be kept is counted.
func TestDifferencesAreCounted(t *testing.T) {
	s := newStore(t)
	img, err := pull(t, s, buildImage(t, tarOf(t,
		item{name: "su", mode: 0o6755, text: "x"}, item{name: "mail", uid: 8, text: "x"}, item{name: "far", uid: 100000, text: "x"}, item{name: "p", kind: tar.TypeFifo},
		item{name: "x", text: "x", pax: map[string]string{"SCHILY.xattr.user.a": "1", "SCHILY.xattr.security.capability": "1", "SCHILY.xattr.user.overlay.opaque": "y", "SCHILY.xattr.trusted.overlay.opaque": "y"}},
	)).layout(t))
	must(t, err)
	want := Counts{Files: 4, Bytes: 4, SetID: 1, Owners: 1, XAttrs: 3, Special: 1}
	if os.Getuid() != 0 {
		want.Owners = 2
	}
	if img.Counts != want {
		t.Errorf("counted %+v, want %+v", img.Counts, want)
	}
	if img.User != "app" || img.Workdir != "/srv" || !slices.Equal(img.Env, []string{"PATH=/bin", "A=1"}) || img.Layers != 1 || img.Created.Year() != 2026 {
		t.Errorf("the image says %+v", img)
	}
}
