package gitdir

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// An index that is copied with files that need not be there is an index to git,
// of each version: it has the same entries, and git says that nothing was
// deleted, whatever it is then told to do.
func TestX50SkipWorktree(t *testing.T) {
	skip := []string{"dir1/sub1/file1.go", "dir2", "dir3/sub3/file3.go", "odd/a/b", "odd/.env", "no-such-file", "both"}
	covered := func(p string) bool {
		return p != "both" && slices.ContainsFunc(skip, func(s string) bool { return p == s || strings.HasPrefix(p, s+"/") })
	}
	for _, format := range []string{"sha1", "sha256"} {
		top := bigRepo(t, 300, "--object-format="+format)
		index := filepath.Join(top, ".git/index")
		for _, version := range []string{"2", "3", "4"} {
			t.Run(format+"/v"+version, func(t *testing.T) {
				gitOracle(t, top, "", "update-index", "--index-version", version, "--force-write-index")
				gitOracle(t, top, "", "update-index", "--untracked-cache")
				gitOracle(t, top, "", "-c", "index.threads=4", "status")
				was := gitOracle(t, top, "", "ls-files", "-s", "-v")
				rewriteIndex(t, top, index, skip)
				if got := gitOracle(t, top, "", "ls-files", "-s"); got != stripTags(was) {
					t.Fatal("the entries are others")
				}
				for _, line := range strings.Split(strings.TrimSuffix(gitOracle(t, top, "", "ls-files", "-t", "-z"), "\x00"), "\x00") {
					if tag, p, _ := strings.Cut(line, " "); (tag == "S") != covered(p) {
						t.Errorf("git has %s for %q", tag, p)
					}
				}
				for _, e := range strings.Split(gitOracle(t, top, "", "ls-files", "--debug", "--unmerged"), "\n") {
					if _, flags, ok := strings.Cut(e, "flags: "); ok && strings.HasPrefix(flags, "4") {
						t.Errorf("an entry in conflict has flags %s", flags)
					}
				}
				b, err := os.ReadFile(index)
				if err != nil {
					t.Fatal(err)
				}
				for _, place := range []string{"EOIE", "IEOT", "UNTR", "FSMN"} { // extensions that speak of places in the old file, or of the old work tree
					if bytes.Contains(b, []byte(place)) {
						t.Errorf("the extension %s was copied", place)
					}
				}
				gitOracle(t, top, "", "fsck", "--no-dangling")
				wantTracked(t, top, lsFiles(t, top))
			})
		}
	}
}

// stripTags takes away the tags of ls-files -v.
func stripTags(list string) string {
	lines := strings.SplitAfter(list, "\n")
	for i, l := range lines {
		if l != "" {
			lines[i] = l[2:]
		}
	}
	return strings.Join(lines, "")
}

// rewriteIndex sets the bit for paths in a repository's index.
func rewriteIndex(t *testing.T, root, index string, paths []string) {
	t.Helper()
	r, err := Find(root)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(index)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := r.SkipWorktree(bytes.NewReader(b), int64(len(b)), &out, paths); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(index, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Files that are not there are not deleted, for what people and agents do with git.
func TestX50GitDoesNotMissWhatIsSkipped(t *testing.T) {
	top := t.TempDir()
	gitOracle(t, top, "", "init", "-q", "-b", "main")
	for _, n := range []string{"id_rsa", "conf/.env", "conf/plain", ".ssh/id_dsa", ".npmrc", "plain"} {
		writeAt(t, top, n, n)
	}
	gitOracle(t, top, "", "add", "-A")
	gitOracle(t, top, "", "commit", "-q", "-m", "one")
	gitOracle(t, top, "", "branch", "other")
	rewriteIndex(t, top, filepath.Join(top, ".git/index"), []string{"id_rsa", "conf/.env", ".ssh", ".npmrc"})
	for _, n := range []string{"id_rsa", "conf/.env", ".ssh"} {
		if err := os.RemoveAll(filepath.Join(top, n)); err != nil {
			t.Fatal(err)
		}
	}
	writeAt(t, top, ".npmrc", "without") // some fields of it were left out
	if got := gitOracle(t, top, "", "status", "--porcelain"); got != "" {
		t.Errorf("git status says %q", got)
	}
	writeAt(t, top, "plain", "changed")
	gitOracle(t, top, "", "add", "-A")
	gitOracle(t, top, "", "commit", "-q", "-a", "-m", "two")
	if got := gitOracle(t, top, "", "diff", "--name-status", "HEAD~1", "HEAD"); got != "M\tplain\n" {
		t.Errorf("the commit has %q", got)
	}
	for _, args := range [][]string{{"checkout", "-q", "other"}, {"checkout", "-q", "main"}, {"reset", "-q", "--hard", "HEAD~1"}, {"stash", "-q"}} {
		gitOracle(t, top, "", args...)
		if got := gitOracle(t, top, "", "status", "--porcelain"); got != "" {
			t.Errorf("after %q git status says %q", args, got)
		}
		if _, err := os.Stat(filepath.Join(top, "id_rsa")); err == nil {
			t.Errorf("git %q brought the file back", args)
		}
	}
}

// A source may be a folder of the work tree.
func TestX50SkipWorktreeBelowTheTop(t *testing.T) {
	top := t.TempDir()
	gitOracle(t, top, "", "init", "-q")
	for _, n := range []string{"id_rsa", "sub/id_rsa", "sub/plain"} {
		writeAt(t, top, n, n)
	}
	gitOracle(t, top, "", "add", "-A")
	rewriteIndex(t, filepath.Join(top, "sub"), filepath.Join(top, ".git/index"), []string{"id_rsa"})
	if got := gitOracle(t, top, "", "ls-files", "-t"); got != "H id_rsa\nS sub/id_rsa\nH sub/plain\n" {
		t.Errorf("git has %q", got)
	}
}

func TestX50PathCursor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[ab.\-](/?[ab.\-]){0,5}`)
		names := rapid.SliceOfDistinct(name, rapid.ID[string]).Draw(t, "names")
		var paths []string
		for _, p := range rapid.SliceOfDistinct(name, rapid.ID[string]).Draw(t, "paths") { // none lies below another
			if !slices.ContainsFunc(paths, func(o string) bool { return strings.HasPrefix(p, o+"/") || strings.HasPrefix(o, p+"/") }) && p == filepath.Clean(p) {
				paths = append(paths, p)
			}
		}
		slices.Sort(names)
		c := newPathCursor("", paths)
		for _, n := range names {
			want := slices.ContainsFunc(paths, func(p string) bool { return n == p || strings.HasPrefix(n, p+"/") })
			if got := c.covers([]byte(n)); got != want {
				t.Fatalf("%q of %q: %v, want %v", n, paths, got, want)
			}
		}
	})
}

func TestX50OffsetsAreReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Uint64Max(1<<56).Draw(t, "v")
		b := appendOffset(nil, v)
		x := newIndexReader(bytes.NewReader(append(b, make([]byte, 20)...)), int64(len(b)+20), 20)
		if got, err := x.varint(); err != nil || got != v {
			t.Fatal(fmt.Sprint(got, err, v, b))
		}
	})
}
