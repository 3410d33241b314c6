package gitdir

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
)

var oddNames = []string{
	"a b", " lead", "trail ", "new\nline", "tab\there", `back\slash`, `"quoted"`, "$(id)", "-rf", "é", "\xff\xfe not utf-8",
	"a-b", "a.b", "a/b", "a0", "deep/er/and/er/file", "deep/er.txt", strings.Repeat("n", 255), ".env", "*", "[x]",
}

// bigRepo has that many tracked files and some with names of every kind, some with
// extended flags, and a path in conflict.
func bigRepo(t testing.TB, files int, args ...string) string {
	t.Helper()
	top := t.TempDir()
	gitOracle(t, top, "", append([]string{"init", "-q", "-b", "main"}, args...)...)
	for i := range files {
		writeAt(t, top, fmt.Sprintf("dir%d/sub%d/file%d.go", i%7, i%101, i), fmt.Sprint(i))
	}
	for _, n := range oddNames {
		writeAt(t, top, "odd/"+n, n)
	}
	gitOracle(t, top, "", "add", "-A")
	gitOracle(t, top, "", "commit", "-q", "-m", "x")
	writeAt(t, top, "untracked", "")
	writeAt(t, top, "intended", "")
	gitOracle(t, top, "", "add", "-N", "intended")
	gitOracle(t, top, "", "update-index", "--skip-worktree", "dir1/sub1/file1.go")
	blob := strings.TrimSpace(gitOracle(t, top, "x", "hash-object", "-w", "--stdin"))
	long := strings.Repeat("d/", 2300) + "longer-than-the-length-field"
	gitOracle(t, top, fmt.Sprintf("100644 %s 1\tboth\x00100644 %s 2\tboth\x00100644 %s 3\tboth\x00100644 %s 0\t%s\x00", blob, blob, blob, blob, long),
		"update-index", "-z", "--index-info")
	return top
}

func lsFiles(t testing.TB, dir string) []string {
	t.Helper()
	out := strings.Split(strings.TrimSuffix(gitOracle(t, dir, "", "ls-files", "-z"), "\x00"), "\x00")
	if out[0] == "" {
		return []string{}
	}
	return slices.Compact(out)
}

func wantTracked(t *testing.T, root string, want []string) {
	t.Helper()
	got, err := Tracked(t.Context(), root, nil)
	if err != nil {
		t.Fatal(err)
	}
	paths := slices.Collect(got.All())
	if !slices.Equal(paths, want) || (got == nil) != (want == nil) || got.Len() != len(want) {
		t.Fatalf("Tracked has %d paths, git has %d: %.300q", len(paths), len(want), paths)
	}
}

func TestTrackedAllVersions(t *testing.T) {
	for format, files := range map[string]int{"sha1": 3000, "sha256": 300} {
		top := bigRepo(t, files, "--object-format="+format)
		index := filepath.Join(top, ".git/index")
		for _, version := range []string{"2", "3", "4"} {
			t.Run(format+"/v"+version, func(t *testing.T) {
				// git writes version 3 by itself where extended flags need it.
				gitOracle(t, top, "", "update-index", "--index-version", version, "--force-write-index")
				b, err := os.ReadFile(index)
				if err != nil {
					t.Fatal(err)
				}
				if v := binary.BigEndian.Uint32(b[4:]); fmt.Sprint(v) != version && version != "2" {
					t.Fatalf("git wrote version %d", v)
				}
				want := lsFiles(t, top)
				if len(want) < files+len(oddNames) {
					t.Fatalf("git lists %d files", len(want))
				}
				wantTracked(t, top, want)
				for _, p := range []string{"untracked", "dir1/sub1/file", "dir", "odd/a.", "both/x"} {
					if NewSet(want...).Has(p) {
						t.Errorf("Has(%q)", p)
					}
				}
				for _, p := range []string{"both", "dir1", "dir1/sub1", "odd/a", "odd/a/b", "odd", "intended"} {
					if !NewSet(want...).Has(p) {
						t.Errorf("not Has(%q)", p)
					}
				}
				// index.skipHash leaves zeros.
				n := 20
				if format == "sha256" {
					n = 32
				}
				zero := append(slices.Clone(b[:len(b)-n]), make([]byte, n)...)
				if got, err := readIndex(zero, n); err != nil || !slices.Equal(slices.Collect(got.All()), want) {
					t.Errorf("without a checksum: %d paths, %v", got.Len(), err)
				}
			})
		}
	}
	t.Run("version 2", func(t *testing.T) { // no extended flags
		top := t.TempDir()
		gitOracle(t, top, "", "init", "-q")
		for _, n := range oddNames {
			writeAt(t, top, "odd/"+n, "")
		}
		gitOracle(t, top, "", "add", "-A")
		b, _ := os.ReadFile(filepath.Join(top, ".git/index"))
		if binary.BigEndian.Uint32(b[4:]) != 2 {
			t.Fatal("git did not write version 2")
		}
		wantTracked(t, top, lsFiles(t, top))
	})
}

func TestTrackedSplitAndSparseRefused(t *testing.T) {
	for name, args := range map[string][][]string{
		"split":  {{"update-index", "--split-index"}},
		"sparse": {{"sparse-checkout", "init", "--cone", "--sparse-index"}, {"sparse-checkout", "set", "dir1"}},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			gitOracle(t, top, "", "init", "-q")
			for i := range 20 {
				writeAt(t, top, fmt.Sprintf("dir%d/f", i), "")
			}
			gitOracle(t, top, "", "add", "-A")
			gitOracle(t, top, "", "commit", "-q", "-m", "x")
			for _, a := range args {
				gitOracle(t, top, "", a...)
			}
			_, err := Tracked(t.Context(), top, nil)
			if cell.KindOf(err) != cell.Unsupported || !strings.Contains(err.Error(), name) || cell.HintOf(err) == "" {
				t.Errorf("Tracked = %v, want Unsupported that says %s", err, name)
			}
		})
	}
	// A sparse folder without its extension is recognised by its mode alone.
	b := rawIndex(indexModeDir, "d/")
	if _, err := readIndex(b, 20); cell.KindOf(err) != cell.Unsupported {
		t.Errorf("sparse folder: %v", err)
	}
}

// rawIndex makes a version 2 index with entries of these names, one a line, and
// the given extensions.
func rawIndex(mode uint32, names string, ext ...string) []byte {
	b := binary.BigEndian.AppendUint32([]byte("DIRC"), 2)
	b = binary.BigEndian.AppendUint32(b, uint32(1+strings.Count(names, "\n")))
	for name := range strings.SplitSeq(names, "\n") {
		e := make([]byte, indexStat+20+2)
		binary.BigEndian.PutUint32(e[indexMode:], mode)
		e = append(e, name...)
		b = append(b, append(e, make([]byte, 8-len(e)%8)...)...)
	}
	for _, x := range ext {
		b = append(b, x...)
	}
	sum := sha1.Sum(b)
	return append(b, sum[:]...)
}

func TestGitIndexRefusesDamage(t *testing.T) {
	good := rawIndex(0o100644, "a/b", "TREE\x00\x00\x00\x02xy")
	if s, err := readIndex(good, 20); err != nil || !slices.Equal(slices.Collect(s.All()), []string{"a/b"}) {
		t.Fatal(s, err)
	}
	for i := range good {
		if _, err := readIndex(good[:i], 20); cell.KindOf(err) != cell.Corrupt {
			t.Errorf("cut at %d: %v", i, err)
		}
		bad := slices.Clone(good)
		bad[i] ^= 1
		if _, err := readIndex(bad, 20); err == nil {
			t.Errorf("byte %d flipped: accepted", i)
		}
	}
	for _, n := range []string{"..", "../x", "/x", "a//b", "a/", "", ".", "a/./b", "b\na", "a/b\na\nz"} {
		if _, err := readIndex(rawIndex(0o100644, n), 20); cell.KindOf(err) != cell.Corrupt {
			t.Errorf("name %q: %v", n, err)
		}
	}
	for ext, word := range map[string]string{"link\x00\x00\x00\x00": "split", "sdir\x00\x00\x00\x00": "sparse"} {
		if _, err := readIndex(rawIndex(0o100644, "a", ext), 20); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("extension %q: %v, want a word on %s", ext, err, word)
		}
	}
	for ext, kind := range map[string]cell.Kind{
		"link\x00\x00\x00\x00": cell.Unsupported, "sdir\x00\x00\x00\x00": cell.Unsupported, "abcd\x00\x00\x00\x00": cell.Unsupported,
		"TREE\x00\x00\x00\x01": cell.Corrupt, "TREE": cell.Corrupt, "TREE\xff\xff\xff\xff": cell.Corrupt,
	} {
		if _, err := readIndex(rawIndex(0o100644, "a", ext), 20); cell.KindOf(err) != kind {
			t.Errorf("extension %q: %v, want %s", ext, err, kind)
		}
	}
	huge := rawIndex(0o100644, "a")
	binary.BigEndian.PutUint32(huge[8:], 0xffffffff)
	clear(huge[len(huge)-20:])
	if _, err := readIndex(huge, 20); cell.KindOf(err) != cell.Corrupt {
		t.Errorf("four thousand million entries: %v", err)
	}
}

func TestSetBelow(t *testing.T) {
	s := NewSet("a", "b-c", "b/x", "b/y/z", "b0", "c")
	if got := slices.Collect(s.below("b").All()); !slices.Equal(got, []string{"x", "y/z"}) {
		t.Error(got)
	}
	if got := slices.Collect(s.below("b").below("y").All()); !slices.Equal(got, []string{"z"}) {
		t.Error(got)
	}
	if b := s.below("b"); !b.Has("x") || !b.Has("y") || b.Has("") || b.Has("c") || b.Has("b/x") {
		t.Error("Has below b")
	}
	if got := s.below("q"); got == nil || got.Len() != 0 {
		t.Errorf("%#v", got)
	}
	if (*Set)(nil).Has("a") || (*Set)(nil).Has("") || s.Has("") || NewSet().Has("a") {
		t.Error("nothing has something")
	}
	if !s.Has("b/y") || s.Has("b/") || s.Has("b/y/zz") {
		t.Error("Has")
	}
}

func FuzzGitIndex(f *testing.F) {
	f.Add(rawIndex(0o100644, "a/b", "TREE\x00\x00\x00\x02xy"), 20)
	f.Add(rawIndex(indexModeDir, "d/"), 20)
	f.Add([]byte("DIRC\x00\x00\x00\x04\x00\x00\x00\x01"), 20)
	if _, err := exec.LookPath("git"); err == nil {
		top := f.TempDir()
		gitOracle(f, top, "", "init", "-q")
		for _, n := range []string{"a/b", "a/c", "b", "intended"} {
			writeAt(f, top, n, "")
		}
		gitOracle(f, top, "", "add", "a", "b")
		gitOracle(f, top, "", "add", "-N", "intended")
		for _, v := range []string{"2", "4"} {
			gitOracle(f, top, "", "update-index", "--index-version", v, "--force-write-index")
			b, err := os.ReadFile(filepath.Join(top, ".git/index"))
			if err != nil {
				f.Fatal(err)
			}
			clear(b[len(b)-20:]) // so that mutations are not all stopped at the checksum
			f.Add(b, 20)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, hashLen int) {
		if hashLen != 32 {
			hashLen = 20
		}
		var s *Set
		var err error
		boundtest.Allocates(t, len(b), func() { s, err = readIndex(b, hashLen) })
		if err != nil {
			if k := cell.KindOf(err); k != cell.Corrupt && k != cell.Unsupported && k != cell.TooLarge {
				t.Fatalf("%v is %s", err, k)
			}
			return
		}
		paths := slices.Collect(s.All())
		if !slices.IsSorted(paths) || len(slices.Compact(slices.Clone(paths))) != len(paths) {
			t.Fatalf("not a sorted set: %q", paths)
		}
		for _, p := range paths {
			if !filepath.IsLocal(p) || !s.Has(p) {
				t.Fatalf("bad path %q", p)
			}
		}
		var out bytes.Buffer
		if err := (&Repo{hashLen: hashLen}).SkipWorktree(bytes.NewReader(b), int64(len(b)), &out, paths[:len(paths)/2]); err != nil {
			t.Fatalf("read, and not copied: %v", err)
		}
		if again, err := readIndex(out.Bytes(), hashLen); err != nil || !slices.Equal(slices.Collect(again.All()), paths) {
			t.Fatalf("its copy is another: %v", err)
		}
	})
}
