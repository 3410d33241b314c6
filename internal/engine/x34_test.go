package engine

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// TestX34NamesOfLeftOutPaths: a left-out path is found where it is named as a whole
// component of a path, and nowhere else.
func TestX34NamesOfLeftOutPaths(t *testing.T) {
	const top = "/home/u/my work"
	left := []workspace.LeftOut{
		{Path: ".env", Kind: workspace.Secret}, {Path: "config/.env", Kind: workspace.Secret}, {Path: "app/[slug]/key one.pem", Kind: workspace.Secret},
		{Path: ".ssh", Kind: workspace.Secret}, {Path: ".aws/credentials", Kind: workspace.Secret}, {Path: "run.sock", Kind: workspace.Special},
		{Path: "conf/.npmrc", Kind: workspace.Fields}, {Path: "tracked.pem", Kind: workspace.Tracked}, {Path: "made.pem", Kind: workspace.Secret},
		{Path: "link", Kind: workspace.Outside}, {Path: "pkg/a/.envrc", Kind: workspace.Secret}, {Path: "pkg/b/.envrc", Kind: workspace.Secret},
	}
	there := func(rel string) bool {
		return slices.Contains([]string{"made.pem", "link", "conf/.npmrc", "tracked.pem", "pkg/c/.envrc"}, rel)
	}
	for _, c := range []struct {
		name, workdir, text string
		want                []string
	}{
		{"cat", "", "cat: .env: No such file or directory\n", []string{".env"}},
		{"Python", "", "FileNotFoundError: [Errno 2] No such file or directory: '.env'", []string{".env"}},
		{"Node", "", "Error: ENOENT: no such file or directory, open '/home/u/my work/config/.env'", []string{"config/.env"}},
		{"Go, another folder", "config", "open .env: no such file or directory", []string{"config/.env"}},
		{"up", "config", "open ../.env: no such file or directory", []string{".env"}},
		{"GNU quotes", "", "cannot stat ‘./config/.env’", []string{"config/.env"}},
		{"several, in the order of the list", "", "need config/.env and .env", []string{".env", "config/.env"}},
		{"coloured", "", "open \x1b[31m.env\x1b[0m\x1b]0;title\x07", []string{".env"}},
		{"the end of a sentence", "", "Please make .env.", []string{".env"}},
		{"escaped", "", `{"error":"open .env\nfailed"}`, []string{".env"}},
		{"CRLF", "", "open .env\r\n", []string{".env"}},
		{"NUL", "", "open\x00.env\x00\xff\xfe\x01", []string{".env"}},
		{"bytes that are no UTF-8 beside it", "", "\xff.env .env\xfe \xc3.env", nil},
		{"spaces and brackets", "", "open app/[slug]/key one.pem: denied", []string{"app/[slug]/key one.pem"}},
		{"the same, absolute", "", "open /home/u/my work/app/[slug]/key one.pem", []string{"app/[slug]/key one.pem"}},
		{"below a folder", "", "Identity file .ssh/id_rsa not accessible", []string{".ssh"}},
		{"a word", "", "invalid credentials for u", nil},
		{"a word about a file", "", "credentials: No such file or directory", []string{".aws/credentials"}},
		{"a word with its folder", "", "bad .aws/credentials", []string{".aws/credentials"}},
		{"no secret", "", "connect run.sock: refused", []string{"run.sock"}},
		{"what came in without some fields", "", "bad conf/.npmrc", nil},
		{"what git tracks", "", "bad tracked.pem", nil},
		{"what the cell has made anew", "", "bad made.pem", nil},
		{"what leads outside", "", "cat: link: No such file or directory", []string{"link"}},
		{"changed its directory", "", "open .envrc: no such file", []string{"pkg/a/.envrc", "pkg/b/.envrc"}},
		{"what is in the cell there", "pkg/c", "bad .envrc", nil},
		{"parts of other words", "", ".env.local .envs x.env .env2 .env_old .env-example $.env .env~ process.env my.ssh .sshd", nil},
		{"in another place", "", "/etc/.env other/.env https://host/.env /home/u/.env", nil},
		{"nothing", "", "", nil},
	} {
		f := newLeftOutFinder(&state.Cell{LeftOut: left, Source: top}, filepath.Join(top, c.workdir), there)
		var got []string
		for _, l := range f.find(nil, "command", []byte(c.text), false) {
			got = append(got, l.Path)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q names %q, want %q", c.name, c.text, got, c.want)
		}
	}
	f := newLeftOutFinder(&state.Cell{LeftOut: left, Source: top}, "", there)
	if got := f.find(nil, "command", []byte(".env: x"), true); len(got) != 0 {
		t.Errorf("the rest of a word that was cut is taken for a name: %v", got)
	}
	if got := f.find(nil, "command", bytes.Repeat([]byte(".env/x/"), namedTail), true); len(got) != 0 {
		t.Errorf("one long word: %v", got)
	}
}

// TestX34OutputNamesLeftOut: what a failed command, or a failed check, says about a
// left-out path is in the result's notes, with what brings the path in.
func TestX34OutputNamesLeftOut(t *testing.T) {
	t.Parallel()
	b := newBed(t, ".env: A=1", "config/.env: B=1", "f: 0")
	noted := func(notes []string) (got []string) {
		for _, n := range notes {
			if strings.Contains(n, "output names") {
				got = append(got, n)
			}
		}
		return got
	}
	expect := func(what string, notes []string, want ...string) {
		t.Helper()
		if got := noted(notes); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	const flag = "the command's output names .env, which is left out of the cell: let it in with --with-secret .env"
	expect("a run that fails", b.run("", "echo open .env: no such file >&2; false").Notes, flag)
	expect("on stdout, at the end of much", b.run("", "for i in 1 2 3 4 5 6 7 8 9; do echo "+strings.Repeat("x", 5000)+"; done; echo open .env; false").Notes, flag)
	expect("before the end that is looked at", b.run("", "echo open .env; for i in 1 2 3 4 5 6 7 8 9; do echo "+strings.Repeat("x", 5000)+"; done; false").Notes)
	expect("a run that succeeds", b.run("", "echo open .env >&2; echo > g").Notes)
	expect("nothing named", b.run("", "echo process.env; false").Notes)
	expect("two", b.run("", "echo .env config/.env; false").Notes, flag, strings.ReplaceAll(flag, ".env", "config/.env"))
	req := b.request("", "echo > g")
	req.Check = "echo no .env >&2; false"
	expect("a check that fails", b.do(req).Notes, strings.Replace(flag, "command", "check", 1))
	req = b.request("", "echo open .env; false")
	req.WithSecret = []string{".env"}
	expect("let in", b.do(req).Notes)
	expect("made anew", b.run("", "echo > .env; echo bad .env; false").Notes)

	b.run("w", "true")
	copied := "the command's output names .env, which is left out of the cell: copy it in with pando cp " + b.src + "/.env w:.env, or make the cell with --with-secret .env"
	expect("in a cell that is kept", b.run("w", "echo bad .env; false").Notes, copied)
	for _, wait := range []bool{false, true} {
		for script, want := range map[string][]string{"echo bad .env; false": {copied}, "echo bad .env >&2; false": {copied}, "echo bad .env": nil, "echo bad my.env; false": nil} {
			x, err := b.StartExec(b.ctx, b.id("w"), api.ExecRequest{Command: []string{"sh", "-c", script}, Wait: wait})
			b.must(err)
			if !wait {
				a, err := b.AttachExec(x.ID, false)
				b.must(err)
				<-a.Done
				r, err := a.Result()
				b.must(err)
				a.Release(false)
				x = r.(api.Exec)
			}
			expect("exec "+script, x.Notes, want...)
		}
	}
}

// TestX34CopiedState: a copy of a state is verified by its own files. What happens to those
// of the original is nothing to it.
func TestX34CopiedState(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	r := b.run("w", "echo out; echo 1 > f")
	b.close()
	original, copied := b.home.State, b.home.State+"-copy"
	if out, err := exec.Command("cp", "-a", original, copied).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	stdout := func(state string) string { return filepath.Join(state, "runs", r.ID, "stdout") }
	b.must(os.WriteFile(stdout(original), []byte("edited"), 0o600))
	b.home.State = copied
	b.open()
	v, err := b.Verify(r.ID, b.src)
	b.must(err)
	if !v.OK || v.Files == 0 {
		t.Errorf("the original was edited: %+v", v)
	}
	now, err := b.Engine.Run(cell.RunID(r.ID))
	b.must(err)
	if want := filepath.Dir(stdout(copied)); now.Folder != want {
		t.Errorf("its folder is %s, want %s", now.Folder, want)
	}
	b.must(os.WriteFile(stdout(copied), []byte("edited"), 0o600))
	if v, err = b.Verify(r.ID, b.src); err != nil || v.OK {
		t.Errorf("the copy was edited: %+v, %v", v, err)
	}
	b.must(b.reg.Rewrite())
	b.reopen()
	journal, err := os.ReadFile(b.home.Registry())
	b.must(err)
	for _, dir := range []string{original, copied, b.home.Cache} {
		if i := bytes.Index(journal, []byte(dir+"/")); i >= 0 {
			t.Errorf("records say where they are: %.200s", journal[i:])
		}
	}
	c, err := b.reg.Cell(b.id("w"))
	b.must(err)
	if !slices.ContainsFunc(c.Setup.Mounts, func(m cell.Mount) bool {
		return strings.HasPrefix(m.Source, copied+"/cells/"+string(c.ID)+"/")
	}) {
		t.Errorf("no mount is in the copy: %+v", c.Setup.Mounts)
	}
}

// TestX34NothingButFiles: what took the place of a file of the state is refused by name
// where it is read, and where it would be written.
func TestX34NothingButFiles(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	r := b.run("w", "echo 1 > f")
	run, err := b.reg.Run(cell.RunID(r.ID))
	b.must(err)
	outside := filepath.Join(t.TempDir(), "outside")
	b.must(os.WriteFile(outside, []byte("mine"), 0o600))
	for what, make := range map[string]func(path string) error{
		"a FIFO":    func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a symlink": func(path string) error { return os.Symlink(outside, path) },
		"a folder":  func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		manifest := filepath.Join(r.Folder, "manifest.json")
		b.must(os.Rename(manifest, manifest+".moved"))
		b.must(make(manifest))
		if _, err := evidence.ManifestPolicy(&run); err == nil || !strings.Contains(err.Error(), "manifest.json is no regular file") {
			t.Errorf("%s as a manifest: %v", what, err)
		}
		var out bytes.Buffer
		if err := b.evidence.Export(run.RunID(), &out); err == nil || !strings.Contains(err.Error(), "manifest.json is no regular file") || out.Len() > 0 {
			t.Errorf("%s is exported: %v, %d bytes", what, err, out.Len())
		}
		if _, err := evidence.CreateRecord(r.Folder, "manifest.json"); err == nil || !strings.Contains(err.Error(), "manifest.json is no regular file") {
			t.Errorf("%s is written to: %v", what, err)
		}
		if _, err := readState(manifest); err == nil || !strings.Contains(err.Error(), "no regular file") {
			t.Errorf("%s is read: %v", what, err)
		}
		b.must(os.Remove(manifest))
		b.must(os.Rename(manifest+".moved", manifest))
	}
	if text, err := os.ReadFile(outside); err != nil || string(text) != "mine" {
		t.Errorf("what a symlink led to is %q, %v", text, err)
	}
	b.must(os.Rename(r.Folder, r.Folder+".moved"))
	b.must(os.Symlink(r.Folder+".moved", r.Folder))
	if v, err := b.Verify(r.ID, b.src); err != nil || v.OK {
		t.Errorf("a symlink is a run's folder: %+v, %v", v, err)
	}
	b.must(os.Remove(r.Folder))
	b.must(os.Rename(r.Folder+".moved", r.Folder))
	b.verified()
}
