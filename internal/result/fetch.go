package result

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/commits"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// packing bounds how long git in a cell takes to pack its commits.
const packing = 10 * time.Minute

// maxKnown bounds how many of the source's commits git in a cell is told, as arguments.
const maxKnown = 2000

// Commits takes the commits on the branches of a cell's repository that its source had not at the import. git packs
// them in the cell, and they are checked (package commits). It may be done while a run is under way. The caller closes the
// repository that has them then. Whole is for callers that may not read the source: it has all that the cell has, and nothing else.
func (m *Manager) Commits(ctx context.Context, id cell.ID, whole bool) (repo *commits.Repo, err error) {
	err = m.cfg.Cells.Within(ctx, id, "fetch", func(cell.RunID) error {
		c, err := m.cfg.Cells.Usable(id)
		if err == nil {
			repo, err = m.takeCommits(ctx, &c, c.Parts()[0], whole, false)
		}
		return err
	})
	return repo, err
}

// Fetch takes the commits of a cell as Commits does, and brings its branches into the repository of its source, as refs
// below refs/remotes/pando/CELL/, with a receipt. Nothing runs over that repository, and nothing else of it changes.
func (m *Manager) Fetch(ctx context.Context, id cell.ID) (out api.FetchResult, err error) {
	ctx, over := m.cfg.Act(ctx, "fetch", id)
	defer over(&err)
	err = m.cfg.Cells.Within(ctx, id, "fetch", func(cell.RunID) error {
		c, err := m.cfg.Cells.Usable(id)
		if err != nil {
			return err
		}
		if c.NoSource {
			return cell.Errorf(cell.Conflict, "result.Fetch", "in a repository: git fetch pando::"+c.Title(), "cannot fetch from cell %s into its source: it began with no directory of the daemon's host", c.Title())
		}
		out = api.FetchResult{Cell: string(c.ID), CellName: c.Title(), Source: c.Source, Branches: []api.FetchedBranch{}, Removed: []api.FetchedBranch{}}
		var none error // why there is nothing to fetch, of the last that has nothing
		var done []string
		for _, d := range c.Parts() {
			switch err := m.fetchFrom(ctx, &c, d, &out); {
			case cell.KindOf(err) == cell.NotFound:
				none = err
			case err != nil && len(done) > 0:
				return fmt.Errorf("%w; what came into %s before that stays", err, strings.Join(done, ", "))
			case err != nil:
				return err
			default:
				done = append(done, d.Source)
			}
		}
		if len(done) == 0 {
			return none
		}
		return nil
	})
	return out, err
}

// fetchFrom fetches the commits of one of a cell's repositories. Without any it is a NotFound error.
func (m *Manager) fetchFrom(ctx context.Context, c *state.Cell, d workspace.Directory, out *api.FetchResult) error {
	own, err := gitdir.Own(d.Source)
	if err != nil {
		return fmt.Errorf("cannot fetch from cell %s: %w", c.Title(), err)
	}
	if own == nil {
		return cell.Errorf(cell.NotFound, "result.Fetch", "in a repository: git fetch pando::"+c.Title(), "cannot fetch from cell %s: its source %s is no repository of git", c.Title(), d.Source)
	}
	repo, err := m.takeCommits(ctx, c, d, false, false)
	if err != nil {
		return err
	}
	defer repo.Close()
	args := fetchArgs{Common: own.Common, Prefix: "refs/remotes/pando/" + c.Title() + "/"}
	if err := operation.Do(ctx, m.cfg.Records, operation.NewID(), OpFetch, args, func(ctx context.Context) error {
		return m.bringCommits(context.WithoutCancel(ctx), c, d, repo, args, out)
	}); err != nil {
		return fmt.Errorf("cannot fetch from cell %s: %w", c.Title(), err)
	}
	return nil
}

// bringCommits brings commits into the source's repository, with a receipt.
func (m *Manager) bringCommits(ctx context.Context, c *state.Cell, d workspace.Directory, repo *commits.Repo, args fetchArgs, out *api.FetchResult) error {
	list, removed, err := repo.Into(ctx, args.Common, args.Prefix)
	if err != nil {
		return err
	}
	act := state.ActOn(c, "fetch", cell.Pending, "")
	act.Verdict, act.Source, act.Downgrades = nil, d.Source, c.Setup.Downgrades
	for _, b := range list {
		act.Fetched = append(act.Fetched, state.Fetched{Ref: b.Ref, Commit: b.Commit, Was: b.Was})
		out.Branches = append(out.Branches, api.FetchedBranch{Source: d.Source, Ref: b.Ref, Commit: b.Commit, Was: b.Was, Subject: b.Subject})
	}
	for _, b := range removed {
		act.Fetched = append(act.Fetched, state.Fetched{Ref: b.Ref, Was: b.Was})
		out.Removed = append(out.Removed, api.FetchedBranch{Source: d.Source, Ref: b.Ref, Was: b.Was})
	}
	sealed, err := m.cfg.Evidence.Seal(ctx, "fetch/"+newKey(), act)
	out.Receipt = sealed.String()
	return err
}

// fetchArgs is a fetch that was begun: where branches are written.
type fetchArgs struct {
	Common string `json:"common"` // folder of a repository
	Prefix string `json:"prefix"` // of refs
}

// resumeFetch takes the locks away that the daemon which fetched held. Its client was told of no branch.
func (m *Manager) resumeFetch(_ context.Context, args fetchArgs) error {
	return commits.Unlock(args.Common, args.Prefix)
}

// takeCommits is Commits, of one repository, for a caller with the cell's lock. c is changed, and committed. force takes them although the value
// of a credential is in them.
func (m *Manager) takeCommits(ctx context.Context, c *state.Cell, d workspace.Directory, whole, force bool) (_ *commits.Repo, err error) {
	if c.Backend == "none" {
		return nil, cell.Errorf(cell.Unsupported, "result.Commits", "use its branches: it works with the host's files", "cannot fetch from cell %s: it is not isolated, and git there obeys what it wrote", c.Title())
	}
	borrow, lentSHA256 := "", false
	var known []string
	if !whole && !c.NoSource {
		own, err := gitdir.Own(d.Source)
		if err != nil {
			return nil, err
		}
		if known, err = m.sourceCommits(ctx, c, d); err != nil {
			return nil, err
		}
		if own != nil && len(known) > 0 {
			if borrow, err = lendable(own); err != nil {
				return nil, err
			}
			lentSHA256 = len(known[0]) == 64
		}
	}
	failpoint.Step("take commits")
	repo, err := commits.Open(m.cfg.Path, m.cfg.Private(c.ID))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			repo.Close()
		}
	}()
	if borrow == "" { // all is packed
		known = nil
	} else {
		if err := repo.Init(ctx, borrow, lentSHA256); err != nil {
			return nil, err
		}
		if known, err = repo.Has(ctx, known); err != nil { // what the source has given up is packed
			return nil, err
		}
	}
	bundle, err := repo.Create("bundle")
	if err != nil {
		return nil, err
	}
	defer bundle.Close()
	said, err := repo.Create("said")
	if err != nil {
		return nil, err
	}
	defer said.Close()
	pack := func(inst backend.Instance) error { return packCommits(ctx, inst, c, d, known, bundle, said) }
	inst, err := m.cfg.Cells.Living(ctx, c)
	switch {
	case err != nil:
	case inst != nil:
		err = pack(inst)
	default:
		err = errors.Join(m.cfg.Cells.Alone(ctx, c, pack), m.cfg.Records.Commit(c)) // it is at rest again
	}
	if err != nil {
		return nil, err
	}
	if _, err := bundle.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	in := bufio.NewReader(bundle)
	refs, err := commits.Header(in)
	if err != nil {
		return nil, err
	}
	sha256 := slices.ContainsFunc(slices.Collect(maps.Values(refs)), func(tip string) bool { return len(tip) == 64 })
	if borrow != "" && sha256 != lentSHA256 {
		return nil, cell.Errorf(cell.Unsupported, "result.Commits", "its files are taken without commits: pando accept", "cannot fetch from cell %s: its object ids are of another kind than its source's", c.Title())
	}
	if borrow == "" {
		if err := repo.Init(ctx, "", sha256); err != nil {
			return nil, err
		}
	}
	if err := repo.Take(ctx, refs, known, in); err != nil || force {
		return repo, err
	}
	refuse := m.cfg.Decides.SecretsIn(ctx, c)
	if refuse == nil {
		return repo, nil
	}
	return repo, repo.Objects(ctx, func(kind, id string, in io.Reader) error { return refuse(kind+" "+id, in) })
}

// lendable is the folder of a repository's objects, "" if something in it leads out of it.
func lendable(own *gitdir.Linked) (string, error) {
	objects := filepath.Join(own.Common, "objects")
	if ok, err := commits.Lendable(objects); err != nil || !ok {
		return "", err
	}
	return objects, nil
}

// sourceCommits are the commits that the branches and tags of one of a cell's repositories led to when it was imported.
func (m *Manager) sourceCommits(ctx context.Context, c *state.Cell, d workspace.Directory) ([]string, error) {
	first, err := m.firstOf(c)
	if err != nil {
		return nil, err
	}
	base, err := m.cfg.Side(ctx, &first)
	if err != nil {
		return nil, err
	}
	if base, err = base.Part(d.At); err != nil {
		return nil, err
	}
	old := newGitFiles(base, gitFolder)
	refs, err := old.refs("refs")
	if err != nil {
		return nil, err
	}
	head, err := old.head()
	if err != nil {
		return nil, err
	}
	ids := map[string]bool{}
	for _, id := range refs {
		ids[id] = true
	}
	if head.Commit != "" {
		ids[head.Commit] = true
	}
	list := slices.Sorted(maps.Keys(ids))
	if len(list) > maxKnown { // more is packed than need be
		list = append(list[:maxKnown-1:maxKnown-1], head.Commit)
	}
	return slices.DeleteFunc(list, func(id string) bool { return id == "" }), nil
}

// packCommits has git in a cell write a bundle of its commits but those known.
func packCommits(ctx context.Context, inst backend.Instance, c *state.Cell, d workspace.Directory, known []string, to, said *os.File) error {
	args := []string{"git", "-c", "safe.directory=*", "-c", "pack.threads=1", "-c", "pack.useBitmaps=false", "-c", "pack.useSparse=false", "bundle", "create", "-q", "-", "--ignore-missing", "--branches", "HEAD"}
	for _, id := range known {
		args = append(args, "^"+id)
	}
	name := "commits-" + newKey()
	proc, err := inst.Start(ctx, name, cell.Start{
		Process: cell.Process{Args: args, Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/nonexistent", "LC_ALL=C"}, Path: []string{"/usr/bin/git", "/usr/local/bin/git", "/bin/git"}, Workdir: d.Source},
		Timeout: packing, LogLimit: commits.MaxPack,
	}, [3]*os.File{to, said, nil})
	if cell.KindOf(err) == cell.NoSuchBinary {
		return cell.Errorf(cell.Unsupported, "result.Commits", "install git in the cell; its files are taken without: pando accept", "cannot fetch from cell %s: there is no git in it, which would pack its commits", c.Title())
	}
	if err != nil {
		return err
	}
	st, err := proc.Wait(ctx)
	if err != nil {
		ctx := context.WithoutCancel(ctx)
		return errors.Join(err, proc.End(ctx, cell.CauseInterrupted, 0), proc.Forget(ctx))
	}
	if err := proc.Forget(ctx); err != nil {
		return err
	}
	if size, err := to.Seek(0, io.SeekEnd); err != nil || size >= commits.MaxPack {
		return errors.Join(err, cell.Errorf(cell.Invalid, "result.Commits", "", "cannot fetch from cell %s: its commits are larger than %d bytes", c.Title(), commits.MaxPack))
	}
	if st.Exit != nil && st.Exit.Code == 0 {
		return nil
	}
	text, err := io.ReadAll(io.NewSectionReader(said, 0, 16<<10))
	if err != nil {
		return err
	}
	why := strings.TrimSpace(strings.ToValidUTF8(string(text), "\ufffd"))
	switch {
	case strings.Contains(why, "not a git repository"):
		return cell.Errorf(cell.NotFound, "result.Commits", "", "cannot fetch from cell %s: its workspace is no repository of git", c.Title())
	case strings.Contains(why, "empty bundle"):
		return cell.Errorf(cell.NotFound, "result.Commits", "its files are taken without commits: pando accept", "cannot fetch from cell %s: no commit was made in it", c.Title())
	case st.Exit == nil:
		why = "its end is not known"
	case st.Exit.Cause == cell.CauseTimeout:
		return cell.Errorf(cell.Timeout, "result.Commits", "its files are taken without commits: pando accept", "cannot fetch from cell %s: git there did not pack its commits within %s", c.Title(), packing)
	case st.Exit.Cause != "":
		why = st.Exit.Cause
	}
	return fmt.Errorf("cannot fetch from cell %s: git there failed: %s", c.Title(), cell.Clip(why))
}
