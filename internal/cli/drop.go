package cli

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/secret"
)

// The bounds of what is dropped on a terminal. What is larger passes as it was typed.
const (
	maxDropText  = 8 << 10 // of a paste that can be a path
	maxDropFiles = 20
	maxDropBytes = 64 << 20
)

// What a terminal sends around a paste when its program asked for that (xterm ctlseqs, "Bracketed Paste Mode").
const (
	pasteBegins = "\x1b[200~"
	pasteEnds   = "\x1b[201~"
)

// A dropper finds pastes that are paths of files of this host, which is what a terminal makes of a file
// that is dropped on it. The cell does not have these files: it asks whether to copy them into the
// cell, and then puts the paths of the copies in the place of theirs. For the goroutine that reads
// the terminal.
type dropper struct {
	// source is the directory that the cell has at the same path; "" when it has none.
	source string
	// ask shows a question in a row of its own, and holds back output; done takes the row away.
	ask  func(question string)
	done func()
	// copyIn copies files into a directory of the cell.
	copyIn func(files []string, dir string) error

	paste []byte // what is there of a paste, with its beginning; nil: none is under way
	asked *drop  // waits for the answer
}

// drop is a paste of paths.
type drop struct {
	paste []byte // as it was typed
	text  string // between its marks
	paths []string
	files []string // those that the cell lacks, without symlinks
	dir   string   // where they are copied to
	told  bool     // the answer is none: something went wrong, and was told
}

// typed returns the part of b that goes to the command.
func (d *dropper) typed(b []byte) (pass []byte) {
	for len(b) > 0 {
		switch {
		case d.asked != nil:
			var answer []byte
			answer, b = firstKey(b)
			pass = append(pass, d.answered(answer)...)
		case d.paste != nil:
			had := len(d.paste)
			d.paste = append(d.paste, b...)
			n := bytes.Index(d.paste[len(pasteBegins):], []byte(pasteEnds))
			switch {
			case n >= 0:
				paste := d.paste[:len(pasteBegins)+n+len(pasteEnds)]
				d.paste, b = nil, b[len(paste)-had:]
				if !d.begin(paste) {
					pass = append(pass, paste...)
				}
			case len(d.paste) > maxDropText:
				pass, b, d.paste = append(pass, d.paste...), nil, nil
			default:
				b = nil
			}
		default:
			n := bytes.Index(b, []byte(pasteBegins))
			if n < 0 {
				return append(pass, b...)
			}
			pass = append(pass, b[:n]...)
			d.paste, b = []byte(pasteBegins), b[n+len(pasteBegins):]
		}
	}
	return pass
}

// rest is what goes to the command when nothing more is typed.
func (d *dropper) rest() (pass []byte) {
	if d.asked != nil {
		pass, d.asked = d.asked.paste, nil
		d.done()
	}
	pass, d.paste = append(pass, d.paste...), nil
	return pass
}

// firstKey splits off the first key: an escape takes all with it.
func firstKey(b []byte) (key, rest []byte) {
	if b[0] == 0x1b {
		return b, nil
	}
	return b[:1], b[1:]
}

// begin asks about a paste, if it is the paths of files that the cell lacks.
func (d *dropper) begin(paste []byte) bool {
	text := string(paste[len(pasteBegins) : len(paste)-len(pasteEnds)])
	paths := droppedPaths(text)
	if len(paths) == 0 {
		return false
	}
	a := &drop{paste: paste, text: text, paths: paths, dir: "/tmp/dropped-" + strings.ToLower(rand.Text()[:8])}
	total, secrets := int64(0), false
	for _, p := range paths {
		at, err := filepath.EvalSymlinks(p)
		if err != nil {
			return false
		}
		st, err := os.Stat(at)
		if err != nil || !st.Mode().IsRegular() {
			return false
		}
		if d.has(p) {
			continue
		}
		total += st.Size()
		secrets = secrets || looksSecret(at)
		a.files = append(a.files, p)
	}
	if len(a.files) == 0 {
		return false
	}
	what := printable(filepath.Base(a.files[0]))
	if len(a.files) > 1 {
		what = fmt.Sprintf("%d files", len(a.files))
	}
	switch {
	case total > maxDropBytes:
		a.told = true
		d.ask(fmt.Sprintf("%s (%s) is not copied: it is large; pando cp does that. Any key goes on", what, size(total)))
	case secrets:
		d.ask(fmt.Sprintf("copy %s (%s), which looks secret, into the cell? [y/N]", what, size(total)))
	default:
		d.ask(fmt.Sprintf("copy %s (%s) into the cell? [y/N]", what, size(total)))
	}
	d.asked = a
	return true
}

// looksSecret reports whether import would leave a file out.
func looksSecret(at string) bool {
	for dir := path.Dir(at); dir != "/" && dir != "."; dir = path.Dir(dir) {
		if secret.Decide(dir[1:], true, false, secret.With{}).Action == secret.LeaveOut {
			return true
		}
	}
	switch secret.Decide(strings.TrimPrefix(at, "/"), false, false, secret.With{}).Action {
	case secret.Keep:
		return false
	case secret.ScanContent:
		f, err := os.Open(at)
		if err != nil {
			return false
		}
		defer f.Close()
		b, _ := io.ReadAll(io.LimitReader(f, 1<<20))
		return len(secret.Scan(at, b)) > 0
	}
	return true
}

// has reports whether the cell has a file of this host at the same path: it is of the source, or the
// system's.
func (d *dropper) has(at string) bool {
	for _, dir := range append([]string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/proc", "/sys", "/dev"}, d.source) {
		if dir != "" && strings.HasPrefix(at, strings.TrimSuffix(dir, "/")+"/") {
			return true
		}
	}
	return false
}

// answered takes the answer to a question, and returns what goes to the command.
func (d *dropper) answered(key []byte) []byte {
	a := d.asked
	d.asked = nil
	d.done()
	if k := string(key); a.told || k != "y" && k != "Y" && !strings.HasPrefix(k, "\x1b[121") { // kitty's protocol has a form of its own
		return a.paste
	}
	if err := d.copyIn(a.files, a.dir); err != nil {
		d.ask(fmt.Sprintf("not copied: %s. Any key goes on", printable(err.Error())))
		a.told, d.asked = true, a
		return nil
	}
	text := a.pasted()
	return []byte(pasteBegins + text + pasteEnds)
}

// pasted is the paste with the paths of the copies.
func (a *drop) pasted() string {
	var words []string
	for _, p := range a.paths {
		for _, f := range a.files {
			if p == f {
				p = path.Join(a.dir, filepath.Base(f))
				break
			}
		}
		words = append(words, quotedPath(p))
	}
	end := a.text[len(strings.TrimRightFunc(a.text, unicode.IsSpace)):]
	return strings.Join(words, " ") + end
}

// quotedPath writes a path as a terminal does, for a shell.
func quotedPath(p string) string {
	if strings.Trim(p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+@%") == "" {
		return p
	}
	return "'" + strings.ReplaceAll(p, "'", `'\''`) + "'"
}

// droppedPaths reads absolute paths as terminals write them: plain, quoted as for a shell, or as URLs of
// files. It returns none for a text that is anything else.
func droppedPaths(text string) []string {
	text = strings.TrimSpace(text)
	if text == "" || strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) && r != '\r' && r != '\n' }) {
		return nil
	}
	if _, err := os.Lstat(text); err == nil && filepath.IsAbs(text) { // some write no quotes
		return []string{filepath.Clean(text)}
	}
	var paths []string
	for _, w := range shellWords(text) {
		if rest, is := strings.CutPrefix(w, "file://"); is {
			_, at, _ := strings.Cut(rest, "/") // behind the name of a host
			p, err := url.PathUnescape("/" + at)
			if err != nil || strings.ContainsFunc(p, unicode.IsControl) {
				return nil
			}
			w = p
		}
		if !filepath.IsAbs(w) || len(paths) == maxDropFiles {
			return nil
		}
		paths = append(paths, filepath.Clean(w))
	}
	names := map[string]bool{}
	for _, p := range paths {
		if names[filepath.Base(p)] {
			return nil // they would be one file in the cell
		}
		names[filepath.Base(p)] = true
	}
	return paths
}

// shellWords splits a text at spaces that are not quoted. It returns none where a quote has no end.
func shellWords(text string) (words []string) {
	var w strings.Builder
	in, any, escaped := rune(0), false, false
	for _, r := range text {
		switch {
		case escaped:
			w.WriteRune(r)
			escaped = false
		case r == '\\' && in != '\'':
			escaped, any = true, true
		case r == in:
			in = 0
		case in == 0 && (r == '\'' || r == '"'):
			in, any = r, true
		case in == 0 && unicode.IsSpace(r):
			if any {
				words = append(words, w.String())
			}
			w.Reset()
			any = false
		default:
			w.WriteRune(r)
			any = true
		}
	}
	if in != 0 || escaped {
		return nil
	}
	if any {
		words = append(words, w.String())
	}
	return words
}

// held is output that waits while a question is shown.
type held struct {
	mu sync.Mutex // held by the question
	to io.Writer
}

// Write implements io.Writer.
func (h *held) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.to.Write(b)
}

// questions shows the questions of a dropper in the last row of the terminal. The program draws its
// screen anew after an answer, since its size changed for a moment.
func (a *app) questions(ctx context.Context, l *link, out *held) (ask func(string), done func()) {
	row := func(text string) {
		_, rows, cols := a.terminal()
		if cols > 0 && len(text) >= int(cols) {
			text = strings.ToValidUTF8(text[:cols-1], "")
		}
		fmt.Fprintf(a.stdout, "\x1b7\x1b[%d;1H\x1b[0m\x1b[2K\x1b[7m%s\x1b[0m\x1b8", rows, text)
	}
	ask = func(question string) {
		out.mu.Lock()
		row("pando: " + question)
	}
	done = func() {
		row("")
		out.mu.Unlock()
		_, rows, cols := a.terminal()
		if rows < 2 {
			return
		}
		resize := func(rows uint16) {
			b, _ := json.Marshal(api.Resize{Rows: rows, Cols: cols})
			l.tell(ctx, api.Frame{Type: api.FrameResize, Payload: b})
		}
		resize(rows - 1)
		time.AfterFunc(redrawAfter, func() {
			_, rows, _ := a.terminal()
			resize(rows)
		})
	}
	return ask, done
}

// redrawAfter is how long a program has another size, which it has to notice.
const redrawAfter = 100 * time.Millisecond

// copyDropped copies files into a new directory of a cell, under their own names.
func (a *app) copyDropped(ctx context.Context, cell string, files []string, dir string) error {
	r, w := io.Pipe()
	p := packer{t: tar.NewWriter(w)}
	go func() {
		name := path.Base(dir)
		err := p.t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o700, ModTime: time.Now(), Format: tar.FormatPAX})
		for _, f := range files {
			var st fs.FileInfo
			at, e := filepath.EvalSymlinks(f)
			if e == nil {
				st, e = os.Lstat(at)
			}
			if e == nil && err == nil {
				err = p.pack(at, path.Join(name, filepath.Base(f)), st)
			}
			err = errors.Join(err, e)
		}
		w.CloseWithError(errors.Join(err, p.t.Close()))
	}()
	return a.client.WriteFiles(ctx, cell, path.Dir(dir), r)
}
