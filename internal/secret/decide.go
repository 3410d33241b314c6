// Package secret knows what import leaves out of a workspace: paths with names that promise
// secrets, fields with credentials in files that are of use without them, and content with
// the shape of a live token. Its table of those shapes is that of redaction, of the
// environment of cells, of the gateway and of the store of credentials too.
//
// A decision depends only on its arguments (a path, whether git tracks it, what the user let
// in). No result or report holds a secret's value, and hostile content costs no more than
// its length. Tokens without a shape of their own (a password, 40 hex digits) are not
// found.
//
// The caller walks, reads and copies, and lists what stayed outside.
//
//	decide.go           what to do with a path; paths that the user lets in
//	names.go, table.go  names of secrets, and how a path is matched
//	fields.go           files that lose some fields, by formats.go and xml.go
//	scanner.go          looking for tokens in content
//	shapes.go           what tokens look like, with checks.go and keys.go
//	loose.go            the same in texts and requests, where a part of one counts
package secret

import (
	"path"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
)

// Action is what import does with a path.
type Action uint8

// The actions. LeaveOut holds for a folder and everything below it. Scrub
// means ScrubFields, and LeaveOut where that fails. ScanContent means a
// Scanner, and LeaveOut where that finds something.
const (
	Keep Action = iota
	LeaveOut
	Scrub
	ScanContent
)

func (a Action) String() string {
	return [...]string{"keep", "leave out", "scrub", "scan"}[a]
}

// A Decision is an action and why, for people: "environment file".
type Decision struct {
	Action Action
	Why    string
	// Tracked: git tracks it, so that it comes in as it is. Action and Why say
	// what it would be otherwise, for the list of secrets that came in.
	Tracked bool
	// Masked: git tracks it, and the policy has Action hold all the same. Decide
	// leaves it to the caller to turn Tracked into Masked.
	Masked bool
}

// Decide says what import does with a path of the source, relative to it and
// clean. tracked is Set.Has: git tracks the file, or something in the folder.
// Import asks for a folder before it asks for what is in it, and for symlinks
// as for files; what a symlink points to is never read, so that for one Scrub
// and ScanContent mean Keep.
//
// What is tracked comes in as it is: it is in the history anyway, and a fixture
// must not vanish. The decision says Tracked then, and the secret is named. git's
// own files are never tracked; credentials in them are taken out wherever they are
// known to be. Everything else is judged by name, then by content.
func Decide(path string, isDir, tracked bool, allowed With) Decision {
	if allowed.Has(path) {
		return Decision{Action: Keep, Why: "--with-secret"}
	}
	if gitdir.Inside(path) {
		return decideGit(path, isDir)
	}
	d := decideName(path, isDir, allowed)
	d.Tracked = tracked
	return d
}

func decideName(path string, isDir bool, allowed With) Decision {
	comps := splitFolded(path, isDir)
	if why, ok := matchName(comps, isDir); ok {
		if isDir && allowed.below(path) {
			return Decision{Action: Keep, Why: "holds a path given by --with-secret"}
		}
		return Decision{Action: LeaveOut, Why: why}
	}
	if isDir {
		return Decision{}
	}
	if row := fieldsOf(comps, isDir); row != nil {
		return Decision{Action: Scrub, Why: row.why}
	}
	why, _ := promisingName(comps, isDir)
	return Decision{Action: ScanContent, Why: why}
}

// decideGit judges what is in a ".git". Objects are compressed and named by
// their content, and a repository without its references is none: these stay
// unread.
func decideGit(path string, isDir bool) Decision {
	comps := splitFolded(path, isDir)
	if row := fieldsOf(comps, isDir); row != nil {
		return Decision{Action: Scrub, Why: row.why}
	}
	inside, last := "", path[strings.LastIndexByte(path, '/')+1:]
	if i := strings.LastIndex("/"+path, "/.git/"); i >= 0 {
		inside = path[i+len(".git"):] + "/"
	}
	for _, part := range []string{"/objects/", "/refs/"} {
		if strings.Contains(inside, part) {
			return Decision{}
		}
	}
	if why, ok := matchName(comps, isDir); ok {
		return Decision{Action: LeaveOut, Why: why}
	}
	switch last {
	case ".git", "HEAD", "index", "packed-refs", "shallow", "commondir", "gitdir":
		return Decision{}
	}
	if isDir {
		return Decision{}
	}
	return Decision{Action: ScanContent}
}

// With is the paths that the user lets in, relative to the workspace.
type With map[string]bool

// Promises reports whether the name of a file, or of a folder above it, promises secrets. The path
// is a relative one.
func Promises(p string) bool {
	for isDir := false; p != "." && p != "/"; p, isDir = path.Dir(p), true {
		if decideName(p, isDir, nil).Action == LeaveOut {
			return true
		}
	}
	return false
}

// NewWith reads the paths given by --with-secret. The same file has one
// spelling afterwards: ".env", "./.env" and "a/../.env" are one. What lies
// outside the workspace, or is all of it, is Invalid.
func NewWith(paths []string) (With, error) {
	w := With{}
	for _, p := range paths {
		hint := "name a file or folder by its path from the top of the workspace, like config/.env"
		clean := path.Clean(p)
		switch {
		case p == "" || strings.Contains(p, "\x00"):
			return nil, cell.Errorf(cell.Invalid, "secret.NewWith", hint, "cannot let in %q: it is not a path", p)
		case path.IsAbs(p):
			return nil, cell.Errorf(cell.Invalid, "secret.NewWith", hint, "cannot let in %s: the path does not begin in the workspace", p)
		case clean == ".." || strings.HasPrefix(clean, "../"):
			return nil, cell.Errorf(cell.Invalid, "secret.NewWith", hint, "cannot let in %s: it is outside the workspace", p)
		case clean == ".":
			return nil, cell.Errorf(cell.Invalid, "secret.NewWith", hint, "cannot let in %s: it is the whole workspace", p)
		}
		w[clean] = true
	}
	return w, nil
}

// Has reports whether path, or a folder it is in, was let in.
func (w With) Has(path string) bool {
	if len(w) == 0 {
		return false
	}
	for i := 0; i < len(path); i++ {
		if path[i] == '/' && w[path[:i]] {
			return true
		}
	}
	return w[path]
}

// below reports whether something below dir was let in.
func (w With) below(dir string) bool {
	for p := range w {
		if strings.HasPrefix(p, dir+"/") {
			return true
		}
	}
	return false
}
