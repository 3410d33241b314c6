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
)

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
