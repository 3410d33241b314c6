package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

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

// testDropper keeps what a dropper did. Its own lock is the dropper's.
type testDropper struct {
	dropper
	sent     strings.Builder
	question string
	asking   bool
	at       time.Time
	copied   []string
	dir      string
}

func newTestDropper(source string, fails error) *testDropper {
	t := &testDropper{dir: "DIR"}
	t.dropper = dropper{
		sources: []string{source},
		send:    func(b []byte) { t.sent.Write(b) },
		ask:     func(q question) { t.question, t.asking, t.at = q.fit(80), true, time.Now() },
		shown:   func() time.Time { return t.at },
		done:    func() { t.asking = false },
		copyIn: func(ctx context.Context, files []droppedFile, dir string) error {
			for _, f := range files {
				t.copied = append(t.copied, f.path)
			}
			t.dir = dir
			if fails == errStays {
				<-ctx.Done()
				return ctx.Err()
			}
			return fails
		},
	}
	return t
}

var errStays = errors.New("it stays")

// press types pieces, each as a person does, after the question was shown for a while.
func (t *testDropper) press(sleep func(time.Duration), pieces ...string) {
	for _, p := range pieces {
		t.typed([]byte(p))
		synctest.Wait()
		sleep(armAfter)
		synctest.Wait()
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
	large, link, out := filepath.Join(dir, "large"), filepath.Join(dir, "link"), filepath.Join(source, "out")
	if err := errors.Join(os.WriteFile(large, nil, 0o600), os.Truncate(large, maxDropBytes+1), os.Symlink(key, link), os.Symlink(file, out), syscall.Mkfifo(dir+"/pipe", 0o600)); err != nil {
		t.Fatal(err)
	}
	paste := func(s string) string { return pasteBegins + s + pasteEnds }
	const ask = "copy shot.png (1 B) into the cell? [y/N]"
	for _, c := range []struct {
		name     string
		typed    []string
		want     string // DIR stands for that of the copies
		question string
		copied   []string
		asks     bool // still
		fails    error
	}{
		{name: "no paste", typed: []string{"abc\x1b[A\x1b"}, want: "abc\x1b[A\x1b"},
		{name: "text", typed: []string{"a" + paste("some text") + "b"}, want: "a" + paste("some text") + "b"},
		{name: "no such file", typed: []string{paste(dir + "/none")}, want: paste(dir + "/none")},
		{name: "a folder", typed: []string{paste(source)}, want: paste(source)},
		{name: "a pipe", typed: []string{paste(dir + "/pipe")}, want: paste(dir + "/pipe")},
		{name: "of the source", typed: []string{paste(inside)}, want: paste(inside)},
		{name: "of the system", typed: []string{paste("/etc/passwd")}, want: paste("/etc/passwd")},
		{name: "yes", typed: []string{"a" + paste(file+" "), "y", "b"}, want: "a" + paste("DIR/shot.png ") + "b", question: ask, copied: []string{file}},
		{name: "in two reads", typed: []string{paste(file)[:20], paste(file)[20:], "Y"}, want: paste("DIR/shot.png"), question: ask, copied: []string{file}},
		{name: "kitty's y", typed: []string{paste(file), "\x1b[121;1:1u"}, want: paste("DIR/shot.png"), question: ask, copied: []string{file}},
		{name: "no", typed: []string{paste(file), "nb"}, want: paste(file) + "b", question: ask},
		{name: "another key", typed: []string{paste(file), "äb"}, want: paste(file) + "b", question: ask},
		{name: "escape", typed: []string{paste(file), "\x1b"}, want: paste(file), question: ask},
		{name: "kitty's n", typed: []string{paste(file), "\x1b[110u"}, want: paste(file), question: ask},
		{name: "kitty's ctrl-y", typed: []string{paste(file), "\x1b[121;5u"}, want: paste(file), question: ask},
		{name: "in the same read", typed: []string{paste(file) + "y"}, want: "y", question: ask, asks: true},
		{name: "reports", typed: []string{paste(file), "\x1b[I\x1b[121;1R\x1b[<0;1;1M\x1b[M\x20yy\x1bOA\x1b[?1u\x1b[118;6:3u\x1b]11;y\x07"},
			want: "\x1b[I\x1b[121;1R\x1b[<0;1;1M\x1b[M\x20yy\x1bOA\x1b[?1u\x1b[118;6:3u\x1b]11;y\x07", question: ask, asks: true},
		{name: "a paste", typed: []string{paste(file), pasteBegins + "yes", "y" + pasteEnds}, want: paste("yesy"), question: ask, asks: true},
		{name: "several", typed: []string{paste("'" + other + "' " + inside + " " + file), "y"}, want: paste("'DIR/b c' " + inside + " DIR/shot.png"), question: "copying 2 files… Esc leaves it", copied: []string{other, file}},
		{name: "a secret", typed: []string{paste(key), "n"}, want: paste(key), question: "LOOKS SECRET: copy id_ed25519 (1 B) into the cell? [y/N]"},
		{name: "a link to a secret", typed: []string{paste(link)}, question: question{"LOOKS SECRET: copy ", key, " (1 B) into the cell? [y/N]"}.fit(80), asks: true},
		{name: "a link out of the source", typed: []string{paste(out)}, question: question{"copy ", file, " (1 B) into the cell? [y/N]"}.fit(80), asks: true},
		{name: "large", typed: []string{paste(large), "y"}, want: paste(large), question: "too large to be copied here, use pando cp: large (64.0 MiB). Any key goes on"},
		{name: "fails", typed: []string{paste(file), "y", " "}, want: paste(file), question: "not copied: full. Any key goes on", copied: []string{file}, fails: errors.New("full")},
		{name: "is left", typed: []string{paste(file), "y", "x", "\x1b"}, want: "x" + paste(file), question: "copying shot.png… Esc leaves it", copied: []string{file}, fails: errStays},
		{name: "long", typed: []string{pasteBegins + strings.Repeat("x", maxDropText), "y" + pasteEnds + "z"}, want: pasteBegins + strings.Repeat("x", maxDropText) + "y" + pasteEnds + "z"},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := newTestDropper(source, c.fails)
			d.press(time.Sleep, c.typed...)
			d.mu.Lock()
			defer d.mu.Unlock()
			want := c.question
			if want == ask && len(c.copied) > 0 {
				want = "copying shot.png… Esc leaves it"
			}
			if got := d.sent.String(); got != strings.ReplaceAll(c.want, "DIR", d.dir) || d.question != want || d.asking != c.asks || !slices.Equal(d.copied, c.copied) {
				t.Errorf("%s: passed %q, want %q; asked %q, want %q; asks still: %v; copied %q", c.name, got, c.want, d.question, want, d.asking, d.copied)
			}
		})
	}
}

// What waits goes on when the rest of a paste does not come, or the terminal ends.
func TestDropperGoesOn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		d := newTestDropper("", errStays)
		d.press(time.Sleep, pasteBegins+"half")
		time.Sleep(pasteWait)
		synctest.Wait()
		d.press(time.Sleep, "\x03")
		if got := d.sent.String(); got != pasteBegins+"half\x03" {
			t.Errorf("passed %q", got)
		}
		d.press(time.Sleep, pasteEnds, pasteBegins+file+pasteEnds)
		if !d.asking {
			t.Error("it does not ask")
		}
		d.end()
		if d.asking {
			t.Error("at the end it asks still")
		}
		d.press(time.Sleep, pasteBegins+file+pasteEnds, "y")
		d.end() // while it copies
		synctest.Wait()
		if d.asking || len(d.copied) != 1 {
			t.Errorf("asks: %v, copied %q", d.asking, d.copied)
		}
	})
}

func TestQuestionFits(t *testing.T) {
	q := question{"copy ", strings.Repeat("x", 300) + ".png", " (1 B) into the cell? [y/N]"}
	if got := q.fit(72); len([]rune(got)) > 72 || len([]rune(got)) < 70 || !strings.HasPrefix(got, "copy xxx") || !strings.HasSuffix(got, "x.png (1 B) into the cell? [y/N]") {
		t.Errorf("%q has %d", got, len([]rune(got)))
	}
	q.name = strings.Repeat("画", 100)
	if got := q.fit(72); columns(got) > 72 || columns(got) < 68 {
		t.Errorf("%q", got)
	}
	if got := (question{"a ", "b", " c"}).fit(3); got != "a b c" {
		t.Errorf("%q", got)
	}
}

// While a question is shown output waits, in bounded memory; what is read goes on.
func TestHeldBack(t *testing.T) {
	var out, screen bytes.Buffer
	h := &heldBack{a: &app{stdout: &screen}, to: &out}
	io.WriteString(h, "1")
	h.ask(question{"a", "b", "c"})
	io.WriteString(h, "2")
	if out.String() != "1" || !strings.Contains(screen.String(), "abc") {
		t.Errorf("wrote %q, shows %q", out.String(), screen.String())
	}
	h.at = time.Time{}
	h.Write(make([]byte, mostHeldBack))
	if h.shown().IsZero() {
		t.Error("a question that is drawn anew can be answered at once")
	}
	if out.Len() != 2+mostHeldBack || strings.Count(screen.String(), "abc") != 2 {
		t.Errorf("wrote %d bytes", out.Len())
	}
	io.WriteString(h, "3")
	if !h.goOn() || h.goOn() || out.Len() != 3+mostHeldBack {
		t.Errorf("wrote %d bytes", out.Len())
	}
}
