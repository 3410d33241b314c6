package evidence

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// Reader is a caller that receipts are shown to.
type Reader struct {
	// SelectRun and SelectCell resolve what the caller writes for a run and for a cell.
	SelectRun  func(sel, dir string) (cell.RunID, error)
	SelectCell func(sel, dir string) (cell.ID, error)
	Sees       func(cell.ID) bool // nil: the caller sees all cells
}

// sees reports whether all cells that a receipt is about are the caller's.
func (r Reader) sees(entry receipt.Entry) bool {
	if r.Sees == nil {
		return true
	}
	s, err := entry.Statement()
	if err != nil {
		return false
	}
	var p struct {
		Cell  string            `json:"cell"`
		Cells []state.BatchCell `json:"cells"`
	}
	if json.Unmarshal(s.Predicate, &p) != nil || p.Cell == "" {
		return false
	}
	if s.PredicateType != receipt.PredicateFork || len(p.Cells) == 0 {
		return r.Sees(cell.ID(p.Cell))
	}
	return !slices.ContainsFunc(p.Cells, func(c state.BatchCell) bool { return !r.Sees(cell.ID(c.Cell)) })
}

// Receipts lists the newest receipts, newest first; limit 0 means all.
func (m *Manager) Receipts(r Reader, limit int) ([]api.Receipt, error) {
	out := []api.Receipt{}
	for i := m.cfg.Ledger.Len() - 1; i >= 0 && (limit == 0 || len(out) < limit); i-- {
		entry, err := m.cfg.Ledger.Entry(i)
		if err != nil {
			return nil, err
		}
		if !r.sees(entry) {
			continue
		}
		v, err := receiptView(entry)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// Receipt shows a receipt: by a prefix of its digest, or the one that a run
// left when it ended, with what was signed about it since.
func (m *Manager) Receipt(r Reader, sel, dir string) (api.Receipt, error) {
	entry, err := m.find(r, sel, dir)
	if err != nil {
		return api.Receipt{}, err
	}
	s, p, err := read(entry)
	if err != nil {
		return api.Receipt{}, err
	}
	v := viewOf(entry, s, p)
	if v.Statement, err = json.Marshal(s); err != nil {
		return v, err
	}
	v.Envelope = json.RawMessage(entry.Envelope)
	later, err := m.laterReceipts(v)
	v.Markdown = markdown(entry, s, p, later)
	return v, err
}

// laterReceipts lists what was signed about a run after its own receipt,
// oldest first.
func (m *Manager) laterReceipts(v api.Receipt) (later []api.Receipt, err error) {
	if v.Type != receipt.PredicateRun {
		return nil, nil
	}
	r, err := m.cfg.Records.Run(cell.RunID(v.Run))
	if err != nil || len(r.Receipts) == 0 {
		return nil, nil // the receipt outlives the record
	}
	for _, id := range r.AllReceipts()[1:] {
		entry, err := m.cfg.Ledger.Find(id)
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

// find resolves a receipt among those that a caller sees.
func (m *Manager) find(r Reader, sel, dir string) (receipt.Entry, error) {
	hex := strings.TrimPrefix(sel, "sha256:")
	if len(hex) >= 6 && strings.Trim(hex, "0123456789abcdef") == "" {
		if entry, err := m.cfg.Ledger.Find(sel); err == nil && r.sees(entry) {
			return entry, nil
		}
	}
	id, err := r.SelectRun(sel, dir)
	if err != nil {
		if entry, ok := m.batchOf(r, sel, dir); ok {
			return entry, nil
		}
		if sel != "" && cell.KindOf(err) == cell.NotFound {
			err = cell.Errorf(cell.NotFound, "evidence.Receipt", "see pando receipt ls and pando runs", "no receipt, run or cell %s", cell.Clip(sel))
		}
		return receipt.Entry{}, err
	}
	run, err := m.cfg.Records.Run(id)
	if err != nil {
		return receipt.Entry{}, err
	}
	if run.Receipt == "" {
		return receipt.Entry{}, cell.Errorf(cell.NotFound, "evidence.Receipt", "wait until it has ended", "run %s has no receipt yet", id)
	}
	return m.cfg.Ledger.Find(run.Receipts[0])
}

// batchOf finds the receipt of the batch in which a cell was forked.
func (m *Manager) batchOf(r Reader, sel, dir string) (receipt.Entry, bool) {
	id, err := r.SelectCell(sel, dir)
	if err != nil || sel == "" {
		return receipt.Entry{}, false
	}
	i := m.cfg.Records.Interp(id)
	if i == nil || i.Batch == "" {
		return receipt.Entry{}, false
	}
	entry, err := m.cfg.Ledger.Lookup(i.Batch)
	return entry, err == nil && r.sees(entry)
}

// said is what a receipt says: a run's, an act's or a batch's.
type said interface {
	show(v *api.Receipt)
	markdown(b *strings.Builder, later []api.Receipt)
	parents() []string // receipts that it comes from
}

// read returns the statement of a receipt and what it says, nil for a type that is not known.
func read(entry receipt.Entry) (s receipt.Statement, p said, err error) {
	if s, err = entry.Statement(); err != nil {
		return s, nil, err
	}
	switch s.PredicateType {
	case receipt.PredicateRun:
		p = &runPredicate{}
	case receipt.PredicateVerdict:
		p = &act{}
	case receipt.PredicateFork:
		p = &Batch{}
	case receipt.PredicateKey:
		p = &keyChange{}
	default:
		return s, nil, nil
	}
	return s, p, unmarshal(s.Predicate, p)
}

func receiptView(entry receipt.Entry) (api.Receipt, error) {
	s, p, err := read(entry)
	if err != nil {
		return api.Receipt{}, err
	}
	return viewOf(entry, s, p), nil
}

func viewOf(entry receipt.Entry, s receipt.Statement, p said) api.Receipt {
	v := api.Receipt{ID: entry.ID.String(), Index: entry.Index, Type: s.PredicateType, Key: s.Binding.Key}
	if p != nil {
		p.show(&v)
	}
	return v
}

func (p *runPredicate) show(v *api.Receipt) {
	v.Isolation = api.IsolationOf(p.Backend)
	v.Run, v.Cell, v.Verdict, v.At = p.Run, cmp.Or(p.CellName, p.Cell), string(p.Verdict.Verdict), p.Ended
	v.Summary = ofBackend(fmt.Sprintf("run %s: %s", exitWords(p.ExitCode, p.Signal, p.Cause), strings.Join(p.Command, " ")), p.Backend)
}

func (p *act) show(v *api.Receipt) {
	v.Isolation = api.IsolationOf(p.Backend)
	v.Run, v.Cell, v.At = p.Run, cmp.Or(p.CellName, p.Cell), p.At
	if p.Verdict != nil {
		v.Verdict = string(p.Verdict.Verdict)
	}
	v.Summary = p.Act
	switch {
	case p.Reason != "" && p.By != "":
		v.Summary = p.Act + " by " + p.By + ": " + p.Reason
	case p.SignOff != nil:
		v.Summary = p.Act + " by " + p.SignOff.Approver + strings.TrimSuffix(": "+p.SignOff.Message, ": ")
	case p.Act == "fork":
		v.Summary = fmt.Sprintf("fork of @%d into %d cells", orPoint(p.From).Number, len(p.Children))
	case p.To != nil && p.Act != "accept":
		v.Summary = fmt.Sprintf("%s to @%d", p.Act, p.To.Number)
	case len(p.Applied) > 0:
		v.Summary = "accept, " + counted(len(p.Applied), "file") + " applied"
	case len(p.Reverted) > 0:
		v.Summary = "revert, " + counted(len(p.Reverted), "file") + " taken back from the source"
	case len(p.Already) > 0:
		v.Summary = "revert, nothing was left in the source to take back"
	}
	v.Summary = ofBackend(v.Summary, p.Backend)
}

func (p *Batch) show(v *api.Receipt) {
	v.Isolation = api.IsolationOf(p.Backend)
	v.Cell, v.At, v.Summary = cmp.Or(p.CellName, p.Cell), p.At, p.summary()
	if p.Template != "" && p.Act != state.BatchBranch {
		v.Cell = p.Template
	}
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

// ExportReceipts exports a receipt with what verifies it; "all" is the whole ledger.
func (m *Manager) ExportReceipts(r Reader, sel, dir string) ([]byte, error) {
	if sel == "all" {
		return m.bundle(0, m.cfg.Ledger.Len())
	}
	entry, err := m.find(r, sel, dir)
	if err != nil {
		return nil, err
	}
	return m.bundle(entry.Index, entry.Index+1)
}

func (m *Manager) bundle(from, to int64) ([]byte, error) {
	b, err := m.cfg.Ledger.Export(from, to, nil)
	if err != nil {
		return nil, err
	}
	return b.Encode()
}

// LedgerHead is the newest head of the ledger; with since, the size of an older one, with the proof that it goes on from that.
func (m *Manager) LedgerHead(since int64) (api.Ledger, error) {
	keys, head := m.cfg.Ledger.Keys(), m.cfg.Ledger.Head()
	out := api.Ledger{Origin: keys.Origin(), KeyID: keys.Current().ID(), Size: head.Size, Root: head.Root.String(), Head: string(head.Note)}
	for _, k := range keys.List() {
		view := api.LedgerKey{KeyID: k.Key.ID(), Key: k.Key.Text(), First: k.First, Revoked: k.Revoked}
		if k.Next >= 0 {
			last := k.Next - 1
			view.Last = &last
		}
		out.Keys = append(out.Keys, view)
	}
	changes, err := m.cfg.Ledger.Changes()
	if err != nil {
		return out, err
	}
	for _, c := range changes {
		out.Changes = append(out.Changes, api.KeyChange{Index: c.Index, Envelope: c.Envelope})
	}
	if since > 0 && since < head.Size {
		proof, err := m.cfg.Ledger.Extends(head, since)
		if err != nil {
			return out, err
		}
		for _, d := range proof {
			out.Extends = append(out.Extends, d.String())
		}
	}
	return out, nil
}
