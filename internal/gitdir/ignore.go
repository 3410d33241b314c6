//go:build linux

package gitdir

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
)

// An IgnoreFile is a file of patterns for a whole work tree.
type IgnoreFile struct {
	Name    string // as shown to people: ".git/info/exclude"
	Content []byte
}

// Ignore decides which paths git would ignore, by the ".gitignore" files in the folders of a
// work tree and by files for the whole tree. Rules are read on first use and kept, so an Ignore
// describes one moment. It is safe for concurrent use.
//
// It decides by rules alone: git does not ignore what it tracks. It does not cover paths below
// ".git" and in nested repositories.
type Ignore struct {
	open   func(path string) ([]byte, error)
	prefix string // prefix of every path: the tree is a folder of the work tree

	rules *bound.Budget // memory of the rules
	steps *bound.Budget // of matching

	mu   sync.RWMutex
	dirs map[string]*ignoreDir // by path in the work tree, "" is its top
	err  error                 // the first error of open other than "not found", or the first limit
}

// Limits on the rules of one Ignore. A tree with a thousand files of a hundred
// rules needs 30 MB. Steps are rules compared with a path, and parts of patterns
// compared with parts of it: a million paths and a hundred rules need some
// hundred million.
const (
	maxRules = 128 << 20
	maxSteps = 4 << 30
)

// NewIgnore returns the rules of a work tree. open reads a file by its path in it, and returns
// fs.ErrNotExist or a NotFound error when there is none; like git it must not follow a symlink
// in place of a ".gitignore". files apply everywhere, the strongest first; a ".gitignore" is
// stronger than all of them.
func NewIgnore(open func(path string) ([]byte, error), files ...IgnoreFile) *Ignore {
	ig := &Ignore{open: open, dirs: map[string]*ignoreDir{},
		rules: bound.NewBudget("git's ignore rules", maxRules, "bytes of rules"), steps: bound.NewBudget("git's ignore rules", maxSteps, "steps of matching")}
	var rules *ignoreRules
	for i := len(files) - 1; i >= 0; i-- {
		rules = ig.parse(files[i].Name, "", files[i].Content, rules)
	}
	ig.dirs[""] = ig.load("", rules)
	return ig
}

// Err returns the first error met while reading rules, other than that there
// are none, or the limit that they exceeded. What Match answered since then may
// be wrong.
func (ig *Ignore) Err() error {
	ig.mu.RLock()
	defer ig.mu.RUnlock()
	return ig.err
}

// Ignored reports whether path, relative to the tree, is ignored.
//
// Nothing below an ignored folder can be re-included: the rule of the folder is then the
// rule of the path.
func (ig *Ignore) Ignored(path string, isDir bool) bool {
	r := ig.decide(path, isDir)
	return r != nil && !r.negative
}

// decide returns the rule that applies to path.
func (ig *Ignore) decide(path string, isDir bool) *ignoreRule {
	if ig.prefix != "" {
		path = ig.prefix + "/" + path
	}
	dir, name := cutLast(path)
	d := ig.dir(dir)
	if d.by != nil {
		return d.by
	}
	return ig.match(d.rules, path, name, isDir)
}

func (ig *Ignore) fail(err error) {
	ig.mu.Lock()
	defer ig.mu.Unlock()
	if ig.err == nil {
		ig.err = err
	}
}

// cutLast splits off the last name of a path; dir is "" for a path at the top.
func cutLast(path string) (dir, name string) {
	i := strings.LastIndexByte(path, '/')
	return path[:max(i, 0)], path[i+1:]
}

// ignoreDir has the rules of one folder.
type ignoreDir struct {
	by    *ignoreRule  // the rule that ignores the folder and everything below it
	rules *ignoreRules // otherwise the rules in force in it
}

func (ig *Ignore) dir(path string) *ignoreDir {
	ig.mu.RLock()
	d := ig.dirs[path]
	ig.mu.RUnlock()
	if d != nil {
		return d
	}
	parent, name := cutLast(path)
	up := ig.dir(parent)
	if up.by != nil {
		d = up
	} else if r := ig.match(up.rules, path, name, true); r != nil && !r.negative {
		d = &ignoreDir{by: r}
	} else {
		d = ig.load(path, up.rules)
	}
	ig.mu.Lock()
	ig.dirs[path] = d
	ig.mu.Unlock()
	return d
}

// load reads the ".gitignore" of a folder; up are the rules of its parent.
func (ig *Ignore) load(path string, up *ignoreRules) *ignoreDir {
	if ig.Err() != nil { // no result is valid any more
		return &ignoreDir{rules: up}
	}
	name := strings.TrimPrefix(path+"/.gitignore", "/")
	b, err := ig.open(name)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) && cell.KindOf(err) != cell.NotFound {
			if bound.Exceeded(err) == nil {
				err = fmt.Errorf("cannot read %s: %w", name, err)
			}
			ig.fail(err)
		}
		return &ignoreDir{rules: up}
	}
	return &ignoreDir{rules: ig.parse(name, path, b, up)}
}

// ignoreRules are the rules of one file and, through up, of the weaker ones.
type ignoreRules struct {
	source string // the file
	base   string // the folder that they apply to, with a final slash; "" is the top
	rules  []ignoreRule
	names  map[string][]int // plain names, most rules: where in rules, in order
	other  []int            // the rest
	up     *ignoreRules
}

func (l *ignoreRules) add(r ignoreRule) {
	i := len(l.rules)
	l.rules = append(l.rules, r)
	if !r.anywhere || len(r.glob) > 0 {
		l.other = append(l.other, i)
		return
	}
	if l.names == nil {
		l.names = map[string][]int{}
	}
	l.names[r.literal] = append(l.names[r.literal], i)
}

// match returns the rule that decides: the last that matches in the strongest
// file of l that has one. Without steps left, nothing matches.
func (ig *Ignore) match(l *ignoreRules, path, name string, isDir bool) *ignoreRule {
	for ; l != nil; l = l.up {
		found := -1
		same := l.names[name]
		steps := int64(1)
		for i := len(same) - 1; i >= 0; i-- {
			steps++
			if isDir || !l.rules[same[i]].dirOnly {
				found = same[i]
				break
			}
		}
		rel := path[len(l.base):]
		for i := len(l.other) - 1; i >= 0 && l.other[i] > found; i-- {
			r := &l.rules[l.other[i]]
			steps++
			if (isDir || !r.dirOnly) && strings.HasSuffix(rel, r.tail) && r.match(rel, name, &steps) {
				found = l.other[i]
			}
		}
		if err := ig.steps.Spend(steps); err != nil {
			ig.fail(err)
			return nil
		}
		if found >= 0 {
			return &l.rules[found]
		}
	}
	return nil
}

// parse reads a file of patterns, one a line.
func (ig *Ignore) parse(source, dir string, content []byte, up *ignoreRules) *ignoreRules {
	l := &ignoreRules{source: source, up: up}
	if dir != "" {
		l.base = dir + "/"
	}
	content = bytes.TrimPrefix(content, []byte("\xef\xbb\xbf"))
	n := 0
	for line := range bytes.Lines(content) {
		n++
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		line, _, _ = bytes.Cut(line, []byte("\x00")) // git's lines are C strings
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		if err := ig.rules.Spend(ruleCost(line)); err != nil {
			ig.fail(err)
			return up
		}
		if r, ok := parseIgnoreRule(trimIgnoreSpaces(string(line))); ok {
			r.line, r.from = n, l
			l.add(r)
		}
	}
	if len(l.rules) == 0 {
		return up
	}
	return l
}

// ruleCost is the maximum memory of a rule, in bytes: every byte of a pattern may become a part
// of its own with a set.
func ruleCost(pattern []byte) int64 {
	const rule, part = 400, 128 // including growing slices and a map
	n := rule + int64(len(pattern))
	if bytes.ContainsAny(pattern, `*?[\`) {
		n += part * int64(len(pattern))
	}
	return n
}

// trimIgnoreSpaces removes unescaped spaces at the end.
func trimIgnoreSpaces(s string) string {
	end := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case ' ':
			continue
		case '\\':
			i++
		}
		end = i + 1
	}
	return s[:min(end, len(s))]
}
