package diff

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// The machine form, for JSON.
func TestFileChanges(t *testing.T) {
	long := strings.Repeat("some text\n", 20)
	a := wt.Model{"mod": wt.Plain("1\n"), "del": wt.Plain("gone\n"), "mode": wt.Plain("1\n"), "typ": wt.Plain("a\nb"), "ren": wt.Plain(long), "bin": wt.Plain("\x00")}
	b := wt.Model{"mod": wt.Plain("2\n3\n"), "new": wt.Script("1\n"), "mode": wt.Script("1\n"), "typ": wt.Link("b"), "ren2": wt.Plain(long + "x\n"), "bin": wt.Plain("\x01\x00")}
	d := mustCompare(t, a.Side(t, nil), b.Side(t, nil), Options{})
	if err := d.Count(context.Background()); err != nil {
		t.Fatal(err)
	}
	type row struct {
		path, old  string
		status     Status
		modes      string
		bin        bool
		plus, less int
	}
	var got []row
	for _, c := range d.Files {
		got = append(got, row{c.Path, c.OldPath, c.Status, c.OldMode.String() + " " + c.NewMode.String(), c.Binary, c.Added, c.Deleted})
	}
	want := []row{
		{"bin", "", StatusModified, "100644 100644", true, 0, 0},
		{"del", "", StatusDeleted, "100644 0", false, 0, 1},
		{"mod", "", StatusModified, "100644 100644", false, 2, 1},
		{"mode", "", StatusModeChanged, "100644 100755", false, 0, 0},
		{"new", "", StatusAdded, "0 100755", false, 1, 0},
		{"ren2", "ren", StatusRenamed, "100644 100644", false, 1, 0},
		{"typ", "", StatusTypeChanged, "100644 120000", false, 1, 2},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(row{})); diff != "" {
		t.Error(diff)
	}
	j, err := json.Marshal(d.Files[4])
	if want := `{"path":"new","status":"added","new_mode":"100755","added":1,"deleted":0,"new_digest":"` + cell.Sum([]byte("1\n")).String() + `"}`; err != nil || string(j) != want {
		t.Errorf("%s, %v", j, err)
	}
}

// Renames: exact before similar, same name before another, half is enough,
// less is not, each file once.
func TestRenames(t *testing.T) {
	lines := func(from, to int) string {
		var b strings.Builder
		for i := from; i < to; i++ {
			fmt.Fprintf(&b, "line %04d\n", i)
		}
		return b.String()
	}
	a := wt.Model{"a/x": wt.Plain(lines(0, 40)), "half": wt.Plain(lines(100, 140)), "less": wt.Plain(lines(200, 240)), "empty": wt.Plain(""), "twice": wt.Plain(lines(300, 340))}
	b := wt.Model{"b/x": wt.Plain(lines(0, 40)), "b/a": wt.Plain(lines(0, 40)), "half2": wt.Plain(lines(100, 121) + lines(900, 919)),
		"less2": wt.Plain(lines(200, 219) + lines(800, 821)), "empty2": wt.Plain(""), "t1": wt.Plain(lines(300, 340) + lines(700, 710)), "t2": wt.Plain(lines(300, 340) + lines(700, 702))}
	got := map[string]string{}
	for _, c := range mustCompare(t, a.Side(t, nil), b.Side(t, nil), Options{}).Files {
		if c.OldPath != "" {
			got[c.Path] = fmt.Sprint(c.OldPath, c.Similarity)
		}
	}
	if diff := cmp.Diff(map[string]string{"b/x": "a/x100", "half2": "half52", "t2": "twice95"}, got); diff != "" {
		t.Error(diff)
	}
	if d := mustCompare(t, a.Side(t, nil), b.Side(t, nil), Options{NoRenames: true}); len(d.Files) != 12 {
		t.Errorf("%d files without renames", len(d.Files))
	}
}

// With too many candidates only exact renames are looked for.
func TestRenameSearchIsBounded(t *testing.T) {
	a, b := wt.Model{}, wt.Model{}
	for i := range renameFiles + 2 {
		a[fmt.Sprint("old", i)] = wt.Plain(fmt.Sprintln("content", i))
	}
	b["new"], b["moved"] = wt.Plain("content 7\nmore\n"), wt.Plain("content 8\n")
	got := ""
	for _, c := range mustCompare(t, a.Side(t, nil), b.Side(t, nil), Options{}).Files {
		got += c.OldPath
	}
	if got != "old8" {
		t.Errorf("renamed: %q", got)
	}
	delete(a, "old0")
	if d := mustCompare(t, a.Side(t, nil), b.Side(t, nil), Options{}); d.Files[1].OldPath != "old7" {
		t.Errorf("%+v", d.Files[1])
	}
}

// Nothing that git can't hold is dropped in silence, and what is only a
// consequence is not listed.
func TestUnrepresented(t *testing.T) {
	x := []workspace.XAttr{{Name: "user.a", Value: "1"}}
	a := wt.Model{"same": wt.Plain("1"), "touched": wt.Plain("1"), "priv": wt.Plain("1"), "d/only": wt.Plain("1"), "old": {Folder: true}, "dir": {Folder: true, MTime: 1}, "dir/f": wt.Plain("1"), "quiet": {Folder: true}, "quiet/f": wt.Plain("1")}
	b := wt.Model{"same": wt.Plain("1"), "touched": {Text: "1", MTime: 5}, "priv": {Text: "2", Mode: 0o600}, "d": {Folder: true, MTime: 9}, "dir": {Folder: true, MTime: 2}, "dir/f": wt.Plain("1"), "dir/g": wt.Plain("1"),
		"new": {Folder: true}, "pipe": {Fifo: true}, "sec": {Text: "1", Mode: 0o640}, "attr": {Text: "1", XAttrs: x}, "setuid": {Text: "1", Mode: 0o4755}, "quiet": {Folder: true, Mode: 0o700, MTime: 3}, "quiet/f": wt.Plain("1")}
	y := b.Side(t, nil)
	y.Tree.Links = [][]string{{"attr", "same"}}
	var got []string
	for _, n := range mustCompare(t, a.Side(t, nil), y, Options{}).Unrepresented {
		got = append(got, n.Path+": "+n.What)
	}
	want := []string{
		"attr: extended attributes user.a", "d: folder in which git sees nothing any more", "new: folder in which git sees nothing", "old: folder removed, in which git saw nothing",
		"pipe: fifo", "priv: mode 0600", "quiet: mode 0700 of a folder", "quiet: modification time of a folder", "same: hard link to attr", "sec: mode 0640", "setuid: mode 4755", "touched: modification time",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// What is ignored is one line, not a note for each file.
func TestUnrepresentedLeavesIgnoredOut(t *testing.T) {
	b := wt.Model{"dep/a": {Text: "1", Mode: 0o600}, "dep/b": wt.Plain("1"), "dep/e": {Folder: true}, "f": {Text: "1", Mode: 0o600}}
	y := b.Side(t, nil)
	y.Tree.Links = [][]string{{"dep/a", "dep/b"}}
	ignored := func(p string, dir bool) bool { return p == "dep" && dir || strings.HasPrefix(p, "dep/") }
	d := mustCompare(t, wt.Model{}.Side(t, nil), y, Options{Ignored: ignored})
	if diff := cmp.Diff([]Note{{"f", "mode 0600"}}, d.Unrepresented); diff != "" || d.Ignored.Count != 2 {
		t.Errorf("%+v %s", d.Ignored, diff)
	}
}

type brokenContents struct{ text string }

func (c brokenContents) Open(string, workspace.Entry) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(c.text)), nil
}

// Content that is not what the tree recorded never becomes a patch.
func TestPatchOfDamagedContent(t *testing.T) {
	a, b := wt.Model{"x": wt.Plain("one\n")}.Side(t, nil), wt.Model{"x": wt.Plain("two\n")}.Side(t, nil)
	for _, text := range []string{"bad\n", "two", "two\n\n"} {
		b.Contents = brokenContents{text}
		err := mustCompare(t, a, b, Options{}).Patch(context.Background(), io.Discard)
		if cell.KindOf(err) != cell.Corrupt || !strings.HasPrefix(err.Error(), "cannot read x") {
			t.Errorf("%q: %v", text, err)
		}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("enough"))
	b.Contents = brokenContents{"two\n"}
	if err := mustCompare(t, a, b, Options{}).Patch(ctx, io.Discard); err == nil || err.Error() != "enough" {
		t.Errorf("after cancel: %v", err)
	}
}

// The cost is that of what changed, not of the tree.
func BenchmarkTenOfHundredThousand(b *testing.B) {
	m := wt.Model{}
	for i := range 100_000 {
		m[fmt.Sprintf("d%d/e%d/f%d", i%10, i/10%100, i)] = wt.Plain(fmt.Sprint("content\n", i))
	}
	n := m
	for i := range 10 {
		n = n.With(fmt.Sprintf("d%d/e%d/f%d", i%10, i/10%100, i), wt.Plain(fmt.Sprint("changed\n", i)))
	}
	objs := wt.NewObjects()
	x, y := m.Side(b, objs), n.Side(b, objs)
	b.ResetTimer()
	for b.Loop() {
		patchOf(b, mustCompare(b, x, y, Options{}))
	}
}

// The time of a folder is a consequence of what was done in it, the workspace's
// own folder included; alone it is listed, under a name.
func TestUnrepresentedTimesOfFolders(t *testing.T) {
	dressed := func(m wt.Model, mtime int64) workspace.Side {
		s := m.Side(t, nil)
		ed := s.Tree.Edit()
		if err := ed.Put("", workspace.Entry{Type: workspace.Folder, Mode: 0o755, MTime: mtime}); err != nil {
			t.Fatal(err)
		}
		var err error
		if s.Tree, err = ed.Commit(); err != nil {
			t.Fatal(err)
		}
		return s
	}
	a := wt.Model{"f": wt.Plain("1"), "d": {Folder: true, MTime: 1}, "d/f": wt.Plain("1")}
	for want, b := range map[string]wt.Model{
		"":                                 {"f": wt.Plain("2"), "d": {Folder: true, MTime: 2}, "d/f": wt.Plain("2")},
		"d: modification time of a folder": {"f": wt.Plain("2"), "d": {Folder: true, MTime: 2}, "d/f": wt.Plain("1")},
		".: modification time of a folder; d: modification time of a folder": {"f": wt.Plain("1"), "d": {Folder: true, MTime: 2}, "d/f": wt.Plain("1")},
		".: modification time of a folder; f: mode 0600":                     {"f": {Text: "1", Mode: 0o600}, "d": {Folder: true, MTime: 1}, "d/f": wt.Plain("1")},
	} {
		var got []string
		for _, n := range mustCompare(t, dressed(a, 1), dressed(b, 2), Options{}).Unrepresented {
			got = append(got, n.Path+": "+n.What)
		}
		if strings.Join(got, "; ") != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
