package result

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// maxCommits bounds how many commits are counted.
const maxCommits = 10000

// commitsIn is commitsMade for the first of a cell's repositories in which there are any.
func commitsIn(c *state.Cell, base, after workspace.Side) (*state.CellCommits, error) {
	for _, d := range c.Parts() {
		b, err := base.Part(d.At)
		a, aerr := after.Part(d.At)
		if err = cmp.Or(err, aerr); cell.KindOf(err) == cell.NotFound {
			continue // all of it is removed
		}
		if err != nil {
			return nil, err
		}
		made, err := commitsMade(b, a)
		if made != nil && d.At != "" {
			made.Source, made.CheckedOut = d.Source, false // accept takes none of them
		}
		if made != nil || err != nil {
			return made, err
		}
	}
	return nil, nil
}

// commitsMade finds the commits that are on branches of the workspace's repository in after
// and were not in base, and those in submodules that base has. It reads git's files, and
// executes nothing. Its cost is that of the commits; where no branch moved, that of three
// lookups for each repository. It is nil when there are none.
func commitsMade(base, after workspace.Side) (*state.CellCommits, error) {
	old := newGitFiles(base, gitFolder)
	out, err := commitsSince(old, newGitFiles(after, gitFolder))
	if err != nil {
		return nil, err
	}
	modules, err := old.submodules()
	if err != nil {
		return nil, err
	}
	for _, dir := range modules {
		was := newGitFiles(base, dir)
		made, err := commitsSince(was, newGitFiles(after, dir))
		if err != nil {
			return nil, err
		}
		if made == nil {
			continue
		}
		if out == nil {
			out = &state.CellCommits{Branches: []string{}}
		}
		out.Submodules = append(out.Submodules, state.SubmoduleCommits{Path: was.workTree(), Commits: made.Commits, More: made.More, Branches: made.Branches, Since: made.Since})
	}
	return out, nil
}

// commitsSince finds the commits that are on branches of now and were not in old.
func commitsSince(old, now *gitFiles) (*state.CellCommits, error) {
	if same, err := now.sameRefs(old); same || err != nil {
		return nil, err
	}
	was, err := old.refs("refs")
	if err != nil {
		return nil, err
	}
	heads, err := now.refs("refs/heads")
	if err != nil {
		return nil, err
	}
	before, err := old.head()
	if err != nil {
		return nil, err
	}
	head, err := now.head()
	if err != nil {
		return nil, err
	}
	if head.Branch == "" && head.Commit != "" && head.Commit != before.Commit {
		heads["HEAD"] = head.Commit
	}
	packed, err := now.newPacks(old)
	if err != nil {
		return nil, err
	}
	w := commitWalk{old: old, now: now, packed: packed, known: map[string]bool{before.Commit: true}, seen: map[string]bool{}}
	for _, id := range was {
		w.known[id] = true
	}
	out := &state.CellCommits{Branches: []string{}, Since: before.Commit}
	for _, ref := range slices.Sorted(maps.Keys(heads)) {
		tip := heads[ref]
		if was[ref] == tip || w.has(tip) {
			continue
		}
		out.Branches = append(out.Branches, strings.TrimPrefix(ref, "refs/heads/"))
		w.from(tip)
	}
	if len(out.Branches) == 0 {
		return nil, nil
	}
	out.Commits, out.More = w.count, w.more
	out.CheckedOut = slices.Contains(out.Branches, cmp.Or(head.Branch, "HEAD"))
	if there, err := now.mayHave(before.Commit); err != nil {
		return nil, err
	} else if !there { // another repository is in its place: git there knows no such commit
		out.Since = ""
	}
	return out, nil
}

// commitWalk counts commits that a repository did not have before.
type commitWalk struct {
	old, now *gitFiles
	packed   bool            // there are packs that were not there before
	known    map[string]bool // commits that refs named before
	seen     map[string]bool
	count    int
	more     bool
}

// has reports whether a commit was there before. One that is in none of the files of single
// objects is in a pack: when no pack is new, in one that was there before.
func (w *commitWalk) has(id string) bool {
	return w.known[id] || w.old.there(gitdir.LooseObject(id)) || !w.packed && !w.now.there(gitdir.LooseObject(id))
}

// from counts a commit and its ancestors, as far as they are new.
func (w *commitWalk) from(tip string) {
	todo := []string{tip}
	for len(todo) > 0 {
		id := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if w.seen[id] || w.has(id) {
			continue
		}
		if w.count == maxCommits || len(todo) > maxCommits {
			w.more = true
			return
		}
		w.seen[id] = true
		parents, err := w.now.parents(id)
		if err != nil { // it is in a new pack, or the cell wrote something else there
			w.more = true
			continue
		}
		w.count++
		todo = append(todo, parents...)
	}
}

// gitFolder is where the repository of a workspace has its files.
const gitFolder = ".git"

// gitFiles reads the files of a repository in a workspace, which are in the folder dir.
type gitFiles struct {
	workspace.Side
	dir  string
	find *workspace.Finder
}

func newGitFiles(s workspace.Side, dir string) *gitFiles { return &gitFiles{s, dir, s.Tree.Finder()} }

func (g *gitFiles) there(name string) bool {
	_, err := g.find.Lookup(g.dir + "/" + name)
	return err == nil
}

// read implements gitdir.ReadFile.
func (g *gitFiles) read(name string) ([]byte, error) {
	path := g.dir + "/" + name
	e, err := g.find.Lookup(path)
	if cell.KindOf(err) == cell.NotFound || err == nil && e.Type == workspace.Folder {
		return nil, fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	if e.Type != workspace.File {
		return nil, cell.Errorf(cell.Invalid, "result.commits", "", "%s is not a regular file", path)
	}
	if e.Size > gitdir.MaxRefs {
		return nil, bound.Exceed(path, gitdir.MaxRefs, "bytes")
	}
	f, err := g.Contents.Open(path, e)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return bound.ReadAll(f, path, gitdir.MaxRefs)
}

// head is what is checked out; zero without a repository.
func (g *gitFiles) head() (gitdir.Head, error) {
	h, err := gitdir.ReadHead(g.read)
	if errors.Is(err, fs.ErrNotExist) {
		return gitdir.Head{}, nil
	}
	return h, err
}

// sameRefs reports whether two states have the same HEAD and the same branches.
func (g *gitFiles) sameRefs(o *gitFiles) (bool, error) {
	for _, name := range []string{"HEAD", "packed-refs", "refs/heads"} {
		a, errA := g.find.Lookup(g.dir + "/" + name)
		b, errB := o.find.Lookup(o.dir + "/" + name)
		for _, err := range []error{errA, errB} {
			if err != nil && cell.KindOf(err) != cell.NotFound {
				return false, err
			}
		}
		if a.Type != b.Type || a.Digest != b.Digest || a.Target != b.Target {
			return false, nil
		}
	}
	return true, nil
}

// refs are the refs below a folder of refs, with their objects. Symbolic ones are left out.
func (g *gitFiles) refs(below string) (map[string]string, error) {
	out := map[string]string{}
	packed, err := gitdir.ReadPacked(g.read)
	if err != nil {
		return nil, err
	}
	for name, id := range packed {
		if strings.HasPrefix(name, below+"/") {
			out[name] = id
		}
	}
	looked := 0
	err = g.Tree.Walk(g.dir+"/"+below, func(path string, e workspace.Entry) error {
		if e.Type != workspace.File || e.Size > maxRef {
			return nil
		}
		name := strings.TrimPrefix(path, g.dir+"/")
		b, err := g.read(name)
		if id := gitdir.ParseRef(name, b); id != "" {
			out[name] = id
		}
		if looked++; looked > maxLoose {
			return bound.Exceed(g.dir+"/"+below, maxLoose, "loose refs")
		}
		return err
	})
	if cell.KindOf(err) == cell.NotFound {
		err = nil
	}
	return out, err
}

const (
	maxRef   = 1 << 10 // bytes in the file of one ref
	maxLoose = 100_000 // loose refs
)

// newPacks reports whether there are packs of objects that o has not.
func (g *gitFiles) newPacks(o *gitFiles) (bool, error) {
	found := false
	err := g.Tree.Walk(g.dir+"/objects/pack", func(path string, e workspace.Entry) error {
		if strings.HasSuffix(path, ".pack") && !o.there(strings.TrimPrefix(path, g.dir+"/")) {
			found = true
		}
		return nil
	})
	if cell.KindOf(err) == cell.NotFound {
		err = nil
	}
	return found, err
}

// mayHave reports whether an object is there, as far as can be seen without reading packs.
func (g *gitFiles) mayHave(id string) (bool, error) {
	if id == "" || g.there(gitdir.LooseObject(id)) {
		return true, nil
	}
	found := false
	err := g.Tree.Walk(g.dir+"/objects/pack", func(path string, e workspace.Entry) error {
		found = found || strings.HasSuffix(path, ".pack")
		return nil
	})
	if cell.KindOf(err) == cell.NotFound {
		err = nil
	}
	return found, err
}

// parents are those of a loose commit.
func (g *gitFiles) parents(id string) ([]string, error) {
	path := g.dir + "/" + gitdir.LooseObject(id)
	e, err := g.find.Lookup(path)
	if err != nil {
		return nil, err
	}
	if e.Type != workspace.File {
		return nil, cell.Errorf(cell.Invalid, "result.commits", "", "%s is not a regular file", path)
	}
	f, err := g.Contents.Open(path, e)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return gitdir.Parents(f)
}
