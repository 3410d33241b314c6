package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/pando-dev/pando/api"
)

// headWords names the branch or commit that is checked out.
func headWords(h api.GitHead) string {
	commit := h.Commit[:min(len(h.Commit), 10)]
	switch {
	case h.Branch == "":
		return "the detached HEAD at " + commit
	case commit == "":
		return "branch " + printable(h.Branch) + " without commits"
	}
	return "branch " + printable(h.Branch) + " at " + commit
}

// sayMoved warns that the source is on another branch than the changes, and prints the
// consequence if files may differ there.
func (a *app) sayMoved(m *api.HeadMoved, others string) {
	if m == nil {
		return
	}
	if !m.OtherFiles {
		others = ""
	}
	a.say("the source is on %s now; the changes go with %s%s", headWords(m.Now), headWords(m.Was), others)
}

// namedBranches is the maximum number of branches that are named.
const namedBranches = 5

// detachedHead is the name that commits get when they are fetched which are checked out in the cell and on no branch.
const detachedHead = "detached-head"

// branchLines lists the commits that came onto a source's branch.
func (a *app) branchLines(w io.Writer, b *api.BranchMove, dry bool) {
	if b == nil {
		return
	}
	t := a.newTable(w)
	for _, c := range b.List {
		of := ""
		if c.Of != "" {
			of = "a copy of " + c.Of[:min(len(c.Of), 10)]
		}
		t.row("commit", c.ID[:min(len(c.ID), 10)], printable(c.Subject), of)
	}
	t.flush()
	moves := "is"
	if dry {
		moves = "would be"
	}
	was := "had no commit"
	if b.Was != "" {
		was = "was at " + b.Was[:min(len(b.Was), 10)]
	}
	a.say("branch %s %s at %s with %s; it %s", printable(b.Branch), moves, b.Now[:min(len(b.Now), 10)], plural(b.Commits, "commit"), was)
}

// sayCommits lists the commits made in a cell, and how to fetch them, in lines with a prefix.
func (a *app) sayCommits(before, cell string, c *api.CellCommits) {
	if c == nil {
		return
	}
	if len(c.Branches) > 0 {
		a.sayCommitsIn(before, cell, c.Source, api.SubmoduleCommits{Commits: c.Commits, More: c.More, Branches: c.Branches, Since: c.Since}, c.CheckedOut)
	}
	for _, s := range c.Submodules[:min(len(c.Submodules), namedBranches)] {
		a.sayCommitsIn(before, cell, "", s, false)
	}
	if more := len(c.Submodules) - namedBranches; more > 0 {
		a.say("%sand in %s", before, plural(more, "other submodule"))
	}
}

// sayCommitsIn is sayCommits for one repository: the submodule at c.Path, or the cell's own for
// "", of which one of the branches may be checked out; source is its directory, of several. The bundle is a file from mktemp, since another user could put a symlink at a predictable
// name in a shared directory.
func (a *app) sayCommitsIn(before, cell, source string, c api.SubmoduleCommits, checkedOut bool) {
	names := make([]string, 0, namedBranches)
	words := make([]string, 0, namedBranches)
	for _, b := range c.Branches[:min(len(c.Branches), namedBranches)] {
		names = append(names, printable(b))
		if strings.HasPrefix(b, "-") { // git would take it for an option
			b = "refs/heads/" + b
		}
		words = append(words, shellWord(b))
	}
	branches := "branch"
	if len(c.Branches) > 1 {
		branches = "branches"
	}
	in := branches + " " + strings.Join(names, ", ")
	if more := len(c.Branches) - len(names); more > 0 {
		in += fmt.Sprintf(" and %d more", more)
	}
	many, were, them := plural(c.Commits, "commit"), "were", "them"
	switch {
	case c.More && c.Commits == 0:
		many = "commits"
	case c.More:
		many += " and more"
	case c.Commits == 1:
		were, them = "was", "it"
	}
	refs := strings.Join(words, " ")
	since := ""
	if c.Since != "" {
		since = " --not " + c.Since[:min(len(c.Since), 10)]
	}
	git, where := "git", "in the cell"
	if c.Path != "" {
		git, where = "git -C "+shellWord(c.Path), "in the cell's submodule "+printable(c.Path)
	}
	merge := "git merge "
	if source != "" { // one of several
		where, merge = "in "+printable(source), "git -C "+shellWord(source)+" merge "
	}
	a.say("%s%s %s made %s (%s); accept brings their files, not the commits", before, many, were, where, in)
	if c.Path == "" {
		branch := c.Branches[0]
		if branch == "HEAD" {
			branch = detachedHead
		}
		if checkedOut {
			a.say("%sto take %s, too: pando accept %s --commits", before, them, shellWord(cell))
		}
		a.say("%sto take %s instead of accept --apply: pando fetch %s, then %s", before, them, shellWord(cell), merge+shellWord("pando/"+cell+"/"+branch))
		return
	}
	a.say("%sto take %s instead of accept --apply: f=$(mktemp) && pando exec -n %s -- %s bundle create -q - %s%s >\"$f\" && %s fetch \"$f\" %s && rm \"$f\", then %s merge FETCH_HEAD",
		before, them, shellWord(cell), git, refs, since, git, refs, git)
}
