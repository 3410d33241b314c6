package evidence

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// Verify checks receipts from what is on disk, with the public key: one and
// the files that it names, or "all".
func (m *Manager) Verify(r Reader, sel, dir string) (api.Verification, error) {
	began := time.Now()
	key, err := receipt.LoadPublicKey(durable.Disk(m.cfg.Home.Keys()))
	if err != nil {
		return api.Verification{}, err
	}
	var rep *receipt.Report
	var runs []state.Run
	var batches []receipt.Problem
	if sel == "all" {
		known := m.cfg.Ledger.Head()
		if rep, err = receipt.VerifyLedger(durable.Disk(m.cfg.Home.Ledger()), key, &known); err != nil {
			return api.Verification{}, err
		}
		runs = m.cfg.Records.Runs("")
		batches = m.verifyBatches()
	} else {
		entry, err := m.find(r, sel, dir)
		if err != nil {
			return api.Verification{}, err
		}
		known := m.cfg.Ledger.Head()
		b, err := m.cfg.Ledger.Export(entry.Index, entry.Index+1, nil)
		if err != nil {
			return api.Verification{}, err
		}
		rep = receipt.Verify(b, key, &known)
		if one, err := receiptView(entry); err == nil && one.Run != "" {
			if r, err := m.cfg.Records.Run(cell.RunID(one.Run)); err == nil {
				runs = append(runs, r)
			}
		}
	}
	problems := append(rep.Problems, batches...)
	out := api.Verification{Receipts: rep.Receipts, Head: rep.Head.Size, Root: rep.Head.Root.String(), KeyID: key.ID(),
		Problems: []api.Problem{}, Unproven: append([]string{}, rep.Unproven...)}
	for i := range runs {
		n, bad, unproven := m.VerifyRun(&runs[i])
		out.Files += n
		out.Unproven = append(out.Unproven, unproven...)
		problems = append(problems, bad...)
	}
	for _, p := range problems {
		out.Problems = append(out.Problems, api.Problem{Reason: string(p.Reason), Index: p.Index, File: p.File, What: p.What})
	}
	out.OK = len(out.Problems) == 0
	out.TookMS = float64(time.Since(began).Microseconds()) / 1000
	return out, nil
}

// VerifyRun compares a run's record and files with what its receipt says.
func (m *Manager) VerifyRun(r *state.Run) (files int, problems []receipt.Problem, unproven []string) {
	if len(r.Receipts) == 0 {
		if r.Phase == cell.Ended {
			problems = append(problems, receipt.Problem{Reason: receipt.Missing, Index: -1, What: "run " + r.ID + " has no receipt"})
		}
		return 0, problems, nil
	}
	bad := func(index int64, what string) {
		problems = append(problems, receipt.Problem{Reason: receipt.Edited, Index: index, File: "run " + r.ID, What: what})
	}
	entry, err := m.cfg.Ledger.Find(r.Receipts[0])
	if err != nil {
		return 0, append(problems, receipt.Problem{Reason: receipt.Missing, Index: -1, What: "the receipt of run " + r.ID + " is not in the ledger"}), nil
	}
	p, err := predicate[runPredicate](entry)
	if err != nil {
		bad(entry.Index, err.Error())
		return 0, problems, nil
	}
	// The record may have had later verdicts: the newest receipt says which.
	verdict := p.Verdict.Verdict
	var signed []state.SignOff
	for _, id := range r.Receipts[1:] {
		later, err := m.cfg.Ledger.Find(id)
		if err != nil {
			continue
		}
		act, err := predicate[state.Act](later)
		if err != nil {
			continue
		}
		if why := unsignedOff(&act, m.Origin); why != "" {
			bad(later.Index, why)
		}
		if act.SignOff != nil {
			signed = append(signed, act.SignOff.Kept())
		}
		for _, d := range act.Runs {
			if d.Run == r.ID {
				verdict = d.Verdict
			}
		}
	}
	if r.Verdict != verdict {
		bad(entry.Index, fmt.Sprintf("the record says verdict %s, the receipts say %s", r.Verdict, verdict))
	}
	if !alike(r.SignOffs, signed) {
		bad(entry.Index, "the record's sign-offs are not what the receipts say")
	}
	for _, name := range unsealed(r, &p) {
		bad(entry.Index, "the record's "+name+" is not what the receipt says")
	}
	for _, q := range receipt.VerifyFiles(p.Files, func(name string) (io.Reader, error) { return OpenRecord(r.Folder, name) }) {
		q.Index, q.File = entry.Index, r.ID+"/"+q.File
		problems = append(problems, q)
	}
	if why := m.verifyHold("run "+r.ID, r.Acts, r.Hold); why != "" {
		bad(entry.Index, why)
	}
	problems, unproven = m.verifyErased(r, p.Files, entry.Index, problems)
	return len(p.Files), append(problems, verifyEvents(r, p)...), unproven
}

// verifyEvents follows the hash chain of a run's events.
func verifyEvents(r *state.Run, p runPredicate) []receipt.Problem {
	if _, has := p.Files[eventsFile]; !has {
		return nil
	}
	f, err := OpenRecord(r.Folder, eventsFile)
	if err != nil {
		return nil // named as missing already
	}
	defer f.Close()
	q, err := receipt.VerifyEvents(f, r.RunID(), nil)
	if err != nil || q == nil {
		return nil
	}
	q.File = r.ID + "/" + eventsFile
	return []receipt.Problem{*q}
}

// verifyBatches compares the records of forked cells with what their receipts
// say.
func (m *Manager) verifyBatches() (problems []receipt.Problem) {
	var owed []string
	for _, o := range m.cfg.Records.OpenOps() {
		if o.Kind == OpBatch {
			var a batchArgs
			if unmarshal(o.Args, &a) == nil {
				owed = append(owed, a.Key)
			}
		}
	}
	in := map[string][]state.Interp{}
	m.cfg.Records.Look(func(now state.Records) {
		for i := range now.Interps() {
			if i.Batch != "" && !slices.Contains(owed, i.Batch) {
				in[i.Batch] = append(in[i.Batch], *i)
			}
		}
	})
	for key, list := range in {
		entry, err := m.cfg.Ledger.Lookup(key)
		if err != nil {
			problems = append(problems, receipt.Problem{Reason: receipt.Missing, Index: -1, What: "the receipt of cell " + string(list[0].Cell) + " and those forked with it is not in the ledger"})
			continue
		}
		p, err := predicate[Batch](entry)
		for _, i := range list {
			what := ""
			switch {
			case err != nil:
				what = err.Error()
			case !slices.ContainsFunc(p.Cells, func(f state.BatchCell) bool { return f.Cell == string(i.Cell) }):
				what = "the record says that cell " + string(i.Cell) + " was forked with this receipt, which does not name it"
			case i.Version != p.Interpreter || i.Template != p.Template:
				what = "the record of cell " + string(i.Cell) + "'s interpreter is not what the receipt says"
			}
			if what != "" {
				problems = append(problems, receipt.Problem{Reason: receipt.Edited, Index: entry.Index, File: "cell " + string(i.Cell), What: what})
			}
		}
	}
	return problems
}
