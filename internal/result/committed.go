package result

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/commits"
	"github.com/pando-dev/pando/internal/glob"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/apply"
	"github.com/pando-dev/pando/internal/workspace/diff"
	"github.com/pando-dev/pando/internal/workspace/merge"
)

// What commits have is compared with the files that were shown, and that the source has after them: nothing comes into its
// repository that was not shown, and nothing looks like a change of the user's that is none.

// goesWith fails unless the cell has, at each path that commits change, what is committed there, and the source has what they
// make of it, after an accept that would write some files.
func (m *Manager) goesWith(ctx context.Context, o *offer, after workspace.Side, ignored func(path string, isDir bool) bool, out *api.AcceptResult) error {
	cannot := func(path, why, hint string) error {
		return cell.Errorf(cell.Conflict, "result.Accept", cmp.Or(hint, "commit all in the cell that is to come; or bring them as a branch: pando fetch "+o.c.Title()),
			"cannot take the commits of cell %s: %s %s", o.c.Title(), diff.Quote(path), why)
	}
	b := o.branch
	tip, err := b.repo.Files(ctx, b.Tip)
	if err != nil {
		return err
	}
	asks := map[string][]func(committed) error{} // by the object that has the answer
	ask := func(side workspace.Side, path string, want commits.Object, why, hint string) error {
		e, err := side.Tree.Lookup(path)
		there := err == nil && e.Type != workspace.Folder // else it has other files
		if err != nil && cell.KindOf(err) != cell.NotFound {
			return err
		}
		if there && want.Mode == "" && !slices.Contains(out.Applied, path) { // git rm --cached: the file stays, and is tracked no more
			return nil
		}
		if !there || want.Mode == "" {
			if there != (want.Mode != "") {
				return cannot(path, why, hint)
			}
			return nil
		}
		asks[want.ID] = append(asks[want.ID], func(is committed) error {
			if same, err := is.like(side, path, want.Mode, e); err != nil || same {
				return err
			}
			return cannot(path, why, hint)
		})
		return nil
	}
	var source workspace.Side
	for _, c := range b.changes {
		if slices.ContainsFunc(out.Held, func(h api.Held) bool { return glob.Below(h.Path, c.Path) }) {
			return cannot(c.Path, "is held back, and they have it", "look at it; then take it with --include "+c.Path)
		}
		if c.Was.Mode == submodule || c.Now.Mode == submodule {
			return cannot(c.Path, "is a submodule that they move", "take the submodule's commits first, then bring these as a branch: pando fetch "+o.c.Title())
		}
		if err := ask(o.after, c.Path, tip[c.Path], "is not as it is committed there", ""); err != nil {
			return err
		}
		switch side, why, hint := after, "becomes another than they make of it", ""; {
		case slices.ContainsFunc(out.Merged, func(f api.Merged) bool { return f.Path == c.Path || slices.Contains(f.Also, c.Path) }):
			continue // what the user changed is in it, too
		case !slices.Contains(out.Applied, c.Path):
			if source.Tree == nil {
				if source, _, err = m.cfg.SourceNow(ctx, o.c); err != nil {
					return err
				}
			}
			side, why = source, "is changed by them, and not among what is applied"
			if c.Was.Mode == "" && c.Now.Mode != "" && ignored(c.Path, false) {
				return cannot(c.Path, "is committed by them, and git ignores it", "--ignored takes it; or bring them as a branch: pando fetch "+o.c.Title())
			}
			if c.Now.Mode != "" {
				out.Also = append(out.Also, c.Path)
			}
			if out.Ignored > 0 {
				hint = "--ignored applies files that git ignores, too; or bring them as a branch: pando fetch " + o.c.Title()
			}
			fallthrough
		default:
			if err := ask(side, c.Path, c.Now, why, hint); err != nil {
				return err
			}
		}
	}
	return b.repo.Read(ctx, slices.Sorted(maps.Keys(asks)), func(_, id string, _ int64, in io.Reader) error {
		is, err := readCommitted(in)
		for _, ask := range asks[id] {
			if err == nil {
				err = ask(is)
			}
		}
		return err
	})
}

const submodule = "160000" // git's mode of one

// byCommits are those of the files that an apply found changed in the source which commits bring: git there shows no change of the
// user's that is not committed, so that they become what the commits make of them.
func (m *Manager) byCommits(ctx context.Context, o *offer, source workspace.Side, found *apply.ConflictError) (files []merge.File, err error) {
	if o.branch == nil {
		return nil, nil
	}
	changes := map[string]commits.Changed{}
	for _, c := range o.branch.changes {
		changes[c.Path] = c
	}
	for _, p := range found.Paths {
		c, ok := changes[p.Path]
		if !ok || !regular(c.Was) || !regular(c.Now) {
			continue
		}
		e, err := source.Tree.Lookup(c.Path)
		if err != nil || e.Type != workspace.File || (e.Mode&0o100 != 0) != (c.Was.Mode == "100755") {
			continue
		}
		var was, now []byte
		err = o.branch.repo.Read(ctx, []string{c.Was.ID, c.Now.ID}, func(_, _ string, _ int64, in io.Reader) error {
			b, err := bound.ReadAll(in, c.Path, merge.MaxFile)
			was, now = now, b
			return err
		})
		if err != nil {
			return nil, err
		}
		if e.Digest != cell.Sum(was) {
			continue
		}
		mode := uint32(e.Mode &^ 0o111)
		if c.Now.Mode == "100755" {
			mode |= mode & 0o444 >> 2
		}
		files = append(files, merge.File{Path: c.Path, Content: now, Ours: was, Mode: mode})
	}
	return files, nil
}

func regular(o commits.Object) bool { return o.Mode == "100644" || o.Mode == "100755" }

// committed is the content of a file in a commit.
type committed struct {
	digest cell.Digest
	begin  string // of it
}

func readCommitted(in io.Reader) (committed, error) {
	sum := sha256.New()
	var begin bytes.Buffer
	_, err := io.Copy(io.MultiWriter(sum, &begin), io.LimitReader(in, 4<<10))
	if err == nil {
		_, err = io.Copy(sum, in)
	}
	return committed{cell.Digest(sum.Sum(nil)), begin.String()}, err
}

// like reports whether a file is what was committed: to the byte, but for ends of lines (gitattributes(5), "text"), or as
// the content of a pointer of git-lfs.
func (is committed) like(side workspace.Side, path, mode string, e workspace.Entry) (bool, error) {
	if e.Type == workspace.Symlink || mode == "120000" {
		return e.Type == workspace.Symlink && mode == "120000" && e.Target == is.begin, nil
	}
	if e.Type != workspace.File || mode == "100755" && e.Mode&0o100 == 0 {
		return false, nil
	}
	if e.Digest == is.digest {
		return true, nil
	}
	if is.begin == fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid %s\nsize %d\n", e.Digest, e.Size) {
		return true, nil
	}
	f, err := side.Contents.Open(path, e)
	if err != nil {
		return false, err
	}
	defer f.Close()
	sum := sha256.New()
	in := bufio.NewReader(f)
	held := false // a CR, which may be of the end of a line
	for {
		line, err := in.ReadSlice('\n')
		if held && string(line) != "\n" {
			sum.Write([]byte{'\r'})
		}
		held = false
		switch n := len(line); {
		case n > 1 && line[n-2] == '\r' && line[n-1] == '\n':
			line = append(line[:n-2], '\n')
		case n > 0 && line[n-1] == '\r' && errors.Is(err, bufio.ErrBufferFull):
			line, held = line[:n-1], true
		}
		sum.Write(line)
		if errors.Is(err, io.EOF) {
			return cell.Digest(sum.Sum(nil)) == is.digest, nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return false, err
		}
	}
}
