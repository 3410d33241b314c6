package cli

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDroppedPaths(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "a b.png")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]string{
		"/home/me/shot.png ":                      {"/home/me/shot.png"},
		"'/home/me/a b.png' ":                     {"/home/me/a b.png"},
		`"/home/me/a \"b\".png"`:                  {`/home/me/a "b".png`},
		`/home/me/a\ b\'c.png`:                    {"/home/me/a b'c.png"},
		`'/home/me/it'\''s.png' /home/me/./b`:     {"/home/me/it's.png", "/home/me/b"},
		"file:///home/me/a%20b.png\r\n":           {"/home/me/a b.png"},
		"file://box/home/me/x\nfile:///home/me/y": {"/home/me/x", "/home/me/y"},
		plain:                                 {plain},
		"":                                    nil,
		"look at /home/me/shot.png":           nil,
		"shot.png":                            nil,
		"'/home/me/shot.png":                  nil,
		`/home/me/shot.png\`:                  nil,
		"/home/me/\x1b[31m":                   nil,
		"file:///home/%0a":                    nil,
		"/a/x /b/x":                           nil,
		strings.Repeat("/a ", maxDropFiles+1): nil,
	} {
		if d := cmp.Diff(want, droppedPaths(text)); d != "" {
			t.Errorf("%q: %s", text, d)
		}
	}
}

// A paste that is the path of a file of this host is asked about, however it is read; everything else
// passes as it was typed.
func TestDropper(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	write := func(name, text string) string {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o700), os.WriteFile(at, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		return at
	}
	file, other, key := write("shot.png", "x"), write("b c", "xy"), write(".ssh/id_ed25519", "k")
	inside := write("source/f", "x")
	large := filepath.Join(dir, "large")
	if err := errors.Join(os.WriteFile(large, nil, 0o600), os.Truncate(large, maxDropBytes+1)); err != nil {
		t.Fatal(err)
	}
	paste := func(s string) string { return pasteBegins + s + pasteEnds }
	for _, c := range []struct {
		name, typed string
		want        string // DIR stands for that of the copies
		question    string
		copied      []string
		fails       error
	}{
		{name: "no paste", typed: "abc\x1b[A\x1b", want: "abc\x1b[A\x1b"},
		{name: "text", typed: "a" + paste("some text") + "b", want: "a" + paste("some text") + "b"},
		{name: "no such file", typed: paste(dir + "/none"), want: paste(dir + "/none")},
		{name: "a folder", typed: paste(source), want: paste(source)},
		{name: "of the source", typed: paste(inside), want: paste(inside)},
		{name: "of the system", typed: paste("/etc/passwd"), want: paste("/etc/passwd")},
		{name: "yes", typed: "a" + paste(file+" ") + "yb", want: "a" + paste("DIR/shot.png ") + "b", question: "copy shot.png (1 B) into the cell? [y/N]", copied: []string{file}},
		{name: "no", typed: paste(file) + "nb", want: paste(file) + "b", question: "copy shot.png (1 B) into the cell? [y/N]"},
		{name: "an escape", typed: paste(file) + "\x1b", want: paste(file), question: "copy shot.png (1 B) into the cell? [y/N]"},
		{name: "several", typed: paste("'"+other+"' "+inside+" "+file) + "y", want: paste("'DIR/b c' " + inside + " DIR/shot.png"), question: "copy 2 files (3 B) into the cell? [y/N]", copied: []string{other, file}},
		{name: "a secret", typed: paste(key) + "n", want: paste(key), question: "copy id_ed25519 (1 B), which looks secret, into the cell? [y/N]"},
		{name: "large", typed: paste(large) + "y", want: paste(large), question: "large (64.0 MiB) is not copied: it is large; pando cp does that. Any key goes on"},
		{name: "fails", typed: paste(file) + "y ", want: paste(file), question: "not copied: full. Any key goes on", copied: []string{file}, fails: errors.New("full")},
		{name: "long", typed: pasteBegins + strings.Repeat("x", maxDropText) + pasteEnds, want: pasteBegins + strings.Repeat("x", maxDropText) + pasteEnds},
	} {
		for _, split := range []int{len(c.typed), 20, 9} {
			if split < len(c.typed) && !strings.HasPrefix(c.typed, pasteBegins) {
				continue // a beginning that comes in two reads is not seen
			}
			question, asking, into := "", false, "DIR"
			var copied []string
			d := &dropper{source: source,
				ask:  func(q string) { question, asking = q, true },
				done: func() { asking = false },
				copyIn: func(files []string, dir string) error {
					copied, into = files, dir
					return c.fails
				},
			}
			got := ""
			for piece := range slices.Chunk([]byte(c.typed), split) {
				got += string(d.typed(piece))
			}
			if want := strings.ReplaceAll(c.want, "DIR", into); got != want || question != c.question || asking || !slices.Equal(copied, c.copied) {
				t.Errorf("%s in pieces of %d: passed %q, want %q; asked %q, want %q; asks still: %v; copied %q", c.name, split, got, want, question, c.question, asking, copied)
			}
		}
	}

	// What waits for an answer or its end goes on when the terminal ends.
	asking := false
	d := &dropper{ask: func(string) { asking = true }, done: func() { asking = false }}
	if got := string(d.typed([]byte(paste(file)))); got != "" || !asking {
		t.Errorf("passed %q, asks: %v", got, asking)
	}
	if got := string(d.rest()); got != paste(file) || asking {
		t.Errorf("at the end %q, asks: %v", got, asking)
	}
	d.typed([]byte(pasteBegins + "half"))
	if got := string(d.rest()); got != pasteBegins+"half" {
		t.Errorf("at the end %q", got)
	}
}
