package live

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	interpreters "github.com/pando-dev/pando/internal/repl"
	"github.com/pando-dev/pando/internal/state"
)

// WarmTimeout is how long set-up and probe of an interpreter may take, unless it is said.
const WarmTimeout = 2 * time.Minute

// evalTimeout is how long an evaluation may take, unless it is said.
const evalTimeout = time.Minute

const (
	// evalLimit is how much is kept of the repr of an evaluation's value, in bytes.
	evalLimit = 1 << 20
	// evalOutput is how much an evaluation may write to each stream, in bytes. It
	// is kept nowhere, but code that writes without end should not fill what its
	// output goes to.
	evalOutput = 64 << 20
)

// Eval evaluates code in a cell's interpreter, which is started if the cell
// never had one. Like a command beside a run it has no receipt: what it changed
// is in the next checkpoint, and what it said to the outside in the gateway's
// decisions.
func (m *Manager) Eval(ctx context.Context, id cell.ID, req api.EvalRequest, out func(api.StreamLine)) (res api.EvalResult, err error) {
	began := time.Now()
	res = api.EvalResult{Cell: string(id)}
	ev, err := EvalOf(req.Code, req.Timeout)
	if err == nil {
		err = knownKind(req.Kind)
	}
	if err != nil {
		return res, err
	}
	c, err := m.made(ctx, id)
	if err == nil {
		err = m.cfg.Policies.MayStart(&c)
	}
	if err != nil {
		return res, err
	}
	inst, release := m.Ref(id)
	if inst == nil || req.Fresh || !m.HasInterp(id) {
		release()
		in, ready := m.cfg.Stage(ctx, "ready")
		inst, release, res.Notes, err = m.interpreterOf(in, id, req, out)
		ready(err)
		if err != nil {
			return res, err
		}
	}
	defer release()
	if c, err = m.Usable(id); err != nil {
		return res, err
	}
	res.Name, res.Isolation = c.Title(), api.IsolationOf(c.Backend)
	if err := m.takesCode(&c, req.Kind); err != nil {
		return res, err
	}
	if err := m.cfg.Policies.Spend(&c); err != nil {
		return res, err
	}
	w, err := backend.WarmerOf(inst)
	if err != nil {
		return res, err
	}
	done, err := m.Evaluate(ctx, id, w, ev, out)
	if cell.KindOf(err) == cell.Unavailable {
		if gone := m.gone(&c, false, req.Kind); gone != nil {
			err = cell.Errorf(cell.Unavailable, "live.Eval", cell.HintOf(gone), "%w", gone)
		}
	}
	if err != nil {
		return res, err
	}
	res.Result, err = json.Marshal(done)
	res.Notes = append(res.Notes, m.cfg.StartNotes(id)...)
	res.WallMS = since(began)
	return res, err
}

// MayEval refuses what Eval would refuse in the state that the cell is in now, for doors
// that begin to answer before the evaluation is over. An interpreter that is gone is no
// reason: see ErrInterpreterGone.
func (m *Manager) MayEval(id cell.ID, kind string) error {
	if err := knownKind(kind); err != nil {
		return err
	}
	c, err := m.Usable(id)
	if err == nil {
		err = m.cfg.Policies.MayStart(&c)
	}
	if err != nil || m.AtRest(id) {
		return err
	}
	if !m.HasInterp(id) {
		return NotPaused("live.MayEval", &c)
	}
	return m.takesCode(&c, kind)
}

// takesCode refuses code that the interpreter of a cell is of the wrong kind for, or
// stands still for.
func (m *Manager) takesCode(c *state.Cell, kind string) error {
	if err := m.sameKind(c, kind); err != nil {
		return err
	}
	return NotPaused("live.Eval", c)
}

// EvalOf checks what is asked of an evaluation.
func EvalOf(code, timeout string) (cell.Eval, error) {
	ev := cell.Eval{Code: code, Timeout: evalTimeout, Limit: evalLimit, Output: evalOutput}
	if code == "" {
		return ev, cell.Errorf(cell.Invalid, "live.Eval", "say what to evaluate: pando eval CELL CODE", "cannot evaluate: no code given")
	}
	var err error
	if timeout != "" {
		ev.Timeout, err = policy.ParseTimeout(timeout)
	}
	return ev, err
}

// Evaluate evaluates in a living interpreter, and notes when that ends it.
func (m *Manager) Evaluate(ctx context.Context, id cell.ID, w backend.Warmer, ev cell.Eval, out func(api.StreamLine)) (cell.Evaluated, error) {
	done, err := w.Eval(ctx, ev, OutputTo(out))
	switch {
	case err == nil && done.Cause == cell.CauseEnded:
		m.InterpEnded(id, endedCause(done))
	case cell.KindOf(err) == cell.Unavailable:
		m.InterpEnded(id, state.KeeperLost)
	}
	return done, err
}

// endedCause is what an interpreter that ended in an evaluation says of it.
func endedCause(done cell.Evaluated) string {
	if done.Error != nil && done.Error.Message != "" {
		return done.Error.Message
	}
	return "it ended in an evaluation"
}

// knownKind refuses a kind of interpreter that there is not.
func knownKind(kind string) error {
	if _, ok := interpreters.KindOf(kind); kind == "" || ok {
		return nil
	}
	return cell.Errorf(cell.Invalid, "live.Eval", "choose one of "+strings.Join(interpreters.KindNames(), ", "), "cannot evaluate: no kind %.80s of interpreter", strings.ToValidUTF8(kind, "\ufffd"))
}

// ErrOtherKind is in the error of an evaluation in another language than that of the
// cell's interpreter.
var ErrOtherKind = errors.New("it has an interpreter already")

// sameKind refuses code of one language for the interpreter of another.
func (m *Manager) sameKind(c *state.Cell, kind string) error {
	i := m.cfg.Registry.Interp(c.ID)
	if kind == "" || i == nil || i.Kind == kind {
		return nil
	}
	return cell.Errorf(cell.Conflict, "live.Eval", "begin with a new one: "+freshCommand(c, kind), "cannot evaluate %s in %s: %w, of kind %s (%s)", kind, c.Title(), ErrOtherKind, i.Kind, i.Version)
}

// freshCommand is how a person begins with a new interpreter.
func freshCommand(c *state.Cell, kind string) string {
	if kind != "" {
		kind = " --kind " + kind
	}
	return "pando eval --fresh" + kind + " " + c.Title()
}

// kindOf is the kind of interpreter that a cell gets: the one that is asked for,
// else that which it had, if that is built in, else Python.
func (m *Manager) kindOf(id cell.ID, asked string) interpreters.Kind {
	if i := m.cfg.Registry.Interp(id); asked == "" && i != nil {
		asked = i.Kind
	}
	k, ok := interpreters.KindOf(asked)
	if !ok {
		k, _ = interpreters.KindOf(cell.WarmPython)
	}
	return k
}

// interpreterOf brings a cell to life and gives it an interpreter, if it never
// had one or a fresh one is wanted.
func (m *Manager) interpreterOf(ctx context.Context, id cell.ID, req api.EvalRequest, out func(api.StreamLine)) (inst backend.Instance, release func(), notes []string, err error) {
	fresh := req.Fresh
	c, err := m.Usable(id)
	if err != nil { // before anything is started for it
		return nil, nil, nil, err
	}
	if err := m.gone(&c, fresh, req.Kind); err != nil {
		return nil, nil, nil, err
	}
	had := m.cfg.Registry.Interp(id) != nil
	if fresh {
		if notes, err = m.dismiss(ctx, &c); err != nil {
			return nil, nil, nil, err
		}
	}
	inst, c, let, err := m.ensureLive(ctx, id)
	if err != nil {
		return nil, nil, nil, err
	}
	defer func() {
		if err != nil {
			let()
		}
	}()
	if err := NotPaused("live.Eval", &c); err != nil {
		return nil, nil, nil, err
	}
	w, err := backend.WarmerOf(inst)
	if err != nil {
		return nil, nil, nil, err
	}
	st, err := w.Warmth(ctx)
	if err == nil { // another evaluation was first, or an earlier daemon
		return inst, let, notes, m.recordInterp(&c, st)
	}
	if had && !fresh && cell.KindOf(err) == cell.NotFound { // it went with its keeper in this moment, which is not noted yet
		m.RecordEnd(id, state.KeeperLost)
		return nil, nil, nil, m.gone(&c, false, req.Kind)
	}
	env := cell.CommandEnv(m.cfg.Policies.Env(&c), m.LeasedEnv(c.ID), c.Setup.User, false, "")
	kind := m.kindOf(id, req.Kind)
	var files []string
	for _, name := range kind.Programs {
		files = append(files, cell.Candidates(name, env, c.Source)...)
	}
	_, err = w.Warm(ctx, cell.Warm{Kind: kind.Name, Timeout: WarmTimeout, Process: cell.Process{
		Args: kind.Programs[:1], Env: env, Path: files, Workdir: c.Source,
	}}, OutputTo(out))
	if err != nil && cell.KindOf(err) != cell.Exists {
		return nil, nil, nil, err
	}
	if st, err = w.Warmth(ctx); err != nil {
		return nil, nil, nil, err
	}
	if i := m.cfg.Registry.Interp(id); fresh && i != nil && i.Template != "" {
		notes = append(notes, "a new interpreter: the set-up of template "+i.Template+" was not evaluated in it")
	}
	return inst, let, notes, m.recordInterp(&c, st)
}

// ErrInterpreterGone is in the error of an evaluation in a cell with an interpreter that
// has ended. With Fresh a new one is started, without the variables.
var ErrInterpreterGone = errors.New("its interpreter is gone")

// gone refuses to evaluate where an interpreter was and is no more: its
// variables would be missing without a word.
func (m *Manager) gone(c *state.Cell, fresh bool, kind string) error {
	i := m.cfg.Registry.Interp(c.ID)
	if fresh || i == nil || i.Ended == "" && !m.AtRest(c.ID) {
		return nil
	}
	return cell.Errorf(cell.Conflict, "live.Eval", "begin with a new one: "+freshCommand(c, kind),
		"cannot evaluate in %s: %w, and its variables with it (%s)", c.Title(), ErrInterpreterGone, cmp.Or(i.Ended, c.Cause, state.PutToRest))
}

// OutputTo passes on what an interpreter writes.
func OutputTo(out func(api.StreamLine)) func(cell.Output) {
	if out == nil {
		return nil
	}
	return func(o cell.Output) {
		if o.Stream == 2 {
			out(api.StreamLine{Stderr: o.Data})
		} else {
			out(api.StreamLine{Stdout: o.Data})
		}
	}
}
