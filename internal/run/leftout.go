package run

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

const (
	// namedTail is how much of the end of each output stream is searched for names of
	// left-out paths, in bytes.
	namedTail = 32 << 10
	// namedNotes is how many left-out paths a result has notes about.
	namedNotes = 5
	// tailPatience is how long the end of a command waits for what it wrote; without it
	// there are no notes.
	tailPatience = 5 * time.Second
	// CheckTail is how much of the end of a check's output a run keeps, in bytes.
	CheckTail = 4 << 10
	// namedPlaces bounds the occurrences of one name that are looked at.
	namedPlaces = 1000
)

// namedPath is a left-out path that a command's output names.
type namedPath struct {
	workspace.LeftOut
	in string // "command" or "check"
}

// noteLeftOut adds notes about the left-out paths that the output of a failed command, or
// of a failed check, names. Nothing traces what a command opens: a note says what the
// output says, and not that the path was opened.
func (x *execution) noteLeftOut(ctx context.Context, after *state.Checkpoint) error {
	run := x.Run
	if run.ExitCode == nil || len(x.Cell.LeftOut) == 0 {
		return nil
	}
	s, err := x.m.cfg.Side(ctx, after)
	if err != nil {
		return err
	}
	f := newLeftOutFinder(&x.Cell, x.Workdir(), func(rel string) bool {
		_, err := s.Tree.Lookup(rel)
		return err == nil
	})
	var named []namedPath
	switch {
	case *run.ExitCode != 0:
		for _, name := range []string{"stderr", "stdout"} {
			text, cut, err := x.m.recordTail(run.Folder, name)
			if err != nil {
				run.Notes = append(run.Notes, fmt.Sprintf("%s was not searched for names of left-out paths: %v", name, err))
				continue
			}
			named = f.find(named, "command", text, cut)
		}
	case run.Check != nil && run.Check.ExitCode != 0:
		f.workdir = x.Cell.Source
		named = f.find(named, "check", []byte(run.Check.Output), len(run.Check.Output) >= CheckTail)
	}
	run.Notes = append(run.Notes, leftOutNotes(&x.Cell, named)...)
	return nil
}

// recordTail is the end of a run's file, and whether something comes before it.
func (m *Manager) recordTail(folder, name string) (text []byte, cut bool, err error) {
	f, err := m.cfg.Files.Open(folder, name)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	from := max(0, st.Size()-namedTail)
	text, err = io.ReadAll(io.NewSectionReader(f, from, namedTail))
	return text, from > 0, err
}

// ExecNotes is noteLeftOut for a command outside of runs that has ended.
func (m *Manager) ExecNotes(ctx context.Context, id cell.ID, workdir string, inst backend.Instance, proc backend.Process, d backend.Done) []string {
	if d.Status.Exit == nil || d.Status.Exit.Code == 0 {
		return nil
	}
	c, err := m.cfg.Records.Cell(id)
	if err != nil || len(c.LeftOut) == 0 {
		return nil
	}
	f := newLeftOutFinder(&c, workdir, func(rel string) bool {
		return inst.ReadFiles(ctx, path.Join(c.Top(), rel), io.Discard) == nil
	})
	stdout, stderr := d.Stdout, d.Stderr
	if proc != nil {
		stdout, stderr = outputTails(ctx, proc, d.Status)
	}
	named := f.find(nil, "command", tailOf(stderr), len(stderr) > namedTail)
	named = f.find(named, "command", tailOf(stdout), len(stdout) > namedTail)
	return leftOutNotes(&c, named)
}

func tailOf(b []byte) []byte { return b[max(0, len(b)-namedTail):] }

// outputTails reads the end of what is kept of both streams of a process that has ended.
func outputTails(ctx context.Context, proc backend.Process, st cell.Status) (stdout, stderr []byte) {
	from := backend.Offsets{Stdout: max(0, st.Stdout.Kept-namedTail-1), Stderr: max(0, st.Stderr.Kept-namedTail-1)}
	ctx, cancel := context.WithTimeout(ctx, tailPatience)
	defer cancel()
	conn, err := proc.Attach(ctx, backend.Attach{Offsets: from})
	if err != nil {
		return nil, nil
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var buf []byte
	for {
		f, err := api.ReadFrame(conn, &buf)
		if err != nil {
			return stdout, stderr
		}
		switch f.Type {
		case api.FrameStdout, api.FrameStderr:
			_, b, err := f.OutputData()
			if err != nil {
				return stdout, stderr
			}
			if f.Type == api.FrameStdout {
				stdout = append(stdout, b...)
			} else {
				stderr = append(stderr, b...)
			}
		case api.FrameExit:
			return stdout, stderr
		}
	}
}

// leftOutNotes says which left-out paths were named, and what brings them into the cell.
func leftOutNotes(c *state.Cell, named []namedPath) (notes []string) {
	for i, l := range named {
		if i == namedNotes {
			notes = append(notes, fmt.Sprintf("the %s's output names %d more paths that are left out of the cell: pando show %s", l.in, len(named)-i, c.Title()))
			break
		}
		what := "is left out of the cell"
		if l.Kind == workspace.Outside {
			what = "is a link to a path outside of the cell"
		}
		note := fmt.Sprintf("the %s's output names %s, which %s: ", l.in, diff.Quote(l.Path), what)
		switch word := diff.ShellWord(l.Path); {
		case l.Kind == workspace.Outside && l.Fix != "":
			note += "let it in with " + l.Fix
		case l.Kind != workspace.Secret:
			note += l.Why
		case c.Anonymous():
			note += "let it in with --with-secret " + word
		default: // it was imported before
			note += fmt.Sprintf("copy it in with pando cp %s %s, or make the cell with --with-secret %s", diff.ShellWord(filepath.Join(c.Top(), l.Path)), diff.ShellWord(c.Title()+":"+inCell(c, l.Path)), word)
		}
		notes = append(notes, note)
	}
	return notes
}

// inCell names a path of the workspace for pando cp, to which a relative one is in the first directory.
func inCell(c *state.Cell, rel string) string {
	if len(c.Repositories) == 0 {
		return rel
	}
	return filepath.Join(c.Top(), rel)
}

// leftOutFinder finds names of left-out paths in what a command wrote.
type leftOutFinder struct {
	left         []workspace.LeftOut
	top, workdir string                // of the workspace; where the command started
	there        func(rel string) bool // the cell has this path of the workspace
}

func newLeftOutFinder(c *state.Cell, workdir string, there func(rel string) bool) *leftOutFinder {
	known := map[string]bool{}
	return &leftOutFinder{left: c.LeftOut, top: c.Top(), workdir: cmp.Or(workdir, c.Source), there: func(rel string) bool {
		is, asked := known[rel]
		if !asked {
			is = there(rel)
			known[rel] = is
		}
		return is
	}}
}

// escapes are sequences that colour text, move the cursor or set a terminal's title.
var escapes = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|[@-Z\\\\^_])")
})

// find adds the paths that text names to found. A name is a whole component of a path,
// which is absolute, or relative to where the command started, or, if nothing is there, to
// another folder of the workspace. cut says that text is the end of something longer.
func (f *leftOutFinder) find(found []namedPath, in string, text []byte, cut bool) []namedPath {
	if cut { // what it begins with may be the rest of a name
		i := bytes.IndexFunc(text, separates)
		if i < 0 {
			return found
		}
		text = text[i:]
	}
	text = escapes().ReplaceAll(text, nil)
	byName := map[string][]int{}
	for i, l := range f.left {
		if l.Reserved() || l.Kind == workspace.Outside {
			byName[path.Base(l.Path)] = append(byName[path.Base(l.Path)], i)
		}
	}
	exact, hits := map[int]bool{}, map[int]bool{}
	for name, list := range byName {
		at := 0
		for range namedPlaces {
			i := bytes.Index(text[at:], []byte(name))
			if i < 0 {
				break
			}
			i, at = at+i, at+i+1
			for _, k := range list {
				if is, sure := f.names(text, i, f.left[k].Path); sure {
					exact[k] = true
				} else if is {
					hits[k] = true
				}
			}
		}
	}
	for i, l := range f.left {
		// One and the same name is not several paths if it is certain to be one of them.
		if !exact[i] && (!hits[i] || slices.ContainsFunc(byName[path.Base(l.Path)], func(k int) bool { return exact[k] })) {
			continue
		}
		if slices.ContainsFunc(found, func(o namedPath) bool { return o.Path == l.Path }) || l.Kind != workspace.Outside && f.there(l.Path) {
			continue
		}
		found = append(found, namedPath{l, in})
	}
	return found
}

// names reports whether the text from i on, with what is before it, is the name of a
// left-out path; sure means that it can't be another path of the workspace.
func (f *leftOutFinder) names(text []byte, i int, left string) (is, sure bool) {
	name := path.Base(left)
	before, behind := text[:i], text[i+len(name):]
	if !ends(behind) || !begins(before) && !bytes.HasSuffix(before, []byte("/")) {
		return false, false
	}
	// Folders with spaces or brackets in their names are found as they are written.
	written := func(dir string) bool {
		rest, ok := bytes.CutSuffix(before, []byte(dir+"/"))
		return ok && begins(rest)
	}
	if written(path.Join(f.top, path.Dir(left))) {
		return true, true
	}
	if dir := path.Dir(left); strings.ContainsFunc(dir, separates) && (written(dir) || written("./"+dir)) {
		return true, f.workdir == f.top
	}
	from := i
	for from > 0 && !begins(text[:from]) && i-from < maxName {
		from--
	}
	word := string(text[from:i]) + name
	if path.IsAbs(word) {
		is = path.Clean(word) == path.Join(f.top, left)
		return is, is
	}
	if at := path.Join(f.workdir, word); at == path.Join(f.top, left) {
		if !strings.Contains(word, "/") && !f.pathLike(before, behind, name) {
			return false, false
		}
		return true, true
	} else if rel, err := filepath.Rel(f.top, at); err == nil && filepath.IsLocal(rel) && f.there(rel) {
		return false, false
	}
	rest := path.Clean(word)
	for strings.HasPrefix(rest, "../") {
		rest = rest[len("../"):]
	}
	if rest != left && !strings.HasSuffix(left, "/"+rest) {
		return false, false
	}
	return strings.Contains(rest, "/") || f.pathLike(before, behind, name), false
}

// maxName bounds how long the path before a name may be, in bytes.
const maxName = 4096

// noSuch is what programs say about a file that is not there.
var noSuch = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)no such file|nosuchfile|file ?not ?found|not found|cannot find|can't find|could not find|enoent|does not exist|doesn't exist|permission denied|eacces`)
})

// pathLike reports whether a name without folders is the name of a file there: any with
// more than letters in it is; a plain word ("credentials") is where it is in quotes, or on
// a line about a file that is missing.
func (f *leftOutFinder) pathLike(before, behind []byte, name string) bool {
	if strings.TrimFunc(name, func(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }) != "" {
		return true
	}
	if quote(before, bytes.HasSuffix) && quote(behind, bytes.HasPrefix) {
		return true
	}
	line := before[bytes.LastIndexByte(before, '\n')+1:]
	rest, _, _ := bytes.Cut(behind, []byte("\n"))
	return noSuch().Match(line) || noSuch().Match(rest)
}

// Quotation marks of more than one byte, as programs use them in UTF-8.
var quotes = []string{"‘", "’", "“", "”", "«", "»"}

func quote(text []byte, has func(text, part []byte) bool) bool {
	return slices.ContainsFunc(append([]string{"'", `"`, "`"}, quotes...), func(q string) bool { return has(text, []byte(q)) })
}

// separates reports whether paths in messages seldom have r.
func separates(r rune) bool {
	return r <= ' ' || r == 0x7f || strings.ContainsRune("'\"`()[]{}<>,;:=|&*?!\\", r)
}

// begins reports whether a name can begin behind before.
func begins(before []byte) bool {
	return len(before) == 0 || separates(rune(before[len(before)-1])) || slices.ContainsFunc(quotes, func(q string) bool { return bytes.HasSuffix(before, []byte(q)) })
}

// ends reports whether a component of a path ends before behind: a full stop is the end of
// a sentence.
func ends(behind []byte) bool {
	if bytes.HasPrefix(behind, []byte(".")) && (len(behind) == 1 || separates(rune(behind[1]))) {
		return true
	}
	return len(behind) == 0 || behind[0] == '/' || separates(rune(behind[0])) || slices.ContainsFunc(quotes, func(q string) bool { return bytes.HasPrefix(behind, []byte(q)) })
}
