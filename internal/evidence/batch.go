package evidence

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// Batch is what the receipt of a template, of forks of one, or of branches says. Every field was
// computed or measured. See state.Batch.
type Batch struct {
	Act         string            `json:"act"` // see state.BatchBuild
	Template    string            `json:"template,omitempty"`
	Digest      string            `json:"template_digest,omitempty"`
	Cell        string            `json:"cell"` // the template's, or the source
	CellName    string            `json:"cell_name,omitempty"`
	Pando       string            `json:"pando"`
	At          time.Time         `json:"at"`
	Backend     string            `json:"backend"`
	Isolation   isolationFacts    `json:"isolation"`
	Interpreter string            `json:"interpreter"`
	Program     string            `json:"program_digest,omitempty"` // of the interpreter's file
	Policy      policyFacts       `json:"policy"`
	From        *state.Point      `json:"from,omitempty"` // the files' state that the cells began on
	Assurance   *state.Assurance  `json:"assurance,omitempty"`
	Downgrades  []string          `json:"downgrades,omitempty"`
	Cells       []state.BatchCell `json:"cells,omitempty"`
	Failed      []string          `json:"failed,omitempty"` // cells that could not be made, each with its cause
	Took        string            `json:"took,omitempty"`
	Dropped     string            `json:"dropped,omitempty"`
	PauseMS     float64           `json:"pause_ms,omitempty"`     // of a branch: how long the source stood still
	MemoryTaken string            `json:"memory_taken,omitempty"` // of a branch: how the source's memory was, in the backend's words
	Parents     []string          `json:"parents,omitempty"`      // receipts of the template, or of what was in the source
}

// batchOf is a batch made of a cell: a template's, or the source of branches.
func batchOf(c *state.Cell, b *state.Batch) Batch {
	return Batch{Act: b.Act, Template: b.Template, Digest: b.Digest, Cell: string(c.ID), CellName: b.CellName, Backend: c.Backend, Isolation: isolationOf(c, c.Backend),
		Interpreter: b.Interpreter, Program: b.Program, Policy: policyOf(c), From: b.From, Assurance: b.Assurance, Downgrades: c.Setup.Downgrades, Cells: b.Cells,
		Failed: b.Failed, Took: b.Took, Dropped: b.Dropped, PauseMS: b.PauseMS, MemoryTaken: b.MemoryTaken}
}

type batchArgs struct {
	Key       string `json:"key"`
	Predicate Batch  `json:"predicate"`
}

// CommitBatch makes the records of an act durable and, with them, that its
// receipt is owed: a crash leaves neither without the other. What it returns
// writes the receipt, which may go on while the cells already work, and returns its digest; "" when it
// could not be written: the act stands, and the next daemon writes it.
func (m *Manager) CommitBatch(ctx context.Context, key string, of *state.Cell, b state.Batch, objects ...any) (func() string, error) {
	p := batchOf(of, &b)
	p.Pando, p.At, p.Parents = m.cfg.Version, time.Now().UTC(), m.batchParents(of, &b)
	args, err := json.Marshal(batchArgs{key, p})
	if err != nil {
		return nil, err
	}
	rec := operation.Redo{ID: operation.NewID(), Kind: OpBatch, Args: args, Phase: operation.Doing, Request: operation.RequestOf(ctx)}
	if err := m.cfg.Records.Commit(append([]any{&rec}, objects...)...); err != nil {
		return nil, err
	}
	return func() string {
		d, err := m.batchReceipt(context.WithoutCancel(ctx), key, p)
		if err != nil {
			m.cfg.Log.Error("cannot write a receipt; the next daemon tries again", "act", p.Act, "cell", p.Cell, "error", err)
			return ""
		}
		rec.Phase, rec.Args = operation.Done, nil
		m.cfg.Background(func(context.Context) { // nothing waits for it: a daemon that finds the operation open finds the receipt, too
			if err := m.cfg.Records.Commit(&rec); err != nil {
				m.cfg.Log.Warn("cannot note that a receipt is written", "receipt", d, "error", err)
			}
		})
		return d.String()
	}, nil
}

// resumeBatch writes a receipt that an earlier daemon owed.
func (m *Manager) resumeBatch(ctx context.Context, args batchArgs) error {
	d, err := m.batchReceipt(ctx, args.Key, args.Predicate)
	if err != nil || args.Predicate.Act != state.BatchBuild && args.Predicate.Act != state.BatchWarm {
		return err
	}
	t, err := m.cfg.Records.Template(args.Predicate.Template)
	if err != nil || string(t.Cell) != args.Predicate.Cell {
		return nil
	}
	t.Receipt = d.String()
	return m.cfg.Records.Commit(&t)
}

// batchReceipt writes the receipt of an act, once per key.
func (m *Manager) batchReceipt(ctx context.Context, key string, p Batch) (cell.Digest, error) {
	subjects := []receipt.Subject{{Name: "policy", Digest: digest(p.Policy.Digest)}}
	if p.From != nil && p.From.TreeDigest != "" {
		subjects = append(subjects, receipt.Subject{Name: "workspace", Digest: digest(p.From.TreeDigest)})
	}
	for _, c := range p.Cells {
		subjects = append(subjects, receipt.Subject{Name: "cell " + c.Cell, Digest: cell.Sum([]byte(c.Cell))})
	}
	return m.once(ctx, receipt.Request{Key: key, Type: receipt.PredicateFork, Subjects: subjects, Predicate: p})
}

// Certificate returns what was measured of a cell when it was forked.
func (m *Manager) Certificate(c *state.Cell) *cell.Certificate {
	batch := c.Batch
	if i := m.cfg.Records.Interp(c.ID); i != nil && batch == "" {
		batch = i.Batch
	}
	if batch == "" {
		return nil
	}
	entry, err := m.cfg.Ledger.Lookup(batch)
	if err != nil {
		return nil
	}
	p, err := predicate[Batch](entry)
	if err != nil {
		return nil
	}
	for _, f := range p.Cells {
		if f.Cell == string(c.ID) {
			return f.Certificate
		}
	}
	return nil
}

// summary is what the receipt of an act says, in a line.
func (p *Batch) summary() string {
	switch p.Act {
	case state.BatchFork:
		return fmt.Sprintf("fork of template %s into %s", p.Template, counted(len(p.Cells), "cell"))
	case state.BatchBranch:
		return fmt.Sprintf("branch of %s into %s", cmp.Or(p.CellName, p.Cell), counted(len(p.Cells), "cell"))
	case state.BatchWarm:
		return fmt.Sprintf("template %s warmed again", p.Template)
	}
	return fmt.Sprintf("template %s built", p.Template)
}
