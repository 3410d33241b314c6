package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/bluekeyes/go-gitdiff/gitdiff"
	"golang.org/x/term"

	"github.com/pando-dev/pando/api"
)

// A picker asks which changes of a patch are taken, hunk by hunk, as git add -p does.
type picker struct {
	in     *bufio.Reader
	out    io.Writer
	colour bool
	edit   func(text string) (string, error) // has a text edited
}

// A piece is a part of a hunk that is taken or not. The pieces of a hunk have all of its lines, one after the other.
type piece struct {
	lines  []gitdiff.Line
	of     int // the number of its hunk in the file
	taken  int // 1: yes, -1: no, 0: it was not decided
	edited bool
}

// pick returns the paths of files that are taken as a whole, and a patch with the hunks that are taken of others.
func (p *picker) pick(files []*gitdiff.File) (paths []string, patch string) {
	var out strings.Builder
	for n := 0; n < len(files); n++ {
		f := files[n]
		pieces, whole := split(f)
		if n+1 < len(files) && f.IsDelete && files[n+1].IsNew && f.OldName == files[n+1].NewName { // another type of file
			fmt.Fprintf(p.out, "%s\n", p.paint("1", fileWords(f)))
			p.show(f, nil, 0, true)
			n++
			f = files[n]
		}
		pieces, over := p.file(f, pieces, whole)
		taken := 0
		for i := range pieces {
			if pieces[i].taken > 0 {
				taken++
			}
		}
		switch {
		case taken == 0:
		case taken == len(pieces) && !slices.ContainsFunc(pieces, func(p piece) bool { return p.edited }):
			for _, name := range []string{f.OldName, f.NewName} {
				if name != "" && !slices.Contains(paths, name) {
					paths = append(paths, name)
				}
			}
		default:
			out.WriteString(part(f, pieces).String())
		}
		if over {
			break
		}
	}
	return paths, out.String()
}

// split makes the hunks of a file pieces. With whole, the file can only be taken as one.
func split(f *gitdiff.File) (pieces []piece, whole bool) {
	if f.IsNew || f.IsDelete || f.IsRename || f.IsCopy || f.IsBinary || len(f.TextFragments) == 0 {
		return []piece{{}}, true
	}
	for n, h := range f.TextFragments {
		pieces = append(pieces, piece{lines: h.Lines, of: n})
	}
	return pieces, false
}

// file asks about one file, and returns its pieces with the answers. over says that no other is asked about.
func (p *picker) file(f *gitdiff.File, pieces []piece, whole bool) (_ []piece, over bool) {
	fmt.Fprintf(p.out, "%s\n", p.paint("1", fileWords(f)))
	at := 0
	for {
		open := slices.IndexFunc(pieces, func(x piece) bool { return x.taken == 0 })
		if open < 0 {
			return pieces, false
		}
		p.show(f, pieces, at, whole)
		keys, what := "y,n,q,a,d,?", "this file"
		if !whole {
			what = "this hunk"
			keys = "y,n,q,a,d"
			if at+1 < len(pieces) {
				keys += ",j,J"
			}
			if at > 0 {
				keys += ",k,K"
			}
			if len(groups(pieces[at].lines)) > 1 {
				keys += ",s"
			}
			keys += ",e,?"
		}
		fmt.Fprintf(p.out, "%s ", p.paint("1;34", fmt.Sprintf("(%d/%d) Take %s [%s]?", at+1, len(pieces), what, keys)))
		answer, err := p.in.ReadString('\n')
		if err != nil && strings.TrimSpace(answer) == "" { // the input is at its end
			fmt.Fprintln(p.out)
			return pieces, true
		}
		key := strings.TrimSpace(answer)
		if key != "?" && !slices.Contains(strings.Split(keys, ","), key) {
			fmt.Fprintln(p.out, help(keys, whole))
			continue
		}
		next := func(from, step int) {
			for i := from + step; i >= 0 && i < len(pieces); i += step {
				if pieces[i].taken == 0 {
					at = i
					return
				}
			}
			if i := slices.IndexFunc(pieces, func(x piece) bool { return x.taken == 0 }); i >= 0 {
				at = i
			}
		}
		switch key {
		case "y", "n":
			pieces[at].taken = map[string]int{"y": 1, "n": -1}[key]
			next(at, 1)
		case "q":
			return pieces, true
		case "a", "d":
			for i := at; i < len(pieces); i++ {
				if pieces[i].taken == 0 || i == at {
					pieces[i].taken = map[string]int{"a": 1, "d": -1}[key]
				}
			}
			next(at, 1)
		case "j":
			next(at, 1)
		case "k":
			next(at, -1)
		case "J":
			at++
		case "K":
			at--
		case "s":
			made := divide(pieces[at])
			fmt.Fprintf(p.out, "split into %d hunks\n", len(made))
			pieces = slices.Concat(pieces[:at:at], made, pieces[at+1:])
		case "e":
			lines, err := p.change(pieces[at].lines)
			if err != nil {
				fmt.Fprintf(p.out, "the hunk is as it was: %s\n", printable(err.Error()))
				continue
			}
			pieces[at].lines, pieces[at].edited, pieces[at].taken = lines, true, 1
			next(at, 1)
		case "?":
			fmt.Fprintln(p.out, help(keys, whole))
		}
	}
}

// help explains the keys that can be used now.
func help(keys string, whole bool) string {
	what := "hunk"
	if whole {
		what = "file"
	}
	var lines []string
	for _, k := range strings.Split(keys, ",") {
		lines = append(lines, k+" - "+map[string]string{
			"y": "take this " + what, "n": "do not take this " + what, "q": "end: take neither this " + what + " nor what follows",
			"a": "take this " + what + " and all that follow in the file", "d": "take neither this " + what + " nor any that follows in the file",
			"j": "leave this hunk undecided, go to the next undecided one", "J": "leave this hunk undecided, go to the next one",
			"k": "leave this hunk undecided, go to the previous undecided one", "K": "leave this hunk undecided, go to the previous one",
			"s": "split this hunk into smaller ones", "e": "edit this hunk by hand", "?": "print help",
		}[k])
	}
	return strings.Join(lines, "\n")
}

// fileWords is the line about a file before its hunks.
func fileWords(f *gitdiff.File) string {
	name := printable(f.NewName)
	switch {
	case f.IsNew:
		return "new file " + name
	case f.IsDelete:
		return "removed file " + printable(f.OldName)
	case f.IsRename:
		return "file " + printable(f.OldName) + " renamed to " + name
	case f.IsBinary:
		return "binary file " + name
	}
	if f.NewMode != 0 && f.OldMode != f.NewMode {
		return fmt.Sprintf("file %s, mode %o now %o", name, f.OldMode&0o777, f.NewMode&0o777)
	}
	return "file " + name
}

// shownContext is how many lines of the piece before are shown above one that begins without context.
const shownContext = 3

// show prints a piece, or all of a file.
func (p *picker) show(f *gitdiff.File, pieces []piece, at int, whole bool) {
	if whole {
		for _, h := range f.TextFragments {
			p.lines(h.Lines)
		}
		return
	}
	x := pieces[at]
	h := f.TextFragments[x.of]
	old, new := h.OldPosition, h.NewPosition
	var above []gitdiff.Line
	for i := range pieces[:at] {
		if pieces[i].of != x.of {
			continue
		}
		for _, l := range pieces[i].lines {
			if l.Old() {
				old++
			}
			if l.New() {
				new++
			}
			if l.Op != gitdiff.OpContext {
				above = nil
			} else if above = append(above, l); len(above) > shownContext {
				above = above[1:]
			}
		}
	}
	n, _, _ := counts(x.lines)
	a := int64(len(above))
	fmt.Fprintf(p.out, "%s\n", p.paint("36", fmt.Sprintf("@@ -%d,%d +%d,%d @@", old-a, n.OldLines+a, new-a, n.NewLines+a)))
	p.lines(append(above, x.lines...))
}

func (p *picker) lines(list []gitdiff.Line) {
	for _, l := range list {
		text := l.Op.String() + strings.ReplaceAll(printable(strings.ReplaceAll(strings.TrimSuffix(l.Line, "\n"), "\t", "\u2409")), "\u2409", "\t")
		switch l.Op {
		case gitdiff.OpAdd:
			text = p.paint("32", text)
		case gitdiff.OpDelete:
			text = p.paint("31", text)
		}
		fmt.Fprintln(p.out, text)
		if l.NoEOL() {
			fmt.Fprintln(p.out, `\ No newline at end of file`)
		}
	}
}

func (p *picker) paint(code, text string) string {
	if !p.colour {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[m"
}

// groups are the runs of changed lines: where they begin.
func groups(lines []gitdiff.Line) (at []int) {
	for i, l := range lines {
		if l.Op != gitdiff.OpContext && (i == 0 || lines[i-1].Op == gitdiff.OpContext) {
			at = append(at, i)
		}
	}
	return at
}

// divide makes of a piece one for each run of changed lines. What lies between two runs goes with the first.
func divide(x piece) (out []piece) {
	at := groups(x.lines)
	from := 0
	for _, to := range append(at[1:], len(x.lines)) {
		out = append(out, piece{lines: x.lines[from:to], of: x.of, edited: x.edited})
		from = to
	}
	return out
}

// part is a file's patch with the pieces that are taken.
func part(f *gitdiff.File, pieces []piece) *gitdiff.File {
	out := &gitdiff.File{OldName: f.OldName, NewName: f.NewName}
	moved := int64(0)
	for n, h := range f.TextFragments {
		var lines []gitdiff.Line
		taken := false
		for _, x := range pieces {
			if x.of != n {
				continue
			}
			taken = taken || x.taken > 0
			for _, l := range x.lines {
				switch {
				case x.taken > 0 || l.Op == gitdiff.OpContext:
					lines = append(lines, l)
				case l.Op == gitdiff.OpDelete: // it stays
					lines = append(lines, gitdiff.Line{Op: gitdiff.OpContext, Line: l.Line})
				}
			}
		}
		if !taken {
			continue
		}
		made, added, deleted := counts(lines)
		made.OldPosition, made.NewPosition = h.OldPosition, h.OldPosition+moved
		moved += added - deleted
		out.TextFragments = append(out.TextFragments, made)
	}
	return out
}

// counts is a fragment of some lines, without its place.
func counts(lines []gitdiff.Line) (f *gitdiff.TextFragment, added, deleted int64) {
	f = &gitdiff.TextFragment{Lines: lines}
	for _, l := range lines {
		if l.Old() {
			f.OldLines++
		}
		if l.New() {
			f.NewLines++
		}
		switch l.Op {
		case gitdiff.OpContext:
			if f.LinesAdded+f.LinesDeleted == 0 {
				f.LeadingContext++
			} else {
				f.TrailingContext++
			}
		case gitdiff.OpAdd:
			f.LinesAdded++
			f.TrailingContext = 0
		case gitdiff.OpDelete:
			f.LinesDeleted++
			f.TrailingContext = 0
		}
	}
	return f, f.LinesAdded, f.LinesDeleted
}

const editHelp = `# To leave a "-" line as it is, make the "-" a space. To leave out a "+" line, remove it.
# Lines of the source, with a space or "-", have to stay. These lines are ignored.
`

const noEOL = `\ No newline at end of file`

// change has the lines of a piece edited.
func (p *picker) change(lines []gitdiff.Line) ([]gitdiff.Line, error) {
	var text, old strings.Builder
	for _, l := range lines {
		text.WriteString(l.Op.String() + l.Line)
		if l.NoEOL() {
			text.WriteString("\n" + noEOL + "\n")
		}
		if l.Old() {
			old.WriteString(l.Line)
		}
	}
	edited, err := p.edit(text.String() + editHelp)
	if err != nil {
		return nil, err
	}
	var out []gitdiff.Line
	var is strings.Builder
	for line := range strings.Lines(edited) {
		if strings.TrimSuffix(line, "\n") == noEOL && len(out) > 0 {
			out[len(out)-1].Line = strings.TrimSuffix(out[len(out)-1].Line, "\n")
			continue
		}
		op, ok := map[byte]gitdiff.LineOp{' ': gitdiff.OpContext, '-': gitdiff.OpDelete, '+': gitdiff.OpAdd, '\n': gitdiff.OpContext}[line[0]]
		switch {
		case line[0] == '#':
			continue
		case !ok:
			return nil, fmt.Errorf("a line begins with %q, not with a space, + or -", line[:1])
		case line == "\n": // an editor removed the space of an empty line
			line = " \n"
		case !strings.HasSuffix(line, "\n"):
			line += "\n"
		}
		out = append(out, gitdiff.Line{Op: op, Line: line[1:]})
	}
	for _, l := range out {
		if l.Old() {
			is.WriteString(l.Line)
		}
	}
	if is.String() != old.String() {
		return nil, errors.New("lines of the source were changed, added or removed")
	}
	if n, _, _ := counts(out); n.LinesAdded+n.LinesDeleted == 0 {
		return nil, errors.New("no change is left in it; answer n to leave it out")
	}
	return out, nil
}

// editor has a text edited at the terminal, by the program that the environment names.
func (a *app) editor(text string) (string, error) {
	f, err := os.CreateTemp("", "pando-hunk-*.diff")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	if _, err := f.WriteString(text); err != nil {
		return "", err
	}
	if err := f.Close(); err != nil {
		return "", err
	}
	program := "vi"
	for _, name := range []string{"EDITOR", "VISUAL"} {
		if v := os.Getenv(name); v != "" {
			program = v
		}
	}
	cmd := exec.Command("sh", "-c", program+` "$1"`, "sh", f.Name()) // it may have arguments
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("the editor %s: %w", program, err)
	}
	b, err := os.ReadFile(f.Name())
	return string(b), err
}

// pickHunks asks at the terminal which changes of a result are taken. below limits it to paths of the source.
func (a *app) pickHunks(patch string, below func(path string) bool) (paths []string, some string, err error) {
	out, ok := fileOf(a.stderr)
	if !ok || !term.IsTerminal(int(a.stdin.Fd())) || !term.IsTerminal(int(out.Fd())) {
		return nil, "", usage("-p asks at a terminal; without one, name paths: pando accept --apply -- PATH…")
	}
	files, _, err := gitdiff.Parse(strings.NewReader(patch))
	if err != nil {
		return nil, "", &api.Error{Kind: "failed", Message: "cannot read the changes: " + err.Error(), Hint: "name paths: pando accept --apply -- PATH…"}
	}
	files = slices.DeleteFunc(files, func(f *gitdiff.File) bool { return !below(f.NewName) && !below(f.OldName) })
	p := &picker{in: bufio.NewReader(a.stdin), out: a.stderr, colour: a.colour, edit: a.editor}
	paths, some = p.pick(files)
	return paths, some, nil
}
