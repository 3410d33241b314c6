// Package merge joins two changed states of a workspace by the state that both came from,
// file by file, as git merges branches.
//
// It promises that a merged text is the one that `git merge-file` makes, that whatever can't be
// merged (binary files, what one side removed, renamed or made another type of file) is named and
// never guessed, and that neither side is written to.
//
// It leaves to the caller what becomes of the result, and which changes are merged at all.
//
//	merge.go  which files are to be merged, and the outcome
//	text.go   one file's text, by git
package merge

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// A Request says what to merge.
type Request struct {
	Base, Ours, Theirs workspace.Side
	// Path is where git is searched, after /usr/bin and /usr/local/bin.
	Path string
	// Names are what Ours and Theirs are in sentences, and Labels under the marks of a conflict.
	Names, Labels [2]string
	// Ignored reports which changes of Theirs are no part of the merge; nil: none is.
	Ignored func(path string, isDir bool) bool
	// Wanted chooses the changes of Theirs that are merged, by their path, or by the one that
	// they had in Base; nil: all.
	Wanted func(path string) bool
}

// A Result is what a merge made.
type Result struct {
	Files   []File    // sorted by path
	Refused []Refusal // sorted by path; not in Files
}

// A File is one that both sides changed.
type File struct {
	Path      string
	Also      []string // its other paths, in Base or on a side: it is not there any more
	Mode      uint32   // permission bits
	Content   []byte
	Ours      []byte // what the sides have of it
	Theirs    []byte
	Conflicts int // places that are marked in Content
}

// A Refusal is a file that can't be merged. Why completes the path to a sentence.
type Refusal struct{ Path, Why string }

// MaxFile is the size of the largest text that is merged, in bytes.
const MaxFile = 8 << 20

// maxAll bounds the texts of one merge, in bytes: they are held in memory.
const maxAll = 256 << 20

// Merge merges the changes of Theirs into Ours where both changed the same file. What only one
// side changed is no part of the result.
func Merge(ctx context.Context, req Request) (*Result, error) {
	theirs, err := diff.Compare(ctx, req.Base, req.Theirs, diff.Options{Ignored: req.Ignored})
	if err != nil {
		return nil, err
	}
	ours, err := diff.Compare(ctx, req.Base, req.Ours, diff.Options{})
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "pando-merge-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	m := &merger{req: &req, dir: dir, from: map[string]*diff.FileChange{}, to: map[string]*diff.FileChange{}, out: &Result{}}
	for i := range ours.Files {
		c := &ours.Files[i]
		if c.Status == diff.StatusAdded || c.Status == diff.StatusRenamed {
			m.to[c.Path] = c
		}
		if c.Status != diff.StatusAdded {
			m.from[oldPath(c)] = c
		}
	}
	for i := range theirs.Files {
		c := &theirs.Files[i]
		if req.Wanted != nil && !req.Wanted(c.Path) && !req.Wanted(oldPath(c)) {
			continue
		}
		if err := m.change(ctx, c); err != nil {
			return nil, err
		}
		if err := m.place(c); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(m.out.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(m.out.Refused, func(a, b Refusal) int { return strings.Compare(a.Path, b.Path) })
	return m.out, nil
}

// oldPath is the path that a changed file has, or would have, in Base.
func oldPath(c *diff.FileChange) string {
	if c.OldPath != "" {
		return c.OldPath
	}
	return c.Path
}

// merger is the state of one Merge.
type merger struct {
	req  *Request
	dir  string
	from map[string]*diff.FileChange // changes of Ours, by their path in Base
	to   map[string]*diff.FileChange // what is new in Ours, by its path there
	size int64                       // of the texts so far
	out  *Result
}

func (m *merger) refuse(path, format string, args ...any) error {
	m.out.Refused = append(m.out.Refused, Refusal{path, fmt.Sprintf(format, args...)})
	return nil
}

// change merges one change of Theirs with what Ours made of the same file, if it changed that, too.
func (m *merger) change(ctx context.Context, c *diff.FileChange) error {
	ours, theirs := m.req.Names[0], m.req.Names[1]
	old := oldPath(c)
	o, there := m.from[old], m.to[c.Path]
	switch c.Status {
	case diff.StatusAdded:
		switch {
		case there == nil:
			return nil
		case there.Status == diff.StatusRenamed && there.NewDigest != c.NewDigest:
			return m.refuse(c.Path, "is new in %s, and %s renamed %s to it", theirs, ours, diff.Quote(there.OldPath))
		}
		return m.join(ctx, "", c.Path, c.Path, c.Path)
	case diff.StatusDeleted:
		switch {
		case o == nil || o.Status == diff.StatusDeleted:
			return nil
		case o.Status == diff.StatusRenamed:
			return m.refuse(c.Path, "was removed in %s, and renamed to %s in %s", theirs, diff.Quote(o.Path), ours)
		}
		return m.refuse(c.Path, "was removed in %s, and changed in %s", theirs, ours)
	case diff.StatusRenamed:
		switch {
		case o != nil && o.Status == diff.StatusRenamed && o.Path == c.Path:
			return m.join(ctx, old, c.Path, c.Path, c.Path)
		case there != nil:
			return m.refuse(c.Path, "has the name to which %s renamed %s, and is another file in %s", theirs, diff.Quote(old), ours)
		case o == nil:
			return nil
		case o.Status == diff.StatusDeleted:
			return m.refuse(old, "was renamed to %s in %s, and removed in %s", diff.Quote(c.Path), theirs, ours)
		case o.Status == diff.StatusRenamed:
			return m.refuse(old, "was renamed to %s in %s, and to %s in %s", diff.Quote(c.Path), theirs, diff.Quote(o.Path), ours)
		}
		return m.join(ctx, old, old, c.Path, c.Path)
	}
	switch {
	case o == nil:
		return nil
	case o.Status == diff.StatusDeleted:
		return m.refuse(c.Path, "was changed in %s, and removed in %s", theirs, ours)
	}
	return m.join(ctx, old, o.Path, c.Path, o.Path)
}

// place refuses a file of Theirs that has no place in Ours: a folder is there, or a file in the place of one of
// its folders.
func (m *merger) place(c *diff.FileChange) error {
	if c.Status == diff.StatusDeleted {
		return nil
	}
	if e, err := m.req.Ours.Tree.Lookup(c.Path); err == nil && e.Type == workspace.Folder {
		return m.refuse(c.Path, "is a folder in %s, and a file in %s", m.req.Names[0], m.req.Names[1])
	}
	for up := workspace.Parent(c.Path); up != ""; up = workspace.Parent(up) {
		e, err := m.req.Ours.Tree.Lookup(up)
		if err == nil && e.Type != workspace.Folder {
			return m.refuse(c.Path, "lies below %s, which is no folder in %s", diff.Quote(up), m.req.Names[0])
		}
		if err == nil {
			break
		}
		if k := cell.KindOf(err); k != cell.NotFound {
			return err
		}
	}
	return nil
}

// join merges a file that has a path in Base ("": it has none), in Ours and in Theirs; at is the
// path that it gets.
func (m *merger) join(ctx context.Context, base, ours, theirs, at string) error {
	o, err := m.req.Ours.Tree.Lookup(ours)
	if err != nil {
		return err
	}
	t, err := m.req.Theirs.Tree.Lookup(theirs)
	if err != nil {
		return err
	}
	b := workspace.Entry{Type: workspace.File, Mode: o.Mode & t.Mode, Digest: cell.Sum(nil)}
	if base != "" {
		if b, err = m.req.Base.Tree.Lookup(base); err != nil {
			return err
		}
	}
	if o.Type == t.Type && o.Digest == t.Digest && o.Target == t.Target && (o.Mode^t.Mode)&0o100 == 0 && ours == theirs {
		return nil // both made the same of it
	}
	if o.Type != workspace.File || t.Type != workspace.File || b.Type != workspace.File {
		return m.refuse(at, "is a symlink, or became one, and was changed in %s and in %s", m.req.Names[1], m.req.Names[0])
	}
	f := File{Path: at}
	for _, p := range []string{base, ours, theirs} {
		if p != "" && p != at && !slices.Contains(f.Also, p) {
			f.Also = append(f.Also, p)
		}
	}
	exec := o.Mode & 0o100
	if exec == b.Mode&0o100 {
		exec = t.Mode & 0o100
	}
	f.Mode = diff.Exec(o.Mode&0o7777, exec != 0)
	var texts [3][]byte
	for i, from := range []struct {
		side workspace.Side
		path string
		e    workspace.Entry
	}{{m.req.Ours, ours, o}, {m.req.Base, base, b}, {m.req.Theirs, theirs, t}} {
		if from.path == "" {
			continue
		}
		if from.e.Size > MaxFile {
			return m.refuse(at, "is too large to be merged: that takes at most %d MiB", MaxFile>>20)
		}
		if m.size += from.e.Size; m.size > maxAll {
			return bound.Exceed("the files to be merged", maxAll>>20, "MiB")
		}
		r, err := from.side.Contents.Open(from.path, from.e)
		if err != nil {
			return err
		}
		texts[i], err = bound.ReadAll(diff.Obeying(ctx, r), from.path, MaxFile)
		r.Close()
		if err != nil {
			return err
		}
	}
	f.Ours, f.Theirs = texts[0], texts[2]
	switch {
	case t.Digest == b.Digest && base != "" || t.Digest == o.Digest:
		f.Content = texts[0]
	case o.Digest == b.Digest && base != "":
		f.Content = texts[2]
	case slices.ContainsFunc(texts[:], binary):
		return m.refuse(at, "is no text, and was changed in %s and in %s", m.req.Names[1], m.req.Names[0])
	default:
		if f.Content, f.Conflicts, err = text(ctx, m.req.Path, m.dir, texts, m.req.Labels); err != nil {
			return err
		}
	}
	m.out.Files = append(m.out.Files, f)
	return nil
}
