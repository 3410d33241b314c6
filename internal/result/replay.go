package result

import (
	"bytes"
	"context"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/bluekeyes/go-gitdiff/gitdiff"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// A replay makes of the files before a run and of the patch that it left the files after it. A patch has what accept would
// apply: the changes that git ignores, and those that are held back, are taken from the checkpoint after the run, as far as that is
// there. Whether the whole is what the run left is told by the content digest, which covers all of them.

// Replayed is what a patch makes of a state.
type Replayed struct {
	To       *workspace.Tree
	Contents workspace.Contents // of all files of To that the state before has not
	Files    int                // of the patch
	Left     []string           // paths that are not in the patch, by rule, and are of the checkpoint after the run
	Differs  []string           // paths that differ from the checkpoint after the run otherwise
}

// Replay applies the patch of a run to the state before it. after is the checkpoint after the run; its tree is nil when it is gone.
func (m *Manager) Replay(ctx context.Context, c *state.Cell, before, after workspace.Side, patch io.Reader, want cell.Digest) (*Replayed, error) {
	to, files, err := patched(ctx, before, patch)
	if err != nil {
		return nil, err
	}
	r := &Replayed{To: to.Tree, Contents: to.Contents, Files: files}
	if to.Tree.ContentDigest() == want || after.Tree == nil {
		return r, nil
	}
	ignored, _, err := m.ignoredBy(ctx, c, before, after)
	if err != nil {
		return nil, err
	}
	_, held, err := m.review(c, before, after, ignored, nil)
	if err != nil {
		return nil, err
	}
	changes, err := workspace.Changes(to.Tree, after.Tree)
	if err != nil {
		return nil, err
	}
	for _, ch := range changes {
		switch {
		case !ch.Git():
		case ignored(ch.Path, false), slices.ContainsFunc(held, func(h api.Held) bool { return h.Path == ch.Path }):
			r.Left = append(r.Left, ch.Path)
		default:
			r.Differs = append(r.Differs, ch.Path)
		}
	}
	if len(r.Left) > 0 {
		if r.To, err = workspace.Taken(to.Tree, after.Tree, r.Left); err != nil {
			return nil, err
		}
		r.Contents = either{to.Contents.(*inMemory), after.Contents}
	}
	return r, nil
}

// BringIn writes into a new cell, which is at a checkpoint and at rest, what a tree has otherwise, and makes that a checkpoint. The
// caller holds the cell's lock. c is changed and committed.
func (m *Manager) BringIn(ctx context.Context, c *state.Cell, from, to *workspace.Tree, contents workspace.Contents, k state.Checkpoint) (state.Checkpoint, error) {
	if err := m.cfg.Cells.Alone(ctx, c, func(inst backend.Instance) error { return change(ctx, inst, c, from, to, contents, false) }); err != nil {
		return k, err
	}
	return m.cfg.Checkpoint(ctx, c, k, "")
}

// FirstDifference compares two states as git sees them: how many files differ, and the first of them by path.
func FirstDifference(a, b *workspace.Tree) (n int, first string, err error) {
	paths, err := changedPaths(a, b)
	if len(paths) > 0 {
		first = slices.Min(paths)
	}
	return len(paths), first, err
}

// inMemory are the contents of files that a patch made.
type inMemory struct {
	have  map[cell.Digest][]byte
	other workspace.Contents
}

// Open implements workspace.Contents.
func (c *inMemory) Open(p string, e workspace.Entry) (io.ReadCloser, error) {
	if b, ok := c.have[e.Digest]; ok {
		return io.NopCloser(bytes.NewReader(b)), nil
	}
	return c.other.Open(p, e)
}

// either are contents of which some are in memory.
type either struct {
	first *inMemory
	other workspace.Contents
}

// Open implements workspace.Contents.
func (c either) Open(p string, e workspace.Entry) (io.ReadCloser, error) {
	if _, ok := c.first.have[e.Digest]; ok {
		return c.first.Open(p, e)
	}
	return c.other.Open(p, e)
}

// The modes of git's files.
const (
	gitTypes = 0o170000
	gitFile  = 0o100000
	gitLink  = 0o120000
)

// patched applies a patch in git's format to a state, without writing anything. It is strict: each line of context has to be where
// the patch says. Nothing but the tree is changed, so a path can lead nowhere else; paths of git's own are refused all the same.
func patched(ctx context.Context, base workspace.Side, patch io.Reader) (workspace.Side, int, error) {
	fail := func(format string, args ...any) (workspace.Side, int, error) {
		return workspace.Side{}, 0, cell.Errorf(cell.Corrupt, "result.Replay", "", "cannot apply the patch: "+format, args...)
	}
	files, _, err := gitdiff.Parse(patch)
	if err != nil {
		return fail("%w", err)
	}
	contents := &inMemory{have: map[cell.Digest][]byte{}, other: base.Contents}
	ed := base.Tree.Edit()
	made := make([]*workspace.Entry, len(files))
	left, now := int64(patchLimit), time.Now().UnixNano()
	for i, f := range files { // first what goes, so that a file can take the place of a folder
		if ctx.Err() != nil {
			return workspace.Side{}, 0, context.Cause(ctx)
		}
		for _, p := range []string{f.OldName, f.NewName} {
			if p != "" && !ownPath(p) {
				return fail("%s is no path of a workspace", diff.Quote(p))
			}
		}
		if f.IsCopy || f.IsNew && f.NewName == "" || !f.IsNew && f.OldName == "" {
			return fail("pando writes no such patch")
		}
		was, old := workspace.Entry{}, []byte(nil)
		if !f.IsNew {
			if was, err = base.Tree.Lookup(f.OldName); err != nil || was.Git() == nil {
				return fail("there is no file %s", diff.Quote(f.OldName))
			}
			if old, err = gitContent(ctx, base.Contents, f.OldName, was, left); err != nil {
				return workspace.Side{}, 0, err
			}
		}
		var out bytes.Buffer
		if err := gitdiff.Apply(&out, bytes.NewReader(old), f); err != nil {
			return fail("%s: %w", diff.Quote(f.OldName+f.NewName), err)
		}
		if left -= int64(out.Len()); left < 0 {
			return fail("it makes more than %d MiB", patchLimit>>20)
		}
		if f.IsDelete || f.IsRename {
			if err := ed.Remove(f.OldName); err != nil {
				return workspace.Side{}, 0, err
			}
		}
		if f.IsDelete {
			continue
		}
		e := was
		switch mode := uint32(f.NewMode); {
		case mode == 0 && !f.IsNew:
		case mode&gitTypes == gitLink:
			e = workspace.Entry{Type: workspace.Symlink, Mode: 0o777}
		case mode&gitTypes != gitFile:
			return fail("%s has mode %o", diff.Quote(f.NewName), mode)
		case f.IsNew:
			e = workspace.Entry{Type: workspace.File, Mode: 0o644 | mode&0o111}
		default:
			e.Mode = e.Mode&^0o111 | mode&0o111
		}
		e.MTime = now
		if e.Type == workspace.Symlink {
			e.Target = out.String()
		} else {
			e.Size, e.Digest = int64(out.Len()), cell.Sum(out.Bytes())
			contents.have[e.Digest] = out.Bytes()
		}
		made[i] = &e
	}
	for i, f := range files {
		e := made[i]
		if e == nil {
			continue
		}
		for j, r := range f.NewName {
			if r != '/' {
				continue
			}
			up, ok, err := ed.Lookup(f.NewName[:j])
			if err != nil {
				return workspace.Side{}, 0, err
			}
			if ok && up.Git() != nil {
				return fail("%s is no folder", diff.Quote(f.NewName[:j]))
			}
			if !ok || up.Type != workspace.Folder { // in the place of a FIFO, say, of which a patch knows nothing
				if err := ed.Put(f.NewName[:j], workspace.Entry{Type: workspace.Folder, Mode: 0o755, MTime: now}); err != nil {
					return workspace.Side{}, 0, err
				}
			}
		}
		if err := ed.Put(f.NewName, *e); err != nil {
			return workspace.Side{}, 0, err
		}
	}
	tree, err := ed.Commit()
	return workspace.Side{Tree: tree, Contents: contents}, len(files), err
}

// ownPath reports whether a patch may name a path.
func ownPath(p string) bool {
	return filepath.IsLocal(p) && path.Clean(p) == p && !strings.ContainsRune(p, 0) && !slices.ContainsFunc(strings.Split(p, "/"), gitdir.IsDotGit)
}

// gitContent is the content of a file or symlink, as git has it.
func gitContent(ctx context.Context, from workspace.Contents, p string, e workspace.Entry, most int64) ([]byte, error) {
	if e.Type == workspace.Symlink {
		return []byte(e.Target), nil
	}
	f, err := from.Open(p, e)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return bound.ReadAll(diff.Obeying(ctx, f), p, most)
}

// PatchOf reads the patch of a run, which must have the digest that its receipt names.
func PatchOf(f *os.File, want cell.Digest) ([]byte, error) {
	b, err := bound.ReadAll(f, "the patch", maxReplayed)
	if err == nil && cell.Sum(b) != want {
		err = cell.Errorf(cell.Corrupt, "result.Replay", "", "the patch is not the one that the receipt names")
	}
	return b, err
}

// maxReplayed bounds the size of a patch that is applied here, in bytes.
const maxReplayed = 128 << 20
