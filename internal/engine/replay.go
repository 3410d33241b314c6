package engine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/policy/decide"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// A replay of a run is a new cell: with what its patch makes of the files before it (Replay), in which its command is executed again
// (replayverify.go), or at a state within it. What is compared is compared with the run's receipt, after that was verified; the record and
// the checkpoints are believed as far as their digests are those of the receipt. The run, its cell and its verdict stay as they are.

// replay is one on its way.
type replay struct {
	v   *View
	e   *Engine
	req api.ReplayRequest
	run state.Run
	src state.Cell // of the run
	out api.Replay
}

// Replay has a run again, in a new cell.
func (v *View) Replay(ctx context.Context, id cell.RunID, req api.ReplayRequest) (out api.Replay, err error) {
	const opName = "engine.Replay"
	if err := v.enterRun(id); err != nil {
		return out, err
	}
	if err := v.e.gc.Room(); err != nil {
		return out, err
	}
	if err := v.mayImport(req.From, ""); err != nil {
		return out, err
	}
	if req.Until != "" && (req.Verify || req.From != "") {
		return out, cell.Errorf(cell.Invalid, opName, "leave out one of them", "cannot stop within the run when it is verified, or begins from a directory")
	}
	if !req.Verify && (len(req.Env) > 0 || req.Keep) {
		return out, cell.Errorf(cell.Invalid, opName, "say verify", "variables are for a command, and nothing runs without verify")
	}
	r := &replay{v: v, e: v.e, req: req}
	if r.run, err = v.e.reg.Run(id); err != nil {
		return out, err
	}
	if r.src, err = v.e.reg.Cell(r.run.CellID()); err != nil {
		return out, err
	}
	if r.run.NeverStarted() || r.run.In.Before == "" {
		return out, cell.Errorf(cell.Conflict, opName, "run it again", "run %s never started: there is nothing to replay", id)
	}
	if !policy.Isolates(r.run.Backend) && req.Until == "" && !req.Verify {
		return out, cell.Errorf(cell.Unsupported, opName, "pando replay "+r.run.ID+" --until after brings back its files", "cannot apply the patch of run %s: the workspace of a cell without isolation is a directory of the host", r.run.ID)
	}
	if r.run.Phase != cell.Ended && req.Until == "" {
		return out, cell.Errorf(cell.Conflict, opName, "wait until it has ended, or replay until a checkpoint", "run %s goes on", id)
	}
	r.out = api.Replay{Run: r.run.ID, Mode: "patch", Isolation: api.IsolationOf(r.run.Backend), Levels: []api.ReplayLevel{}, Notes: []string{}}
	began := time.Now()
	ctx, a := v.e.act(ctx, "replay", r.run.CellID())
	defer a.over(&err)
	ctx, cancel := v.e.bound(ctx)
	defer cancel()
	defer v.e.pins.Begin().End()
	ctx, done, err := v.making(ctx, 1, v.e.labelsOf(r.src.ID))
	if err != nil {
		return out, err
	}
	defer done()
	switch {
	case req.Until != "":
		r.out.Mode = "until"
		err = r.until(ctx)
	case req.Verify:
		r.out.Mode = "verify"
		err = r.verify(ctx)
	default:
		err = r.patch(ctx)
	}
	r.out.Identical = err == nil
	for _, l := range r.out.Levels {
		if l.Is == api.ReplayDiffers {
			r.out.Identical = false
			r.out.First = cmp.Or(r.out.First, strings.TrimSpace(l.Level+": "+l.Text))
		}
	}
	r.out.TookMS = ms(time.Since(began))
	return r.out, err
}

// level adds one to what was compared.
func (r *replay) level(name, is, format string, args ...any) *api.ReplayLevel {
	r.out.Levels = append(r.out.Levels, api.ReplayLevel{Level: name, Is: is, Text: fmt.Sprintf(format, args...)})
	return &r.out.Levels[len(r.out.Levels)-1]
}

// same adds one by two values.
func (r *replay) same(name, recorded, found, otherwise string) bool {
	is, text := api.ReplaySame, ""
	if recorded != found {
		is, text = api.ReplayDiffers, otherwise
	}
	l := r.level(name, is, "%s", text)
	l.Recorded, l.Found = recorded, found
	return is == api.ReplaySame
}

func (r *replay) note(format string, args ...any) {
	r.out.Notes = append(r.out.Notes, fmt.Sprintf(format, args...))
}

// evidence verifies the receipt of the run, its record and its files. What is wrong with a file that a replay does not read is a note.
func (r *replay) evidence() (ok bool, err error) {
	found, err := r.v.Verify(r.run.ID, "")
	if err != nil {
		return false, err
	}
	var bad []string
	for _, p := range found.Problems {
		what := strings.TrimSpace(p.File + ": " + p.What)
		if name, isFile := strings.CutPrefix(p.File, r.run.ID+"/"); isFile && name != "patch" && name != "manifest.json" {
			r.note("%s; a replay does not read it", what)
			continue
		}
		bad = append(bad, what)
	}
	if len(bad) > 0 {
		r.level("evidence", api.ReplayDiffers, "%s", strings.Join(bad, "; "))
		return false, nil
	}
	r.level("evidence", api.ReplaySame, "receipt %s is signed, by key %s, and the record is what it says", shortDigest(r.run.Receipts[0]), shortDigest(found.KeyID))
	return true, nil
}

// before makes the new cell, with the files before the run. Its tree was read from disk. c is nil when they differ.
func (r *replay) before(ctx context.Context) (c *state.Cell, first *state.Checkpoint, err error) {
	if r.req.From != "" {
		return r.from(ctx)
	}
	k, err := r.e.reg.Checkpoint(r.run.In.Before)
	if err != nil {
		return nil, nil, err
	}
	if k.Tree.String() != r.run.Before.TreeDigest {
		r.same("before", r.run.Before.TreeDigest, k.Tree.String(), "the checkpoint is not the one that the receipt names")
		return nil, nil, nil
	}
	if err := r.there(&k); err != nil {
		return nil, nil, err
	}
	if _, err := r.e.walk(ctx, &k); cell.KindOf(err) == cell.Corrupt {
		r.level("before", api.ReplayDiffers, "%v", err).Recorded = r.run.Before.TreeDigest
		return nil, nil, nil
	} else if err != nil {
		return nil, nil, err
	}
	r.same("before", r.run.Before.TreeDigest, k.Tree.String(), "")
	return r.anew(ctx, &k)
}

// there refuses a checkpoint of which the files are gone.
func (r *replay) there(k *state.Checkpoint) error {
	p, err := r.e.providerOf(k.State.Provider)
	if err == nil && haveLayers(p, k.State) {
		return nil
	}
	return cell.Errorf(cell.NotFound, "engine.Replay", "give a directory that is as the source was then: pando replay "+r.run.ID+" --from PATH",
		"the files before run %s are gone: its cell was removed, or the checkpoint expired or made room", r.run.ID)
}

// anew makes the new cell at a checkpoint.
func (r *replay) anew(ctx context.Context, k *state.Checkpoint) (*state.Cell, *state.Checkpoint, error) {
	if r.src.State == cell.Removed && r.v.isConfined() { // with the cell went what it was shown of the host
		if was, err := decide.Parse([]byte(r.src.Setup.PolicyText)); err != nil || len(was.Files.Mounts) > 0 {
			return nil, nil, cell.Errorf(cell.Denied, "engine.Replay", "use a token of scope admin without labels", "cannot make the cell of run %s again: it was shown files of the daemon's host, and %s", r.run.ID, r.v.confined)
		}
	}
	c, first, err := r.e.spawn.Anew(ctx, &r.src, k, r.req.Name)
	if err != nil {
		return nil, nil, err
	}
	if err := r.there(first); err != nil { // they went before the new cell was known to need them
		return nil, nil, r.drop(ctx, c, err)
	}
	r.out.Cell, r.out.CellName = string(c.ID), c.Title()
	return c, first, nil
}

// from makes the new cell of a directory.
func (r *replay) from(ctx context.Context) (*state.Cell, *state.Checkpoint, error) {
	req := api.CreateRequest{Name: r.req.Name, From: r.req.From, Repositories: r.src.Repositories, WithSecret: r.src.With, Backend: r.run.Backend, Image: r.run.Image, CallerEnv: r.src.Setup.Env}
	made, err := r.e.Create(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	c, err := r.e.reg.Cell(cell.ID(made.ID))
	if err != nil {
		return nil, nil, err
	}
	k, err := r.e.reg.Checkpoint(c.Head)
	if err != nil {
		return nil, nil, r.drop(ctx, &c, err)
	}
	if !r.same("before", r.run.Before.ContentDigest, k.Content.String(), "the directory has not the files that the run began with") {
		return nil, nil, r.drop(ctx, &c, nil)
	}
	r.out.Cell, r.out.CellName = string(c.ID), c.Title()
	return &c, &k, nil
}

// errTouched is in the error of a replay in the new cell of which something else was done: that cell stays.
var errTouched = errors.New("something else was done in it meanwhile")

// drop removes the new cell.
func (r *replay) drop(ctx context.Context, c *state.Cell, why error) error {
	if errors.Is(why, errTouched) {
		return why
	}
	if _, err := r.e.Remove(context.WithoutCancel(ctx), c.ID, false); err != nil {
		return errors.Join(why, fmt.Errorf("cell %s, which is of no use, stays: %w", c.Title(), err))
	}
	r.out.Cell, r.out.CellName = "", ""
	return why
}

// alone does something with the new cell while nothing else does, if it is as it was made: anything can be done in it as soon as it
// has a name.
func (r *replay) alone(ctx context.Context, c *state.Cell, first *state.Checkpoint, do func() error) error {
	release, err := r.e.alive.Lock(ctx, c.ID, "replay")
	if err != nil {
		return err
	}
	defer release()
	now, err := r.e.alive.Usable(c.ID)
	if err != nil {
		return err
	}
	began := now.Gen != nil && (c.Gen == nil || now.Gen.Layer != c.Gen.Layer)
	if now.Head != first.ID || now.Runs > 0 || began || now.State != c.State {
		return cell.Errorf(cell.Conflict, "engine.Replay", "replay it again", "cannot go on in cell %s: %w", c.Title(), errTouched)
	}
	*c = now
	return do()
}

// patch gives the new cell what the recorded patch makes of the files before the run.
func (r *replay) patch(ctx context.Context) error {
	if ok, err := r.evidence(); !ok || err != nil {
		return err
	}
	if r.run.After == nil {
		return cell.Errorf(cell.Conflict, "engine.Replay", "see pando show "+r.run.ID, "run %s left no result", r.run.ID)
	}
	f, want, err := r.e.evidence.SealedFile(&r.run, "patch")
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := result.PatchOf(f, want)
	if cell.KindOf(err) == cell.Corrupt {
		r.level("patch", api.ReplayDiffers, "it is not the one that the receipt names").Recorded = want.String()
		return nil
	}
	if err != nil {
		return err
	}
	l := r.level("patch", api.ReplaySame, "")
	l.Recorded, l.Found = want.String(), want.String()
	c, first, err := r.before(ctx)
	if err != nil || c == nil {
		return err
	}
	oerr := r.e.operate(ctx, opReplay, replayArgs{Cell: c.ID}, func(ctx context.Context) error {
		var ok bool
		if ok, err = r.patched(ctx, c, first, text); err != nil || !ok {
			err = r.drop(ctx, c, err)
		}
		return nil // whatever it is, it is over
	})
	return errors.Join(err, oerr)
}

// replayArgs is a replay that was begun: of the new cell, which has no receipt yet.
type replayArgs struct {
	Cell cell.ID `json:"cell"`
}

func (a replayArgs) key() string { return "replay/" + string(a.Cell) }

// resumeReplay takes away the new cell of a replay that an earlier daemon did not finish: what it has is not known.
func (e *Engine) resumeReplay(ctx context.Context, a replayArgs) error {
	if e.evidence.Sealed(a.key()) {
		return nil // the operation of its seal goes on by itself
	}
	return e.resumeRemove(ctx, removeArgs{Cell: a.Cell})
}

// patched is patch, in the new cell. It reports whether the cell has what the run left.
func (r *replay) patched(ctx context.Context, c *state.Cell, first *state.Checkpoint, text []byte) (bool, error) {
	before, err := r.e.side(ctx, first)
	if err != nil {
		return false, err
	}
	want, err := cell.ParseDigest(r.run.After.ContentDigest)
	if err != nil {
		return false, err
	}
	var after workspace.Side // as far as it is there
	gone := ""
	if k, err := r.e.reg.Checkpoint(r.run.In.After); err != nil {
		gone = err.Error()
	} else if k.Content != want {
		gone = "the checkpoint after the run is not the one that the receipt names"
	} else if after, err = r.e.side(ctx, &k); err != nil {
		after, gone = workspace.Side{}, err.Error()
	}
	made, err := r.e.results.Replay(ctx, c, before, after, bytes.NewReader(text), want)
	if cell.KindOf(err) == cell.Corrupt {
		r.level("after", api.ReplayDiffers, "%v", err)
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if n := len(made.Left); n > 0 {
		r.note("%d of its changed files are not in the patch: git ignores them, or accept would hold them back; they are those of %s, which the content digest covers", n, r.src.Title()+"@"+strconv.Itoa(r.run.After.Number))
	}
	same := false
	err = r.alone(ctx, c, first, func() (err error) {
		same, err = r.written(ctx, c, first, before, after, made, len(text) > 0, gone)
		return err
	})
	return same, err
}

// written is the end of patched: it gives the cell the files, and says whether it has what the run left. after is that, if it is there, and
// gone is why not. The caller has the cell's lock.
func (r *replay) written(ctx context.Context, c *state.Cell, first *state.Checkpoint, before, after workspace.Side, made *result.Replayed, patched bool, gone string) (bool, error) {
	last := *first
	var err error
	if made.To.ContentDigest() != first.Content {
		if last, err = r.e.results.BringIn(ctx, c, before.Tree, made.To, made.Contents, state.Checkpoint{Kind: state.KindManual, Message: "replay of " + r.run.ID}); err != nil {
			return false, err
		}
	}
	why := ""
	switch {
	case len(made.Differs) > 0 && !patched:
		why = "the patch was not kept: the run's notes say why; pando fork has its result: " + r.src.Title() + "@" + strconv.Itoa(r.run.After.Number)
	case len(made.Differs) > 0:
		why = fmt.Sprintf("%d files differ, the first is %s", len(made.Differs), made.Differs[0])
	case after.Tree == nil && r.run.Changes.Ignored > 0:
		why = fmt.Sprintf("the patch leaves out %d files that git ignores, and the result is gone: %s", r.run.Changes.Ignored, gone)
	case after.Tree == nil:
		why = "which files differ can not be told, the result is gone: " + gone
	default:
		why = "what was written is not what was to be"
	}
	if !r.same("after", r.run.After.ContentDigest, last.Content.String(), why) {
		return false, nil
	}
	return true, r.seal(ctx, c, first, &last)
}

// seal writes the receipt of the new cell.
func (r *replay) seal(ctx context.Context, c *state.Cell, first, last *state.Checkpoint) error {
	act := state.ActOn(c, "replay", cell.Pending, "")
	act.Verdict, act.Run, act.From, act.To = nil, r.run.ID, first.Point(), last.Point()
	d, err := r.e.evidence.Seal(ctx, replayArgs{Cell: c.ID}.key(), act, c)
	r.out.Receipt = d.String()
	return err
}

// until makes the new cell at a state within the run.
func (r *replay) until(ctx context.Context) error {
	if len(r.run.Receipts) == 0 {
		r.note("run %s goes on: it has no receipt yet, and what its checkpoints were is not signed", r.run.ID)
	} else if ok, err := r.evidence(); !ok || err != nil {
		return err
	}
	k, err := r.within(ctx)
	if err != nil {
		return err
	}
	if err := r.there(&k); err != nil {
		return err
	}
	at := r.src.Selector(&k)
	signed := ""
	switch {
	case k.ID == r.run.In.Before && r.run.Before != nil:
		signed = r.run.Before.TreeDigest
	case k.ID == r.run.In.After && r.run.After != nil:
		signed = r.run.After.TreeDigest
	default:
		signed = k.Tree.String()
		r.note("%s is within the run: its digest is in the records of this installation, not in the receipt", at)
	}
	if _, err := r.e.walk(ctx, &k); cell.KindOf(err) == cell.Corrupt {
		r.level("before", api.ReplayDiffers, "%v", err).Recorded = signed
		return nil
	} else if err != nil {
		return err
	}
	if !r.same("before", signed, k.Tree.String(), at+" is not what was recorded") {
		return nil
	}
	r.out.Levels[len(r.out.Levels)-1].Text = "the files of " + at
	c, first, err := r.anew(ctx, &k)
	if err != nil {
		return err
	}
	if err := r.alone(ctx, c, first, func() error { return r.seal(ctx, c, first, first) }); err != nil {
		return r.drop(ctx, c, err)
	}
	return nil
}

// within finds the checkpoint that Until names.
func (r *replay) within(ctx context.Context) (k state.Checkpoint, err error) {
	const opName = "engine.Replay"
	until := r.req.Until
	bad := func() (state.Checkpoint, error) {
		return k, cell.Errorf(cell.Invalid, opName, "use before, after, a number of pando history "+r.src.Title()+", turn:N, step:N or event:N", "%q is no state within a run", clip(until))
	}
	what, number, has := strings.Cut(until, ":")
	if !has {
		what, number = "", until
	}
	n, nerr := strconv.Atoi(number)
	switch {
	case until == "before":
		return r.e.reg.Checkpoint(r.run.In.Before)
	case until == "after":
		if r.run.In.After == "" {
			return k, cell.Errorf(cell.Conflict, opName, "wait until it has ended", "run %s has no result yet", r.run.ID)
		}
		return r.e.reg.Checkpoint(r.run.In.After)
	case nerr != nil || n < 1:
		return bad()
	case what == "" || what == "step":
		k, err = r.e.reg.Numbered(r.src.ID, n)
	case what == "turn":
		k, err = r.e.reg.AtTurn(r.src.ID, n)
	case what == "event":
		k, err = r.atEvent(ctx, n)
	default:
		return bad()
	}
	if err != nil {
		return k, err
	}
	if !r.hasWithin(&k) {
		return k, cell.Errorf(cell.NotFound, opName, "pando history "+r.src.Title()+" shows what there is", "checkpoint %s is not within run %s", r.src.Selector(&k), r.run.ID)
	}
	return k, nil
}

// hasWithin reports whether a checkpoint of the run's cell is of the time of the run.
func (r *replay) hasWithin(k *state.Checkpoint) bool {
	before, err := r.e.reg.Checkpoint(r.run.In.Before)
	if err != nil || k.Cell != r.src.ID {
		return false
	}
	last := r.run.In.After
	if last == "" {
		last = r.src.Head
	}
	after, err := r.e.reg.Checkpoint(last)
	return err == nil && (k.ID == before.ID || k.ID == after.ID || k.Number >= before.Number && k.Number <= after.Number && r.e.reg.Ancestors(after.ID)[k.ID])
}

// atEvent is the newest checkpoint within the run that is not later than one of its events.
func (r *replay) atEvent(ctx context.Context, seq int) (k state.Checkpoint, err error) {
	events, err := r.e.evidence.Events(ctx, r.run.RunID(), evidence.EventQuery{})
	if err != nil {
		return k, err
	}
	for line, err := range events {
		if err != nil {
			return k, err
		}
		var ev api.Event
		if err := json.Unmarshal(line, &ev); err != nil {
			return k, err
		}
		if int(ev.Seq) != seq {
			continue
		}
		if k, err = r.e.reg.Checkpoint(r.run.In.Before); err != nil {
			return k, err
		}
		for _, other := range r.e.reg.Checkpoints(r.src.ID) {
			if !other.Created.After(ev.Time) && other.Created.After(k.Created) && !other.Gone && r.hasWithin(&other) {
				k = other
			}
		}
		return k, nil
	}
	return k, cell.Errorf(cell.NotFound, "engine.Replay", "pando events "+r.run.ID+" --json has their numbers", "run %s has no event %d", r.run.ID, seq)
}
