package evidence

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// erasing is the act that erases files of a run, with its record.
func (b *bed) erasing(r *state.Run, names ...string) (state.Act, state.Retained) {
	b.Helper()
	list, err := b.Erasable(r, names)
	b.must(err)
	act := state.Act{Act: "erase", Cell: r.Cell, Backend: r.Backend, By: "me", Reason: "privacy", At: time.Unix(99, 0).UTC()}
	k := b.reg.Retained(r.ID)
	for _, e := range list {
		e.At, e.By, e.Reason = act.At, act.By, act.Reason
		k.Erased = append(k.Erased, e)
		act.Erased = append(act.Erased, state.ErasedRun{Run: r.ID, File: e.File, Digest: e.Digest, Found: e.Found, Bytes: e.Bytes})
	}
	return act, k
}

func (b *bed) verifiedRun(id string) (problems []receipt.Problem, unproven []string) {
	b.Helper()
	r, err := b.reg.Run(cell.RunID(id))
	b.must(err)
	_, problems, unproven = b.VerifyRun(&r)
	return problems, unproven
}

// What was erased is told of as such by every verifier, and nothing else is: a file that is missing without a receipt, one that was not what its receipt
// names, a record alone. A link goes itself.
func TestErase(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	const said = "erased on 1970-01-01 by me, for: privacy"
	made := func() state.Run {
		c := b.cell()
		r := b.runIn(&c)
		b.ended(&r, &c)
		return r
	}
	path := func(r *state.Run) string { return filepath.Join(r.Folder, eventsFile) }
	erase := func(r *state.Run) {
		act, k := b.erasing(r, eventsFile)
		_, err := b.Erase(b.ctx, "erase/"+r.ID, act, []state.Retained{k})
		b.must(err)
		if _, err := os.Lstat(path(r)); !os.IsNotExist(err) {
			t.Errorf("it is there still: %v", err)
		}
	}

	plain := made()
	erase(&plain)
	if problems, unproven := b.verifiedRun(plain.ID); len(problems) > 0 || len(unproven) != 1 || !strings.Contains(unproven[0], said) {
		t.Errorf("erased: %v, %v", problems, unproven)
	}
	key, err := receipt.ParsePublicKey(b.PublicKey())
	b.must(err)
	rep, _, err := receipt.VerifyArchive(bytes.NewReader(b.bundled(b.all(), plain.ID)), key, nil)
	if err != nil || !rep.OK() || !strings.Contains(strings.Join(rep.Unproven, "\n"), said) {
		t.Errorf("in a bundle: %v, %+v", err, rep)
	}
	if _, err := b.Events(b.ctx, plain.RunID(), EventQuery{}); err == nil || !strings.Contains(err.Error(), said) {
		t.Errorf("events: %v", err)
	}

	gone := made()
	b.must(os.Remove(path(&gone)))
	if problems, _ := b.verifiedRun(gone.ID); len(problems) != 1 || problems[0].Reason != receipt.Missing {
		t.Errorf("missing without a receipt: %v", problems)
	}
	b.must(b.reg.Commit(&state.Retained{ID: gone.ID, Erased: []state.Erased{{File: eventsFile, By: "me", Reason: "privacy"}}}))
	if problems, _ := b.verifiedRun(gone.ID); len(problems) != 2 {
		t.Errorf("a record that says so alone: %v", problems)
	}

	odd := made()
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	b.must(os.WriteFile(elsewhere, []byte("kept"), 0o600))
	b.must(os.Remove(path(&odd)))
	b.must(os.Symlink(elsewhere, path(&odd)))
	erase(&odd)
	if text, err := os.ReadFile(elsewhere); err != nil || string(text) != "kept" {
		t.Errorf("what the link leads to: %q, %v", text, err)
	}
	if problems, unproven := b.verifiedRun(odd.ID); len(problems) != 1 || !strings.Contains(problems[0].What, "was not what the receipt names") || len(unproven) != 1 {
		t.Errorf("a link that was erased: %v, %v", problems, unproven)
	}
}

// A daemon that dies after the receipt of an erasure was written, or before, leaves one that removes the files.
func TestEraseGoesOn(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.cell()
	r := b.runIn(&c)
	b.ended(&r, &c)
	act, k := b.erasing(&r, eventsFile)
	k.Unfinished = true
	_, err := b.Seal(b.ctx, "erase/"+r.ID, act, &k) // and dies
	b.must(err)
	b.close()
	b.open()
	if problems, unproven := b.verifiedRun(r.ID); len(problems)+len(unproven) > 0 {
		t.Errorf("while the file is there: %v, %v", problems, unproven)
	}
	b.must(b.FinishErasing())
	if problems, unproven := b.verifiedRun(r.ID); len(problems) > 0 || len(unproven) != 1 {
		t.Errorf("after that: %v, %v", problems, unproven)
	}
	if list := b.reg.Unerased(); len(list) > 0 {
		t.Errorf("unfinished still: %+v", list)
	}
}
