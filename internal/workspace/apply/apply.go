// Package apply brings changes of a workspace into the source it came from. It
// is the one place where pando writes to a user's files.
//
// It promises all or nothing, also across a kill or a full disk, that no path
// is resolved through a symlink or out of the source, and that git's own files
// and what import left out are never written (see Do).
//
// It leaves to the caller to say what the source was, what is ignored and
// reserved, and to call Recover for journals that a killed process left.
//
//	apply.go                          what is asked for and what comes out
//	plan.go, resolve.go               what is applied, and where symlinks lead
//	control.go, table.go, named.go    what is held back
//	look.go                           what is looked at first
//	check.go                          whether the source can take it
//	stage.go, commit.go, undo.go      writing, moving, and back
//	parts.go                          several directories as one
//	journal.go                        what a crash leaves to go by
//	beneath.go                        working below one directory only
package apply

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// A Request describes the changes to write into a source.
type Request struct {
	Source string          // the directory to write to
	Base   *workspace.Tree // the source at the import
	After  workspace.Side  // its new state
	// Include names control paths to apply as well, exactly or by a folder
	// above; "." is all.
	Include []string
	// Strict also holds back what LookFirst returns.
	Strict bool
	// IsIgnored reports whether git ignores a path (see Options); such
	// files are applied only if Ignored is set.
	IsIgnored func(path string, isDir bool) bool
	Ignored   bool
	// Reserved are the paths that import left out, with all below them. They
	// are never written.
	Reserved []string
	// Scrubbed are the files that import removed credentials from. The base differs from the
	// source there, so a change of one is a conflict.
	Scrubbed []string
	// Homes are the home directories of the users of the source, and GitConfigs further
	// configuration files of their git: both may name control paths.
	Homes, GitConfigs []string
	// Backup is a folder outside the source for the journal, created if missing. One folder
	// serves one source at a time.
	Backup string
	// DryRun checks everything and writes nothing.
	DryRun bool

	// beside are the other directories of the workspace: their files and repositories may name paths in this one.
	beside []neighbour
	// hook is called before each step; tests fail or stop the work there.
	hook func(step, path string) error
}

// A Result is the outcome of an apply.
type Result struct {
	Applied       []diff.FileChange `json:"applied"`                  // in order of paths; a rename is two changes
	Already       []string          `json:"already,omitempty"`        // changes that the source already has
	Held          []Held            `json:"held,omitempty"`           // control paths, in order
	UnusedInclude []string          `json:"unused_include,omitempty"` // includes without a change
	Ignored       diff.IgnoredFiles `json:"ignored,omitzero"`
	Unrepresented []diff.Note       `json:"unrepresented,omitempty"`
}

// Held is a change that was not applied because of its path.
type Held struct {
	Path string `json:"path"`
	Why  string `json:"why"`
	Flag string `json:"flag"` // the flag that includes it

	include, other string // the path that Flag names, and that which Why names, if any
}

// neighbour is another directory of a workspace, with what it was.
type neighbour struct {
	source string
	tree   *workspace.Tree
}

// A ConflictError lists the reasons why a source can't take the changes.
type ConflictError struct {
	Paths []PathConflict // sorted by path
}

// PathConflict is one path in conflict. Why completes the path to a sentence.
type PathConflict struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

const conflictsShown = 20

func (e *ConflictError) Error() string {
	shown := make([]string, 0, conflictsShown+1)
	for _, p := range e.Paths[:min(len(e.Paths), conflictsShown)] {
		shown = append(shown, diff.Quote(p.Path)+" "+p.Why)
	}
	if more := len(e.Paths) - len(shown); more > 0 {
		shown = append(shown, fmt.Sprintf("and %s more", diff.Thousands(more)))
	}
	return strings.Join(shown, "; ")
}

// conflict makes the error of Apply from its conflicts.
func conflict(paths []PathConflict) error {
	slices.SortStableFunc(paths, func(a, b PathConflict) int { return strings.Compare(a.Path, b.Path) })
	return cell.Errorf(cell.Conflict, "apply.Do",
		"the source is as it was; apply the changes by hand from the patch: pando diff --patch",
		"cannot apply: %w", &ConflictError{paths})
}

// prepare plans the changes and checks whether the source can take them.
func (a *applier) prepare() (err error) {
	if a.plan, err = plan(a.req, a.root.path); err != nil {
		return fmt.Errorf("cannot apply: %w", err)
	}
	return a.check()
}

// result is what comes out when what is planned is written.
func (a *applier) result() Result {
	res := a.plan.result
	res.Applied = []diff.FileChange{}
	for _, op := range a.plan.ops {
		if op.done {
			res.Already = append(res.Already, op.path)
		} else {
			res.Applied = append(res.Applied, op.change)
		}
	}
	slices.Sort(res.Already)
	return res
}

// applier is the state of one Apply.
type applier struct {
	ctx     context.Context
	req     *Request
	at      string // see Part
	root    *beneath
	plan    *workPlan
	sizes   []int64 // scratch of check
	mounts  map[string]mount
	stages  []stage
	leaders map[*operation]*operation // the staged name of each further name of a file
	chmods  map[inode]bool            // files with an executable bit changed by this apply
	remove  []string                  // folders to remove for a file, deepest first
	make    []string                  // folders to make, outermost first
	journal *journal
}

// open opens and locks the source, and rejects unsuitable directories.
func (a *applier) open() error {
	path, err := filepath.Abs(a.req.Source)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return cell.Errorf(cell.NotFound, "apply.Do", "move it back to where it was; the changes are in the cell, and pando diff --patch makes a patch of them",
			"cannot apply to %s: there is no such directory", diff.Quote(a.req.Source))
	}
	if err != nil {
		return fmt.Errorf("cannot apply: %w", err)
	}
	if gitdir.Inside(strings.TrimPrefix(path, "/")) {
		return cell.Errorf(cell.Denied, "apply.Do", "", "cannot apply to %s: it is inside git's own files", path)
	}
	if a.root, err = openBeneath(path); err != nil {
		return err
	}
	if a.req.DryRun {
		return nil
	}
	if a.req.Backup == "" {
		return cell.Errorf(cell.Invalid, "apply.Do", "", "cannot apply: no folder for the journal")
	}
	backup, err := filepath.Abs(a.req.Backup)
	if err != nil {
		return fmt.Errorf("cannot apply: %w", err)
	}
	if real, err := filepath.EvalSymlinks(backup); err == nil {
		backup = real
	}
	if backup == path || strings.HasPrefix(backup, strings.TrimSuffix(path, "/")+"/") {
		return cell.Errorf(cell.Invalid, "apply.Do", "", "cannot apply: the journal's folder %s is inside the source", backup)
	}
	return a.root.lock()
}

func (a *applier) close() {
	for _, s := range a.stages {
		if s.fd > 0 {
			unix.Close(s.fd)
		}
	}
	if a.root != nil {
		a.root.close()
	}
}

// step is called before each change.
func (a *applier) step(name, path string) error {
	failpoint.Step("apply: " + name)
	if a.ctx.Err() != nil {
		return cell.Errorf(cell.Interrupted, "apply.Do", "", "cannot apply: %w", context.Cause(a.ctx))
	}
	if a.req.hook == nil {
		return nil
	}
	if err := a.req.hook(name, path); err != nil {
		return hostError(path, "apply", err)
	}
	return nil
}
