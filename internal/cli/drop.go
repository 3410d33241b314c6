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
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

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

// armAfter is how long a question is shown before a key can answer it: what was typed, or sent by a
// program's trick, before it can be read is no answer.
const armAfter = 300 * time.Millisecond

// pasteWait is how long the rest of a paste may take.
const pasteWait = time.Second

// A dropper finds pastes that are paths of files of this host, which is what a terminal makes of a file
// that is dropped on it. The cell does not have these files: it asks whether to copy them into the
// cell, and then puts the paths of the copies in the place of theirs. Nothing that a program in the
// cell shows or asks the terminal for is an answer: only a key that is pressed after the question
// was shown for a while.
type dropper struct {
	// sources are the directories that the cell has at the same paths.
	sources []string
	send    func([]byte) // what goes to the command
	// ask shows a question in a row of its own, and holds back output; done takes the row away. shown is
	// when it was drawn last.
	ask   func(question)
	done  func()
	shown func() time.Time
	// copyIn copies files into a new directory of the cell.
	copyIn func(ctx context.Context, files []droppedFile, dir string) error

	mu      sync.Mutex // guards what follows
	paste   []byte     // what is there of a paste, with its beginning; nil: none is under way
	pastes  int        // how many have begun
	inPaste bool       // what comes is of a paste that is passed on
	asked   *drop      // waits for its answer, or is copied
}

// question is one with a name in its middle, which is shortened where it does not fit.
type question struct{ before, name, after string }

// drop is a paste of paths.
type drop struct {
	paste  []byte // as it was typed
	text   string // between its marks
	paths  []string
	files  []droppedFile // those that the cell lacks
	dir    string        // where they are copied to
	told   bool          // nothing is asked: something went wrong, and was told
	cancel func()        // while it is copied
}

// droppedFile is a file of this host that is open: what was asked about is what is copied.
type droppedFile struct {
	path string // as it was typed
	f    *os.File
	st   fs.FileInfo
}

// typed takes what was typed.
func (d *dropper) typed(b []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(b) > 0 {
		switch {
		case d.inPaste:
			n := bytes.Index(b, []byte(pasteEnds))
			if d.inPaste = n < 0; d.inPaste {
				n = len(b) - len(pasteEnds)
			}
			d.send(b[:n+len(pasteEnds)])
			b = b[n+len(pasteEnds):]
		case d.asked != nil:
			b = b[d.key(b):]
		case d.paste != nil:
			b = d.more(b)
		default:
			n := bytes.Index(b, []byte(pasteBegins))
			if n < 0 {
				d.send(b)
				return
			}
			if n > 0 {
				d.send(b[:n])
			}
			d.begin()
			b = b[n+len(pasteBegins):]
			if len(b) == 0 {
				return
			}
		}
	}
}

// begin begins to hold a paste back.
func (d *dropper) begin() {
	d.paste = []byte(pasteBegins)
	d.pastes++
	this := d.pastes
	time.AfterFunc(pasteWait, func() { // its end may have been lost
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.paste != nil && d.pastes == this {
			d.pass()
		}
	})
}

// pass gives up on a paste.
func (d *dropper) pass() {
	d.send(d.paste)
	d.paste, d.inPaste = nil, true
}

// more takes more of a paste, and returns what comes behind it.
func (d *dropper) more(b []byte) (rest []byte) {
	had := len(d.paste)
	d.paste = append(d.paste, b...)
	n := bytes.Index(d.paste[len(pasteBegins):], []byte(pasteEnds))
	switch {
	case n >= 0:
		paste := d.paste[:len(pasteBegins)+n+len(pasteEnds)]
		d.paste = nil
		if !d.isDrop(paste) {
			d.send(paste)
		}
		return b[len(paste)-had:]
	case len(d.paste) > maxDropText:
		d.pass()
	}
	return nil
}

// end is called when nothing more is typed.
func (d *dropper) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.asked != nil {
		d.over()
	}
	d.paste = nil
}

// over ends what was asked.
func (d *dropper) over() (was *drop) {
	was = d.asked
	if d.asked = nil; was.cancel != nil {
		was.cancel() // its copier closes the files
	} else {
		was.close()
	}
	d.done()
	return was
}

func (a *drop) close() {
	for _, f := range a.files {
		f.f.Close()
	}
}

// What a key means for a question.
type meaning int

const (
	noKey meaning = iota // a report of the terminal, or a key that does not answer
	yes
	no
)

// firstKey says what the first key or report in b means, and how long it is.
func firstKey(b []byte) (meaning, int) {
	switch {
	case b[0] != 0x1b:
		r, n := utf8.DecodeRune(b)
		if r == 'y' || r == 'Y' {
			return yes, n
		}
		return no, n
	case len(b) == 1:
		return no, 1
	case b[1] == 'O' && len(b) > 2:
		return noKey, 3
	case b[1] == ']' || b[1] == 'P' || b[1] == '_' || b[1] == '^' || b[1] == 'X': // strings
		return noKey, len(b)
	case b[1] != '[':
		return noKey, 2
	}
	n := bytes.IndexFunc(b[2:], func(r rune) bool { return r >= 0x40 && r <= 0x7e })
	if n < 0 {
		return noKey, len(b)
	}
	params, n := string(b[2:2+n]), n+3
	if b[n-1] == 'M' && params == "" { // a mouse, with three bytes behind
		return noKey, min(len(b), n+3)
	}
	if b[n-1] != 'u' || strings.HasPrefix(params, "?") {
		return noKey, n
	}
	// kitty's protocol: CODE[:…][;MODIFIERS[:EVENT]]
	key, rest, _ := strings.Cut(params, ";")
	key, _, _ = strings.Cut(key, ":")
	rest, _, _ = strings.Cut(rest, ";")
	mods, event, _ := strings.Cut(rest, ":")
	switch code, err := strconv.Atoi(key); {
	case err != nil, event == "3", code >= 57344 && code <= 63743: // released; a key without a character
		return noKey, n
	case code == 'y' && (mods == "" || mods == "1" || mods == "2"):
		return yes, n
	default:
		return no, n
	}
}

// key takes the first key while something is asked, and returns how long it is.
func (d *dropper) key(b []byte) int {
	a := d.asked
	if time.Since(d.shown()) < armAfter {
		d.send(b)
		return len(b)
	}
	if bytes.HasPrefix(b, []byte(pasteBegins)) {
		d.inPaste = true
		d.send(b[:len(pasteBegins)])
		return len(pasteBegins)
	}
	const ctrlC = 3
	is, n := firstKey(b)
	switch {
	case is == noKey, a.cancel != nil && b[0] != 0x1b && b[0] != ctrlC:
		d.send(b[:n])
	case is == yes && !a.told:
		d.copy(a)
	default:
		d.send(d.over().paste)
	}
	return n
}

// copy copies the files of a drop.
func (d *dropper) copy(a *drop) {
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	d.show(a, question{"copying ", a.what(), "… Esc leaves it"})
	go func() {
		defer cancel()
		err := d.copyIn(ctx, a.files, a.dir)
		a.close()
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.asked != a { // it was left
			return
		}
		if a.cancel = nil; err != nil {
			a.told, a.files = true, nil
			d.show(a, question{"not copied: ", printable(err.Error()), ". Any key goes on"})
			return
		}
		text := a.pasted()
		a.files = nil
		d.over()
		d.send([]byte(pasteBegins + text + pasteEnds))
	}()
}

// show shows a question in place of the one that is shown, if one is.
func (d *dropper) show(a *drop, q question) {
	if d.asked != nil {
		d.done()
	}
	d.asked = a
	d.ask(q)
}

// isDrop asks about a paste, if it is the paths of files that the cell lacks.
func (d *dropper) isDrop(paste []byte) bool {
	text := string(paste[len(pasteBegins) : len(paste)-len(pasteEnds)])
	a := &drop{paste: bytes.Clone(paste), text: text, paths: droppedPaths(text), dir: "/tmp/dropped-" + strings.ToLower(rand.Text()[:8])}
	total, secrets := int64(0), false
	asks := len(a.paths) > 0
	for _, p := range a.paths {
		f, at, err := openDropped(p)
		if err != nil {
			asks = false
			break
		}
		if d.has(p) && d.has(at) {
			f.f.Close()
			continue
		}
		a.files = append(a.files, f)
		total += f.st.Size()
		secrets = secrets || looksSecret(at, f.f)
	}
	if !asks || len(a.files) == 0 {
		a.close()
		return false
	}
	switch size := " (" + size(total) + ")"; {
	case total > maxDropBytes:
		a.told = true
		d.show(a, question{"too large to be copied here, use pando cp: ", a.what(), size + ". Any key goes on"})
	case secrets:
		d.show(a, question{"LOOKS SECRET: copy ", a.what(), size + " into the cell? [y/N]"})
	default:
		d.show(a, question{"copy ", a.what(), size + " into the cell? [y/N]"})
	}
	return true
}

// what names the files. One that is behind a link is named by its own path.
func (a *drop) what() string {
	if len(a.files) > 1 {
		return fmt.Sprintf("%d files", len(a.files))
	}
	f := a.files[0]
	if f.f.Name() != f.path {
		return printable(f.f.Name())
	}
	return printable(filepath.Base(f.path))
}

// openDropped opens a regular file, and returns its path without links.
func openDropped(p string) (d droppedFile, at string, err error) {
	if at, err = filepath.EvalSymlinks(p); err != nil {
		return d, at, err
	}
	f, err := openSecretFile(at)
	if err != nil {
		return d, at, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fs.ErrInvalid
	}
	if err != nil {
		f.Close()
	}
	return droppedFile{p, f, st}, at, err
}

// looksSecret reports whether import would leave a file out.
func looksSecret(at string, f *os.File) bool {
	for dir := path.Dir(at); dir != "/" && dir != "."; dir = path.Dir(dir) {
		if secret.Decide(dir[1:], true, false, secret.With{}).Action == secret.LeaveOut {
			return true
		}
	}
	switch secret.Decide(strings.TrimPrefix(at, "/"), false, false, secret.With{}).Action {
	case secret.Keep:
		return false
	case secret.ScanContent:
		b := make([]byte, 1<<20)
		n, _ := f.ReadAt(b, 0)
		return len(secret.Scan(at, b[:n])) > 0
	}
	return true
}

// has reports whether the cell has a file of this host at the same path: it is of the source, or the
// system's.
func (d *dropper) has(at string) bool {
	for _, dir := range append([]string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/proc", "/sys", "/dev"}, d.sources...) {
		if dir != "" && strings.HasPrefix(at, strings.TrimSuffix(dir, "/")+"/") {
			return true
		}
	}
	return false
}

// pasted is the paste with the paths of the copies.
func (a *drop) pasted() string {
	var words []string
	for _, p := range a.paths {
		for _, f := range a.files {
			if p == f.path {
				p = path.Join(a.dir, filepath.Base(p))
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

// mostHeldBack bounds the output that is held back.
const mostHeldBack = 1 << 20

// heldBack is the output of a command, which waits while a question is shown in the last row of the
// terminal. What reads the output goes on meanwhile.
type heldBack struct {
	a  *app
	mu sync.Mutex // guards what follows
	to io.Writer
	q  *question
	at time.Time // when the row was drawn
	b  []byte
}

// Write implements io.Writer.
func (h *heldBack) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.q == nil {
		return h.to.Write(b)
	}
	if h.b = append(h.b, b...); len(h.b) > mostHeldBack {
		h.to.Write(h.b)
		h.b = nil
		h.row()
	}
	return len(b), nil
}

// shown is when the question was drawn. When more output came than is held back it is drawn anew: that
// output can have the terminal report something.
func (h *heldBack) shown() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.at
}

func (h *heldBack) ask(q question) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.q = &q
	h.row()
}

// goOn takes the question away, and reports whether there was one.
func (h *heldBack) goOn() (asked bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.q == nil {
		return false
	}
	h.q = nil
	h.row()
	h.to.Write(h.b)
	h.b = nil
	return true
}

// row draws the question, or takes it away. The program in the cell may have left the terminal in any
// state: in a string without an end, with its output held back, with other characters or colours.
func (h *heldBack) row() {
	_, rows, cols := h.a.terminal()
	text := ""
	if h.q != nil {
		text = h.q.fit(int(cols) - len("pando: ") - 1)
		text = "\x1b[38;2;0;0;0;48;2;255;210;60mpando: " + text
	}
	fmt.Fprintf(h.a.stdout, "\x1b\\\x1b[?2026l\x1b7\x1b(B\x0f\x1b[?6l\x1b[%d;1H\x1b[0m\x1b[2K%s\x1b[0m\x1b8", rows, text)
	h.at = time.Now()
}

// fit is a question in so many columns.
func (q question) fit(cols int) string {
	room := max(cols-columns(q.before)-columns(q.after), 8)
	name := []rune(q.name)
	for at := len(name) / 2; columns(string(name)) > room && len(name) > 1; at = len(name) / 2 {
		name = slices.Delete(name, at, at+1)
		name[(len(name)-1)/2] = '…'
	}
	return q.before + string(name) + q.after
}

// columns is an upper bound of the columns that a text takes.
func columns(s string) (n int) {
	for _, r := range s {
		if n++; r >= 0x1100 {
			n++
		}
	}
	return n
}

// redrawAfter is how long a program has another size, which it has to notice.
const redrawAfter = 100 * time.Millisecond

// redraw has the program in the cell draw its screen anew: its size changes for a moment.
func (a *app) redraw(ctx context.Context, l *link) {
	resize := func(less uint16) {
		if is, rows, cols := a.terminal(); is && rows > less {
			b, _ := json.Marshal(api.Resize{Rows: rows - less, Cols: cols})
			l.tell(ctx, api.Frame{Type: api.FrameResize, Payload: b})
		}
	}
	resize(1)
	time.AfterFunc(redrawAfter, func() { resize(0) })
}

// copyDropped copies files into a new directory of a cell, under their own names.
func (a *app) copyDropped(ctx context.Context, cell string, files []droppedFile, dir string) error {
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		name := path.Base(dir)
		err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o700, ModTime: time.Now(), Format: tar.FormatPAX})
		for _, f := range files {
			if err == nil {
				err = t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(name, filepath.Base(f.path)), Size: f.st.Size(), Mode: 0o600 | int64(f.st.Mode().Perm()&0o100), ModTime: f.st.ModTime(), Format: tar.FormatPAX})
			}
			if err == nil {
				_, err = io.Copy(t, io.NewSectionReader(f.f, 0, f.st.Size()))
			}
		}
		w.CloseWithError(errors.Join(err, t.Close()))
	}()
	return a.client.WriteFiles(ctx, cell, path.Dir(dir), r)
}
