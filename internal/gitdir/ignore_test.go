package gitdir

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// ignoreFromGit asks git for the rule of each path: "" or "file:line:pattern".
func ignoreFromGit(t *testing.T, top string, paths []string) []string {
	t.Helper()
	out := gitOracle(t, top, strings.Join(paths, "\x00")+"\x00", "check-ignore", "--no-index", "-v", "-n", "-z", "--stdin")
	f := strings.Split(out, "\x00")
	if len(f) != 4*len(paths)+1 {
		t.Fatalf("git answered %d fields for %d paths", len(f), len(paths))
	}
	rules := make([]string, len(paths))
	for i := range paths {
		if a := f[4*i : 4*i+4]; a[0] != "" {
			rules[i] = a[0] + ":" + a[1] + ":" + a[2]
		}
	}
	return rules
}

// compareIgnore checks every path of the tree at top against git.
func compareIgnore(t *testing.T, top string) (compared, ignored int) {
	t.Helper()
	var paths []string
	isDir := map[string]bool{}
	filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(top, p)
		if rel == ".git" {
			return filepath.SkipDir
		}
		if rel != "." {
			paths = append(paths, rel)
			isDir[rel] = d.IsDir()
		}
		return err
	})
	ig, err := ignoreOnDisk(top)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range ignoreFromGit(t, top, paths) {
		p := paths[i]
		got, rule := ig.verdict(p, isDir[p])
		wantIgnored := want != "" && !strings.HasPrefix(want[strings.Index(want, ":")+1:], "!")
		if f := strings.SplitN(want, ":", 3); len(f) == 3 {
			wantIgnored = !strings.HasPrefix(f[2], "!")
		}
		if rule != want || got != wantIgnored {
			t.Errorf("Match(%q, %v) = %v %q; git: %v %q", p, isDir[p], got, rule, wantIgnored, want)
		}
		compared++
		if got {
			ignored++
		}
	}
	if ig.Err() != nil {
		t.Error(ig.Err())
	}
	return compared, ignored
}

// Rules that people get wrong, each with the tree it is tried on.
func TestIgnoreRulesAgainstGit(t *testing.T) {
	paths := []string{
		"a", "b/", "b/a", "b/c/", "b/c/a", "b/c/x.o", "x.o", "keep.o", "build/", "build/out", "sub/build/", "sub/build/keep/f", "sub/build2",
		"foo/bar", "foo/x/bar", "foo/x/y/bar", "foobar", "fooz/y/bar", "a b", "a ", "a  ", "#x", "!x", `back\slash`, "[x]", "x", "]", "-", "^",
		"é", "log.txt", "logs/", "logs/1.log", "logs/keep/1.log", "deep/logs/2.log", "tab\tname", "Z9", "z", ".hidden", "cr\r", "doc/frotz/", "doc/a/frotz/f", "star*name", "q?",
		"files/build", "files/foo", "files/logs", "d", "e", "foo/q/w/bar",
	}
	files := map[string]string{
		"negation":   "*.o\n!keep.o\n!x.o\nx.o\n",
		"folders":    "build/\nfoo/bar\n/a\n",
		"parent":     "logs/\n!logs/keep/1.log\n!logs/1.log\n",
		"reinclude":  "logs/*\n!logs/keep\n",
		"stars":      "foo/**/bar\n**/logs/*.log\nb/**\n",
		"odd stars":  "fo**/bar\n**foo\n***/a\n/f**\nfoo/***\n**/**/c\n*/*/a\nb**\n/b**\nf?**/bar\n/[f]oo**/bar\n*o**/w\n",
		"spaces":     "a\\ \na b  \na \\ \n\t\n   \n",
		"escapes":    "\\#x\n\\!x\n#x\nback\\\\slash\n\\[x\\]\nx\\\n\\x\nstar\\*name\nq\\?\n",
		"brackets":   "[[:upper:]][0-9]\n[a-cx]\n[]]\n[^a-y]\n[!-]og.txt\n[[:nope:]]x\n[z\n[]-]\n[\\]x]\n[x-]\n[[:alpha:]-z]\n[[:]\n",
		"ranges":     "[a-c-e]\n",
		"slash set":  "foo[/]bar\nfoo?bar\nfoo[^a]bar\nb[!x]c\n",
		"crlf":       "*.o\r\n!keep.o\r\nfoo/\r\ncr\\\r\r\n\r\n",
		"bom":        "\xef\xbb\xbfx.o\n",
		"no newline": "*.o\r",
		"anchors":    "/b\ndoc/frotz\n/foo/\n./a\n//a\nb//a\n/\n!\n!/\n**/\n",
		"bytes":      "?\n??\nlog.*\n",
		"slashes":    "foo\\/bar\n**\\/bar\nfoo/**\\/bar\nb/\\\n",
		"dot":        ".*\n*\n!*/\n!*.o\n",
	}
	for name, content := range files {
		t.Run(name, func(t *testing.T) {
			for _, at := range []string{".gitignore", "b/.gitignore", ".git/info/exclude"} {
				top := t.TempDir()
				gitOracle(t, top, "", "init", "-q")
				for _, p := range paths {
					if strings.HasSuffix(p, "/") {
						os.MkdirAll(filepath.Join(top, p), 0o755)
					} else if _, err := os.Lstat(filepath.Join(top, p)); err != nil {
						writeAt(t, top, p, "")
					}
				}
				writeAt(t, top, at, content)
				compareIgnore(t, top)
			}
		})
	}
}

// Trees, rules and names from a small alphabet, so that they meet.
func TestIgnoreRandomAgainstGit(t *testing.T) {
	trees := 40
	if os.Getenv("E2E_SOAK") != "" {
		trees = 1000
	}
	compared, ignored := 0, 0
	for seed := range trees {
		rnd := rand.New(rand.NewPCG(uint64(seed), 7))
		pick := func(of ...string) string { return of[rnd.IntN(len(of))] }
		name := func() string {
			s := ""
			for range 1 + rnd.IntN(3) {
				s += pick("a", "b", "c", "a", "b", ".", " ", "-", "]", "!", "#", `\`, "A", "1", "é", "*")
			}
			if strings.Trim(s, ".") == "" {
				s += "a"
			}
			return s
		}
		pattern := func() string {
			s := pick("", "", "", "!", "/", "!/", "**/", "*", " ", "#", `\!`)
			for range 1 + rnd.IntN(5) {
				s += pick("a", "b", "c", "a", "b", "c", "/", "/", "*", "**", "/**/", "?", "[ab]", "[!a]", "[^b-c]", "[a-", "[[:alpha:]]",
					"[[:digit:]", "[]a]", `[\]b]`, `\a`, `\\`, `\`, ".", " ", "-", "]", "!", "#", "A", "é", "\xc3", "***", "[b-a]", "[--c]", `\/`)
			}
			return s + pick("", "", "", "/", "/", " ", "  ", `\ `, "\t", "/**", "\r")
		}
		top := t.TempDir()
		gitOracle(t, top, "", "init", "-q")
		dirs := []string{""}
		for range 12 {
			d := path.Join(dirs[rnd.IntN(len(dirs))], name())
			if os.Mkdir(filepath.Join(top, d), 0o755) == nil {
				dirs = append(dirs, d)
			}
		}
		for range 60 {
			p := filepath.Join(top, dirs[rnd.IntN(len(dirs))], name())
			if f, err := os.OpenFile(p, os.O_CREATE|os.O_EXCL, 0o644); err == nil {
				f.Close()
			}
		}
		rules := func(n int) string {
			var s strings.Builder
			for range n {
				s.WriteString(pattern() + "\n")
			}
			return s.String()
		}
		writeAt(t, top, ".gitignore", rules(6))
		writeAt(t, top, ".git/info/exclude", rules(3))
		for _, d := range dirs[1:] {
			if rnd.IntN(3) == 0 {
				writeAt(t, top, d+"/.gitignore", rules(3))
			}
		}
		n, i := compareIgnore(t, top)
		compared, ignored = compared+n, ignored+i
		if t.Failed() {
			t.Fatalf("seed %d; rules:\n%s", seed, gitOracle(t, top, "", "grep", "--no-index", "--no-exclude-standard", "-n", "", "--", ":(glob)**/.gitignore"))
		}
	}
	t.Logf("%d paths compared, %d of them ignored", compared, ignored)
	if ignored < compared/20 || ignored > compared*19/20 {
		t.Error("the generator makes no interesting cases")
	}
}

// A source may be a folder of a repository: rules above it hold.
func TestIgnoreBelowTop(t *testing.T) {
	top := t.TempDir()
	gitOracle(t, top, "", "init", "-q")
	writeAt(t, top, ".gitignore", "*.o\n/sub/only\n")
	writeAt(t, top, "sub/.gitignore", "!keep.o\n")
	writeAt(t, top, ".git/info/exclude", "secret\n")
	ig, err := ignoreOnDisk(filepath.Join(top, "sub"))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{"a.o": true, "keep.o": false, "only": true, "x/only": false, "x/secret": true, "x/secret/y": true, "a": false} {
		if got, rule := ig.verdict(path, false); got != want {
			t.Errorf("verdict(%q) = %v %q", path, got, rule)
		}
	}
}

func TestIgnoreReadsThroughOpen(t *testing.T) {
	var mu sync.Mutex
	opened := map[string]int{}
	ig := NewIgnore(func(p string) ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		opened[p]++
		switch p {
		case ".gitignore":
			return []byte("*.log\nout/\n"), nil
		case "bad/.gitignore":
			return nil, errors.New("disk on fire")
		case "gone/.gitignore":
			return nil, cell.Errorf(cell.NotFound, "x", "", "no such")
		}
		return nil, fs.ErrNotExist
	}, IgnoreFile{"strong", []byte("!a.tmp\n")}, IgnoreFile{"weak", []byte("*.tmp\n")})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if got, rule := ig.verdict("x/y/a.log", false); !got || rule != ".gitignore:1:*.log" {
					t.Error(got, rule)
				}
				if got, rule := ig.verdict("a.tmp", false); got || rule != "strong:1:!a.tmp" {
					t.Error(got, rule)
				}
				if got, rule := ig.verdict("x/out/deep/er", false); !got || rule != ".gitignore:2:out/" {
					t.Error(got, rule)
				}
				if got, _ := ig.verdict("gone/b.tmp", false); !got {
					t.Error("weak rule lost")
				}
			}
		})
	}
	wg.Wait()
	if opened["x/out/.gitignore"]+opened["x/out/deep/.gitignore"] > 0 {
		t.Error("rules of an ignored folder were read")
	}
	if ig.Err() != nil {
		t.Error(ig.Err())
	}
	ig.verdict("bad/x", false)
	if err := ig.Err(); err == nil || !strings.HasPrefix(err.Error(), "cannot read bad/.gitignore: ") {
		t.Errorf("Err = %v", err)
	}
}

// As git, we take no rules through a symlink and do not wait on a fifo.
func TestIgnoreOnlyRegularFiles(t *testing.T) {
	top := t.TempDir()
	writeAt(t, top, "rules", "*\n")
	os.Mkdir(top+"/a", 0o755)
	os.Mkdir(top+"/b", 0o755)
	os.MkdirAll(top+"/c/.gitignore", 0o755)
	os.Symlink("../rules", top+"/a/.gitignore")
	unix.Mkfifo(top+"/b/.gitignore", 0o644)
	ig, err := ignoreOnDisk(top)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"a/x", "b/x", "c/x", "rules/not-a-folder"} {
		if got, rule := ig.verdict(p, false); got {
			t.Errorf("%s is ignored by %q", p, rule)
		}
	}
	if ig.Err() != nil {
		t.Error(ig.Err())
	}
}

// ignoreOnDisk returns the rules for the folder root on disk: its own and,
// when it lies in a git work tree, those of the folders above it and of
// info/exclude.
func ignoreOnDisk(root string) (*Ignore, error) {
	repo, err := Find(root)
	if err != nil {
		return nil, err
	}
	var files []IgnoreFile
	top, prefix := root, ""
	if repo != nil {
		top, prefix = repo.top, repo.prefix
		b, err := readIgnore(filepath.Join(repo.common, "info/exclude"), 0)
		if err == nil {
			files = append(files, IgnoreFile{".git/info/exclude", b})
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("cannot read git's exclude file: %w", err)
		}
	}
	ig := NewIgnore(func(path string) ([]byte, error) {
		return readIgnore(filepath.Join(top, path), unix.O_NOFOLLOW)
	}, files...)
	ig.prefix = prefix
	return ig, nil
}

// readIgnore passes over what is no regular file, as git does.
func readIgnore(path string, flags int) ([]byte, error) {
	b, err := readRegularFlags(path, maxFile, flags)
	if cell.KindOf(err) == cell.Invalid || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, fs.ErrNotExist
	}
	return b, err
}

// verdict reports whether path is ignored, and the rule that decided as "file:line:pattern".
func (ig *Ignore) verdict(path string, isDir bool) (ignored bool, rule string) {
	r := ig.decide(path, isDir)
	if r == nil {
		return false, ""
	}
	return !r.negative, fmt.Sprintf("%s:%d:%s", r.from.source, r.line, r.text)
}
