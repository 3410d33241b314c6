package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// Receipts lists the newest receipts, newest first; limit 0 means all.
func (v *View) Receipts(limit int) ([]api.Receipt, error) {
	e := v.e
	out := []api.Receipt{}
	for i := e.cfg.Ledger.Len() - 1; i >= 0 && (limit == 0 || len(out) < limit); i-- {
		entry, err := e.cfg.Ledger.Entry(i)
		if err != nil {
			return nil, err
		}
		if v.restricted() && !v.seesReceipt(entry) {
			continue
		}
		r, err := receiptView(entry)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// Receipt shows a receipt: by a prefix of its digest, or the one that a run
// left when it ended, with what was signed about it since.
func (v *View) Receipt(sel, dir string) (api.Receipt, error) {
	entry, err := v.findReceipt(sel, dir)
	if err != nil {
		return api.Receipt{}, err
	}
	r, err := receiptView(entry)
	if err != nil {
		return r, err
	}
	s, err := entry.Statement()
	if err != nil {
		return r, err
	}
	if r.Statement, err = json.Marshal(s); err != nil {
		return r, err
	}
	r.Envelope = json.RawMessage(entry.Envelope)
	later, err := v.e.laterReceipts(r)
	if err != nil {
		return r, err
	}
	r.Markdown, err = receiptMarkdown(entry, s, later)
	return r, err
}

// laterReceipts lists what was signed about a run after its own receipt,
// oldest first.
func (e *Engine) laterReceipts(v api.Receipt) (later []api.Receipt, err error) {
	if v.Type != receipt.PredicateRun {
		return nil, nil
	}
	r, err := e.reg.Run(cell.RunID(v.Run))
	if err != nil || len(r.Receipts) == 0 {
		return nil, nil // the receipt outlives the record
	}
	for _, id := range r.Receipts[1:] {
		entry, err := e.cfg.Ledger.Find(id)
		if err != nil {
			return nil, err
		}
		one, err := receiptView(entry)
		if err != nil {
			return nil, err
		}
		later = append(later, one)
	}
	return later, nil
}

func (v *View) findReceipt(sel, dir string) (receipt.Entry, error) {
	e := v.e
	hex := strings.TrimPrefix(sel, "sha256:")
	if len(hex) >= 6 && strings.Trim(hex, "0123456789abcdef") == "" {
		if entry, err := e.cfg.Ledger.Find(sel); err == nil && v.seesReceipt(entry) {
			return entry, nil
		}
	}
	id, err := v.SelectRun(sel, dir)
	if err != nil {
		if entry, ok := v.batchOf(sel, dir); ok {
			return entry, nil
		}
		if sel != "" && cell.KindOf(err) == cell.NotFound {
			err = cell.Errorf(cell.NotFound, "engine.Receipt", "see pando receipt ls and pando runs", "no receipt, run or cell %s", clip(sel))
		}
		return receipt.Entry{}, err
	}
	r, err := e.reg.Run(id)
	if err != nil {
		return receipt.Entry{}, err
	}
	if r.Receipt == "" {
		return receipt.Entry{}, cell.Errorf(cell.NotFound, "engine.Receipt", "wait until it has ended", "run %s has no receipt yet", id)
	}
	return e.cfg.Ledger.Find(r.Receipts[0])
}

func receiptView(entry receipt.Entry) (api.Receipt, error) {
	s, err := entry.Statement()
	if err != nil {
		return api.Receipt{}, err
	}
	v := api.Receipt{ID: entry.ID.String(), Index: entry.Index, Type: s.PredicateType, Key: s.Binding.Key}
	switch s.PredicateType {
	case receipt.PredicateRun:
		var p runPredicate
		if err := unmarshal(s.Predicate, &p); err != nil {
			return v, err
		}
		v.Isolation = api.IsolationOf(p.Backend)
		v.Run, v.Cell, v.Verdict = p.Run, orElse(p.CellName, p.Cell), string(p.Verdict.Verdict)
		if p.Ended != nil {
			v.At = *p.Ended
		}
		v.Summary = ofBackend(fmt.Sprintf("run %s: %s", exitWords(p.ExitCode, p.Signal, p.Cause), strings.Join(p.Command, " ")), p.Backend)
	case receipt.PredicateVerdict:
		var p endPredicate
		if err := unmarshal(s.Predicate, &p); err != nil {
			return v, err
		}
		v.Isolation = api.IsolationOf(p.Backend)
		v.Run, v.Cell, v.At = p.Run, orElse(p.CellName, p.Cell), p.At
		if p.Verdict != nil {
			v.Verdict = string(p.Verdict.Verdict)
		}
		v.Summary = p.Act
		switch {
		case p.Act == "fork":
			v.Summary = fmt.Sprintf("fork of @%d into %d cells", numberOf(p.From), len(p.Children))
		case p.To != nil && p.Act != "accept":
			v.Summary = fmt.Sprintf("%s to @%d", p.Act, p.To.Number)
		case len(p.Applied) > 0:
			v.Summary = "accept, " + filesWords(len(p.Applied)) + " applied"
		case len(p.Reverted) > 0:
			v.Summary = "revert, " + filesWords(len(p.Reverted)) + " taken back from the source"
		case len(p.Already) > 0:
			v.Summary = "revert, nothing was left in the source to take back"
		}
		v.Summary = ofBackend(v.Summary, p.Backend)
	case receipt.PredicateFork:
		var p forkPredicate
		if err := unmarshal(s.Predicate, &p); err != nil {
			return v, err
		}
		v.Isolation = api.IsolationOf(p.Backend)
		v.Cell, v.At, v.Summary = orElse(p.CellName, p.Cell), p.At, p.summary()
		if p.Template != "" && p.Act != actBranch {
			v.Cell = p.Template
		}
	}
	return v, nil
}

func filesWords(n int) string {
	if n == 1 {
		return "1 file"
	}
	return fmt.Sprintf("%d files", n)
}

func exitWords(code *int, signal, cause string) string {
	switch {
	case code == nil:
		return "that did not start"
	case cause != "":
		return fmt.Sprintf("ended (%s)", cause)
	case signal != "":
		return "ended by " + signal
	case *code == 0:
		return "ok"
	}
	return fmt.Sprintf("failed (exit %d)", *code)
}

// Bundle exports a receipt with what verifies it; "all" is the whole ledger.
func (v *View) Bundle(sel, dir string) ([]byte, error) {
	e := v.e
	from, to := int64(0), e.cfg.Ledger.Len()
	if sel == "all" {
		if err := v.whole("all receipts"); err != nil {
			return nil, err
		}
	} else {
		entry, err := v.findReceipt(sel, dir)
		if err != nil {
			return nil, err
		}
		from, to = entry.Index, entry.Index+1
	}
	b, err := e.cfg.Ledger.Export(from, to, nil)
	if err != nil {
		return nil, err
	}
	return b.Encode()
}

// Verify checks receipts from what is on disk, with the public key: one and
// the files that it names, or "all".
func (v *View) Verify(ctx context.Context, sel, dir string) (api.Verification, error) {
	e := v.e
	began := time.Now()
	key, err := receipt.LoadPublicKey(durable.Disk(e.cfg.Home.Keys()))
	if err != nil {
		return api.Verification{}, err
	}
	var rep *receipt.Report
	var runs []state.Run
	var batches []api.Problem
	if sel == "all" {
		if err := v.whole("all receipts"); err != nil {
			return api.Verification{}, err
		}
		known := e.cfg.Ledger.Head()
		if rep, err = receipt.VerifyLedger(durable.Disk(e.cfg.Home.Ledger()), key, &known); err != nil {
			return api.Verification{}, err
		}
		runs = e.reg.Runs("")
		batches = e.verifyBatches()
	} else {
		entry, err := v.findReceipt(sel, dir)
		if err != nil {
			return api.Verification{}, err
		}
		known := e.cfg.Ledger.Head()
		b, err := e.cfg.Ledger.Export(entry.Index, entry.Index+1, nil)
		if err != nil {
			return api.Verification{}, err
		}
		rep = receipt.Verify(b, key, &known)
		if one, err := receiptView(entry); err == nil && one.Run != "" {
			if r, err := e.reg.Run(cell.RunID(one.Run)); err == nil {
				runs = append(runs, r)
			}
		}
	}
	out := api.Verification{Receipts: rep.Receipts, Head: rep.Head.Size, Root: rep.Head.Root.String(), KeyID: key.ID(),
		Problems: []api.Problem{}, Unproven: orEmpty(rep.Unproven)}
	for _, p := range rep.Problems {
		out.Problems = append(out.Problems, api.Problem{Reason: string(p.Reason), Index: p.Index, File: p.File, What: p.What})
	}
	out.Problems = append(out.Problems, batches...)
	for i := range runs {
		n, problems := e.verifyRun(&runs[i])
		out.Files += n
		out.Problems = append(out.Problems, problems...)
	}
	out.OK = len(out.Problems) == 0
	out.TookMS = ms(time.Since(began))
	return out, nil
}

// verifyRun compares a run's record and files with what its receipt says.
func (e *Engine) verifyRun(r *state.Run) (files int, problems []api.Problem) {
	if len(r.Receipts) == 0 {
		if r.Phase == cell.Ended {
			problems = append(problems, api.Problem{Reason: string(receipt.Missing), Index: -1, What: "run " + r.ID + " has no receipt"})
		}
		return 0, problems
	}
	bad := func(index int64, what string) {
		problems = append(problems, api.Problem{Reason: string(receipt.Edited), Index: index, File: "run " + r.ID, What: what})
	}
	entry, err := e.cfg.Ledger.Find(r.Receipts[0])
	if err != nil {
		return 0, append(problems, api.Problem{Reason: string(receipt.Missing), Index: -1, What: "the receipt of run " + r.ID + " is not in the ledger"})
	}
	p, err := readRunPredicate(entry)
	if err != nil {
		bad(entry.Index, err.Error())
		return 0, problems
	}
	// The record may have had later verdicts: the newest receipt says which.
	verdict := p.Verdict.Verdict
	for _, id := range r.Receipts[1:] {
		if later, err := e.cfg.Ledger.Find(id); err == nil {
			if s, err := later.Statement(); err == nil {
				var end endPredicate
				if json.Unmarshal(s.Predicate, &end) != nil {
					continue
				}
				for _, d := range end.Runs {
					if d.Run == r.ID {
						verdict = d.Verdict
					}
				}
			}
		}
	}
	if r.Verdict != verdict {
		bad(entry.Index, fmt.Sprintf("the record says verdict %s, the receipts say %s", r.Verdict, verdict))
	}
	for _, name := range unsealed(r, &p) {
		bad(entry.Index, "the record's "+name+" is not what the receipt says")
	}
	for _, q := range receipt.VerifyFiles(p.Files, func(name string) (io.Reader, error) { return openRecord(r.Folder, name) }) {
		problems = append(problems, api.Problem{Reason: string(q.Reason), Index: entry.Index, File: r.ID + "/" + q.File, What: q.What})
	}
	if problem := verifyEvents(r, p); problem != nil {
		problems = append(problems, *problem)
	}
	return len(p.Files), problems
}

// verifyEvents follows the hash chain of a run's events.
func verifyEvents(r *state.Run, p runPredicate) *api.Problem {
	if _, has := p.Files["events.jsonl"]; !has {
		return nil
	}
	f, err := openRecord(r.Folder, "events.jsonl")
	if err != nil {
		return nil // named as missing already
	}
	defer f.Close()
	q, err := receipt.VerifyEvents(f, cell.RunID(r.ID), nil)
	if err != nil || q == nil {
		return nil
	}
	return &api.Problem{Reason: string(q.Reason), Index: q.Index, File: r.ID + "/events.jsonl", What: q.What}
}

// PublicKey is the installation's public key, PEM.
func (e *Engine) PublicKey() ([]byte, error) {
	key, err := receipt.LoadPublicKey(durable.Disk(e.cfg.Home.Keys()))
	if err != nil {
		return nil, err
	}
	return key.PEM(), nil
}

// Count returns how many cells there are, and how many have processes.
func (v *View) Count() (cells, alive int) {
	if !v.restricted() {
		return v.e.reg.Size(), v.e.alive.Count()
	}
	list, _, _ := v.e.reg.Find(state.Query{}, v.bounds.Labels)
	for _, c := range list {
		cells++
		if v.e.alive.Instance(c.ID) != nil {
			alive++
		}
	}
	return cells, alive
}
