package engine

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// summary is what the receipt of an act says, in a line.
func (p *forkPredicate) summary() string {
	switch p.Act {
	case actFork:
		return fmt.Sprintf("fork of template %s into %s", p.Template, counted(len(p.Cells), "cell"))
	case actBranch:
		return fmt.Sprintf("branch of %s into %s", orElse(p.CellName, p.Cell), counted(len(p.Cells), "cell"))
	case actWarm:
		return fmt.Sprintf("template %s warmed again", p.Template)
	}
	return fmt.Sprintf("template %s built", p.Template)
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// batchMarkdown tells the receipt of a template, of forks or of branches to
// people.
func batchMarkdown(b *strings.Builder, p *forkPredicate) {
	s := p.summary()
	fmt.Fprintf(b, "# %s%s\n\n| | |\n|---|---|\n", strings.ToUpper(s[:1]), s[1:])
	row(b, "at", p.At.Format(time.RFC3339))
	row(b, "from", numberWords(p.From))
	row(b, "files", orPoint(p.From).TreeDigest)
	row(b, "template", strings.TrimSpace(p.Template+" "+p.Digest))
	row(b, "interpreter", strings.TrimSpace(p.Interpreter+" "+p.Program))
	row(b, "policy", p.Policy.Digest)
	row(b, "backend", inBackend(p.Backend))
	if a := p.Assurance; a != nil {
		row(b, "measured", strings.Join(a.Isolation, ", "))
	}
	row(b, "took along", p.Took)
	row(b, "left behind", p.Dropped)
	if p.Act == actBranch {
		row(b, "the source stood still", fmt.Sprintf("%.1f ms", p.PauseMS))
		row(b, "its memory was taken", p.MemoryTaken)
	}
	if len(p.Downgrades) > 0 {
		row(b, "weaker than it could be", strings.Join(p.Downgrades, "; "))
	}
	if len(p.Failed) > 0 {
		b.WriteString("\nNot made:\n\n")
		for _, f := range p.Failed {
			fmt.Fprintf(b, "- %s\n", f)
		}
	}
	if len(p.Cells) == 0 {
		return
	}
	b.WriteString("\n## Cells\n\n| cell | id | canaries | hazards that were measured |\n|---|---|---|---|\n")
	for _, c := range p.Cells {
		canaries, hazards := "", ""
		if k := c.Certificate; k != nil {
			canaries = fmt.Sprintf("%d of %d", k.Battery.Passed, k.Battery.Total)
			var names []string
			for _, h := range k.Hazards {
				names = append(names, h.Name)
			}
			hazards = strings.Join(names, ", ")
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", c.Name, c.Cell, canaries, hazards)
	}
}

// batchOf finds the receipt of the batch in which a cell was forked.
func (v *View) batchOf(sel, dir string) (receipt.Entry, bool) {
	e := v.e
	id, err := v.SelectCell(sel, dir)
	if err != nil || sel == "" {
		return receipt.Entry{}, false
	}
	i := e.reg.Interp(id)
	if i == nil || i.Batch == "" {
		return receipt.Entry{}, false
	}
	entry, err := e.cfg.Ledger.Lookup(i.Batch)
	return entry, err == nil && v.seesReceipt(entry)
}

// verifyBatches compares the records of forked cells with what their receipts
// say.
func (e *Engine) verifyBatches() (problems []api.Problem) {
	var owed []string
	for _, o := range e.reg.OpenOps() {
		if o.Kind == opBatch {
			var a batchArgs
			if unmarshal(o.Args, &a) == nil {
				owed = append(owed, a.Key)
			}
		}
	}
	in := map[string][]state.Interp{}
	e.reg.Look(func(now state.Records) {
		for i := range now.Interps() {
			if i.Batch != "" && !slices.Contains(owed, i.Batch) {
				in[i.Batch] = append(in[i.Batch], *i)
			}
		}
	})
	for key, list := range in {
		entry, err := e.cfg.Ledger.Lookup(key)
		if err != nil {
			problems = append(problems, api.Problem{Reason: string(receipt.Missing), Index: -1, What: "the receipt of cell " + string(list[0].Cell) + " and those forked with it is not in the ledger"})
			continue
		}
		var p forkPredicate
		s, err := entry.Statement()
		if err == nil {
			err = unmarshal(s.Predicate, &p)
		}
		for _, i := range list {
			what := ""
			switch {
			case err != nil:
				what = err.Error()
			case !slices.ContainsFunc(p.Cells, func(f forkedFacts) bool { return f.Cell == string(i.Cell) }):
				what = "the record says that cell " + string(i.Cell) + " was forked with this receipt, which does not name it"
			case i.Version != p.Interpreter || i.Template != p.Template:
				what = "the record of cell " + string(i.Cell) + "'s interpreter is not what the receipt says"
			}
			if what != "" {
				problems = append(problems, api.Problem{Reason: string(receipt.Edited), Index: entry.Index, File: "cell " + string(i.Cell), What: what})
			}
		}
	}
	return problems
}
