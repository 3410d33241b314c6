package engine

import (
	"os"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// What was made on one branch is not applied to another one, with other files, without
// being told to; and commits of the user's on the same branch hinder nothing.
func TestAcceptToAnotherBranch(t *testing.T) {
	t.Parallel()
	commit := func(b *bed, name string) {
		b.write(name, name)
		workspacetest.Git(b.TB, b.src, "add", ".")
		workspacetest.Git(b.TB, b.src, "commit", "-q", "-m", name)
	}
	for _, c := range []struct {
		name   string
		since  func(b *bed)
		moved  bool   // diff says so
		refuse string // by accept, with these words
	}{
		{"nothing", func(b *bed) {}, false, ""},
		{"a commit of the user's", func(b *bed) { commit(b, "mine") }, false, ""},
		{"a reset of the branch", func(b *bed) { commit(b, "mine"); workspacetest.Git(b.TB, b.src, "reset", "-q", "--hard", "HEAD~1") }, false, ""},
		{"a new branch at the same commit", func(b *bed) { workspacetest.Git(b.TB, b.src, "switch", "-q", "-c", "fix") }, true, ""},
		{"detached at the same commit", func(b *bed) { workspacetest.Git(b.TB, b.src, "switch", "-q", "--detach") }, true, ""},
		{"another branch", func(b *bed) { workspacetest.Git(b.TB, b.src, "switch", "-q", "-c", "other"); commit(b, "mine") }, true, "branch other at "},
		{"another commit", func(b *bed) { commit(b, "mine"); workspacetest.Git(b.TB, b.src, "switch", "-q", "--detach") }, true, "the detached HEAD at "},
		{"a branch without commits", func(b *bed) { workspacetest.Git(b.TB, b.src, "switch", "-q", "--orphan", "new"); b.write("f", "0") }, true, "branch new without commits"},
		{"no repository any more", func(b *bed) { b.must(os.RemoveAll(b.src + "/.git")) }, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, "f: 0")
			workspacetest.Git(b.TB, b.src, "init", "-q", "-b", "main")
			workspacetest.Git(b.TB, b.src, "add", ".")
			workspacetest.Git(b.TB, b.src, "commit", "-q", "-m", "first")
			b.run("w", "echo 1 > f")
			c.since(b)
			d, err := b.results.Diff(b.ctx, result.DiffRequest{Target: b.cellTarget("w")})
			b.must(err)
			if (d.Head != nil) != c.moved || d.Head != nil && (d.Head.Was.Branch != "main" || d.Head.OtherFiles != (c.refuse != "")) {
				t.Errorf("diff: %+v", d.Head)
			}
			b.must(second(b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{DryRun: true})))
			for _, dry := range []bool{true, false} {
				if c.refuse == "" {
					break
				}
				_, err := b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true, DryRun: dry})
				b.wantKind("accept", err, cell.Conflict, "the changes go with branch main at ", c.refuse)
				if hint := cell.HintOf(err); !strings.Contains(hint, "git switch main") || !strings.Contains(hint, "--other-branch") {
					t.Errorf("hint: %s", hint)
				}
				if got := strings.TrimSpace(b.source("f")); got != "0" {
					t.Fatalf("it was refused, and the source has %q", got)
				}
			}
			res, err := b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true, OtherBranch: c.refuse != ""})
			b.must(err)
			if (res.Head != nil) != c.moved || b.source("f") != "1\n" {
				t.Errorf("accept: %+v; the source has %q", res.Head, b.source("f"))
			}
			if p := b.predicate(res.Receipt); (p.Head != nil) != c.moved {
				t.Errorf("the receipt has %+v", p.Head)
			}
			b.verified()

			// From here on the changes go with where they were applied.
			b.run("w", "echo 2 > f")
			if d, err = b.results.Diff(b.ctx, result.DiffRequest{Target: b.cellTarget("w")}); err != nil || d.Head != nil {
				t.Errorf("then: %+v, %v", d.Head, err)
			}
			b.must(second(b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true})))
		})
	}
}

// A fork's changes go with the branch that its parent's source had.
func TestAcceptOfAForkToAnotherBranch(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	workspacetest.Git(b.TB, b.src, "init", "-q", "-b", "main")
	workspacetest.Git(b.TB, b.src, "add", ".")
	workspacetest.Git(b.TB, b.src, "commit", "-q", "-m", "first")
	b.run("w", "echo 1 > f")
	b.must(second(b.Fork(b.ctx, b.id("w"), api.ForkRequest{Name: "v", Count: 1})))
	workspacetest.Git(b.TB, b.src, "switch", "-q", "-c", "other")
	workspacetest.Git(b.TB, b.src, "commit", "-q", "--allow-empty", "-m", "mine")
	b.reopen()
	_, err := b.results.Accept(b.ctx, b.cellTarget("v"), api.AcceptRequest{Apply: true})
	b.wantKind("accept of a fork", err, cell.Conflict, "branch main at ", "branch other at ")
}

// A commit on a detached HEAD is like one on a branch: it is said, and refuses nothing.
func TestAcceptOnADetachedHead(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	workspacetest.Git(b.TB, b.src, "init", "-q", "-b", "main")
	workspacetest.Git(b.TB, b.src, "add", ".")
	workspacetest.Git(b.TB, b.src, "commit", "-q", "-m", "first")
	workspacetest.Git(b.TB, b.src, "switch", "-q", "--detach")
	b.run("w", "echo 1 > f")
	workspacetest.Git(b.TB, b.src, "commit", "-q", "--allow-empty", "-m", "mine")
	res, err := b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true})
	if err != nil || res.Head == nil || res.Head.OtherFiles || b.source("f") != "1\n" {
		t.Errorf("%+v, %v; the source has %q", res.Head, err, b.source("f"))
	}
}
