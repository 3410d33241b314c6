package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/op"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// What a receipt of forkPredicate is about.
const (
	actBuild  = "build"
	actWarm   = "warm" // again, of a template that had gone cold
	actFork   = "fork"
	actBranch = "branch"
)

// forkPredicate is what the receipt of a template, of forks of one, or of
// branches says. Every field was computed or measured.
type forkPredicate struct {
	Act         string           `json:"act"` // "build", "fork", "branch"
	Template    string           `json:"template,omitempty"`
	Digest      string           `json:"template_digest,omitempty"`
	Cell        string           `json:"cell"` // the template's, or the source
	CellName    string           `json:"cell_name,omitempty"`
	Pando       string           `json:"pando"`
	At          time.Time        `json:"at"`
	Backend     string           `json:"backend"`
	Isolation   *isolationFacts  `json:"isolation"`
	Interpreter string           `json:"interpreter"`
	Program     string           `json:"program_digest,omitempty"` // of the interpreter's file
	Policy      policyFacts      `json:"policy"`
	From        *state.Point     `json:"from,omitempty"` // the files' state that the cells began on
	Assurance   *state.Assurance `json:"assurance,omitempty"`
	Downgrades  []string         `json:"downgrades,omitempty"`
	Cells       []forkedFacts    `json:"cells,omitempty"`
	Failed      []string         `json:"failed,omitempty"` // cells that could not be made, each with its cause
	Took        string           `json:"took,omitempty"`
	Dropped     string           `json:"dropped,omitempty"`
	PauseMS     float64          `json:"pause_ms,omitempty"`     // of a branch: how long the source stood still
	MemoryTaken string           `json:"memory_taken,omitempty"` // of a branch: how the source's memory was, in the backend's words
}

// forkedFacts are about one cell of a batch.
type forkedFacts struct {
	Cell        string            `json:"cell"`
	Name        string            `json:"name"`
	Ahead       bool              `json:"made_ahead,omitempty"`
	Certificate *cell.Certificate `json:"certificate,omitempty"`
}

func policyOf(c *state.Cell) policyFacts {
	p := policyFacts{Digest: c.Setup.Policy.String()}
	if cell.Sum([]byte(c.Setup.PolicyText)) == c.Setup.Policy {
		p.Text = json.RawMessage(c.Setup.PolicyText)
	}
	return p
}

// opBatch is the journal's word for a receipt that is owed: the records that it
// is about were made durable with it.
const opBatch = "batch"

type batchArgs struct {
	Key       string        `json:"key"`
	Predicate forkPredicate `json:"predicate"`
}

// commitBatch makes the records of an act durable and, with them, that its
// receipt is owed: a crash leaves neither without the other. What it returns
// writes the receipt, which may go on while the cells already work.
func (e *Engine) commitBatch(ctx context.Context, key string, p forkPredicate, objects ...any) (func() (cell.Digest, error), error) {
	p.Pando, p.At = e.cfg.Version, time.Now().UTC()
	args, err := json.Marshal(batchArgs{key, p})
	if err != nil {
		return nil, err
	}
	var b [8]byte
	rand.Read(b[:])
	rec := op.Record{ID: "o-" + hex.EncodeToString(b[:]), Kind: opBatch, Args: args, Phase: op.Doing}
	if err := e.reg.Commit(append([]any{&rec}, objects...)...); err != nil {
		return nil, err
	}
	return func() (cell.Digest, error) {
		d, err := e.batchReceipt(context.WithoutCancel(ctx), key, p)
		if err != nil {
			return d, err // the next daemon tries again
		}
		rec.Phase, rec.Args = op.Done, nil
		e.background(func(context.Context) { // nobody waits for that: who finds it undone finds the receipt, too
			if err := e.reg.Commit(&rec); err != nil {
				e.log.Warn("cannot note that a receipt is written", "receipt", d, "error", err)
			}
		})
		return d, nil
	}, nil
}

// resumeBatch writes a receipt that an earlier daemon owed.
func (e *Engine) resumeBatch(ctx context.Context, args batchArgs) error {
	d, err := e.batchReceipt(ctx, args.Key, args.Predicate)
	if err != nil || args.Predicate.Act != actBuild && args.Predicate.Act != actWarm {
		return err
	}
	t, err := e.reg.Template(args.Predicate.Template)
	if err != nil || string(t.Cell) != args.Predicate.Cell {
		return nil
	}
	t.Receipt = d.String()
	return e.reg.Commit(&t)
}

// batchReceipt writes the receipt of an act, once per key.
func (e *Engine) batchReceipt(ctx context.Context, key string, p forkPredicate) (cell.Digest, error) {
	if old, err := e.cfg.Ledger.Lookup(key); err == nil {
		return old.ID, nil
	}
	subjects := []receipt.Subject{{Name: "policy", Digest: digest(p.Policy.Digest)}}
	if p.From != nil && p.From.TreeDigest != "" {
		subjects = append(subjects, receipt.Subject{Name: "workspace", Digest: digest(p.From.TreeDigest)})
	}
	for _, c := range p.Cells {
		subjects = append(subjects, receipt.Subject{Name: "cell " + c.Cell, Digest: cell.Sum([]byte(c.Cell))})
	}
	entry, err := e.cfg.Ledger.Append(ctx, receipt.Request{Key: key, Type: receipt.PredicateFork, Subjects: subjects, Predicate: p})
	if err != nil {
		return cell.Digest{}, fmt.Errorf("cannot write the receipt: %w", err)
	}
	return entry.ID, nil
}

// certificate returns what was measured of a cell when it was forked.
func (e *Engine) certificate(c *state.Cell) *cell.Certificate {
	batch := c.Batch
	if i := e.reg.Interp(c.ID); i != nil && batch == "" {
		batch = i.Batch
	}
	if batch == "" {
		return nil
	}
	entry, err := e.cfg.Ledger.Lookup(batch)
	if err != nil {
		return nil
	}
	s, err := entry.Statement()
	if err != nil {
		return nil
	}
	var p forkPredicate
	if json.Unmarshal(s.Predicate, &p) != nil {
		return nil
	}
	for _, f := range p.Cells {
		if f.Cell == string(c.ID) {
			return f.Certificate
		}
	}
	return nil
}
