package cli

import (
	"bytes"
	"os"
	"testing"

	"github.com/pando-dev/pando/api"
)

// TestX34LinesBeginAtALinesBeginning: a line of pando ends the line that a command has
// begun, and no other.
func TestX34LinesBeginAtALinesBeginning(t *testing.T) {
	for _, c := range []struct {
		name, wrote string
		raw         bool
		want        string
	}{
		{"nothing", "", false, "pando: x\n"},
		{"a line", "one\n", false, "one\npando: x\n"},
		{"half a line", "one\ntwo", false, "one\ntwo\npando: x\n"},
		{"half a line in a terminal", "one\r\ntwo", true, "one\r\ntwo\r\npando: x\r\n"},
		{"a bar that draws itself anew", "10%\r20%\r", false, "10%\r20%\r\npando: x\n"},
		{"colours behind a line", "\x1b[1mone\n\x1b[0m\x1b]0;title\x07", false, "\x1b[1mone\n\x1b[0m\x1b]0;title\x07pando: x\n"},
		{"half a line with colours", "\x1b[1mone\x1b[0m", false, "\x1b[1mone\x1b[0m\npando: x\n"},
		{"a title that ends with an escape", "\x1b]0;title\x1b\\", false, "\x1b]0;title\x1b\\pando: x\n"},
		{"a tab", "\t", false, "\t\npando: x\n"},
		{"bytes", "\xff\xfe", false, "\xff\xfe\npando: x\n"},
	} {
		var all, single bytes.Buffer
		for _, out := range []*bytes.Buffer{&all, &single} {
			a := &app{stderr: out, stdout: out}
			a.cursor.setRaw(c.raw)
			to := a.followed(a.stdout)
			if out == &all {
				to.Write([]byte(c.wrote))
			} else {
				for i := range c.wrote {
					to.Write([]byte(c.wrote[i : i+1]))
				}
			}
			a.say("pando: %s", "x")
			if got := out.String(); got != c.want {
				t.Errorf("%s: %q, want %q", c.name, got, c.want)
			}
			a.say("again")
			if got := out.String()[len(c.want):]; got != "again\n" && !c.raw || c.raw && got != "again\r\n" {
				t.Errorf("%s: the line behind it is %q", c.name, got)
			}
		}
	}
}

// TestX34DenialsAreLines: what is told while a command runs begins a line of its own,
// and neither a line that is drawn nor one of the command is lost.
func TestX34DenialsAreLines(t *testing.T) {
	var out bytes.Buffer
	a := &app{stderr: &out, stdout: new(bytes.Buffer), told: map[string]bool{}, isTTY: true, width: 80}
	p := &progress{a: a}
	p.later = "starting"
	p.draw()
	p.show(api.Progress{Step: api.StepDenied, Note: "one"})
	a.followed(a.stderr).Write([]byte("half"))
	a.followed(a.stdout).Write([]byte("on its own\n"))
	p.show(api.Progress{Step: api.StepDenied, Note: "two"})
	a.followed(a.stderr).Write([]byte("half"))
	p.later = "finishing"
	p.draw()
	p.clear()
	const want = "\r\x1b[Kstarting\r\x1b[Kpando: denied: one\nhalf\npando: denied: two\nhalf\n\r\x1b[Kfinishing\r\x1b[K"
	if got := out.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestX34OutputOfOneFile: output counts where it goes to the file that lines go to.
func TestX34OutputOfOneFile(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	again, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	for _, c := range []struct {
		out, err *os.File
		mid      bool
	}{{null, w, false}, {null, again, true}, {null, null, true}} {
		a := &app{stdout: c.out, stderr: c.err}
		a.followed(a.stdout).Write([]byte("half"))
		if a.cursor.mid != c.mid {
			t.Errorf("%s beside %s: %v", c.out.Name(), c.err.Name(), a.cursor.mid)
		}
	}
}
