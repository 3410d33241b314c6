package workspace_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/secret"
	"github.com/pando-dev/pando/internal/testenv"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/clone"
	"github.com/pando-dev/pando/internal/workspace/overlay"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

func TestMain(m *testing.M) { wt.Main(m) }

var ctx = context.Background()

// importing is a source and the provider that it is imported with.
type importing struct {
	t      *testing.T
	source string
	layers string
	p      workspace.Provider
	objs   *wt.Objects
	with   secret.With
	mask   bool
}

// newImporting makes an empty source.
func newImporting(t *testing.T, provider string) *importing {
	t.Helper()
	i := &importing{t: t, source: t.TempDir(), layers: filepath.Join(t.TempDir(), "layers"), objs: wt.NewObjects()}
	t.Cleanup(func() { // what tests closed
		workspace.RemoveTree(i.source)
		workspace.RemoveTree(i.layers)
	})
	if err := os.Mkdir(i.layers, 0o700); err != nil {
		t.Fatal(err)
	}
	i.p = overlay.New(i.layers, os.Geteuid() == 0)
	if provider == clone.Name {
		i.p = clone.New(i.layers)
	}
	return i
}

// bothProviders runs a test with each provider.
func bothProviders(t *testing.T, f func(t *testing.T, i *importing)) {
	for _, p := range []string{overlay.Name, clone.Name} {
		t.Run(p, func(t *testing.T) { f(t, newImporting(t, p)) })
	}
}

func (i *importing) at(path string) string { return filepath.Join(i.source, path) }

func (i *importing) put(path, text string) {
	i.t.Helper()
	if err := os.MkdirAll(filepath.Dir(i.at(path)), 0o755); err != nil {
		i.t.Fatal(err)
	}
	if err := os.WriteFile(i.at(path), []byte(text), 0o644); err != nil {
		i.t.Fatal(err)
	}
}

func (i *importing) must(err error) {
	i.t.Helper()
	if err != nil {
		i.t.Fatal(err)
	}
}

// age waits until no file of the source is of this tick of the clock.
func age() { time.Sleep(30 * time.Millisecond) }

func (i *importing) try(prev *workspace.Imported) (*workspace.Imported, error) {
	return workspace.Import(ctx, workspace.ImportRequest{Source: i.source, With: i.with, Mask: i.mask, Provider: i.p, Objects: i.objs, Prev: prev})
}

// do imports the source, and checks that the tree it gives is what the layers
// hold, and that the source was not touched.
func (i *importing) do(prev *workspace.Imported) *workspace.Imported {
	i.t.Helper()
	before := touches(i.t, i.source)
	im, err := i.try(prev)
	i.must(err)
	if d := cmp.Diff(before, touches(i.t, i.source)); d != "" {
		i.t.Errorf("the import touched the source:\n%s", d)
	}
	walked, err := i.p.Walk(ctx, im.State, i.objs)
	i.must(err)
	if walked.Digest() != im.Tree.Digest() {
		i.t.Fatalf("the base is not what its tree says (- base, + tree):\n%s", cmp.Diff(i.view(walked), i.view(im.Tree)))
	}
	return im
}

// touches gives the change times of everything in a directory.
func touches(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	m := map[string]int64{}
	filepath.WalkDir(dir, func(at string, _ os.DirEntry, err error) error {
		var st unix.Stat_t
		if unix.Lstat(at, &st) == nil { // closed folders are only looked at
			m[at] = unix.TimespecToNsec(st.Ctim)
		}
		return nil
	})
	return m
}

func (i *importing) view(t *workspace.Tree) wt.View {
	i.t.Helper()
	v, err := wt.ViewOf(t)
	i.must(err)
	return v
}

// same holds an import against the source itself.
func (i *importing) same(im *workspace.Imported) {
	i.t.Helper()
	want, err := wt.Look(i.source)
	i.must(err)
	if d := cmp.Diff(want, i.view(im.Tree)); d != "" {
		i.t.Errorf("the base is not the source (- source, + base):\n%s", d)
	}
}

func paths(v wt.View) []string {
	var out []string
	for p := range v {
		if p != "" {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}

// left gives what was left out, as "kind path".
func left(list []workspace.LeftOut) []string {
	var out []string
	for _, l := range list {
		out = append(out, l.Kind+" "+l.Path)
	}
	return out
}

// TestImportTakesEverything: all that can be in a workspace comes in as it is.
func TestImportTakesEverything(t *testing.T) {
	bothProviders(t, func(t *testing.T, i *importing) {
		long := strings.Repeat("ü", 127) + "x"
		for p, text := range map[string]string{"a": "1", "d/e/f/deep": "2", "empty": "", "\xff\xfe\x01": "not UTF-8", "new\nline": "3", " lead": "4", "trail ": "5",
			"-rf": "6", "$(id)": "7", `back\slash`: "8", long: "9", strings.Repeat("d/", 300) + "far": "10", "big": strings.Repeat("0123456789abcdef", 40_000)} {
			i.put(p, text)
		}
		ops := []wt.Op{
			{Do: "link", Path: "a", To: "d/twin"}, {Do: "link", Path: "a", To: "triplet"},
			{Do: "symlink", Path: "in", To: "d/e"}, {Do: "symlink", Path: "out", To: "/etc/shadow"}, {Do: "symlink", Path: "up", To: "../../.."},
			{Do: "symlink", Path: "loop", To: "loop"}, {Do: "symlink", Path: "odd", To: "\xff\n"},
			{Do: "mkdir", Path: "hollow"}, {Do: "fifo", Path: "pipe"},
			{Do: "xattr", Path: "a", Data: "v\x00w"}, {Do: "xattr", Path: "d", Data: "of a folder"},
			{Do: "chmod", Path: "a", Mode: 0o604}, {Do: "chmod", Path: "empty", Mode: 0o444}, {Do: "chmod", Path: "hollow", Mode: 0o1751}, {Do: "chmod", Path: "pipe", Mode: 0o622},
			{Do: "times", Path: "in", Time: 77}, {Do: "times", Path: "pipe", Time: -1}, {Do: "times", Path: "a", Time: 1e18 + 1}, {Do: "times", Path: "d", Time: 5}, {Do: "times", Path: "", Time: 6},
		}
		for _, o := range ops {
			o.Path = i.at(o.Path)
			if o.Do == "link" {
				o.To = i.at(o.To)
			}
			if err := wt.Act(o); err != nil {
				t.Fatalf("%s: %v", o, err)
			}
		}
		im := i.do(nil)
		i.same(im)
		if len(im.LeftOut) != 0 || len(im.Notes) != 0 {
			t.Errorf("left out %v, notes %v", im.LeftOut, im.Notes)
		}
		if im.Files != 15 || im.Copied != 13 {
			t.Errorf("%d files, %d copied; 15 names of 13 files are there", im.Files, im.Copied)
		}
	})
}

func TestImportKeepsHoles(t *testing.T) {
	bothProviders(t, func(t *testing.T, i *importing) {
		f, err := os.Create(i.at("holes"))
		i.must(err)
		for _, off := range []int64{0, 8 << 20, 64 << 20} {
			_, err := f.WriteAt([]byte("data"), off)
			i.must(err)
		}
		i.must(f.Truncate(100 << 20))
		i.must(f.Close())
		im := i.do(nil)
		i.same(im)
		if n, err := i.p.Size(im.State.Layers[0]); err != nil || n > 4<<20 {
			t.Errorf("100 MiB of holes take %d bytes, %v", n, err)
		}
	})
}

// TestF21LeftOut: secrets stay outside at any depth, and everything that stays
// outside is listed.
func TestF21LeftOut(t *testing.T) {
	bothProviders(t, func(t *testing.T, i *importing) {
		for p, text := range map[string]string{
			"code.go": "package x\n", ".env": "PASSWORD=hunter2\n", "a/b/.env.local": "X=1\n", "deep/.ssh/id_ed25519": "key", ".aws/credentials": "x",
			"notes":  "remember: gl" + "pat-" + "vK8mPq2XtR7wNcZb4LhJ\n",
			".npmrc": "registry=https://r.example\n//r.example/:_authToken=npm_" + strings.Repeat("aZ3", 12) + "\n",
			"key":    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW\nQyNTUxOQAAACDmZ9Y3Vh0Kx8nZ2v0n9YxqkzqB7l8m1v0r1k2b3c4d5Q==\n-----END OPENSSH PRIVATE KEY-----\n",
		} {
			i.put(p, text)
		}
		i.must(unix.Mknod(i.at("sock"), unix.S_IFSOCK|0o600, 0))
		im := i.do(nil)
		want := []string{".npmrc", "a", "a/b", "code.go", "deep"}
		if got := paths(i.view(im.Tree)); !slices.Equal(got, want) {
			t.Errorf("in the base: %q, want %q", got, want)
		}
		wantLeft := []string{"secret .aws", "secret .env", "fields .npmrc", "secret a/b/.env.local", "secret deep/.ssh", "secret key", "secret notes", "special sock"}
		if got := left(im.LeftOut); !slices.Equal(got, wantLeft) {
			t.Errorf("left out: %q, want %q", got, wantLeft)
		}
		for _, l := range im.LeftOut {
			if l.Why == "" {
				t.Errorf("%s was left out without a reason", l.Path)
			}
		}
		s, err := workspace.Survey(ctx, i.source, i.with, i.mask, nil)
		i.must(err)
		if d := cmp.Diff(im.LeftOut, s.LeftOut); d != "" || s.Files != 2 {
			t.Errorf("a survey says otherwise, %d files (- import, + survey):\n%s", s.Files, d)
		}
		err = filepath.WalkDir(i.layers, func(at string, d os.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				b, rerr := os.ReadFile(at)
				if strings.Contains(string(b), "hunter2") || strings.Contains(string(b), "npm_aZ3") {
					t.Errorf("%s holds a secret", at)
				}
				err = rerr
			}
			return err
		})
		i.must(err)
		// One more appears, and one is let in.
		i.put("a/.netrc", "machine x password hunter2\n")
		im = i.do(im)
		if !slices.Contains(left(im.LeftOut), "secret a/.netrc") || len(im.LeftOut) != 9 {
			t.Errorf("left out the second time: %q", left(im.LeftOut))
		}
	})
}

// TestF21TrackedFixtures: a key that git tracks is a fixture, and comes in.
func TestF21TrackedFixtures(t *testing.T) {
	git := testenv.Program(t, "git")
	bothProviders(t, func(t *testing.T, i *importing) {
		pem := "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIUOe7bq\n-----END CERTIFICATE-----\n"
		i.put("testdata/server.pem", pem)
		i.put("testdata/tls/id_rsa", "not really a key\n")
		i.put("loose.pem", pem)
		i.put("id_rsa", "x\n")
		for _, args := range [][]string{{"init", "-q"}, {"add", "testdata"}} {
			cmd := exec.Command(git, append([]string{"-C", i.source}, args...)...)
			cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		age()
		im := i.do(nil)
		for _, p := range []string{"testdata/server.pem", "testdata/tls/id_rsa"} {
			if _, err := im.Tree.Lookup(p); err != nil {
				t.Errorf("the tracked %s is not there: %v", p, err)
			}
		}
		for p := range map[string]bool{"loose.pem": true, "id_rsa": true} {
			_, err := im.Tree.Lookup(p)
			if listed := slices.Contains(left(im.LeftOut), "secret "+p); listed == (err == nil) {
				t.Errorf("%s: in the base %v, listed %v: it vanished, or is both", p, err == nil, listed)
			}
		}
		if _, err := im.Tree.Lookup("id_rsa"); err == nil {
			t.Error("the untracked id_rsa is in the base")
		}
		// What git comes to track is decided on anew.
		cmd := exec.Command(git, "-C", i.source, "add", "id_rsa")
		cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		im = i.do(im)
		if _, err := im.Tree.Lookup("id_rsa"); err != nil {
			t.Error("id_rsa is tracked now, and not in the base")
		}
	})
}

// TestImportClosed: what the caller may not read stays outside, is listed, and
// is not touched to be read.
func TestImportClosed(t *testing.T) {
	testenv.User(t)
	bothProviders(t, func(t *testing.T, i *importing) {
		for _, p := range []string{"open/f", "closed/f", "names/f", "noread/f", "file"} {
			i.put(p, "x")
		}
		for p, mode := range map[string]os.FileMode{"closed": 0, "names": 0o400, "noread": 0o300, "file": 0o200} {
			i.must(os.Chmod(i.at(p), mode))
		}
		age()
		im := i.do(nil)
		want := []string{"unreadable closed", "unreadable file", "unreadable names", "unreadable noread"}
		if got := left(im.LeftOut); !slices.Equal(got, want) {
			t.Errorf("left out %q, want %q", got, want)
		}
		if got := paths(i.view(im.Tree)); !slices.Equal(got, []string{"open", "open/f"}) {
			t.Errorf("in the base: %q", got)
		}
		s, err := workspace.Survey(ctx, i.source, i.with, i.mask, nil)
		i.must(err)
		if d := cmp.Diff(im.LeftOut, s.LeftOut); d != "" {
			t.Errorf("a survey says otherwise (- import, + survey):\n%s", d)
		}
		// They open, and another closes.
		for _, p := range []string{"closed", "names", "noread", "file"} {
			i.must(os.Chmod(i.at(p), 0o755))
		}
		i.must(os.Chmod(i.at("open"), 0))
		im = i.do(im)
		if got := left(im.LeftOut); !slices.Equal(got, []string{"unreadable open"}) {
			t.Errorf("then left out %q", got)
		}
		if got := paths(i.view(im.Tree)); !slices.Equal(got, []string{"closed", "closed/f", "file", "names", "names/f", "noread", "noread/f"}) {
			t.Errorf("then in the base: %q", got)
		}
	})
}

// TestImportNothingElse: setuid bits and devices don't come in.
func TestImportNothingElse(t *testing.T) {
	bothProviders(t, func(t *testing.T, i *importing) {
		i.put("su", "#!/bin/sh\n")
		i.must(unix.Chmod(i.at("su"), 0o6755))
		want := []string(nil)
		if os.Geteuid() == 0 {
			i.must(unix.Mknod(i.at("null"), unix.S_IFCHR|0o666, 1<<8|3))
			want = []string{"special null"}
		}
		im := i.do(nil)
		if e, err := im.Tree.Lookup("su"); err != nil || e.Mode != 0o755 {
			t.Errorf("mode %o, %v", e.Mode, err)
		}
		if got := left(im.LeftOut); !slices.Equal(got, want) {
			t.Errorf("left out %q, want %q", got, want)
		}
	})
}

// TestF23bOwnOverlayMarks: a source that brings overlayfs's marks hides and
// shows nothing.
func TestF23bOwnOverlayMarks(t *testing.T) {
	bothProviders(t, func(t *testing.T, i *importing) {
		i.put("d/below", "1")
		i.put("e/f", "2")
		marks := []string{"user.overlay.opaque", "user.overlay.whiteout", "user.overlay.redirect"}
		if os.Geteuid() == 0 {
			marks = append(marks, "trusted.overlay.opaque", "trusted.overlay.redirect", "trusted.overlay.whiteout")
			i.must(unix.Mknod(i.at("d/whiteout"), unix.S_IFCHR|0o600, 0))
		}
		for _, m := range marks {
			for _, p := range []string{"d", "e", "e/f", ""} {
				v := "y"
				if strings.HasSuffix(m, "redirect") {
					v = "/d"
				}
				i.must(unix.Lsetxattr(i.at(p), m, []byte(v), 0))
			}
		}
		i.must(unix.Lsetxattr(i.at("d"), "user.own", []byte("kept"), 0))
		im := i.do(nil)
		want := []string{"d", "d/below", "e", "e/f"}
		if got := paths(i.view(im.Tree)); !slices.Equal(got, want) {
			t.Errorf("in the base: %q", got)
		}
		if e, err := im.Tree.Lookup("d"); err != nil || len(e.XAttrs) != 1 || e.XAttrs[0].Name != "user.own" {
			t.Errorf("attributes of d: %v, %v", e.XAttrs, err)
		}
		err := filepath.WalkDir(i.layers, func(at string, d os.DirEntry, err error) error {
			buf := make([]byte, 4096)
			n, lerr := unix.Llistxattr(at, buf)
			if strings.Contains(string(buf[:max(0, n)]), "overlay") {
				t.Errorf("%s has %q", at, buf[:n])
			}
			return errors.Join(err, lerr)
		})
		i.must(err)
		// The same in a second import, which is a layer over the first.
		age()
		i.put("e/g/h", "3")
		for _, m := range marks[:3] {
			i.must(unix.Lsetxattr(i.at("e"), m, []byte("y"), 0))
			i.must(unix.Lsetxattr(i.at("e/g"), m, []byte("y"), 0))
		}
		im = i.do(im)
		if got := paths(i.view(im.Tree)); !slices.Equal(got, append(want, "e/g", "e/g/h")) {
			t.Errorf("in the second base: %q", got)
		}
		g, err := i.p.Begin(ctx, im.State, im.Tree.Root, "")
		i.must(err)
		in := wt.Enter(t, i.p.Mount(g, "/w"))
		saw := paths(in.Look())
		in.Leave()
		if !slices.Equal(saw, append(want, "e/g", "e/g/h")) {
			t.Errorf("a cell sees %q", saw)
		}
	})
}

// TestF23FullDisk: the error says what to do, and nothing of the import stays.
func TestF23FullDisk(t *testing.T) {
	testenv.Root(t)
	bothProviders(t, func(t *testing.T, i *importing) {
		if err := unix.Mount("tmpfs", i.layers, "tmpfs", 0, "size=2m"); err != nil {
			t.Skipf("needs a file system of its own: %v", err)
		}
		t.Cleanup(func() { unix.Unmount(i.layers, unix.MNT_DETACH) })
		for n := range 40 {
			i.put(fmt.Sprint("d", n%3, "/f", n), strings.Repeat("x", 100_000))
		}
		before := touches(t, i.source)
		_, err := i.try(nil)
		if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "cannot import") {
			t.Fatalf("on a full disk: %v", err)
		}
		if rest, err := os.ReadDir(i.layers); err != nil || len(rest) > 0 {
			t.Errorf("left behind: %v, %v", rest, err)
		}
		if d := cmp.Diff(before, touches(t, i.source)); d != "" {
			t.Errorf("the source was touched:\n%s", d)
		}
		// With room for the first and none for what was added, the first stays.
		for n := 8; n < 40; n++ {
			i.must(os.Remove(i.at(fmt.Sprint("d", n%3, "/f", n))))
		}
		im := i.do(nil)
		i.put("more", strings.Repeat("y", 3_000_000))
		if _, err := i.try(im); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("the second time: %v", err)
		}
		all, err := i.p.Layers()
		i.must(err)
		if !slices.Equal(all, im.State.Layers) {
			t.Errorf("layers %v, the base has %v", all, im.State.Layers)
		}
	})
}
