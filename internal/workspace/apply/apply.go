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

// A Request says what to bring into a source.
type Request struct {
	Source string          // the directory to write to
	Base   *workspace.Tree // what the source was when it was imported
	After  workspace.Side  // what it shall become
	// Include names control paths to apply as well, exactly or by a folder
	// above; "." is all.
	Include []string
	// Strict holds back as well what LookFirst returns.
	Strict bool
	// IsIgnored reports whether git ignores a path (see Options); such
	// files are applied only if Ignored is set.
	IsIgnored func(path string, isDir bool) bool
	Ignored   bool
	// Reserved are the paths that import left out, with all below them. They
	// are never written.
	Reserved []string
	// Scrubbed are the files that import took credentials out of. The base
	// has not what the source has: a change of one is a conflict.
	Scrubbed []string
	// Homes are the home directories of the users who work in the source, and
	// GitConfigs what else of configuration their git reads: both may name
	// control paths.
	Homes, GitConfigs []string
	// Backup is a folder outside the source for the journal. It is made when
	// missing. One folder serves one source at a time.
	Backup string
	// DryRun finds out everything and writes nothing.
	DryRun bool

	// hook is called before each step; tests fail or end the work there.
	hook func(step, path string) error
}

// A Result says what became of the changes.
type Result struct {
	Applied       []diff.FileChange `json:"applied"`                  // in order of paths; a rename is two changes
	Already       []string          `json:"already,omitempty"`        // what the source had already
	Held          []Held            `json:"held,omitempty"`           // control paths, in order
	UnusedInclude []string          `json:"unused_include,omitempty"` // includes at which nothing changed
	Ignored       diff.IgnoredFiles `json:"ignored,omitzero"`
	Unrepresented []diff.Note       `json:"unrepresented,omitempty"`
}

// Held is a change that was not applied because of where it is.
type Held struct {
	Path string `json:"path"`
	Why  string `json:"why"`
	Flag string `json:"flag"` // what would include it
}

// A ConflictError lists why a source can't take the changes.
type ConflictError struct {
	Paths []PathConflict // sorted by path
}

// PathConflict is one path in the way. Why continues the path to a sentence.
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

// conflict makes the error of Apply out of what is in the way.
func conflict(paths []PathConflict) error {
	slices.SortStableFunc(paths, func(a, b PathConflict) int { return strings.Compare(a.Path, b.Path) })
	return cell.Errorf(cell.Conflict, "apply.Do",
		"the source is as it was; take the changes by hand from the patch: pando diff --patch",
		"cannot apply: %w", &ConflictError{paths})
}

// Do brings what git sees change from Base to After into the source. It is
// the one place where pando writes to a user's files.
//
//   - All or nothing: on any error, ENOSPC and interruption included, the
//     source is as it was, and a failure names the file. After a crash
//     Recover brings it back to before or to after.
//   - Each path it touches must be what Base recorded, in type, content and
//     executable bit, or already be what After has; else nothing is written
//     and the error is a Conflict around a *ConflictError. A file that
//     somebody changes meanwhile is found when it is exchanged, and put back.
//   - It follows no symlink below Source and never writes a ".git", under any
//     spelling, nor a reserved path. Control paths and ignored files are left
//     out unless asked for, and listed.
//   - New files get the mode git would give them through the umask; others
//     keep their bits, of which only the executable one changes. A new file
//     belongs to who runs this; for root, to the owner of its folder. Folders
//     that lose their last file go.
//   - Names of one file in After that are names of one file in the source, too, stay
//     that as far as they are applied.
//   - Modification times are now, in the order that the files have in After: what
//     make would build in After it builds in the source, and no more.
//
// Two Applies to one source exclude each other: the second gets a Conflict.
func Do(ctx context.Context, req Request) (Result, error) {
	a := &applier{ctx: ctx, req: &req}
	defer a.close()
	if err := a.open(); err != nil {
		return Result{}, err
	}
	var err error
	if a.plan, err = plan(&req, a.root.path); err != nil {
		return Result{}, fmt.Errorf("cannot apply: %w", err)
	}
	if err := a.check(); err != nil {
		return Result{}, err
	}
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
	if req.DryRun || len(res.Applied) == 0 {
		return res, nil
	}
	err = a.write()
	if err != nil && (a.journal == nil || !a.journal.committed) {
		return Result{}, err
	}
	return res, err
}

// applier is one Apply at work.
type applier struct {
	ctx     context.Context
	req     *Request
	root    *beneath
	plan    *workPlan
	sizes   []int64 // scratch of check
	mounts  map[string]mount
	stages  []stage
	leaders map[*operation]*operation // of each further name of a file: the one that is staged
	chmods  map[inode]bool            // files whose executable bit we have changed
	remove  []string                  // folders to be removed for a file, deepest first
	make    []string                  // folders to be made, outermost first
	journal *journal
}

// open opens and locks the source, and refuses places that are none.
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

// step is called before everything that changes something.
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

// write makes the changes that check found possible.
func (a *applier) write() (err error) {
	if err := a.begin(); err != nil {
		return err
	}
	err = a.stageAll()
	if err == nil {
		err = a.commit()
	}
	if err != nil {
		// Not deferred: a crash must leave the journal, not run this.
		return errors.Join(err, a.journal.undo(a.root))
	}
	return a.journal.finish(a.root)
}
