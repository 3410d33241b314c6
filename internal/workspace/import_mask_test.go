package workspace_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/secret"
	"github.com/pando-dev/pando/internal/workspace"
)

// masking is a source with masked tracked secrets.
type masking struct{ *importing }

func newMasking(i *importing) masking {
	gitIn(i.t, i.source, "init", "-q", "-b", "main")
	for p, text := range map[string]string{
		"aws.ini": awsKey, "id_rsa": "not really a key\n", "other.ini": awsKey,
		".npmrc":      "//registry.npmjs.org/:_authToken=abcdef0123456789\nregistry=https://registry.npmjs.org\n",
		".ssh/id_dsa": "x\n", "plain": "plain\n", "nested/.env": "A=b\n", "nested/plain": "plain\n",
	} {
		i.put(p, text)
	}
	i.must(os.Symlink("plain", i.at("id_ed25519")))
	gitIn(i.t, i.source, "add", "-A")
	gitIn(i.t, i.source, "rm", "-q", "--cached", "other.ini")
	gitIn(i.t, i.source, "commit", "-q", "-m", "first")
	i.mask = true
	return masking{i}
}

// written gives a directory with all that a base holds, read through its provider.
func (m masking) written(im *workspace.Imported) string {
	m.t.Helper()
	root, files := filepath.Join(m.t.TempDir(), "written"), m.p.Contents(im.State)
	var write func(dir string, e workspace.Entry)
	write = func(dir string, e workspace.Entry) {
		m.must(os.Mkdir(filepath.Join(root, dir), 0o755))
		list, err := im.Tree.ReadDir(e.Digest)
		m.must(err)
		for _, e := range list {
			p := filepath.Join(dir, e.Name)
			switch e.Type {
			case workspace.Folder:
				write(p, e)
			case workspace.Symlink:
				m.must(os.Symlink(e.Target, filepath.Join(root, p)))
			case workspace.File:
				r, err := files.Open(p, e)
				m.must(err)
				b, err := io.ReadAll(r)
				m.must(errors.Join(err, r.Close()))
				m.must(os.WriteFile(filepath.Join(root, p), b, os.FileMode(e.Mode&0o777)))
			}
		}
	}
	write("", im.Tree.Root)
	return root
}

var allMasked = []string{".npmrc", ".ssh", "aws.ini", "id_ed25519", "id_rsa", "nested/.env"}

// check compares what was masked with want, and asks git about a copy of the base.
func (m masking) check(im *workspace.Imported, want []string) {
	m.t.Helper()
	var got []string
	for _, l := range im.LeftOut {
		if l.Masked {
			got = append(got, l.Path)
		}
		if l.Masked != l.History || l.Masked != strings.Contains(l.Why, "masked") {
			m.t.Errorf("%+v", l)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		m.t.Errorf("masked %q, want %q", got, want)
	}
	for _, p := range want {
		if _, err := im.Tree.Lookup(p); (err == nil) != (p == ".npmrc") {
			m.t.Errorf("%s is in the base: %v", p, err == nil)
		}
	}
	s, err := workspace.Survey(ctx, m.source, m.with, true, nil)
	m.must(err)
	if d := cmp.Diff(im.LeftOut, s.LeftOut); d != "" {
		m.t.Errorf("a survey says something else (- import, + survey):\n%s", d)
	}
	cell := m.written(im)
	gitIn(m.t, cell, "fsck")
	missed := gitIn(m.t, m.source, "diff", "--name-only")
	for _, p := range want {
		missed = strings.ReplaceAll(missed, p+"\n", "")
	}
	if got := gitIn(m.t, cell, "diff", "--name-only"); got != missed {
		m.t.Errorf("git in the base finds changes of %q, in the source of %q", got, missed)
	}
	e, err := im.Tree.Lookup(".git/index")
	m.must(err)
	if st, err := os.Stat(filepath.Join(cell, ".git/index")); err != nil || st.Size() != e.Size {
		m.t.Errorf("the tree has another size of the index: %d (%v)", e.Size, err)
	}
}

// TestX50MaskedSecrets: a secret that git tracks stays outside like any other, and
// git in the base does not miss it.
func TestX50MaskedSecrets(t *testing.T) {
	bothProviders(t, func(t *testing.T, i *importing) {
		m := newMasking(i)
		age()
		im := m.do(nil)
		m.check(im, allMasked)
		if got := left(im.LeftOut); !slices.Contains(got, "secret other.ini") || !slices.Contains(got, "fields .npmrc") {
			t.Errorf("left out %q", got)
		}
		e, err := im.Tree.Lookup(".npmrc")
		m.must(err)
		if e.Size >= int64(len("//registry.npmjs.org/:_authToken=abcdef0123456789\nregistry=https://registry.npmjs.org\n")) {
			t.Error("the .npmrc is whole")
		}
		if again := m.do(im); again.Copied != 0 || !again.State.Same(im.State) {
			t.Errorf("the same again: %d copied", again.Copied)
		}

		// A commit in the base deletes nothing.
		cell := m.written(im)
		m.must(os.WriteFile(filepath.Join(cell, "plain"), []byte("changed"), 0o644))
		gitIn(t, cell, "commit", "-q", "-a", "-m", "second")
		if out := gitIn(t, cell, "show", "--name-status", "--format=", "HEAD"); out != "M\tplain\n" {
			t.Errorf("the commit has %q", out)
		}
	})
}

// TestX50MaskFollowsTheSource: what is masked depends on the source as it is now,
// and so does what git in the base does not miss.
func TestX50MaskFollowsTheSource(t *testing.T) {
	bothProviders(t, func(t *testing.T, i *importing) {
		m := newMasking(i)
		age()
		im := m.do(nil)
		with := func(more ...string) []string {
			l := append(slices.Clone(allMasked), more...)
			slices.Sort(l)
			return l
		}
		next := func(want []string) {
			t.Helper()
			age()
			im = m.do(im)
			m.check(im, want)
		}
		i.put("nested/plain", awsKey) // the index is as it was
		next(with("nested/plain"))
		i.put("nested/plain", "plain\n")
		next(with())
		i.must(os.Remove(i.at("id_rsa")))
		next(slices.DeleteFunc(with(), func(p string) bool { return p == "id_rsa" }))
		i.put("id_rsa", "another key\n")
		next(with())
		gitIn(t, i.source, "add", "other.ini") // no file changes, but the index
		next(with("other.ini"))
		gitIn(t, i.source, "rm", "-q", "--cached", "id_rsa", "other.ini")
		next(slices.DeleteFunc(with(), func(p string) bool { return p == "id_rsa" }))
		if got := left(im.LeftOut); !slices.Contains(got, "secret id_rsa") {
			t.Errorf("left out %q", got)
		}
	})
}

// TestX50MaskLetsInByName: --with-secret lets in one of them.
func TestX50MaskLetsInByName(t *testing.T) {
	bothProviders(t, func(t *testing.T, i *importing) {
		m := newMasking(i)
		i.with = secret.With{"id_rsa": true, "nested/.env": true}
		im := m.do(nil)
		m.check(im, []string{".npmrc", ".ssh", "aws.ini", "id_ed25519"})
		for _, p := range []string{"id_rsa", "nested/.env"} {
			if _, err := im.Tree.Lookup(p); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestX50MaskInOtherRepositories: linked worktrees have an index of their own; a
// folder of a work tree has none; an index that is split cannot be read.
func TestX50MaskInOtherRepositories(t *testing.T) {
	bothProviders(t, func(t *testing.T, i *importing) {
		m := newMasking(i)
		main := i.source
		i.source = filepath.Join(t.TempDir(), "linked")
		gitIn(t, main, "worktree", "add", "-q", i.source, "-b", "other")
		m.check(m.do(nil), allMasked)

		i.source = filepath.Join(main, "nested")
		im := m.do(nil)
		if len(im.LeftOut) != 1 || im.LeftOut[0].Path != ".env" || !im.LeftOut[0].Masked || im.LeftOut[0].History {
			t.Errorf("%+v", im.LeftOut)
		}

		i.source = main
		gitIn(t, main, "update-index", "--split-index")
		im = m.do(nil)
		if got := left(im.LeftOut); !slices.Contains(got, "secret id_rsa") || !slices.Contains(got, "secret .ssh") || len(im.Notes) != 1 {
			t.Errorf("left out %q, notes %q", got, im.Notes)
		}
		if _, err := im.Tree.Lookup("id_rsa"); err == nil {
			t.Error("a secret is in the base")
		}
	})
}
