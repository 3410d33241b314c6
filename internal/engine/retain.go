package engine

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/state"
)

// maxEraseReason bounds the reason of a hold or an erasure, in bytes.
const maxEraseReason = 500

// evidenceEvery is how often evidence is looked for that the policy keeps no longer.
const evidenceEvery = time.Hour

// unheld refuses to remove a cell while there is a hold on it or one of its runs.
func (e *Engine) unheld(c *state.Cell) error {
	return e.reg.Unheld(c.ID, "remove", "cell "+c.Title())
}

// mayRetain refuses a caller that is not the installation's own: it could have what it did forgotten.
func (v *View) mayRetain(what string) error {
	if v.isConfined() {
		return cell.Errorf(cell.Denied, "engine.View", "use a token of scope admin without labels", "cannot %s: %s", what, v.confined)
	}
	return nil
}

// callerName names the caller for people.
func (v *View) callerName() string {
	if s := v.asker().API().String(); s != "" {
		return s
	}
	return "user " + v.e.cfg.User.Name
}

// sayable is a reason as receipts have it.
func sayable(reason string) (string, error) {
	reason = redactor.String(strings.TrimSpace(reason))
	if len(reason) > maxEraseReason || strings.ContainsFunc(reason, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", cell.Errorf(cell.Invalid, "engine.retain", "", "a reason is one line of at most %d bytes", maxEraseReason)
	}
	return reason, nil
}

// Hold puts a legal hold on a run or a cell, or releases it. Both are receipts.
func (v *View) Hold(ctx context.Context, t result.Target, req api.HoldRequest) (out api.OnHold, err error) {
	return onTarget(v, t, func() (api.OnHold, error) {
		if err := v.mayRetain("hold evidence or release it"); err != nil {
			return out, err
		}
		return v.e.hold(ctx, t, req, v.callerName())
	})
}

func (e *Engine) hold(ctx context.Context, t result.Target, req api.HoldRequest, by string) (out api.OnHold, err error) {
	const opName = "engine.Hold"
	reason, err := sayable(req.Reason)
	if err != nil {
		return out, err
	}
	e.retaining.Lock()
	defer e.retaining.Unlock()
	e.holding.Lock() // a cell that is recorded as removed meanwhile can't be held any more
	defer e.holding.Unlock()
	id, what := string(t.Cell), "cell "+string(t.Cell)
	var run state.Run
	if t.Run != "" {
		if run, err = e.reg.Run(t.Run); err != nil {
			return out, err
		}
		id, what, t.Cell = run.ID, "run "+run.ID, run.CellID()
	}
	c, err := e.reg.Cell(t.Cell)
	if err != nil {
		return out, err
	}
	k := e.reg.Retained(id)
	act := state.ActOn(&c, "hold", "", "")
	act.Verdict, act.By, act.Reason, act.At = nil, by, reason, time.Now().UTC()
	switch {
	case req.Release && k.Hold == nil:
		return out, cell.Errorf(cell.Conflict, opName, "see what is: pando hold", "cannot release %s: it is not on hold", what)
	case req.Release && reason == "":
		return out, cell.Errorf(cell.Invalid, opName, "say why: --reason", "cannot release %s without a reason", what)
	case req.Release:
		act.Act, k.Hold = "release", nil
	case k.Hold != nil:
		return out, cell.Errorf(cell.Exists, opName, "", "%s is %s", what, k.Hold.Words())
	case run.ID == "" && c.State == cell.Removed:
		return out, cell.Errorf(cell.Conflict, opName, "hold its runs: their evidence is there", "cannot hold %s: it was removed", what)
	default:
		k.Hold = &state.Hold{At: act.At, By: by, Reason: reason}
	}
	if run.ID != "" {
		act.Run, act.Runs = run.ID, []state.Decided{decided(&run)}
	}
	d, err := e.evidence.Seal(ctx, "hold/"+rand.Text(), act, &k)
	return api.OnHold{Run: run.ID, Cell: string(c.ID), Title: c.Title(), Hold: k.Hold.API(), Receipt: d.String()}, err
}

func decided(r *state.Run) state.Decided {
	d := state.Decided{Run: r.ID, Verdict: r.Verdict}
	if len(r.Receipts) > 0 {
		d.Receipt = r.Receipts[0]
	}
	return d
}

// Holds are the runs and cells on hold that the caller sees, oldest hold first.
func (v *View) Holds() []api.OnHold {
	out := []api.OnHold{}
	for _, k := range v.e.reg.Holds() {
		h := api.OnHold{Cell: k.ID, Hold: k.Hold.API()}
		if r, err := v.e.reg.Run(cell.RunID(k.ID)); err == nil {
			h.Run, h.Cell = r.ID, r.Cell
		}
		if !v.sees(cell.ID(h.Cell)) {
			continue
		}
		h.Title = h.Cell
		if c, err := v.e.reg.Cell(cell.ID(h.Cell)); err == nil {
			h.Title = c.Title()
		}
		if len(k.Receipts) > 0 {
			h.Receipt = k.Receipts[len(k.Receipts)-1]
		}
		out = append(out, h)
	}
	return out
}

// Erase erases contents of a run's evidence for good. Its receipts stay, and say so.
func (v *View) Erase(ctx context.Context, id cell.RunID, req api.EraseRequest) (out api.Erasure, err error) {
	if err := v.mustRun(id); err != nil {
		return out, err
	}
	if err := v.mayRetain("erase evidence"); err != nil {
		return out, err
	}
	err = v.e.eraseOf(ctx, id, req, v.callerName(), &out)
	return out, err
}

func (e *Engine) eraseOf(ctx context.Context, id cell.RunID, req api.EraseRequest, by string, out *api.Erasure) error {
	const opName = "engine.Erase"
	reason, err := sayable(req.Reason)
	if err != nil {
		return err
	}
	words := policy.Kept()
	if len(req.What) == 0 {
		return cell.Errorf(cell.Invalid, opName, "name some of "+strings.Join(words, ", "), "nothing was named to be erased")
	}
	for _, w := range req.What {
		if w == "receipts" || w == "receipt" {
			return cell.Errorf(cell.Invalid, opName, "erase "+strings.Join(words, ", "), "cannot erase receipts: they are kept for ever")
		}
		if !slices.Contains(words, w) {
			return cell.Errorf(cell.Invalid, opName, "name some of "+strings.Join(words, ", "), "%s is nothing that can be erased", policy.Quoted(cell.Clip(w)))
		}
	}
	if reason == "" {
		return cell.Errorf(cell.Invalid, opName, "say why: --reason", "cannot erase evidence without a reason")
	}
	r, err := e.reg.Run(id)
	if err != nil {
		return err
	}
	one := []erasing{{run: r, files: filesOf(req.What)}}
	list, receipt, err := e.erase(ctx, one, by, reason, req.DryRun)
	*out = api.Erasure{Run: r.ID, Erased: []api.Erased{}, Receipt: receipt, DryRun: req.DryRun}
	for _, x := range list {
		out.Erased = append(out.Erased, x.API())
	}
	if err == nil && len(list) == 0 {
		return cell.Errorf(cell.NotFound, opName, "", "nothing of that is there of run %s", id)
	}
	return err
}

func filesOf(words []string) (files []string) {
	for _, w := range words {
		files = append(files, evidence.ErasedBy(w)...)
	}
	return files
}

// erasing is a run with what of its folder is to go.
type erasing struct {
	run   state.Run
	files []string
}

// erase erases files of runs of one cell, with one receipt. It returns what goes, or went.
func (e *Engine) erase(ctx context.Context, runs []erasing, by, reason string, dry bool) (list []state.Erased, receipt string, err error) {
	const opName = "engine.Erase"
	e.retaining.Lock()
	defer e.retaining.Unlock()
	c, err := e.reg.Cell(runs[0].run.CellID())
	if err != nil {
		return nil, "", err
	}
	act := state.ActOn(&c, "erase", "", "")
	act.Verdict, act.By, act.Reason, act.At = nil, by, reason, time.Now().UTC()
	var records []state.Retained
	for _, x := range runs {
		r, err := e.reg.Run(x.run.RunID())
		if err != nil {
			return nil, "", err
		}
		if r.Phase != cell.Ended {
			return nil, "", cell.Errorf(cell.Conflict, opName, "wait until it has ended", "cannot erase evidence of run %s: it goes on", r.ID)
		}
		if hold := e.reg.Retained(string(c.ID)).Hold; hold != nil {
			return nil, "", heldFrom(r.ID, "cell "+c.Title(), string(c.ID), hold)
		}
		if r.Hold != nil {
			return nil, "", heldFrom(r.ID, "run "+r.ID, r.ID, r.Hold)
		}
		gone, err := e.evidence.Erasable(&r, x.files)
		if err != nil {
			return nil, "", err
		}
		if len(gone) == 0 {
			continue
		}
		k := e.reg.Retained(r.ID)
		for _, g := range gone {
			g.At, g.By, g.Reason = act.At, by, reason
			k.Erased = append(slices.DeleteFunc(k.Erased, func(o state.Erased) bool { return o.File == g.File }), g)
			act.Erased = append(act.Erased, state.ErasedRun{Run: r.ID, File: g.File, Digest: g.Digest, Found: g.Found, Bytes: g.Bytes})
			list = append(list, g)
		}
		act.Runs = append(act.Runs, decided(&r))
		records = append(records, k)
	}
	if dry || len(records) == 0 {
		return list, "", nil
	}
	if len(act.Runs) == 1 {
		act.Run = act.Runs[0].Run
	}
	d, err := e.evidence.Erase(ctx, "erase/"+rand.Text(), act, records)
	if !d.IsZero() {
		receipt = d.String()
	}
	return list, receipt, err
}

func heldFrom(run, what, sel string, hold *state.Hold) error {
	return cell.Errorf(cell.Conflict, "engine.Erase", "release it first, on the record: pando hold --release "+sel, "cannot erase evidence of run %s: %s is %s", run, what, hold.Words())
}

// tendEvidence erases, now and then, what the policy keeps no longer.
func (e *Engine) tendEvidence(now time.Time) {
	if now.Sub(e.evidenceAt) < evidenceEvery {
		return
	}
	e.evidenceAt = now
	if err := e.evidence.FinishErasing(); err != nil {
		e.log.Warn("cannot finish an erasure", "error", err)
	}
	if _, err := e.expireEvidence(e.life, false, now); err != nil {
		e.log.Warn("cannot erase evidence that the policy keeps no longer", "error", err)
	}
}

// expireEvidence erases what the policies of the host and the user, as the policy of each run lengthens them, keep no longer. A run with a policy that can't
// be read keeps all, and so does one on hold. There is one receipt for the runs of a cell.
func (e *Engine) expireEvidence(ctx context.Context, dry bool, now time.Time) (items []api.GCItem, failed error) {
	keep, at, err := e.govern.KeepEvidence()
	if err != nil || keep == (policy.Keep{}) {
		return nil, err
	}
	of, order, reasons := map[string][]erasing{}, []string{}, map[string]string{}
	for _, r := range e.reg.Runs("") {
		x, why := e.over(&r, keep, at, now)
		if len(x.files) == 0 {
			continue
		}
		key := r.Cell + " " + why
		if reasons[key] == "" {
			reasons[key] = why
			order = append(order, key)
		}
		of[key] = append(of[key], x)
	}
	for _, key := range order {
		list, _, err := e.erase(ctx, of[key], "pando", reasons[key], dry)
		if err != nil {
			failed = err // the others go all the same
			continue
		}
		var bytes int64
		for _, x := range list {
			bytes += x.Bytes
		}
		for _, x := range of[key] {
			items = append(items, api.GCItem{What: "evidence", Name: x.run.ID + ": " + strings.Join(x.files, ", "), Why: reasons[key]})
		}
		items[len(items)-1].Bytes = bytes
	}
	return items, failed
}

// over is what of a run's evidence is kept no longer, and by which words of the policy.
func (e *Engine) over(r *state.Run, keep policy.Keep, at map[string]string, now time.Time) (x erasing, why string) {
	x.run = *r
	if _, hold := e.reg.HoldOn(r.CellID()); r.Phase != cell.Ended || r.Ended.IsZero() || len(r.Receipts) == 0 || r.Hold != nil || hold != nil {
		return x, ""
	}
	var due []string
	for _, w := range policy.Kept() {
		if keep.Of(w).Over(now.Sub(r.Ended)) && len(evidence.There(r.Folder, evidence.ErasedBy(w))) > 0 {
			due = append(due, w)
		}
	}
	if len(due) == 0 {
		return x, ""
	}
	p, err := evidence.ManifestPolicy(r)
	if err != nil {
		e.log.Warn("a run's evidence is kept: its policy, which may say that it is, can't be read", "run", r.ID, "error", err)
		return x, ""
	}
	keep = keep.Lengthen(p.Keep)
	var words []string
	for _, w := range due {
		if keep.Of(w).Over(now.Sub(r.Ended)) {
			x.files = append(x.files, evidence.There(r.Folder, evidence.ErasedBy(w))...)
			words = append(words, fmt.Sprintf("keep.%s is %s (%s)", w, keep.Of(w), at["keep."+w]))
		}
	}
	return x, strings.Join(words, ", ")
}
