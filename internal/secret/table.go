package secret

import (
	"strings"
	"sync"
)

// components splits a path that ends in a slash if it is a folder.
func components(path string) (comps []string, isDir bool) {
	path, isDir = strings.CutSuffix(path, "/")
	return splitFolded(path, isDir), isDir
}

// splitFolded splits a path for matching: lower case, and the name of the
// original where the last component is that of a backup.
func splitFolded(path string, isDir bool) []string {
	comps := strings.Split(strings.ToLower(path), "/")
	if isDir {
		return comps
	}
	last := &comps[len(comps)-1]
	for again := true; again; {
		again = false
		for _, suffix := range []string{"~", ".bak", ".backup", ".orig", ".old", ".save", ".copy", ".tmp"} {
			if s, ok := strings.CutSuffix(*last, suffix); ok && s != "" && s != "." {
				*last, again = s, true
			}
		}
		for _, suffix := range []string{".swp", ".swo", ".swn"} { // vim's ".name.swp"
			if s, ok := strings.CutSuffix(*last, suffix); ok && strings.HasPrefix(s, ".") && len(s) > 1 {
				*last, again = s[1:], true
			}
		}
		if s, ok := strings.CutPrefix(*last, "#"); ok && strings.HasSuffix(s, "#") && len(s) > 1 { // emacs
			*last, again = s[:len(s)-1], true
		}
	}
	return comps
}

// A nameTable finds the row for a path: by its last component, then those
// before it.
type nameTable struct {
	exact map[string][]nameRule
	globs []nameRule
}

type nameRule struct {
	row    *nameRow
	before []string // the components before the last
	head   string   // the last is head, anything, tail
	tail   string
}

func (t *nameTable) find(comps []string) *nameRow {
	last := comps[len(comps)-1]
	for _, r := range t.exact[last] {
		if r.follows(comps) {
			return r.row
		}
	}
	for i := range t.globs {
		r := &t.globs[i]
		if strings.HasSuffix(last, r.tail) && strings.HasPrefix(last, r.head) && len(last) >= len(r.head)+len(r.tail) && r.follows(comps) {
			return r.row
		}
	}
	return nil
}

// follows reports whether the components before the last are those of the rule.
func (r *nameRule) follows(comps []string) bool {
	n := len(comps) - 1 - len(r.before)
	if n < 0 {
		return false
	}
	for i, c := range r.before {
		if comps[n+i] != c {
			return false
		}
	}
	return true
}

func (t *nameTable) add(row *nameRow) {
	comps := strings.Split(strings.TrimSuffix(row.pattern, "/"), "/")
	last := comps[len(comps)-1]
	r := nameRule{row: row, before: comps[:len(comps)-1]}
	var glob bool
	if r.head, r.tail, glob = strings.Cut(last, "*"); glob {
		t.globs = append(t.globs, r)
		return
	}
	t.exact[last] = append(t.exact[last], r)
}

type nameTables struct{ folders, files, shared, contents *nameTable }

var tables = sync.OnceValue(func() *nameTables {
	of := func(rows []nameRow, folders bool) *nameTable {
		t := &nameTable{exact: map[string][]nameRule{}}
		for i := range rows {
			if strings.HasSuffix(rows[i].pattern, "/") == folders {
				t.add(&rows[i])
			}
		}
		return t
	}
	return &nameTables{
		folders:  of(nameRows, true),
		files:    of(nameRows, false),
		shared:   of(sharedRows, false),
		contents: of(contentRows, false),
	}
})
