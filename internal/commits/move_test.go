package commits

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/workspace/workspacetest"
)

var user = Ident{"The User", "user@example.com"}

// sides are a source with a commit, and a cell's copy of it.
type sides struct {
	t            *testing.T
	source, work string
	base         string // the commit that both have
}

func newSides(t *testing.T) *sides {
	s := &sides{t: t, source: t.TempDir(), work: filepath.Join(t.TempDir(), "work")}
	s.git(s.source, "init", "-q", "-b", "main")
	s.commit(s.source, "one", "f", "1\n2\n3\n4\n5\n6\n7\n8\n9\n", "g", "g\n")
	s.base = s.git(s.source, "rev-parse", "HEAD")
	s.git(s.source, "clone", "-q", s.source, s.work)
	return s
}

func (s *sides) git(dir string, args ...string) string {
	return workspacetest.Git(s.t, dir, args...)
}

// commit writes files, by name and content, and commits them.
func (s *sides) commit(dir, message string, files ...string) {
	for i := 0; i < len(files); i += 2 {
		must(s.t, os.WriteFile(filepath.Join(dir, files[i]), []byte(files[i+1]), 0o600))
		s.git(dir, "add", files[i])
	}
	s.git(dir, "commit", "-q", "-m", message, "--author", "An Agent <agent@example.com>")
}

// taken is a repository with the cell's commits, and the tip of what it has checked out.
func (s *sides) taken() (*Repo, string) {
	r := open(s.t, filepath.Join(s.source, ".git/objects"))
	take(s.t, r, bundle(s.t, s.work, s.base), s.base)
	return r, s.git(s.work, "rev-parse", "HEAD")
}

// moves is a move of the source's branch to the cell's commit.
func (s *sides) moves(tip string) Move {
	at := folder(s.t, filepath.Join(s.source, ".git"))
	return Move{Dir: at, Common: at, Branch: "main", Was: s.base, Now: tip, Why: "pando accept", Committer: user}
}

func folder(t *testing.T, path string) Folder {
	t.Helper()
	f, err := FolderAt(path)
	must(t, err)
	return f
}

// Commits come onto what the source became as they are, or as a rebase would have them.
func TestOnto(t *testing.T) {
	t.Parallel()
	const nine = "1\n2\n3\n4\n5\n6\n7\n8\n9\n"
	for name, x := range map[string]struct {
		with   func(s *sides) // what both did
		list   string         // subjects
		copied bool
		why    string
	}{
		"as it was":    {func(s *sides) { s.commit(s.work, "two", "f", "two\n"); s.commit(s.work, "three", "h", "h\n") }, "two,three", false, ""},
		"another file": {func(s *sides) { s.commit(s.work, "two", "f", "two\n"); s.commit(s.source, "mine", "g", "mine\n") }, "two", true, ""},
		"other lines": {func(s *sides) {
			s.commit(s.work, "two\n\nand why", "f", nine+"10\n")
			s.commit(s.source, "mine", "f", "0\n"+nine)
		}, "two", true, ""},
		"the same line": {func(s *sides) {
			s.commit(s.work, "two", "f", nine+"10\n")
			s.commit(s.source, "mine", "f", nine+"ten\n")
		}, "", false, "(two) changes what the source changed, too, in f"},
		"the same change": {func(s *sides) {
			s.commit(s.work, "two", "f", "two\n")
			s.commit(s.source, "mine", "f", "two\n")
		}, "", true, ""},
		"the first of two": {func(s *sides) {
			s.commit(s.work, "two", "f", "two\n")
			s.commit(s.work, "three", "h", "h\n")
			s.commit(s.source, "mine", "f", "two\n")
		}, "three", true, ""},
		"some of it merged by hand": {func(s *sides) {
			s.commit(s.work, "two", "f", "two\n")
			s.commit(s.work, "three", "f", "three\n")
			s.git(s.source, "fetch", "-q", s.work, "main")
			s.git(s.source, "merge", "-q", "--ff-only", "FETCH_HEAD")
			s.commit(s.work, "four", "h", "h\n")
			s.commit(s.source, "mine", "g", "mine\n")
		}, "four", true, ""},
		"all of it merged by hand": {func(s *sides) {
			s.commit(s.work, "two", "f", "two\n")
			s.git(s.source, "fetch", "-q", s.work, "main")
			s.git(s.source, "merge", "-q", "--ff-only", "FETCH_HEAD")
			s.commit(s.source, "mine", "g", "mine\n")
		}, "", true, ""},
		"a merge among them": {func(s *sides) {
			s.git(s.work, "checkout", "-q", "-b", "side")
			s.commit(s.work, "aside", "h", "h\n")
			s.git(s.work, "checkout", "-q", "main")
			s.commit(s.work, "two", "f", "two\n")
			s.git(s.work, "merge", "-q", "-m", "both", "side")
			s.commit(s.source, "mine", "g", "mine\n")
		}, "", false, "2 parents"},
		"a merge that fits": {func(s *sides) {
			s.git(s.work, "checkout", "-q", "-b", "side")
			s.commit(s.work, "aside", "h", "h\n")
			s.git(s.work, "checkout", "-q", "main")
			s.git(s.work, "merge", "-q", "--no-ff", "-m", "both", "side")
		}, "aside,both", false, ""},
		"not on what the source had": {func(s *sides) { s.git(s.work, "commit", "-q", "--amend", "-m", "one, again") }, "", false, "do not build on"},
		"a signature": {func(s *sides) {
			s.commit(s.work, "two", "f", "two\n")
			raw := s.git(s.work, "cat-file", "commit", "HEAD")
			head, message, _ := strings.Cut(raw, "\n\n")
			must(s.t, os.WriteFile(filepath.Join(s.work, "signed"), []byte(head+"\ngpgsig of\n the old\nencoding ISO-8859-1\n"+strings.Repeat(" \n", 10_000)+"\n"+message+"\n"), 0o600))
			s.git(s.work, "reset", "-q", "--soft", s.git(s.work, "hash-object", "-t", "commit", "-w", "signed"))
			s.commit(s.source, "mine", "g", "mine\n")
		}, "two", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSides(t)
			x.with(s)
			r, tip := s.taken()
			head := s.git(s.source, "rev-parse", "HEAD")
			now, list, err := r.Onto(t.Context(), tip, s.base, head, user, nil)
			if x.why != "" {
				if err == nil || !strings.Contains(err.Error(), x.why) {
					t.Fatalf("%v, want %q", err, x.why)
				}
				return
			}
			must(t, err)
			var subjects []string
			for _, c := range list {
				subjects = append(subjects, c.Subject)
			}
			if got := strings.Join(subjects, ","); got != x.list || (now != tip) != x.copied {
				t.Fatalf("it is %s with %q, tip %s, want %q", now, got, tip, x.list)
			}
			must(t, r.Give(t.Context(), folder(t, filepath.Join(s.source, ".git")), now, head))
			s.git(s.source, "fsck", "--strict", "--no-dangling")
			s.git(s.source, "update-ref", "refs/heads/now", now)
			if got := s.git(s.source, "merge-base", "now", "main"); got != head {
				t.Errorf("it builds on %s, want %s", got, head)
			}
			if !x.copied || len(list) == 0 {
				return
			}
			if got := s.git(s.source, "log", "-1", "--format=%an %ae %cn %ce %at", "now"); got != "An Agent agent@example.com The User user@example.com "+s.git(s.work, "log", "-1", "--format=%at") {
				t.Errorf("it is by %s", got)
			}
			if got, want := s.git(s.source, "log", "-1", "--format=%B", "now"), s.git(s.work, "log", "-1", "--format=%B"); got != want {
				t.Errorf("its message is %q, want %q", got, want)
			}
			if strings.Contains(s.git(s.source, "cat-file", "commit", "now"), "gpgsig") {
				t.Error("a copy has the signature of another commit")
			}
			// What git itself would have made of it.
			s.git(s.source, "fetch", "-q", s.work, "main")
			s.git(s.source, "branch", "-q", "theirs", "FETCH_HEAD")
			s.git(s.source, "rebase", "-q", "main", "theirs")
			if got, want := s.git(s.source, "rev-parse", "now^{tree}"), s.git(s.source, "rev-parse", "theirs^{tree}"); got != want {
				t.Errorf("its tree is %s, and git rebase makes %s", got, want)
			}
		})
	}
}

// A branch moves with its index; what the work tree has is another's affair.
func TestMove(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		with func(s *sides)
		why  string
	}{
		"as git has it":     {func(*sides) {}, ""},
		"changes, unstaged": {func(s *sides) { must(s.t, os.WriteFile(filepath.Join(s.source, "g"), []byte("mine\n"), 0o600)) }, ""},
		"staged": {func(s *sides) {
			must(s.t, os.WriteFile(filepath.Join(s.source, "g"), []byte("mine\n"), 0o600))
			s.git(s.source, "add", "g")
		}, "staged"},
		"a conflict": {func(s *sides) {
			s.git(s.source, "update-index", "--force-remove", "g")
			cmd := fmt.Sprintf("100644 %s 2\tg\n", s.git(s.source, "rev-parse", "HEAD:g"))
			must(s.t, os.WriteFile(filepath.Join(s.source, "info"), []byte(cmd), 0o600))
			s.git(s.source, "-c", "alias.in=!git update-index --index-info <info", "in")
		}, "staged"},
		"an index that is locked": {func(s *sides) { must(s.t, os.WriteFile(filepath.Join(s.source, ".git/index.lock"), nil, 0o600)) }, "index.lock"},
		"a branch that is locked": {func(s *sides) {
			must(s.t, os.WriteFile(filepath.Join(s.source, ".git/refs/heads/main.lock"), nil, 0o600))
		}, "main.lock"},
		"packed refs":         {func(s *sides) { s.git(s.source, "pack-refs", "--all") }, ""},
		"another branch":      {func(s *sides) { s.git(s.source, "checkout", "-q", "-b", "other") }, "other is checked out by now"},
		"a branch that moved": {func(s *sides) { s.git(s.source, "commit", "-q", "--allow-empty", "-m", "mine") }, "when it was looked at"},
		"an index that is no file": {func(s *sides) {
			must(s.t, os.Remove(filepath.Join(s.source, ".git/index")))
			must(s.t, os.Mkdir(filepath.Join(s.source, ".git/index"), 0o700))
		}, "no regular file"},
		"an index that leads out": {func(s *sides) {
			must(s.t, os.Rename(filepath.Join(s.source, ".git/index"), filepath.Join(s.work, "index")))
			must(s.t, os.Symlink(filepath.Join(s.work, "index"), filepath.Join(s.source, ".git/index")))
		}, "escapes"},
		"a folder of branches in its place": {func(s *sides) {
			s.git(s.source, "pack-refs", "--all")
			must(s.t, os.Mkdir(filepath.Join(s.source, ".git/refs/heads/main"), 0o700))
		}, ""},
		"ids of another kind": {func(s *sides) { s.git(s.source, "config", "extensions.objectFormat", "sha256") }, "40 digits"},
		"an edit that is seen by the time of the index alone": {func(s *sides) {
			at := time.Now().Add(-time.Hour)
			g, index := filepath.Join(s.source, "g"), filepath.Join(s.source, ".git/index")
			s.git(s.source, "config", "core.trustctime", "false")
			s.git(s.source, "config", "core.checkstat", "minimal")
			must(s.t, os.Chtimes(g, at, at))
			s.git(s.source, "update-index", "--refresh")
			must(s.t, os.WriteFile(g, []byte("x\n"), 0o600))
			must(s.t, os.Chtimes(g, at, at))
			must(s.t, os.Chtimes(index, at, at))
		}, ""},
		"an index in parts": {func(s *sides) { s.git(s.source, "update-index", "--split-index") }, "index"},
		"an index with more": {func(s *sides) {
			s.git(s.source, "update-index", "--untracked-cache")
			s.git(s.source, "update-index", "--index-version", "4")
			s.git(s.source, "status")
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSides(t)
			s.commit(s.work, "two", "f", "two\n", "h", "h\n")
			r, tip := s.taken()
			common := filepath.Join(s.source, ".git")
			move := s.moves(tip)
			must(t, r.Give(t.Context(), move.Common, tip, s.base))
			x.with(s)
			mark := filepath.Join(t.TempDir(), "mark")
			status := func() string {
				if name == "an index that is no file" || name == "ids of another kind" { // git fails
					return ""
				}
				return s.git(s.source, "--no-optional-locks", "status", "--porcelain=v2", "--branch")
			}
			before := status()
			h, err := r.Hold(t.Context(), move, mark)
			if x.why != "" {
				if err == nil || !strings.Contains(err.Error(), x.why) {
					t.Fatalf("%v, want %q", err, x.why)
				}
				if got := status(); got != before {
					t.Errorf("it is\n%s\nwas\n%s", got, before)
				}
				return
			}
			must(t, err)
			for _, name := range []string{"index", "refs/heads/main"} {
				if _, err := os.Stat(filepath.Join(common, name+".lock")); err != nil {
					t.Error(err)
				}
			}
			must(t, h.Do())
			h.Release()
			s.leavesNothing(common, mark)
			changed := ""
			if name == "changes, unstaged" || strings.HasPrefix(name, "an edit") {
				changed = "M g"
			}
			must(t, os.WriteFile(filepath.Join(s.source, "f"), []byte("two\n"), 0o600))
			must(t, os.WriteFile(filepath.Join(s.source, "h"), []byte("h\n"), 0o600))
			if got := s.git(s.source, "status", "--porcelain"); got != changed {
				t.Errorf("its status is %q, want %q", got, changed)
			}
			if got := s.git(s.source, "rev-parse", "main"); got != tip {
				t.Errorf("it is at %s, want %s", got, tip)
			}
			if got := s.git(s.source, "reflog", "-1", "--format=%gs %gn"); got != "pando accept The User" {
				t.Errorf("its reflog is %q", got)
			}
			s.git(s.source, "stash", "-q")
			s.git(s.source, "reset", "-q", "--hard", "main@{1}")
			if got := s.git(s.source, "rev-parse", "main"); got != s.base {
				t.Errorf("back it is at %s, want %s", got, s.base)
			}
		})
	}
}

// With a signer all commits are copies, also where the branch could move to them, and git finds the signature in each.
func TestOntoSigned(t *testing.T) {
	t.Parallel()
	for name, moved := range map[string]bool{"as it was": false, "moved": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSides(t)
			s.commit(s.work, "two\n\nand why", "f", "two\n")
			s.commit(s.work, "three", "h", "h\n")
			if moved {
				s.commit(s.source, "mine", "g", "mine\n")
			}
			r, tip := s.taken()
			head := s.git(s.source, "rev-parse", "HEAD")
			var signed []string
			now, list, err := r.Onto(t.Context(), tip, s.base, head, user, func(_ context.Context, commit string) (string, error) {
				signed = append(signed, commit)
				return "-----BEGIN X-----\n\nabc\n-----END X-----\n", nil
			})
			must(t, err)
			if len(list) != 2 || len(signed) != 2 || list[0].Was == "" || now == tip {
				t.Fatalf("it is %s with %+v, %d were signed", now, list, len(signed))
			}
			must(t, r.Give(t.Context(), folder(t, filepath.Join(s.source, ".git")), now, head))
			s.git(s.source, "fsck", "--strict", "--no-dangling")
			for i, c := range list {
				raw := s.git(s.source, "cat-file", "commit", c.Commit)
				const header = "\ngpgsig -----BEGIN X-----\n \n abc\n -----END X-----\n\n"
				if strings.TrimSpace(strings.Replace(raw, header, "\n\n", 1)) != strings.TrimSpace(signed[i]) || !strings.Contains(raw, header) {
					t.Errorf("%q is signed as %q", raw, signed[i])
				}
			}
			if got := s.git(s.source, "log", "--format=%s %cn", head+".."+now); got != "three The User\ntwo The User" {
				t.Errorf("they are %q", got)
			}
			no := errors.New("no")
			if _, _, err := r.Onto(t.Context(), tip, s.base, head, user, func(context.Context, string) (string, error) { return "", no }); !errors.Is(err, no) {
				t.Errorf("without the agent: %v", err)
			}
			if _, _, err := r.Onto(t.Context(), tip, "", "", user, func(context.Context, string) (string, error) { return "", no }); err == nil || !strings.Contains(err.Error(), "no commit yet") {
				t.Errorf("in an empty repository: %v", err)
			}
		})
	}
}

func (s *sides) leavesNothing(common, mark string) {
	s.t.Helper()
	left, err := filepath.Glob(filepath.Join(common, "pando-*"))
	must(s.t, err)
	for _, name := range append(left, mark, filepath.Join(common, "index.lock"), filepath.Join(common, "refs/heads/main.lock")) {
		if _, err := os.Lstat(name); err == nil {
			s.t.Errorf("%s is left", name)
		}
	}
}

// A branch without commits gets its first, and a linked worktree has a branch and an index of its own.
func TestMoveElsewhere(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	s.commit(s.work, "two", "f", "two\n")
	empty := t.TempDir()
	s.git(empty, "init", "-q", "-b", "main")
	r := open(t, "")
	take(t, r, bundle(t, s.work))
	tip := s.git(s.work, "rev-parse", "HEAD")
	now, list, err := r.Onto(t.Context(), tip, "", "", user, nil)
	if err != nil || now != tip || len(list) != 2 {
		t.Fatal(now, list, err)
	}
	common := filepath.Join(empty, ".git")
	at := folder(t, common)
	must(t, r.Give(t.Context(), at, tip, ""))
	mark := filepath.Join(t.TempDir(), "mark")
	h, err := r.Hold(t.Context(), Move{Dir: at, Common: at, Branch: "main", Now: tip, Why: "pando accept", Committer: user}, mark)
	must(t, err)
	must(t, h.Do())
	h.Release()
	s.git(empty, "checkout", "-q", "--", ".")
	if got := s.git(empty, "status", "--porcelain") + s.git(empty, "log", "--format=%s"); got != "two\none" {
		t.Errorf("the empty one is %q", got)
	}

	wt := filepath.Join(t.TempDir(), "wt")
	s.git(s.source, "worktree", "add", "-q", wt)
	common = filepath.Join(s.source, ".git")
	r, tip = s.taken()
	must(t, r.Give(t.Context(), folder(t, common), tip, s.base))
	h, err = r.Hold(t.Context(), Move{Dir: folder(t, filepath.Join(common, "worktrees/wt")), Common: folder(t, common), Branch: "wt", Was: s.base, Now: tip, Why: "pando accept", Committer: user}, mark)
	must(t, err)
	must(t, h.Do())
	h.Release()
	s.git(wt, "checkout", "-q", "--", ".")
	if got := s.git(wt, "status", "--porcelain") + s.git(wt, "log", "--format=%s") + s.git(s.source, "status", "--porcelain") + s.git(s.source, "log", "--format=%s"); got != "two\noneone" {
		t.Errorf("the worktree and its repository are %q", got)
	}
}

// A move that its program did not see to its end is done when the branch moved, and else it leaves nothing.
func TestMoveThatWasInterrupted(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		with  func(t *testing.T, s *sides, h *Held, common string)
		moved bool
		left  string // a lock that is another's
		want  string // what git status says
	}{
		"before it moved": {func(*testing.T, *sides, *Held, string) {}, false, "", ""},
		"after the branch": {func(t *testing.T, _ *sides, _ *Held, common string) {
			must(t, os.Rename(common+"/refs/heads/main.lock", common+"/refs/heads/main"))
		}, true, "", "M f"},
		"after both": {func(t *testing.T, _ *sides, h *Held, _ string) { must(t, h.Do()) }, true, "", "M f"},
		"after both, and a commit": {func(t *testing.T, s *sides, h *Held, _ string) {
			must(t, h.Do())
			h.Release()
			s.git(s.source, "commit", "-q", "--allow-empty", "-m", "after")
		}, true, "", "M f"},
		"with no lock of the index": {func(t *testing.T, _ *sides, _ *Held, common string) {
			must(t, os.Rename(common+"/refs/heads/main.lock", common+"/refs/heads/main"))
			must(t, os.Remove(common+"/index.lock"))
		}, true, "", "M f"},
		"with another's lock of the index": {func(t *testing.T, _ *sides, _ *Held, common string) {
			must(t, os.Remove(common+"/index.lock"))
			must(t, os.WriteFile(common+"/index.lock", []byte("DIRC"), 0o600))
		}, false, "index.lock", ""},
		"with a pipe for a lock": {func(t *testing.T, _ *sides, _ *Held, common string) {
			must(t, os.Remove(common+"/index.lock"))
			must(t, unix.Mkfifo(common+"/index.lock", 0o600))
		}, false, "index.lock", ""},
		"with half of what is ours": {func(t *testing.T, _ *sides, h *Held, _ string) {
			must(t, os.WriteFile(h.mark, []byte("{"), 0o600))
			h.Release()
		}, false, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSides(t)
			s.commit(s.work, "two", "f", "two\n")
			r, tip := s.taken()
			common := filepath.Join(s.source, ".git")
			move := s.moves(tip)
			must(t, r.Give(t.Context(), move.Common, tip, s.base))
			mark := filepath.Join(t.TempDir(), "mark")
			h, err := r.Hold(t.Context(), move, mark)
			must(t, err)
			x.with(t, s, h, common)
			moved, err := r.Moved(t.Context(), move)
			if moved != x.moved || err != nil {
				t.Fatal(moved, err)
			}
			with := r
			if !moved {
				with = nil
			}
			must(t, Finish(t.Context(), with, mark, move))
			if x.left != "" {
				must(t, os.Remove(filepath.Join(common, x.left)))
			}
			s.leavesNothing(common, mark)
			if got := s.git(s.source, "status", "--porcelain"); got != x.want {
				t.Errorf("its status is %q, want %q", got, x.want)
			}
			must(t, Finish(t.Context(), with, mark, move)) // again
			if moved {
				return
			}
			h, err = r.Hold(t.Context(), move, mark)
			must(t, err)
			must(t, h.Do())
			h.Release()
			s.leavesNothing(common, mark)
			back := move
			back.Was, back.Now = move.Now, move.Was
			if moved, err := r.Moved(t.Context(), back); moved || err != nil {
				t.Error("back:", moved, err)
			}
			s.git(s.source, "reset", "-q", "--hard", s.base)
			if moved, err := r.Moved(t.Context(), back); !moved || err != nil {
				t.Error("back, done:", moved, err)
			}
		})
	}
}

// Commits of two cells that come into one repository at once do not get each other's locks.
func TestMovesAtOnce(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	common := filepath.Join(s.source, ".git")
	s.commit(s.work, "two", "f", "two\n")
	r, tip := s.taken()
	must(t, r.Give(t.Context(), folder(t, common), tip, s.base))
	var all sync.WaitGroup
	var done atomic.Int32
	for i := range 8 {
		all.Go(func() {
			own := open(t, filepath.Join(common, "objects")) // as each cell's
			h, err := own.Hold(t.Context(), s.moves(tip), filepath.Join(t.TempDir(), "branch-locks"))
			if err != nil {
				if !strings.Contains(err.Error(), ".lock") && !strings.Contains(err.Error(), "when it was looked at") {
					t.Error(i, err)
				}
				return
			}
			if err := h.Do(); err != nil {
				t.Error(i, err)
			}
			h.Release()
			done.Add(1)
		})
	}
	all.Wait()
	if done.Load() != 1 || s.git(s.source, "rev-parse", "main") != tip || s.git(s.source, "status", "--porcelain") != "M f" {
		t.Errorf("%d moved it; main is at %s; %s", done.Load(), s.git(s.source, "rev-parse", "main"), s.git(s.source, "status", "--porcelain"))
	}
	if left, _ := filepath.Glob(filepath.Join(common, "pando-*")); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// Another folder in the place of the one that was looked at is refused, and so is a link to it.
func TestMoveOfAnotherFolder(t *testing.T) {
	t.Parallel()
	s, other := newSides(t), newSides(t)
	s.commit(s.work, "two", "f", "two\n")
	r, tip := s.taken()
	move, common := s.moves(tip), filepath.Join(s.source, ".git")
	must(t, os.Rename(common, common+"2"))
	for _, with := range []func() error{
		func() error { return os.Symlink(common+"2", common) },
		func() error {
			return errors.Join(os.Remove(common), os.Rename(filepath.Join(other.source, ".git"), common))
		},
	} {
		must(t, with())
		_, err := r.Hold(t.Context(), move, filepath.Join(t.TempDir(), "mark"))
		if err == nil || r.Give(t.Context(), move.Common, tip, s.base) == nil {
			t.Errorf("it was moved: %v", err)
		}
	}
}
