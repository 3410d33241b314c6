package diff

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/parse"
	"github.com/pando-dev/pando/internal/workspace"
)

// IgnoredFiles sums up changes of files that git ignores.
type IgnoredFiles struct {
	Count   int      `json:"count"`
	Folders []string `json:"folders,omitempty"` // ignored folders and single files, most changes first, at most ten
	More    int      `json:"more,omitempty"`    // number of further folders
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
// ignored. A workspace without a repository ignores nothing. A large index is
// parsed by outside.
//
// All changes between the two are judged before it returns, so that an index or
// rules that can't be read, or that exceed a limit, are its error. An index of a
// kind that is not supported tracks nothing, which ignores a little too much and
// only costs an --ignored.
//
// Of a workspace with several directories each is judged by its own repository.
func IgnoredBy(ctx context.Context, base, after workspace.Side, parts []workspace.Directory, outside *parse.Parser) (func(path string, isDir bool) bool, error) {
	if len(parts) == 1 && parts[0].At == "" {
		return ignoredBy(ctx, base, after, outside)
	}
	in := map[string]func(string, bool) bool{}
	for _, d := range parts {
		b, err := base.Part(d.At)
		a, aerr := after.Part(d.At)
		if err = cmp.Or(err, aerr); cell.KindOf(err) == cell.NotFound {
			continue // without files there are no rules
		}
		if err != nil {
			return nil, err
		}
		if in[d.At], err = ignoredBy(ctx, b, a, outside); err != nil {
			return nil, fmt.Errorf("%s: %w", d.At, err)
		}
	}
	return func(path string, isDir bool) bool {
		for at, ignored := range in {
			if rest, ok := strings.CutPrefix(path, at+"/"); ok {
				return ignored(rest, isDir)
			}
		}
		return false
	}, nil
}

// ignoredBy is IgnoredBy for one directory.
func ignoredBy(ctx context.Context, base, after workspace.Side, outside *parse.Parser) (func(path string, isDir bool) bool, error) {
	if _, err := base.Tree.Lookup(".git"); err != nil {
		return func(string, bool) bool { return false }, nil
	}
	tracked, err := trackedIn(ctx, base, outside)
	if err != nil && cell.KindOf(err) != cell.Unsupported {
		return nil, err
	}
	exclude, err := readSide(base, ".git/info/exclude")
	if err != nil && cell.KindOf(err) != cell.NotFound {
		return nil, err
	}
	rules := gitdir.NewIgnore(func(path string) ([]byte, error) { return readSide(after, path) }, gitdir.IgnoreFile{Name: ".git/info/exclude", Content: exclude})
	changes, err := workspace.Changes(base.Tree, after.Tree)
	if err != nil {
		return nil, err
	}
	type question struct {
		path  string
		isDir bool
	}
	known := map[question]bool{}
	judge := func(path string, isDir bool) bool {
		if known, ok := known[question{path, isDir}]; ok {
			return known
		}
		return rules.Ignored(path, isDir) && !tracked.Has(path)
	}
	for i, c := range changes {
		if i%1024 == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if gitdir.Inside(c.Path) {
			continue
		}
		e := c.New
		if e == nil {
			e = c.Old
		}
		known[question{c.Path, e.Type == workspace.Folder}] = judge(c.Path, e.Type == workspace.Folder)
		if err := rules.Err(); err != nil {
			return nil, err
		}
	}
	return judge, nil
}

// trackedIn returns the tracked paths of s.
func trackedIn(ctx context.Context, s workspace.Side, outside *parse.Parser) (*gitdir.Set, error) {
	config, err := readSide(s, ".git/config")
	if err != nil && cell.KindOf(err) != cell.NotFound {
		return nil, err
	}
	n, err := gitdir.HashLen(config)
	if err != nil {
		return nil, err
	}
	f, e, err := openSide(s, ".git/index", maxIndex)
	if cell.KindOf(err) == cell.NotFound {
		return gitdir.NewSet(), nil // an empty index
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return gitdir.ParseIndex(ctx, outside, gitdir.Index{What: ".git/index", Key: e.Digest, Size: e.Size, HashLen: n}, f)
}

// Limits of the files with rules, in bytes.
const (
	maxRuleFile = 1 << 20
	maxIndex    = 1 << 30
)

// readSide returns the content of a regular file of a state. A missing or other file is
// NotFound; a large file is TooLarge.
func readSide(s workspace.Side, path string) ([]byte, error) {
	f, _, err := openSide(s, strings.TrimPrefix(path, "/"), maxRuleFile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return bound.ReadAll(f, path, maxRuleFile)
}

// openSide opens a regular file of a state that has at most limit bytes.
func openSide(s workspace.Side, path string, limit int64) (io.ReadCloser, workspace.Entry, error) {
	e, err := s.Tree.Lookup(path)
	if err != nil {
		return nil, e, err
	}
	if e.Type != workspace.File {
		return nil, e, cell.Errorf(cell.NotFound, "diff.openSide", "", "no file %s in the workspace", path)
	}
	if e.Size > limit {
		return nil, e, bound.Exceed(path, limit, "bytes")
	}
	f, err := s.Contents.Open(path, e)
	return f, e, err
}
