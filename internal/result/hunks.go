package result

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/bluekeyes/go-gitdiff/gitdiff"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
	"github.com/pando-dev/pando/internal/workspace/merge"
)

// A hunked file is one of which a part of the changes is taken.
type hunked struct {
	path    string
	content []byte
}

// hunks makes, of a patch with some changes of an offer, the files that it is about: what the base has, with the
// changes of the patch.
func (m *Manager) hunks(ctx context.Context, o *offer, patch string) (list []hunked, err error) {
	const opName = "result.Accept"
	if patch == "" {
		return nil, nil
	}
	files, _, err := gitdiff.Parse(strings.NewReader(patch))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("there is no file in it")
	}
	if err != nil {
		return nil, cell.Errorf(cell.Invalid, opName, "it is a part of what pando diff --patch prints", "cannot read the patch of what to take: %w", err)
	}
	for _, f := range files {
		if f.IsNew || f.IsDelete || f.IsRename || f.IsCopy || f.IsBinary || f.NewMode != 0 && f.NewMode != f.OldMode || f.OldName != f.NewName || len(f.TextFragments) == 0 {
			return nil, cell.Errorf(cell.Invalid, opName, "name it among the paths", "cannot take a part of %s: it is new, or removed, renamed, or no text", diff.Quote(f.NewName+f.OldName))
		}
		if slices.ContainsFunc(list, func(h hunked) bool { return h.path == f.OldName }) {
			return nil, cell.Errorf(cell.Invalid, opName, "", "%s is twice in the patch of what to take", diff.Quote(f.OldName))
		}
		was, err := o.base.Tree.Lookup(f.OldName)
		if err == nil && was.Git() != nil && was.Type == workspace.File {
			_, err = o.after.Tree.Lookup(f.OldName)
		} else if err == nil {
			err = cell.KindError(cell.NotFound)
		}
		if cell.KindOf(err) == cell.NotFound {
			return nil, cell.Errorf(cell.Invalid, opName, "pando diff --patch shows them", "there is no changed text at %s", diff.Quote(f.OldName))
		}
		if err != nil {
			return nil, err
		}
		if was.Size > merge.MaxFile {
			return nil, cell.Errorf(cell.TooLarge, opName, "name it among the paths", "cannot take a part of %s: it is larger than %d MiB", diff.Quote(f.OldName), merge.MaxFile>>20)
		}
		r, err := o.base.Contents.Open(f.OldName, was)
		if err != nil {
			return nil, err
		}
		text, err := bound.ReadAll(diff.Obeying(ctx, r), f.OldName, merge.MaxFile)
		r.Close()
		if err != nil {
			return nil, err
		}
		var out bytes.Buffer
		if err := gitdiff.Apply(&out, bytes.NewReader(text), f); err != nil {
			return nil, cell.Errorf(cell.Conflict, opName, "look at the changes again: pando diff "+o.title()+" --patch", "the patch of what to take does not fit %s: %w", diff.Quote(f.OldName), err)
		}
		list = append(list, hunked{f.OldName, out.Bytes()})
	}
	return list, nil
}

// withHunks puts files of which a part is taken into a tree, where they are otherwise as in the base. Their contents
// are objects of the store.
func (m *Manager) withHunks(o *offer, part workspace.Side, list []hunked) (workspace.Side, error) {
	if len(list) == 0 {
		return part, nil
	}
	ed := part.Tree.Edit()
	contents := stored{m: m, other: part.Contents}
	for _, h := range list {
		e, err := o.base.Tree.Lookup(h.path)
		if err != nil {
			return part, err
		}
		now, err := o.after.Tree.Lookup(h.path)
		if err != nil {
			return part, err
		}
		e.Size, e.MTime, e.Digest = int64(len(h.content)), now.MTime, cell.Sum(h.content)
		if err := ed.Put(h.path, e); err != nil {
			return part, err
		}
		if err := m.cfg.Objects.Put(e.Digest, h.content); err != nil {
			return part, err
		}
		contents.have = append(contents.have, e.Digest)
	}
	tree, err := ed.Commit()
	return workspace.Side{Tree: tree, Contents: contents}, err
}

// digests are those of the files' contents.
func digests(list []hunked) (out []cell.Digest) {
	for _, h := range list {
		out = append(out, cell.Sum(h.content))
	}
	return out
}
