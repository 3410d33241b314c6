package result

import (
	"bytes"
	"context"
	"io"
	"slices"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/apply"
	"github.com/pando-dev/pando/internal/workspace/merge"
)

// A merged accept writes what neither the cell nor the source has. It is an apply of other trees than
// those of the offer: at the merged files the old state is what the source has now, and the new one what
// the merge made. The contents of both are objects of the store, by which a revert finds them. What the
// cell had there is what cell and source agree on (see agreedAt): later changes of the cell are told
// from that, so that they never look like changes of what the source had added.

// mergedState is a merge for an apply.
type mergedState struct {
	Base     cell.Digest    `json:"base"`     // tree: the old state
	After    cell.Digest    `json:"after"`    // tree: the new one
	Files    []state.Merged `json:"files"`    // what was merged
	There    []string       `json:"there"`    // of these, what the source has as it was merged
	Contents []cell.Digest  `json:"contents"` // of files; in the store
}

// merge joins an offer, of which a part may be chosen, with what its source became, where an apply found
// conflicts. It writes nothing but objects.
func (m *Manager) merge(ctx context.Context, o *offer, after workspace.Side, ignored func(path string, isDir bool) bool, found *apply.ConflictError, req api.AcceptRequest) (*mergedState, error) {
	c := o.c
	source, _, err := m.cfg.SourceNow(ctx, c)
	if err != nil {
		return nil, err
	}
	files, err := m.byCommits(ctx, o, source, found)
	if err != nil {
		return nil, err
	}
	at := map[string]bool{}
	for _, p := range found.Paths {
		at[p.Path] = !slices.ContainsFunc(files, func(f merge.File) bool { return f.Path == p.Path })
	}
	if rest := slices.DeleteFunc(slices.Clone(found.Paths), func(p apply.PathConflict) bool { return !at[p.Path] }); len(rest) > 0 {
		if !req.Merge {
			return nil, &apply.ConflictError{Paths: rest}
		}
		res, err := m.mergeTexts(ctx, o, source, after, ignored, at)
		if err != nil {
			return nil, err
		}
		if refused := refusals(res, req.NoConflicts); refused != nil {
			return nil, refused
		}
		files = append(files, res.Files...)
	}
	out := &mergedState{}
	var paths []string
	for _, f := range files {
		for _, b := range [][]byte{f.Content, f.Ours} {
			if err := m.cfg.Objects.Put(cell.Sum(b), b); err != nil {
				return nil, err
			}
			out.Contents = append(out.Contents, cell.Sum(b))
		}
		out.Files = append(out.Files, state.Merged{Path: f.Path, Also: f.Also, Conflicts: f.Conflicts})
		paths = append(append(paths, f.Path), f.Also...)
	}
	want, err := withMerged(source.Tree, source.Tree, after.Tree, files)
	if err != nil {
		return nil, err
	}
	writes, err := changedPaths(source.Tree, want)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if !slices.ContainsFunc(append([]string{f.Path}, f.Also...), func(p string) bool { return slices.Contains(writes, p) }) {
			out.There = append(out.There, f.Path)
		}
	}
	base, err := workspace.Taken(o.base.Tree, source.Tree, paths)
	if err != nil {
		return nil, err
	}
	next, err := workspace.Taken(after.Tree, want, paths)
	if err != nil {
		return nil, err
	}
	if out.Base, err = m.cfg.PutTree(base); err != nil {
		return nil, err
	}
	out.After, err = m.cfg.PutTree(next)
	return out, err
}

// mergeTexts merges files at some paths, which changed on both sides.
func (m *Manager) mergeTexts(ctx context.Context, o *offer, source, after workspace.Side, ignored func(path string, isDir bool) bool, at map[string]bool) (*merge.Result, error) {
	scrubbed := map[string]bool{}
	for _, l := range o.c.LeftOut {
		if l.Kind == workspace.Fields {
			scrubbed[l.Path] = true
		}
	}
	return merge.Merge(ctx, merge.Request{
		Path: m.cfg.Path, Base: o.base, Ours: source, Theirs: after, Names: [2]string{"the source", "the cell"}, Labels: [2]string{"source", o.to},
		Ignored: ignored, Wanted: func(p string) bool { return at[p] && !scrubbed[p] },
	})
}

// refusals are the files that a merge refused, and without conflicts those that have some; nil when there are none.
func refusals(res *merge.Result, noConflicts bool) *apply.ConflictError {
	var refused []apply.PathConflict
	for _, r := range res.Refused {
		refused = append(refused, apply.PathConflict{Path: r.Path, Why: r.Why})
	}
	for _, f := range res.Files {
		if f.Conflicts > 0 && noConflicts {
			refused = append(refused, apply.PathConflict{Path: f.Path, Why: "was changed in the same lines in the cell and in the source"})
		}
	}
	if len(refused) == 0 {
		return nil
	}
	return &apply.ConflictError{Paths: refused}
}

// withMerged is a tree with merged files, which are otherwise like those of ours. Folders that it has not are those of
// theirs.
func withMerged(tree, ours, theirs *workspace.Tree, files []merge.File) (*workspace.Tree, error) {
	made := tree.Edit()
	for _, f := range files {
		for _, p := range f.Also {
			if err := made.Remove(p); err != nil {
				return nil, err
			}
		}
		for i := range f.Path {
			if f.Path[i] != '/' {
				continue
			}
			up := f.Path[:i]
			if _, ok, err := made.Lookup(up); err != nil {
				return nil, err
			} else if ok {
				continue
			}
			e, err := ours.Lookup(up)
			if err != nil {
				e, err = theirs.Lookup(up)
			}
			if err != nil {
				return nil, err
			}
			if err := made.Put(up, e); err != nil {
				return nil, err
			}
		}
		e := workspace.Entry{}
		for _, p := range append([]string{f.Path}, f.Also...) {
			if was, err := ours.Lookup(p); err == nil {
				e = was
				break
			}
		}
		e.Type, e.Mode, e.Size, e.MTime, e.Digest = workspace.File, f.Mode, int64(len(f.Content)), time.Now().UnixNano(), cell.Sum(f.Content)
		if err := made.Put(f.Path, e); err != nil {
			return nil, err
		}
	}
	return made.Commit()
}

// trees are those of a merge, for an apply; contents are those of what was merged.
func (m *Manager) trees(s *mergedState, contents workspace.Contents) (base *workspace.Tree, after workspace.Side, err error) {
	if base, err = m.cfg.Tree(s.Base); err != nil {
		return nil, after, err
	}
	after.Tree, err = m.cfg.Tree(s.After)
	after.Contents = stored{m, contents, s.Contents}
	return base, after, err
}

// stored are contents of which some are in the store.
type stored struct {
	m     *Manager
	other workspace.Contents
	have  []cell.Digest
}

// Open implements workspace.Contents.
func (s stored) Open(path string, e workspace.Entry) (io.ReadCloser, error) {
	if slices.Contains(s.have, e.Digest) {
		return s.m.object(e.Digest)
	}
	return s.other.Open(path, e)
}

// object opens the content of a file that is in the store.
func (m *Manager) object(d cell.Digest) (io.ReadCloser, error) {
	b, err := m.cfg.Objects.Get(d)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(b)), nil
}

// in are the files of a merge that are in the source now, and all of their paths: those that were written there, or
// that it had already, and that are not held back. there are the paths of those that it had as they were merged.
func (s *mergedState) in(written, already []string, held []apply.Held) (files []state.Merged, paths, there []string) {
	if s == nil {
		return nil, nil, nil
	}
	for _, f := range s.Files {
		all := append([]string{f.Path}, f.Also...)
		switch {
		case slices.ContainsFunc(all, func(p string) bool { return slices.Contains(written, p) || slices.Contains(already, p) }):
			files, paths = append(files, f), append(paths, all...)
		case slices.Contains(s.There, f.Path) && !slices.ContainsFunc(held, func(h apply.Held) bool { return slices.Contains(all, h.Path) }):
			files, there = append(files, f), append(there, all...)
		}
	}
	return files, paths, there
}
