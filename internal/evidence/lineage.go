package evidence

import (
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// parents are the receipts that the state of a cell comes from: of its newest run with one, else of what made it. What has no
// receipt yet is not among them.
func (m *Manager) parents(id cell.ID) []string {
	for _, r := range m.cfg.Records.Runs(id) {
		if len(r.Receipts) > 0 {
			return []string{r.Receipts[0]}
		}
	}
	c, err := m.cfg.Records.Cell(id)
	if err != nil {
		return nil
	}
	batch := c.Batch
	if i := m.cfg.Records.Interp(id); i != nil && batch == "" {
		batch = i.Batch
	}
	if entry, err := m.cfg.Ledger.Lookup(batch); err == nil {
		return []string{entry.ID.String()}
	}
	return nil
}

// batchParents are the receipts that a batch comes from: that of its template, or of what was in its source.
func (m *Manager) batchParents(of *state.Cell, b *state.Batch) []string {
	switch b.Act {
	case state.BatchFork:
		if t, err := m.cfg.Records.Template(b.Template); err == nil && t.Receipt != "" && t.Cell == of.ID {
			return []string{t.Receipt}
		}
	case state.BatchBranch:
		return m.parents(of.ID)
	}
	return nil
}

// actParents are the receipts that an act comes from: of the run that it is about, else of what is in its cell.
func (m *Manager) actParents(act *state.Act) []string {
	if r, err := m.cfg.Records.Run(cell.RunID(act.Run)); err == nil && len(r.Receipts) > 0 {
		return []string{r.Receipts[0]}
	}
	return m.parents(cell.ID(act.Cell))
}

func (p *runPredicate) parents() []string { return shortly(p.Parents) }
func (p *act) parents() []string          { return shortly(p.Parents) }
func (p *Batch) parents() []string        { return shortly(p.Parents) }

func shortly(ids []string) (out []string) {
	for _, id := range ids {
		out = append(out, "receipt "+short(id))
	}
	return out
}
