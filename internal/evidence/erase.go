package evidence

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// Erasing: the receipt is written first, with the digests of what goes, and then the files go. So a file that is missing is always
// explained, and a crash between the two leaves a record of what is still to be removed (FinishErasing).

// ErasedBy are the files that a word of the policy's keep stands for.
func ErasedBy(word string) []string {
	switch word {
	case policy.KeepEvents:
		return []string{eventsFile}
	case policy.KeepOutput:
		return []string{"stdout", "stderr", "check"}
	case policy.KeepRecordings:
		return []string{RecordingFile}
	case policy.KeepToolCalls:
		return []string{callsFile}
	}
	return nil
}

// There are the files among names that are in a run's folder, whatever they are.
func There(folder string, names []string) (list []string) {
	for _, n := range names {
		if _, err := os.Lstat(filepath.Join(folder, n)); err == nil {
			list = append(list, n)
		}
	}
	return list
}

// Erasable says what is going to be erased of a run that has ended: the files among names that are there, with their digests. A file that is not
// what the receipt names is told of as such.
func (m *Manager) Erasable(r *state.Run, names []string) (list []state.Erased, err error) {
	sealed := map[string]cell.Digest{}
	entry, err := m.cfg.Ledger.Lookup(runKey(r))
	if err == nil {
		p, err := predicate[runPredicate](entry)
		if err != nil {
			return nil, err
		}
		sealed = p.Files
	}
	for _, name := range There(r.Folder, names) {
		e := state.Erased{File: name}
		d, named := sealed[name]
		got, err := sumRecord(r.Folder, name)
		switch {
		case err != nil: // a link, a pipe, a folder
			e.Found = "unreadable"
		case !named:
			d = got
		case got != d:
			e.Found = got.String()
		}
		if e.Digest = d.String(); err == nil {
			if e.Bytes, err = sizeOf(func() (*os.File, error) { return OpenRecord(r.Folder, name) }); err != nil {
				return nil, err
			}
		}
		list = append(list, e)
	}
	return list, nil
}

// Erase seals an act that erases files of runs, and removes them. records are of the runs that the act names.
func (m *Manager) Erase(ctx context.Context, key string, act state.Act, records []state.Retained) (cell.Digest, error) {
	objects := make([]any, len(records))
	for i := range records {
		records[i].Unfinished = true
		objects[i] = &records[i]
	}
	d, err := m.Seal(ctx, key, act, objects...)
	if err != nil {
		return d, err
	}
	failpoint.Step("erase")
	for i := range records {
		err = errors.Join(err, m.removeErased(records[i].ID))
	}
	return d, err
}

// FinishErasing removes what a receipt says is erased, and is still there.
func (m *Manager) FinishErasing() (err error) {
	for _, k := range m.cfg.Records.Unerased() {
		err = errors.Join(err, m.removeErased(k.ID))
	}
	return err
}

func (m *Manager) removeErased(id string) error {
	r, err := m.cfg.Records.Run(cell.RunID(id))
	if err != nil {
		return err
	}
	for _, e := range r.Erased {
		if err := removeRecord(r.Folder, e.File); err != nil {
			return cell.Errorf(cell.Unavailable, "evidence.Erase", "remove it by hand: the receipt of its erasure is written", "cannot erase %s of run %s: %w", e.File, id, err)
		}
	}
	k := m.cfg.Records.Retained(id)
	k.Unfinished = false
	return m.cfg.Records.Commit(&k)
}

// removeRecord removes a file from a run's folder, durably. A link goes itself, and not what it leads to; one that is not there is no error.
func removeRecord(folder, name string) error {
	dir, err := unix.Open(folder, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: folder, Err: err}
	}
	defer unix.Close(dir)
	if err := unix.Unlinkat(dir, filepath.Base(name), 0); err == unix.ENOENT {
		return nil
	} else if err != nil {
		return &os.PathError{Op: "remove", Path: filepath.Join(folder, filepath.Base(name)), Err: err}
	}
	return unix.Fsync(dir)
}

// erased is what the receipts of a run say was erased of it, by the names of its files.
func (m *Manager) erased(r *state.Run) map[string]state.Erased {
	out := map[string]state.Erased{}
	for _, id := range r.Acts {
		entry, err := m.cfg.Ledger.Find(id)
		if err != nil {
			continue
		}
		if s, err := entry.Statement(); err != nil || s.PredicateType != receipt.PredicateVerdict {
			continue
		}
		a, err := predicate[state.Act](entry)
		if err != nil || a.Act != receipt.ActErase {
			continue
		}
		for _, e := range a.Erased {
			if e.Run == r.ID {
				out[e.File] = state.Erased{File: e.File, Digest: e.Digest, Found: e.Found, Bytes: e.Bytes, At: a.At, By: a.By, Reason: a.Reason}
			}
		}
	}
	return out
}

// verifyErased compares what the record of a run says was erased with its receipts, and takes those problems away that an erasure explains.
func (m *Manager) verifyErased(r *state.Run, sealed map[string]cell.Digest, index int64, problems []receipt.Problem) (left []receipt.Problem, unproven []string) {
	erased := m.erased(r)
	bad := func(format string, args ...any) {
		left = append(left, receipt.Problem{Reason: receipt.Edited, Index: index, File: "run " + r.ID, What: fmt.Sprintf(format, args...)})
	}
	for _, q := range problems {
		e, ok := erased[filepath.Base(q.File)]
		if ok && q.Reason == receipt.Missing && e.Digest == sealed[e.File].String() && len(There(r.Folder, []string{e.File})) == 0 {
			unproven = append(unproven, "what "+q.File+" said: it was "+e.Words())
			if e.Found != "" {
				bad("%s was not what the receipt names when it was erased: its digest was %s", e.File, e.Found)
			}
			continue
		}
		left = append(left, q)
	}
	for _, e := range r.Erased {
		if is, ok := erased[e.File]; !ok || is.Digest != e.Digest || is.By != e.By || is.Reason != e.Reason || !is.At.Equal(e.At) {
			bad("the record says that %s was erased, which no receipt says", e.File)
		}
	}
	return left, unproven
}

// gone is the error for a file of a run that is not there any more.
func (m *Manager) gone(op string, r *state.Run, name, what, hint string) error {
	if e := r.ErasedFile(name); e != nil {
		return cell.Errorf(cell.NotFound, op, "its receipt has the digest of it: pando receipt show "+r.ID, "%s of run %s was %s", what, r.ID, e.Words())
	}
	return cell.Errorf(cell.NotFound, op, hint, "%s of run %s is not kept any more", what, r.ID)
}

// verifyHold compares the hold in a record with the newest receipt of one.
func (m *Manager) verifyHold(id string, acts []string, hold *state.Hold) string {
	held := false
	for _, d := range acts {
		if entry, err := m.cfg.Ledger.Find(d); err == nil {
			if a, err := predicate[state.Act](entry); err == nil && (a.Act == receipt.ActHold || a.Act == receipt.ActRelease) {
				held = a.Act == receipt.ActHold
			}
		}
	}
	switch {
	case held && hold == nil:
		return "the receipts say that " + id + " is on hold, and the record does not"
	case !held && hold != nil:
		return "the record says that " + id + " is on hold, and no receipt does"
	}
	return ""
}
