package agent

import (
	"strings"
	"testing"
)

// What the cell has changed stays; what it has not follows the user's.
func TestBlendJSON(t *testing.T) {
	const was, now = `{"model":"a","ui":{"theme":"dark","x":1},"gone":true}`, `{"model":"b","ui":{"theme":"light","x":1},"new":12345678901234567}`
	for _, c := range []struct{ name, old, base, want string }{
		{"nothing there", ``, ``, `{"model":"b","new":12345678901234567,"ui":{"theme":"light","x":1}}`},
		{"nothing of it there", `{"own":1}`, ``, `{"model":"b","new":12345678901234567,"own":1,"ui":{"theme":"light","x":1}}`},
		{"the cell's own before", `{"model":"own","ui":{"theme":"own"}}`, ``, `{"model":"own","new":12345678901234567,"ui":{"theme":"own","x":1}}`},
		{"as it was put there", was, was, `{"model":"b","new":12345678901234567,"ui":{"theme":"light","x":1}}`},
		{"changed by the cell", `{"model":"own","ui":{"theme":"dark","x":2},"gone":false}`, was, `{"gone":false,"model":"own","new":12345678901234567,"ui":{"theme":"light","x":2}}`},
		{"taken out by the cell", `{"ui":7}`, was, `{"new":12345678901234567,"ui":7}`},
		{"no object", `[`, was, `[`},
	} {
		var old []byte
		if c.old != "" {
			old = []byte(c.old)
		}
		if got := strings.TrimSpace(string(BlendJSON(old, []byte(c.base), []byte(now)))); got != c.want {
			t.Errorf("%s: %s, not %s", c.name, got, c.want)
		}
	}
}

func TestBlendText(t *testing.T) {
	for _, c := range []struct{ name, old, base, part, want string }{
		{"nothing there", "", "", "a\n", "a\n"},
		{"beside another", "x", "", "a\n", "x\na\n"},
		{"there already", "x\na\n", "", "a\n", "x\na\n"},
		{"changed by the user", "x\na\ny\n", "a\n", "b\n", "x\nb\ny\n"},
		{"changed by the cell", "x\nA\n", "a\n", "b\n", "x\nA\n"},
	} {
		if got := string(BlendText([]byte(c.old), []byte(c.base), []byte(c.part))); got != c.want {
			t.Errorf("%s: %q, not %q", c.name, got, c.want)
		}
	}
}

// A path of another kind, or one that leads out, is none of a list.
func TestBringHas(t *testing.T) {
	folder, file := Bring{Path: ".a/skills/"}, Bring{Path: ".a/f"}
	for p, want := range map[string][2]bool{
		".a/skills/x": {true, false}, ".a/skills/x/y": {true, false}, ".a/f": {false, true},
		".a/skills": {}, ".a/skills/": {}, ".a/skills/../f": {}, ".a/skillsx": {}, "/.a/f": {}, ".a/f/x": {}, ".a/skills/..": {}, "": {},
	} {
		if got := [2]bool{folder.Has(p), file.Has(p)}; got != want {
			t.Errorf("%q: %v", p, got)
		}
	}
}

// A server that may hold a secret is named and stays; what others need besides is named.
func TestServersAreNamed(t *testing.T) {
	part, left := KeepServers("s")([]byte(`{"s":{"a":{"command":"x","env":{"A":"b"}},"b":{"url":"https://h/?k=1"},"c":{"args":["--Auth-TOKEN=1"]},"d":{"url":"https://h/","httpUrl":"https://h/?k=1"}}}`))
	if got, want := strings.Join(left, "; "), "a.env; "+Withheld("b")+"; "+Withheld("c")+"; "+Withheld("d"); got != want || string(part) != `{"s":{"a":{"command":"x"}}}`+"\n" {
		t.Errorf("%s\nleft: %s\nnot:  %s", part, got, want)
	}
	_, left = Keep("a", "b.c")([]byte(`{"a":1,"b":{"c":1,"d":2},"e":{"f":1}}`))
	if got := strings.Join(left, "; "); got != "b.d; e" {
		t.Errorf("left: %s", got)
	}
}
