package apply

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// A full disk: a clear error, and the source as it was.
func TestF23ApplyOnFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a small tmpfs")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k,mode=755"); err != nil {
		t.Skipf("needs to mount a small tmpfs: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	base := wt.Model{"a": wt.Plain("1"), "d/b": wt.Plain(strings.Repeat("x", 100_000))}
	base.Write(t, dir)
	before := snapshotOf(t, dir)
	after := base.With("a", wt.Plain("2")).With("d/big", wt.Plain(strings.Repeat("y", 300_000)))
	req := applyRequest(t, dir, base, after)
	_, err := doOne(context.Background(), req)
	if cell.KindOf(err) != cell.Unavailable || !errors.Is(err, unix.ENOSPC) || !strings.HasPrefix(err.Error(), "cannot write d/big: ") || cell.HintOf(err) == "" {
		t.Errorf("err = %v (%s)", err, cell.HintOf(err))
	}
	leftNothing(t, req)
	unchanged(t, dir, before)
	// Replacing needs room for the new file only while it lasts.
	mustApply(t, applyRequest(t, dir, base, base.With("d/b", wt.Plain(strings.Repeat("z", 100_000)))))
}

// Nothing can be written: nothing is, and the file is named, in a dry run too.
func TestApplyWithoutPermission(t *testing.T) {
	base := wt.Model{"a": wt.Plain("1"), "ro/x": wt.Plain("1")}
	dir := t.TempDir()
	base.Write(t, dir)
	if os.Geteuid() == 0 {
		// Root may write anywhere but on a read-only mount.
		ro := filepath.Join(dir, "ro")
		if err := unix.Mount(ro, ro, "", unix.MS_BIND, ""); err != nil {
			t.Skipf("needs to mount: %v", err)
		}
		defer unix.Unmount(ro, unix.MNT_DETACH)
		if err := unix.Mount("", ro, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
	} else {
		os.Chmod(filepath.Join(dir, "ro"), 0o500)
		defer os.Chmod(filepath.Join(dir, "ro"), 0o700)
	}
	before := snapshotOf(t, dir)
	req := applyRequest(t, dir, base, wt.Model{"a": wt.Plain("2"), "ro/x": wt.Plain("2")})
	for _, dry := range []bool{true, false} {
		req.DryRun = dry
		_, err := doOne(context.Background(), req)
		if cell.KindOf(err) != cell.Denied || !strings.Contains(err.Error(), "cannot write ro/x") {
			t.Errorf("err = %v", err)
		}
		leftNothing(t, req)
		unchanged(t, dir, before)
	}
}

// A source with another file system inside it.
func TestApplyAcrossMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	base := wt.Model{"a": wt.Plain("1"), "mnt/deep/b": wt.Plain("1"), "mnt/c": wt.Plain("1"), "bind/x": wt.Plain("1")}
	after := wt.Model{"a": wt.Plain("2"), "mnt/deep/b": wt.Plain("2"), "mnt/new/d": wt.Plain("1"), "bind/x": wt.Plain("2"), "bind/y": wt.Plain("1")}
	dir := t.TempDir()
	for _, p := range []string{"mnt", "bind"} {
		os.Mkdir(filepath.Join(dir, p), 0o755)
	}
	if err := unix.Mount("tmpfs", filepath.Join(dir, "mnt"), "tmpfs", 0, "size=1m,mode=755"); err != nil {
		t.Skipf("needs to mount: %v", err)
	}
	defer unix.Unmount(filepath.Join(dir, "mnt"), unix.MNT_DETACH)
	if err := unix.Mount(t.TempDir(), filepath.Join(dir, "bind"), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(filepath.Join(dir, "bind"), unix.MNT_DETACH)
	base.Write(t, dir)
	before := snapshotOf(t, dir)
	req := applyRequest(t, dir, base, after)
	req.hook = func(step, path string) error {
		if step == "put" && path == "mnt/new/d" {
			return unix.EIO
		}
		return nil
	}
	if _, err := doOne(context.Background(), req); err == nil {
		t.Fatal("no error")
	}
	unchanged(t, dir, before)
	req.hook = nil
	mustApply(t, req)
	if wt.ContentDigest(t, dir) != req.After.Tree.ContentDigest() {
		t.Errorf("%v", wt.Read(t, dir))
	}
}

// A real kill -9, of a real process.
func TestF19ApplyKilledProcess(t *testing.T) {
	base, after := everything()
	if at := os.Getenv("APPLY_KILL_AT"); at != "" {
		// No TempDir: this process would not remove it.
		req := Request{Source: os.Getenv("APPLY_SOURCE"), Base: base.Side(t, nil).Tree, After: after.Side(t, nil), Backup: os.Getenv("APPLY_BACKUP")}
		n := 0
		req.hook = func(step, path string) error {
			if n++; fmt.Sprint(n) == at {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
			return nil
		}
		doOne(context.Background(), req)
		return
	}
	for _, at := range []int{2, 20, 45, 60} {
		dir := sourceOf(t, base)
		before := snapshotOf(t, dir)
		backup := filepath.Join(t.TempDir(), "b")
		cmd := exec.Command(os.Args[0], "-test.run=^TestF19ApplyKilledProcess$")
		cmd.Env = append(os.Environ(), fmt.Sprint("APPLY_KILL_AT=", at), "APPLY_SOURCE="+dir, "APPLY_BACKUP="+backup)
		if err := cmd.Run(); err == nil {
			t.Fatalf("%d: it was not killed", at)
		}
		r, err := Recover(context.Background(), backup)
		if err != nil || r.Source != dir {
			t.Fatalf("%d: %+v, %v", at, r, err)
		}
		unchanged(t, dir, before)
		if entries, _ := os.ReadDir(backup); len(entries) != 0 {
			t.Errorf("%v left", entries)
		}
	}
}

// badContents gives for every file other bytes than were promised.
type badContents struct{}

func (badContents) Open(string, workspace.Entry) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("bad")), nil
}

// Damaged content from the cell's side reaches nothing.
func TestApplyDamagedContent(t *testing.T) {
	base := wt.Model{"a": wt.Plain("1"), "f": wt.Plain("one")}
	dir := sourceOf(t, base)
	before := snapshotOf(t, dir)
	req := applyRequest(t, dir, base, wt.Model{"a": wt.Plain("2"), "f": wt.Plain("two")})
	req.After.Contents = badContents{}
	_, err := doOne(context.Background(), req)
	if cell.KindOf(err) != cell.Corrupt {
		t.Errorf("err = %v", err)
	}
	leftNothing(t, req)
	unchanged(t, dir, before)
}

// Modes: new files as git makes them, others keep their bits; times are now.
func TestApplyModes(t *testing.T) {
	defer unix.Umask(unix.Umask(0o027))
	base := wt.Model{"a": wt.Plain("1"), "b": {Text: "1", Mode: 0o755}, "c": wt.Plain("1"), "d": wt.Plain("1")}
	after := wt.Model{"a": wt.Plain("2"), "b": wt.Plain("1"), "c": wt.Script("1"), "d": wt.Script("2"), "new": {Text: "1", Mode: 0o4600}, "run/me": {Text: "1", Mode: 0o6755}}
	dir := sourceOf(t, base)
	for p, mode := range map[string]os.FileMode{"a": 0o640, "b": 0o770, "c": 0o444, "d": 0o600} {
		if err := os.Chmod(filepath.Join(dir, p), mode); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-time.Hour)
	os.Chtimes(filepath.Join(dir, "a"), old, old)
	mustApply(t, applyRequest(t, dir, base, after))
	got := map[string]string{}
	for p, f := range wt.Read(t, dir) {
		got[p] = fmt.Sprintf("%o", f.Mode)
	}
	if diff := cmp.Diff(map[string]string{"a": "640", "b": "660", "c": "555", "d": "700", "new": "640", "run": "750", "run/me": "750"}, got); diff != "" {
		t.Error(diff)
	}
	if st, _ := os.Stat(filepath.Join(dir, "a")); time.Since(st.ModTime()) > time.Minute {
		t.Error("mtime is not now")
	}
	if st, _ := os.Stat(filepath.Join(dir, "run/me")); st.Mode()&os.ModeSetuid != 0 {
		t.Error("setuid")
	}
	unix.Umask(0o002)
	dir = sourceOf(t, wt.Model{"s": wt.Plain("1")})
	os.Chmod(filepath.Join(dir, "s"), 0o755|os.ModeSetuid|os.ModeSetgid)
	mustApply(t, applyRequest(t, dir, wt.Model{"s": wt.Script("1")}, wt.Model{"s": wt.Script("2"), "n": wt.Plain("1")}))
	if got := wt.Read(t, dir)["n"].Mode; got != 0o664 {
		t.Errorf("mode %o through umask 002", got)
	}
	if st, _ := os.Stat(filepath.Join(dir, "s")); st.Mode() != 0o755 {
		t.Errorf("a file with other content kept %v", st.Mode())
	}
}

// A replaced file keeps owner and attributes; a new one belongs to the owner
// of its folder, not to root.
func TestApplyKeepsOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to give files away")
	}
	dir := sourceOf(t, wt.Model{"a": wt.Plain("1")})
	os.Chown(dir, 4711, 4712)
	os.Chown(filepath.Join(dir, "a"), 4713, 4714)
	unix.Setxattr(filepath.Join(dir, "a"), "user.tag", []byte("v"), 0)
	mustApply(t, applyRequest(t, dir, wt.Model{"a": wt.Plain("1")}, wt.Model{"a": wt.Plain("2"), "d/n": wt.Plain("1"), "l": wt.Link("a")}))
	for p, want := range map[string]string{"a": "4713:4714", "d": "4711:4712", "d/n": "4711:4712", "l": "4711:4712"} {
		st, err := os.Lstat(filepath.Join(dir, p))
		if err != nil {
			t.Fatal(err)
		}
		if s := st.Sys().(*syscall.Stat_t); fmt.Sprintf("%d:%d", s.Uid, s.Gid) != want {
			t.Errorf("%s belongs to %d:%d", p, s.Uid, s.Gid)
		}
	}
	b := make([]byte, 9)
	if n, err := unix.Getxattr(filepath.Join(dir, "a"), "user.tag", b); err != nil || string(b[:n]) != "v" {
		t.Errorf("attribute: %q, %v", b[:n], err)
	}
}

func TestOwnerOfNewFiles(t *testing.T) {
	folder := unix.Stat_t{Uid: 1, Gid: 2, Mode: 0o755}
	setgid := unix.Stat_t{Uid: 1, Gid: 2, Mode: 0o2755}
	if ownerIn(&folder, 0) != (owner{1, 2}) || ownerIn(&folder, 5) != noOwner || ownerIn(&setgid, 5) != (owner{-1, 2}) {
		t.Error("ownerIn")
	}
}
