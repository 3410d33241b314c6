package apply

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
)

// The journal is a file of JSON lines in the backup folder, each synced before
// the work goes on:
//
//	plan        before anything is made in the source: which staging folders
//	            there may be, and how the folders looked
//	ops         when everything is staged: what will be moved, and how to
//	            recognise the new files
//	committed   when everything is in its place; before it a crash is undone,
//	            after it finished
//
// What was done up to a crash is read off the files themselves.
type journal struct {
	plan      journalPlan
	ops       []journalOp
	committed bool

	dir   string
	file  *os.File
	whole int64     // of one that was read: the size of its whole lines
	made  bool      // this apply made dir
	live  bool      // the Apply that wrote it is still running
	mkdir []rawPath // live: the folders that were made
	hook  func(step, path string) error
}

const (
	journalName    = "apply.journal"
	journalVersion = 1
)

type journalPart struct {
	Plan      *journalPlan `json:"plan,omitempty"`
	Ops       []journalOp  `json:"ops,omitempty"`
	Committed bool         `json:"committed,omitempty"`
}

type journalPlan struct {
	Version int          `json:"version"`
	Source  rawPath      `json:"source"`
	Dev     uint64       `json:"dev"`
	Ino     uint64       `json:"ino"`
	Stages  []rawPath    `json:"stages"`
	Dirs    []journalDir `json:"dirs"`           // parents first
	Made    []rawPath    `json:"made,omitempty"` // parents first
	// Together is common to the applies that are one. Leader is the name of the folder, beside this one, of the journal by which
	// this apply goes as long as it is not committed itself; Followers are those that go by this one. A follower without a
	// leader was not committed.
	Together  string    `json:"together,omitempty"`
	Leader    rawPath   `json:"leader,omitempty"`
	Followers []rawPath `json:"followers,omitempty"`
}

// journalDir is a folder that existed before.
type journalDir struct {
	Path  rawPath `json:"path"`
	Mode  uint32  `json:"mode"`
	UID   uint32  `json:"uid"`
	GID   uint32  `json:"gid"`
	MTime int64   `json:"mtime"`
}

// journalOp is one operation: "take" (remove), "put" or "chmod".
type journalOp struct {
	Path    rawPath  `json:"path"`
	Kind    string   `json:"kind"`
	N       int      `json:"n"`
	Stage   int      `json:"stage"`
	Old     bool     `json:"old,omitempty"`  // there is an original
	New     fileMark `json:"new"`            // put: the new file; chmod: the file
	Mode    uint32   `json:"mode,omitempty"` // chmod
	OldMode uint32   `json:"old_mode,omitempty"`
}

// fileMark identifies a file that was not written to since.
type fileMark struct {
	Ino   uint64 `json:"ino,omitempty"`
	Size  int64  `json:"size,omitempty"`
	MTime int64  `json:"mtime,omitempty"`
}

func markOf(st *unix.Stat_t) fileMark { return fileMark{st.Ino, st.Size, st.Mtim.Nano()} }

// rawPath is a path in JSON that preserves bytes which are not UTF-8.
type rawPath string

// MarshalText quotes as Go does.
func (p rawPath) MarshalText() ([]byte, error) { return []byte(strconv.QuoteToASCII(string(p))), nil }

// UnmarshalText parses the result of MarshalText.
func (p *rawPath) UnmarshalText(b []byte) error {
	s, err := strconv.Unquote(string(b))
	*p = rawPath(s)
	return err
}

func pathsOf(dirs []journalDir) (out []string) {
	for _, d := range dirs {
		out = append(out, string(d.Path))
	}
	return out
}

// create makes the journal with its first part.
func (j *journal) create(dir string) error {
	failed := func(err error) error { return hostError("", "write the journal of the apply", err) }
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		j.made = true
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return failed(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, journalName), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return cell.Errorf(cell.Conflict, "apply.Do", "restart pando: it finishes or undoes that one first", "cannot apply: an earlier apply was interrupted and left a journal in %s", dir)
	}
	if err != nil {
		return failed(err)
	}
	j.dir, j.file, j.live, j.plan.Version = dir, f, true, journalVersion
	if err = j.add(journalPart{Plan: &j.plan}); err == nil {
		err = syncFolder(dir)
	}
	if err != nil {
		j.drop()
		return failed(err)
	}
	return nil
}

// add writes and syncs one part.
func (j *journal) add(part journalPart) error {
	b, err := json.Marshal(part)
	if err != nil {
		return err
	}
	if _, err := j.file.Write(append(b, '\n')); err != nil {
		return hostError("", "write the journal of the apply", err)
	}
	if err := flush(fsync, int(j.file.Fd())); err != nil {
		return hostError("", "write the journal of the apply", err)
	}
	if part.Ops != nil {
		j.ops = part.Ops
	}
	j.committed = j.committed || part.Committed
	return nil
}

// markCommitted is add for a journal that an earlier process left: what comes after its last whole line was not acted upon.
func (j *journal) markCommitted() error {
	f, err := os.OpenFile(filepath.Join(j.dir, journalName), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("cannot recover an apply: %w", err)
	}
	defer f.Close()
	if err := f.Truncate(j.whole); err != nil {
		return fmt.Errorf("cannot recover an apply: %w", err)
	}
	if _, err := f.Seek(j.whole, io.SeekStart); err != nil {
		return fmt.Errorf("cannot recover an apply: %w", err)
	}
	j.file = f
	defer func() { j.file = nil }()
	return j.add(journalPart{Committed: true})
}

// drop removes the journal: the apply is complete.
func (j *journal) drop() error {
	err := os.Remove(filepath.Join(j.dir, journalName))
	if j.file != nil {
		j.file.Close()
	}
	if j.made {
		os.Remove(j.dir) // stays if it is in use
	}
	return err
}

// step calls the hook of tests.
func (j *journal) step(name, path string) error {
	failpoint.Step("apply: " + name)
	if j.hook == nil {
		return nil
	}
	return j.hook(name, path)
}

func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return flush(fsync, int(f.Fd()))
}

// readJournal reads the journal of an earlier Apply; nil if there is none. An incomplete last
// line was not acted upon.
func readJournal(dir string) (*journal, error) {
	b, err := os.ReadFile(filepath.Join(dir, journalName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot recover an apply: %w", err)
	}
	j := &journal{dir: dir}
	for i, line := range bytes.SplitAfter(b, []byte("\n")) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		j.whole += int64(len(line))
		var part journalPart
		if err := json.Unmarshal(line, &part); err != nil || (i == 0) != (part.Plan != nil) {
			return nil, cell.Errorf(cell.Corrupt, "apply.Recover", "", "cannot recover an apply: line %d of its journal in %s is damaged", i+1, dir)
		}
		if part.Plan != nil {
			j.plan = *part.Plan
		}
		if part.Ops != nil {
			j.ops = part.Ops
		}
		j.committed = j.committed || part.Committed
	}
	if j.plan.Version > journalVersion {
		return nil, cell.Errorf(cell.Unsupported, "apply.Recover", "", "cannot recover an apply: its journal in %s is of a newer pando", dir)
	}
	return j, nil
}

// Recovery is the outcome of Recover.
type Recovery struct {
	Source  string `json:"source,omitempty"`
	Outcome string `json:"outcome"` // "nothing", "finished" or "undone"
}

// Recover completes a killed Apply: if all files were in place it is finished, else undone. A
// file that changed since stays as it is, with a Conflict that names it; its original stays in
// the staging folder, and the journal stays, too. Recover may be repeated at any time: a running
// Apply makes it fail with a Conflict.
func Recover(ctx context.Context, backup string) (Recovery, error) {
	return recoverWith(backup, nil)
}

func recoverWith(backup string, hook func(step, path string) error) (Recovery, error) {
	j, err := readJournal(backup)
	if j == nil || err != nil {
		return Recovery{Outcome: "nothing"}, err
	}
	j.hook = hook
	if j.plan.Together != "" {
		if err := j.settle(); err != nil {
			return Recovery{Source: string(j.plan.Source), Outcome: "undone"}, err
		}
	}
	return j.recover()
}

// recover finishes an apply that was committed, or undoes it.
func (j *journal) recover() (Recovery, error) {
	r := Recovery{Source: string(j.plan.Source), Outcome: "undone"}
	if r.Source == "" { // it was killed before the first line was complete
		return r, j.drop()
	}
	root, err := openBeneath(r.Source)
	if err != nil {
		return r, err
	}
	defer root.close()
	if st, err := root.lstat(""); err != nil || st.Ino != j.plan.Ino {
		return r, cell.Errorf(cell.Conflict, "apply.Recover", "", "cannot recover an apply: %s is another folder than it was", r.Source)
	}
	if err := root.lock(); err != nil {
		return r, err
	}
	if j.committed {
		r.Outcome = "finished"
		return r, j.finish(root)
	}
	return r, j.undo(root)
}
