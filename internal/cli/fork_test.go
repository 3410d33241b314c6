package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// A cell's answer is one line, and what failed is known as such.
func TestForkAnswer(t *testing.T) {
	result := func(ev cell.Evaluated) json.RawMessage {
		b, err := json.Marshal(ev)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	zero, seven := 0, 7
	for _, c := range []struct {
		name   string
		f      api.WarmFork
		want   string
		failed bool
	}{
		{"value", api.WarmFork{Result: result(cell.Evaluated{OK: true, Value: &cell.Value{Repr: "[0.0]"}}), Stdout: "said\n"}, "[0.0]", false},
		{"no value", api.WarmFork{Result: result(cell.Evaluated{OK: true}), Stdout: "one\ntwo\n"}, "two", false},
		{"nothing", api.WarmFork{Result: result(cell.Evaluated{OK: true})}, "", false},
		{"exception", api.WarmFork{Result: result(cell.Evaluated{Error: &cell.EvalError{Type: "KeyError", Message: "'x'"}})}, "KeyError: 'x'", true},
		{"without words", api.WarmFork{Result: result(cell.Evaluated{Error: &cell.EvalError{Type: "AssertionError"}})}, "AssertionError", true},
		{"timeout", api.WarmFork{Result: result(cell.Evaluated{Cause: "timeout", Error: &cell.EvalError{Type: "KeyboardInterrupt"}})}, "time limit reached", true},
		{"no fork", api.WarmFork{Error: &api.Error{Kind: "unavailable", Message: "cannot fork: full"}}, "cannot fork: full", true},
		{"command", api.WarmFork{Exit: &zero, Stdout: "3 passed\n"}, "3 passed", false},
		{"command failed", api.WarmFork{Exit: &seven, Stdout: "3 passed\n", Stderr: "oh\nno\n"}, "exit 7  no", true},
		{"silently", api.WarmFork{Exit: &seven}, "exit 7", true},
	} {
		if got := forkAnswer(c.f); got != c.want || forkFailed(c.f) != c.failed {
			t.Errorf("%s: %q, failed %v", c.name, got, forkFailed(c.f))
		}
	}
}

// A row is one line whatever a cell answers, and columns keep their place.
func TestForkTable(t *testing.T) {
	var out bytes.Buffer
	a := &app{stdout: &out}
	tab := a.newForkTable("py", api.WarmForkRequest{Count: 100})
	for _, n := range []string{"py-1", "py-100"} {
		tab.row(api.WarmFork{Cell: api.Cell{Name: n}, MS: 1.25, Exit: new(int), Stdout: "\x1b[2Ja\rb\n"})
	}
	want := "py-1       1.2 ms  \\x1b[2Ja\\rb\npy-100     1.2 ms  \\x1b[2Ja\\rb\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

// The prompt knows when code is not over yet.
func TestWhole(t *testing.T) {
	for _, c := range []struct {
		code string
		want bool
	}{
		{"1 + 1", true}, {"", true}, {"f(1,", false}, {"f(1,\n2)", true}, {"x = [", false}, {"'('", true}, {`"\"("`, true},
		{"# (", true}, {"if x:", false}, {"if x:\n  y", false}, {"if x:\n  y\n", true}, {"@d\ndef f(): pass", false}, {"@d\ndef f(): pass\n", true},
		{"'''a", false}, {"'''a\nb'''", true}, {`"""`, false}, {"'a", true}, {"1 + \\", false}, {"f('''(''',", false}, {"'\\", false}, {"{1: 2}", true},
		{"x = 'it''s'", true}, {"(]", true},
	} {
		if got := inputComplete(strings.Split(c.code, "\n"), true); got != c.want {
			t.Errorf("%q: %v", c.code, got)
		}
	}
}

// Rich results become files; a link in their place is not followed.
func TestSaveRich(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.Symlink(outside, filepath.Join(dir, "3-1.png")); err != nil {
		t.Fatal(err)
	}
	ev := cell.Evaluated{N: 3, OK: true,
		Display: []cell.Bundle{{"image/png": base64.StdEncoding.EncodeToString([]byte("PNG")), "text/plain": "<figure\x1b>"}, {"text/plain": "only text"}},
		Value:   &cell.Value{Repr: "df", MIME: cell.Bundle{"text/html": "<b>1</b>"}}}
	var said bytes.Buffer
	if err := new(app).saveRich(ev, dir, &said); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"3-1.png": "PNG", "3-3.html": "<b>1</b>"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if _, err := os.Lstat(outside); err == nil {
		t.Error("it was written through a link")
	}
	if list, _ := os.ReadDir(dir); len(list) != 2 {
		t.Errorf("there are %v", list)
	}
	said.Reset()
	if err := (&app{isTTY: true}).saveRich(ev, "", &said); err != nil {
		t.Fatal(err)
	}
	if want := "<figure\\x1b>\npando: image/png, 3 B\nonly text\npando: text/html, 8 B\npando: --save DIR writes such results into files\n"; said.String() != want {
		t.Errorf("it said\n%s", said.String())
	}
}

// A hundred forks are a line of the picture, not a hundred; one that has a life of
// its own has its own.
func TestTreeOfManyForks(t *testing.T) {
	node := func(name string, runs int) api.TreeNode {
		return api.TreeNode{Cell: api.Cell{Name: name, State: "running", Runs: runs, Parent: &api.Parent{Number: 2}, Interpreter: &api.Interpreter{Version: "Python 3.11"}},
			Checkpoints: []api.Checkpoint{{Number: 1, Head: true, Kind: "fork", TreeDigest: "sha256:ab"}}}
	}
	top := api.TreeNode{Cell: api.Cell{Name: "py", State: "running", Template: "py"},
		Checkpoints: []api.Checkpoint{{Number: 1, Kind: "base"}, {Number: 2, Parent: 1, Kind: "template", Head: true}}}
	for _, n := range []string{"py-10", "py-2", "py-1", "other", "py-3", "py-4", "py-5", "py-6", "py-7"} {
		runs := 0
		if n == "py-3" {
			runs = 1
		}
		top.Children = append(top.Children, node(n, runs))
	}
	var out bytes.Buffer
	out.WriteString(nodeTitle(top) + "\n")
	drawTree(&out, top, "")
	want := `template py  running
○ @1   the source
● @2   as the set-up left it
├─ 8 cells  running, Python 3.11: other py-1 py-2 … py-10
└─ py-3  running, Python 3.11
   ● @1 ab
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

func TestWholeInOtherLanguages(t *testing.T) {
	for code, want := range map[string]bool{
		"f({": false, "f({\n})": true, "x // (": true, "/* (": false, "/* ( */ x": true, "`a\n(": false, "`a (`": true, "this.#x": true,
		"case 1:": true, "'/*'": true, "a[\"]\"": false, "int f() {": false,
	} {
		if got := inputComplete(strings.Split(code, "\n"), false); got != want {
			t.Errorf("%q: %v", code, got)
		}
	}
}
