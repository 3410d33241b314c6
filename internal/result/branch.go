package result

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/commits"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/state"
)

// An accept with commits moves the branch that the source has checked out, and its index, together with the
// files: both are locked before a file is written, as git locks them, and moved when all are there. No git runs
// over the source: what the branch and the index become is made in a repository of pando's own (package commits).

// branch is what an accept makes of the source's branch, or a revert.
type branch struct {
	branchArgs
	repo    *commits.Repo     // with what it moves to; nil: it moved before
	list    []commits.Branch  // its new commits, oldest first
	changes []commits.Changed // paths at which it changes
	resumed bool              // an earlier daemon began it
}

// branchArgs is what of it is written down before it is begun.
type branchArgs struct {
	Move    commits.Move `json:"move"`
	Tip     string       `json:"tip,omitempty"` // what is checked out in the cell
	Commits int          `json:"commits"`
	Signed  string       `json:"signed,omitempty"` // the fingerprint of the key that signed them
	Moved   bool         `json:"moved,omitempty"`  // by an earlier try that could not write its receipt
}

func (b *branch) close() {
	if b != nil && b.repo != nil {
		b.repo.Close()
	}
}

// state is what records have of it; nil of none.
func (b *branch) state() *state.BranchMove {
	if b == nil {
		return nil
	}
	return &state.BranchMove{Branch: b.Move.Branch, Was: b.Move.Was, Now: b.Move.Now, Tip: b.Tip, Commits: b.Commits, Signed: b.Signed}
}

// maxListed bounds how many commits an answer names.
const maxListed = 100

// api is what an answer has of it; nil of none.
func (b *branch) api() *api.BranchMove {
	if b == nil {
		return nil
	}
	out := &api.BranchMove{Branch: b.Move.Branch, Was: b.Move.Was, Now: b.Move.Now, Tip: b.Tip, Commits: b.Commits, Signed: b.Signed, List: []api.Commit{}}
	for _, c := range b.list[:min(len(b.list), maxListed)] {
		out.List = append(out.List, api.Commit{ID: c.Commit, Of: c.Was, Subject: c.Subject})
	}
	return out
}

// planBranch is what the source's branch becomes by the commits of a cell, of which there is an offer. The caller holds the
// cell's lock, and closes the branch. The cell is changed and committed. What is wanted of its tip is a beginning, or "".
func (m *Manager) planBranch(ctx context.Context, o *offer, tip string, req *api.AcceptRequest) (_ *branch, err error) {
	c := o.c
	cannot := func(kind cell.Kind, hint, format string, args ...any) error {
		return cell.Errorf(kind, "result.Accept", hint, "cannot take the commits of cell %s: %s", c.Title(), fmt.Sprintf(format, args...))
	}
	if o.run != nil {
		return nil, cannot(cell.Invalid, "take all that is in it: pando accept "+c.Title()+" --commits", "they come with what the cell is now, and not with one run")
	}
	if len(c.Repositories) > 0 {
		return nil, cannot(cell.Unsupported, "take the files: pando accept "+c.Title()+" --apply; the commits come as branches: pando fetch "+c.Title(), "it has several repositories")
	}
	own, err := gitdir.Own(c.Source)
	if err != nil {
		return nil, cannot(cell.Unsupported, "", "%v", err)
	}
	if own == nil {
		return nil, cannot(cell.NotFound, "its files are taken without: pando accept --apply", "its source %s is no repository of git", c.Source)
	}
	there, err := own.Head()
	if err != nil {
		return nil, err
	}
	if there.Branch == "" || strings.HasPrefix(there.Branch, "refs/") {
		return nil, cannot(cell.Conflict, "check a branch out: git switch -c NAME", "%s has no branch checked out that they could come onto", c.Source)
	}
	b := &branch{branchArgs: branchArgs{Move: commits.Move{Branch: there.Branch, Was: there.Commit, Why: "pando accept " + c.Title(), Committer: m.committer(own, c.Source)}}}
	if b.Move.Dir, err = commits.FolderAt(own.Dir); err != nil {
		return nil, err
	}
	if b.Move.Common, err = commits.FolderAt(own.Common); err != nil {
		return nil, err
	}
	if err := m.settleBranch(ctx, c); err != nil {
		return nil, err
	}
	first, err := m.firstOf(c)
	if err != nil {
		return nil, err
	}
	begin, err := m.cfg.Side(ctx, &first)
	if err != nil {
		return nil, err
	}
	was, err := newGitFiles(begin, gitFolder).head()
	if err != nil {
		return nil, err
	}
	now, err := newGitFiles(o.after, gitFolder).head()
	if err != nil {
		return nil, err
	}
	switch b.Tip = now.Commit; {
	case b.Tip == "" || b.Tip == was.Commit:
		return nil, cannot(cell.NotFound, "its files are taken without: pando accept --apply", "none was made in it that is checked out there")
	case !strings.HasPrefix(b.Tip, tip):
		return nil, cannot(cell.Conflict, "look at them again: pando accept "+c.Title()+" --commits --dry-run", "they are others than those that were looked at: they end with %s", shortID(b.Tip))
	case was.Commit == "" && there.Commit != "":
		return nil, cannot(cell.Conflict, "bring them there as a branch: pando fetch "+c.Title(), "they begin a history of their own, and branch %s has one by now", there.Branch)
	}
	if b.repo, err = m.takeCommits(ctx, c, c.Parts()[0], false, req.Force); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if there.Commit != "" {
		if has, err := b.repo.Has(ctx, []string{there.Commit}); err != nil {
			return nil, err
		} else if len(has) == 0 {
			return nil, cannot(cell.Unsupported, "bring them there as a branch: pando fetch "+c.Title(), "objects of %s are outside of its own folder of objects", c.Source)
		}
	}
	var came []commits.Came
	for _, t := range c.Taken {
		came = append(came, commits.Came{Tip: t.Tip, Now: t.Now})
	}
	base, err := b.repo.Latest(ctx, came, was.Commit, b.Tip, there.Commit)
	if err != nil {
		return nil, err
	}
	var sign commits.Signer
	if req.Sign != "" {
		of, key, done, err := m.cfg.Decides.GitSigner(ctx, req.Sign, req.SSHAgent)
		if err != nil {
			return nil, err
		}
		defer done()
		if !req.DryRun { // a key may ask a person each time: that it is there is all that is asked for
			sign, b.Signed = of, key
		}
	}
	if b.Move.Now, b.list, err = b.repo.Onto(ctx, b.Tip, base, there.Commit, b.Move.Committer, sign); err != nil {
		return nil, err
	}
	if b.Commits = len(b.list); b.Move.Now == there.Commit {
		return nil, cannot(cell.Conflict, "its files are taken without: pando accept --apply", "branch %s has all that they change", there.Branch)
	}
	if b.changes, err = b.repo.Changes(ctx, there.Commit, b.Move.Now); err != nil {
		return nil, err
	}
	return b, b.repo.Try(ctx, b.Move)
}

// committer is what git writes of the source's owner into commits.
func (m *Manager) committer(own *gitdir.Linked, source string) (p commits.Ident) {
	homes := m.homesOf(source)
	if st, err := os.Stat(source); err == nil {
		if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Geteuid() {
			slices.Reverse(homes)
		}
	}
	for _, home := range homes {
		if p.Name, p.Email = own.Committer(home); p.Name != "" && p.Email != "" {
			break
		}
	}
	return p
}

// branched notes in the cell that the source's branch moved with what was applied, of which done is nil when there were no
// files to write. The cell is changed, not committed.
func (m *Manager) branched(ctx context.Context, o *offer, args acceptArgs, done *state.Applied) (*state.Applied, error) {
	if done == nil {
		known, err := m.known(ctx, o.c)
		if err != nil {
			return nil, err
		}
		tree, err := m.cfg.PutTree(known)
		if err != nil {
			return nil, err
		}
		done = &state.Applied{ID: args.ID, At: time.Now().UTC(), Checkpoint: o.at.ID, Before: tree, After: tree}
	}
	done.Branch, o.c.KnownHeads = o.branch.state(), HeadsOf(o.c)
	o.c.Taken = append(slices.Clone(o.c.Taken), *done.Branch)
	return done, nil
}

// mark is the file that says which of git's locks are ours.
func (m *Manager) mark(id cell.ID) string {
	return filepath.Join(m.cfg.Private(id), "branch-locks")
}

// hold locks the branch of a source before its files are written. It is nil when no branch moves, or moved before. An act that
// an earlier daemon began goes on without its branch, which is then nil, where that is another's by now.
func (m *Manager) hold(ctx context.Context, c *state.Cell, b **branch) (*commits.Held, error) {
	if *b == nil || (*b).repo == nil {
		return nil, nil
	}
	h, err := (*b).repo.Hold(ctx, (*b).Move, m.mark(c.ID))
	if err != nil && (*b).resumed {
		m.cfg.Log.Error("cannot go on with the commits of an act that was interrupted: its files are without", "cell", c.ID, "source", c.Source, "error", err)
		(*b).close()
		*b = nil
		return nil, nil
	}
	return h, err
}

// resumeBranch goes on with a branch that an earlier daemon moved, or was to move: its objects are in the source.
func (m *Manager) resumeBranch(ctx context.Context, c *state.Cell, args *branchArgs) (*branch, error) {
	if args == nil {
		return nil, nil
	}
	repo, err := m.borrowed(ctx, c, args.Move.Now)
	if err != nil { // what is held can be given up without
		return nil, errors.Join(err, commits.Finish(ctx, nil, m.mark(c.ID), args.Move))
	}
	b := &branch{branchArgs: *args, repo: repo, resumed: true}
	moved := args.Moved
	if !moved {
		if moved, err = repo.Moved(ctx, b.Move); err != nil {
			b.close()
			return nil, errors.Join(err, commits.Finish(ctx, nil, m.mark(c.ID), args.Move))
		}
	}
	if !moved {
		repo = nil // nothing of it is to be done
	}
	if err := commits.Finish(ctx, repo, m.mark(c.ID), args.Move); err != nil {
		m.cfg.Log.Warn("cannot go on with what was held of a branch", "cell", c.ID, "source", c.Source, "error", err)
	}
	if moved {
		b.close()
		b.repo = nil
	}
	return b, nil
}

// settleBranch goes on with what an earlier act has left locked of a source's repository, if there is anything.
func (m *Manager) settleBranch(ctx context.Context, c *state.Cell) error {
	move, err := commits.Left(m.mark(c.ID))
	if move == nil || err != nil {
		return err
	}
	b, err := m.resumeBranch(ctx, c, &branchArgs{Move: *move})
	b.close()
	if left, lerr := commits.Left(m.mark(c.ID)); left == nil && lerr == nil { // it is given up
		return nil
	}
	return err
}

// borrowed is a repository of ours with the objects of a cell's source, with ids of the kind of one.
func (m *Manager) borrowed(ctx context.Context, c *state.Cell, id string) (*commits.Repo, error) {
	own, err := gitdir.Own(c.Source)
	if err != nil {
		return nil, err
	}
	if own == nil {
		return nil, cell.Errorf(cell.NotFound, "result.branch", "", "%s is no repository of git any more", c.Source)
	}
	objects, err := lendable(own)
	if err != nil {
		return nil, err
	}
	if objects == "" {
		return nil, cell.Errorf(cell.Unsupported, "result.branch", "", "objects of %s are outside of its own folder of objects", c.Source)
	}
	repo, err := commits.Open(m.cfg.Path, m.cfg.Private(c.ID))
	if err != nil {
		return nil, err
	}
	if err := repo.Init(ctx, objects, len(id) == 64); err != nil {
		return nil, errors.Join(err, repo.Close())
	}
	return repo, nil
}

// backBranch is what the source's branch becomes when some accepts are taken back, oldest first; nil when it is there
// already, or when none of them moved it.
func (m *Manager) backBranch(ctx context.Context, c *state.Cell, list []state.Applied) (*branch, error) {
	if err := m.settleBranch(ctx, c); err != nil {
		return nil, err
	}
	var b *branch
	for _, a := range list {
		switch moved := a.Branch; {
		case moved == nil:
		case b == nil:
			b = &branch{branchArgs: branchArgs{Commits: moved.Commits, Move: commits.Move{Branch: moved.Branch, Was: moved.Now, Now: moved.Was, Why: "pando revert " + c.Title()}}}
		case moved.Was != b.Move.Was:
			return nil, m.moved(c, moved.Branch)
		default:
			b.Move.Was, b.Commits = moved.Now, b.Commits+moved.Commits
		}
	}
	if b == nil {
		return nil, nil
	}
	own, err := gitdir.Own(c.Source)
	if err != nil || own == nil {
		return nil, err
	}
	there, err := own.Head()
	if err != nil {
		return nil, err
	}
	if there.Branch == b.Move.Branch && there.Commit == b.Move.Now { // git took them back
		return nil, nil
	}
	if there.Branch != b.Move.Branch || there.Commit != b.Move.Was {
		return nil, m.moved(c, b.Move.Branch)
	}
	if b.Move.Now == "" {
		return nil, cell.Errorf(cell.Conflict, "result.Revert", "git -C "+c.Source+" update-ref -d HEAD takes the commits back; then revert", "cannot take it back from %s: branch %s had no commit before", c.Source, b.Move.Branch)
	}
	if b.Move.Dir, err = commits.FolderAt(own.Dir); err != nil {
		return nil, err
	}
	if b.Move.Common, err = commits.FolderAt(own.Common); err != nil {
		return nil, err
	}
	b.Move.Committer = m.committer(own, c.Source)
	if b.repo, err = m.borrowed(ctx, c, b.Move.Now); err != nil {
		return nil, err
	}
	if err := b.repo.Try(ctx, b.Move); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

// moved says that a branch is not where an accept has brought it.
func (m *Manager) moved(c *state.Cell, name string) error {
	return cell.Errorf(cell.Conflict, "result.Revert", "git revert takes commits back which others follow; or bring the branch back yourself and revert then",
		"cannot take it back from %s: the commits came onto branch %s, which is not checked out any more, or has moved", c.Source, name)
}
