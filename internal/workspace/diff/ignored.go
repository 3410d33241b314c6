package diff

import (
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/workspace"
)

// IgnoredFiles sums up changes of files that git ignores.
type IgnoredFiles struct {
	Count   int      `json:"count"`
	Folders []string `json:"folders,omitempty"` // ignored folders and single files, most changes first, at most ten
	More    int      `json:"more,omitempty"`    // how many were left out of Folders
}

const ignoredNames = 10

func SumIgnored(changes []workspace.Change, ignored func(path string, isDir bool) bool) IgnoredFiles {
	sum := IgnoredFiles{Count: len(changes)}
	isIgnored := map[string]bool{}
	perTop := map[string]int{}
	for _, c := range changes {
		top := c.Path
		for i := 0; i < len(c.Path); i++ {
			if c.Path[i] != '/' {
				continue
			}
			dir := c.Path[:i]
			known, ok := isIgnored[dir]
			if !ok {
				known = ignored(dir, true)
				isIgnored[dir] = known
			}
			if known {
				top = dir
				break
			}
		}
		perTop[top]++
	}
	for top := range perTop {
		sum.Folders = append(sum.Folders, top)
	}
	sort.Slice(sum.Folders, func(i, j int) bool {
		x, y := sum.Folders[i], sum.Folders[j]
		if perTop[x] != perTop[y] {
			return perTop[x] > perTop[y]
		}
		return x < y
	})
	if n := len(sum.Folders); n > ignoredNames {
		sum.Folders, sum.More = sum.Folders[:ignoredNames], n-ignoredNames
	}
	return sum
}

// String gives one line: "1,204 ignored files (node_modules, target)". It is
// empty when there are none.
func (f IgnoredFiles) String() string {
	if f.Count == 0 {
		return ""
	}
	names := make([]string, 0, 5)
	for _, n := range f.Folders[:min(4, len(f.Folders))] {
		names = append(names, quoteName(n, false))
	}
	if more := f.More + len(f.Folders) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%s more", Thousands(more)))
	}
	noun := "files"
	if f.Count == 1 {
		noun = "file"
	}
	return fmt.Sprintf("%s ignored %s (%s)", Thousands(f.Count), noun, strings.Join(names, ", "))
}

// Thousands writes n with a comma before each group of three digits.
func Thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// IgnoredBy returns what git would ignore in the state after, which began as
// base: the rules are after's own, and what git tracked in base is never
// ignored. A workspace without a repository ignores nothing.
func IgnoredBy(base, after workspace.Side) (func(path string, isDir bool) bool, error) {
	if _, err := base.Tree.Lookup(".git"); err != nil {
		return func(string, bool) bool { return false }, nil
	}
	tracked := trackedIn(base)
	exclude, _ := readSide(base, ".git/info/exclude")
	ig := gitdir.NewIgnore(func(path string) ([]byte, error) { return readSide(after, path) }, gitdir.IgnoreFile{Name: ".git/info/exclude", Content: exclude})
	return func(path string, isDir bool) bool {
		if tracked.Has(path) {
			return false
		}
		ignored, _ := ig.Match(path, isDir)
		return ignored
	}, nil
}

// trackedIn returns what git tracks in s. An index of a kind that can't be read
// tracks nothing, which ignores a little too much and only costs an --ignored.
func trackedIn(s workspace.Side) gitdir.Set {
	index, err := readSide(s, ".git/index")
	if err != nil {
		return nil
	}
	config, _ := readSide(s, ".git/config")
	n, err := gitdir.HashLen(config)
	if err != nil {
		return nil
	}
	tracked, _ := gitdir.ReadIndex(index, n)
	return tracked
}

// maxRuleFile bounds the files that rules are read from, in bytes.
const maxRuleFile = 8 << 20

// readSide returns the content of a regular file of a state. What is not
// there, or is no small regular file, has none.
func readSide(s workspace.Side, path string) ([]byte, error) {
	e, err := s.Tree.Lookup(strings.TrimPrefix(path, "/"))
	if err != nil {
		return nil, err
	}
	if e.Type != workspace.File || e.Size > 64*maxRuleFile {
		return nil, cell.Errorf(cell.NotFound, "diff.readSide", "", "no file %s in the workspace", path)
	}
	f, err := s.Contents.Open(path, e)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}
