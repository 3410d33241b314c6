// Package diff says what changed from one state of a workspace to another, as
// git sees it: files with their statuses, renames, counts of lines; as text for
// people and as a patch for git.
//
// It promises that a patch brings a clean clone of the first state to the
// content digest of the second and back, that what git can't hold is noted and
// never dropped, that no byte of a name or of content drives a terminal, and
// that the cost is that of what changed.
//
// It leaves to the caller where contents come from (a provider), and whether
// what git ignores is shown.
//
//	diff.go                what changed, compared by trees
//	rename.go, ignored.go  renamed files; what git ignores
//	notes.go               what git can't hold
//	read.go, lines.go      contents, and what differs between their lines
//	text.go, stat.go       what people read
//	patch.go, zlib.go      what git reads
//	quote.go               names and lines made harmless
package diff

import (
	"context"
	"sort"
	"strconv"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
)

// Status is the kind of a file's change.
type Status string

// The statuses of a FileChange.
const (
	StatusAdded       Status = "added"
	StatusModified    Status = "modified" // content, and perhaps the mode
	StatusDeleted     Status = "deleted"
	StatusRenamed     Status = "renamed"      // moved, and perhaps modified
	StatusTypeChanged Status = "type-changed" // file to symlink or back
	StatusModeChanged Status = "mode-changed" // only the executable bit
)

// GitMode is a file's type and mode as in git: 100644, 100755 or 120000, in octal digits in
// JSON. Zero is "no file".
type GitMode uint32

func (m GitMode) String() string { return strconv.FormatUint(uint64(m), 8) }

// MarshalText gives the octal digits.
func (m GitMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads octal digits.
func (m *GitMode) UnmarshalText(b []byte) error {
	v, err := strconv.ParseUint(string(b), 8, 32)
	*m = GitMode(v)
	return err
}

func ModeOf(e *workspace.Entry) GitMode {
	switch {
	case e == nil:
		return 0
	case e.Type == workspace.Symlink:
		return 0o120000
	case e.Mode&0o100 != 0:
		return 0o100755
	}
	return 0o100644
}

// A FileChange is one file or symlink that changes for git.
type FileChange struct {
	Path       string  `json:"path"`
	OldPath    string  `json:"old_path,omitempty"` // renamed files only
	Status     Status  `json:"status"`
	OldMode    GitMode `json:"old_mode,omitzero"`
	NewMode    GitMode `json:"new_mode,omitzero"`
	Similarity int     `json:"similarity,omitempty"` // per cent; renamed files only
	// Set by Diff.Count. Binary files, and those too large for a comparison by line, have no
	// numbers.
	Binary  bool `json:"binary,omitempty"`
	Added   int  `json:"added"`
	Deleted int  `json:"deleted"`
	// Of the content; of a symlink, of its target.
	OldDigest cell.Digest `json:"old_digest,omitzero"`
	NewDigest cell.Digest `json:"new_digest,omitzero"`

	old, new *workspace.Entry
}

// oldPath returns the old path of the file.
func (c *FileChange) oldPath() string {
	if c.OldPath != "" {
		return c.OldPath
	}
	return c.Path
}

// Entries are the file or symlink before and after, nil where there is none. That before is at OldPath, if the file was renamed.
func (c *FileChange) Entries() (before, after *workspace.Entry) { return c.old, c.new }

// A Diff is the difference between two states for git.
type Diff struct {
	Files         []FileChange // in order of paths, bytewise
	Ignored       IgnoredFiles // not in Files
	Unrepresented []Note       // changes that git can't hold, in order of paths
	a, b          workspace.Side
	counted       bool
}

// Options configure a Diff.
type Options struct {
	// Ignored reports whether git ignores path, considering its folders and what is tracked. Nil
	// ignores nothing.
	Ignored func(path string, isDir bool) bool
	// NoRenames reports a renamed file as deleted and added, and reads nothing.
	NoRenames bool
}

// Compare returns the changes from a to b. Its cost is that of the changes; contents are read
// only where a renamed file may also be modified.
func Compare(ctx context.Context, a, b workspace.Side, opt Options) (*Diff, error) {
	changes, err := workspace.Changes(a.Tree, b.Tree)
	if err != nil {
		return nil, err
	}
	d := &Diff{a: a, b: b}
	var skipped []workspace.Change
	for _, c := range changes {
		if !c.Git() {
			continue
		}
		if opt.Ignored != nil && opt.Ignored(c.Path, false) {
			skipped = append(skipped, c)
			continue
		}
		d.Files = append(d.Files, FileChangeOf(c))
	}
	if !opt.NoRenames {
		if err := d.findRenames(ctx); err != nil {
			return nil, err
		}
	}
	sort.Slice(d.Files, func(i, j int) bool { return d.Files[i].Path < d.Files[j].Path })
	d.Ignored = SumIgnored(skipped, opt.Ignored)
	d.Unrepresented, err = Notes(a.Tree, b.Tree, changes, opt.Ignored)
	return d, err
}

// FileChangeOf describes c, which git sees.
func FileChangeOf(c workspace.Change) FileChange {
	f := FileChange{Path: c.Path, old: c.Old.Git(), new: c.New.Git()}
	f.OldMode, f.NewMode = ModeOf(f.old), ModeOf(f.new)
	f.OldDigest, f.NewDigest = gitDigest(f.old), gitDigest(f.new)
	switch {
	case f.old == nil:
		f.Status = StatusAdded
	case f.new == nil:
		f.Status = StatusDeleted
	case f.old.Type != f.new.Type:
		f.Status = StatusTypeChanged
	case f.OldDigest == f.NewDigest:
		f.Status = StatusModeChanged
	default:
		f.Status = StatusModified
	}
	return f
}

func gitDigest(e *workspace.Entry) cell.Digest {
	switch {
	case e == nil:
		return cell.Digest{}
	case e.Type == workspace.Symlink:
		return cell.Sum([]byte(e.Target))
	}
	return e.Digest
}
