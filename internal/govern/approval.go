package govern

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/notice"
	"github.com/pando-dev/pando/internal/state"
)

// keepApprovals is how long what was decided can be looked at.
const keepApprovals = 30 * 24 * time.Hour

// FollowAsks records what a talking cell asks for, and tells the clients of its run, until the
// instance is gone. Turns of its agent become checkpoints.
func (m *Manager) FollowAsks(inst backend.Instance) {
	m.cfg.Background(func(ctx context.Context) {
		defer m.leaves(inst)
		var since int64
		begun := map[string]bool{}
		for m.cfg.Instances().Instance(inst.ID()) == inst && ctx.Err() == nil {
			list, version, err := inst.Asked(ctx, since)
			if err != nil {
				if m.cfg.Instances().Instance(inst.ID()) == inst && ctx.Err() == nil && cell.KindOf(err) != cell.Unavailable {
					m.cfg.Log.Warn("cannot see what a cell asks for", "cell", inst.ID(), "error", err)
				}
				return
			}
			since = version
			list = slices.DeleteFunc(list, func(a cell.Asked) bool {
				if a.Used != nil {
					m.count(ctx, a)
					return true
				}
				if a.Turn == nil {
					return false
				}
				if !begun[a.ID] {
					begun[a.ID] = true
					m.cfg.Background(func(ctx context.Context) { m.takeTurn(ctx, inst, a) })
				}
				return true
			})
			m.noteAsks(ctx, inst.ID(), list)
		}
	})
}

// takeTurn makes a turn a checkpoint, and lets the cell go on with it.
func (m *Manager) takeTurn(ctx context.Context, inst backend.Instance, a cell.Asked) {
	at := *a.Turn
	if err := m.cfg.Turn(ctx, inst.ID(), at); err != nil && ctx.Err() == nil {
		m.cfg.Log.Warn("cannot keep the beginning of a turn", "cell", inst.ID(), "error", err)
		m.cfg.Report(inst.ID(), api.Progress{Step: api.StepAsking, Note: "cannot keep the beginning of this turn: " + err.Error()})
	}
	if err := inst.Answer(ctx, cell.Answered{Ask: a, Effect: cell.Allow, Scope: scopeOnce}); err != nil && ctx.Err() == nil && cell.KindOf(err) != cell.NotFound {
		m.cfg.Log.Warn("cannot let a turn go on", "cell", inst.ID(), "error", err)
	}
}

// noteAsks makes approvals of what waits, and ends those that don't any more.
func (m *Manager) noteAsks(ctx context.Context, id cell.ID, list []cell.Asked) {
	there := map[string]bool{}
	for _, a := range list {
		there[a.ID] = true
		if _, known := m.cfg.Records.Approval(a.ID); known {
			continue
		}
		if a.Run == "" {
			a.Run = m.cfg.RunIn(id)
		}
		v := &state.Approval{Ask: a, State: state.ApprovalWaiting}
		if err := m.cfg.Records.Commit(v); err != nil {
			m.cfg.Log.Error("cannot record an approval", "cell", id, "error", err)
			continue
		}
		m.cfg.Report(id, api.Progress{Step: api.StepAsking, Note: fmt.Sprintf("%s waits for you: pando approvals approve %s (or deny); it is denied in %s",
			a.Access.Want(), a.ID, time.Until(a.Expires).Round(time.Second))})
		m.announce(ctx, v)
	}
	for _, v := range m.cfg.Records.Approvals() {
		if v.Ask.Cell == id && v.State == state.ApprovalWaiting && !there[v.Ask.ID] && v.Ask.Budget == nil {
			v.State = state.Expired
			if err := m.cfg.Records.Commit(&v); err != nil {
				m.cfg.Log.Error("cannot record an approval", "cell", id, "error", err)
			}
		}
	}
}

// Approvals lists what waits for a person, newest first; with all, what was
// decided, too.
func (m *Manager) Approvals(all bool) []api.Approval {
	out := []api.Approval{}
	for _, a := range m.cfg.Records.Approvals() {
		if all || a.State == state.ApprovalWaiting {
			out = append(out, m.approvalView(&a))
		}
	}
	return out
}

func (m *Manager) approvalView(a *state.Approval) api.Approval {
	out := api.Approval{
		ID: a.Ask.ID, Cell: string(a.Ask.Cell), Run: string(a.Ask.Run), Want: a.Ask.Access.Want(), Reason: a.Ask.Reason, Rule: a.Ask.Rule, Origin: a.Ask.Origin,
		Policy: a.Ask.Policy.String(), Digest: a.Ask.Digest.String(), State: a.State, Asked: a.Ask.At, Expires: a.Ask.Expires, Answered: a.At,
	}
	if a.Ask.Budget != nil {
		out.Want = a.Ask.Want
	}
	if c, err := m.cfg.Records.Cell(a.Ask.Cell); err == nil {
		out.CellName = c.Name
	}
	if a.Answer != nil {
		out.Scope, out.By, out.Expires = a.Answer.Scope, a.Answer.By, a.Answer.Expires
		if a.Answer.Scope == scopeTime {
			out.Scope = a.Answer.Expires.Sub(a.At).Round(time.Second).String()
		}
	}
	return out
}

// The scopes of an answer.
const (
	scopeOnce = "once"
	scopeRun  = "run"
	scopeTime = "time"
)

// maxScope is how long an approval may be good for.
const maxScope = 24 * time.Hour

// Answer decides on an approval of a cell that the caller sees. It is recorded before it takes
// effect.
func (m *Manager) Answer(ctx context.Context, id string, allow bool, scope string, sees func(cell.ID) bool) (api.Approval, error) {
	const opName = "govern.Answer"
	a, ok := m.cfg.Records.Approval(id)
	if !ok || !sees(a.Ask.Cell) {
		return api.Approval{}, cell.Errorf(cell.NotFound, opName, "run `pando approvals` to see what waits", "cannot decide on %s: no approval has this id", clip(id))
	}
	if a.Ask.Budget != nil {
		return m.answerBudget(ctx, a, allow, scope)
	}
	if a.State != state.ApprovalWaiting {
		return m.approvalView(&a), cell.Errorf(cell.Conflict, opName, "run `pando approvals` to see what waits", "%s is %s already", id, a.State)
	}
	now := time.Now().UTC()
	ans := &cell.Answered{Ask: a.Ask, Effect: cell.Deny, Scope: scopeOnce, By: "user"}
	if allow {
		ans.Effect = cell.Allow
		switch scope {
		case "", scopeOnce:
		case scopeRun:
			ans.Scope = scopeRun
			if a.Ask.Run == "" {
				return api.Approval{}, cell.Errorf(cell.Invalid, opName, "approve it once, or for a time such as 10m", "nothing that has a run asks for %s", id)
			}
		default:
			d, err := time.ParseDuration(scope)
			if err != nil || d < time.Second || d > maxScope {
				return api.Approval{}, cell.Errorf(cell.Invalid, opName, "use once, run, or a time such as 10m, up to 24h", "%q is no scope of an approval", scope)
			}
			ans.Scope, ans.Expires = scopeTime, now.Add(d)
		}
	}
	inst := m.cfg.Instances().Instance(a.Ask.Cell)
	if inst == nil && !m.cfg.Instances().AtRest(a.Ask.Cell) {
		return api.Approval{}, cell.Errorf(cell.Unavailable, opName, "try again in a moment", "cannot answer %s: the keeper of cell %s does not answer", id, a.Ask.Cell)
	}
	if inst == nil || now.After(a.Ask.Expires) {
		a.State = state.Expired
		if err := m.cfg.Records.Commit(&a); err != nil {
			return api.Approval{}, err
		}
		return m.approvalView(&a), cell.Errorf(cell.Conflict, opName, "", "nothing asks for %s any more", id)
	}
	a.State, a.Answer, a.At = state.Denied, ans, now
	if allow {
		a.State = state.Approved
	}
	if err := m.cfg.Records.Commit(&a); err != nil {
		return api.Approval{}, err
	}
	if err := inst.Answer(ctx, *ans); err != nil {
		a.State = state.Expired
		if cerr := m.cfg.Records.Commit(&a); cerr != nil {
			m.cfg.Log.Error("cannot record an approval", "approval", id, "error", cerr)
		}
		return m.approvalView(&a), err
	}
	return m.approvalView(&a), nil
}

// standing lists the answers that are still good for a cell: a gateway that is
// opened anew knows them again.
func (m *Manager) standing(id cell.ID, run cell.RunID) (out []cell.Answered) {
	now := time.Now()
	if r, err := m.cfg.Records.Run(run); err == nil && r.Phase == cell.Finishing {
		run = "" // its command has ended: see DropAnswers
	}
	for _, a := range m.cfg.Records.Approvals() {
		if a.Ask.Cell != id || a.State != state.Approved || a.Answer == nil {
			continue
		}
		switch {
		case a.Answer.Scope == scopeTime && now.Before(a.Answer.Expires), a.Answer.Scope == scopeRun && run != "" && a.Ask.Run == run:
			out = append(out, *a.Answer)
		}
	}
	return out
}

// DropAnswers takes from a living cell's gateway what was approved for runs
// other than run: "" when its run has ended, and what it left behind goes on.
func (m *Manager) DropAnswers(ctx context.Context, c *state.Cell, run cell.RunID) error {
	inst := m.cfg.Instances().Instance(c.ID)
	if inst == nil || !c.Talks() || !slices.ContainsFunc(m.cfg.Records.Approvals(), func(a state.Approval) bool {
		return a.Ask.Cell == c.ID && a.State == state.Approved && a.Answer != nil && a.Answer.Scope == scopeRun && a.Ask.Policy == c.Setup.Policy && (run == "" || a.Ask.Run != run)
	}) {
		return nil
	}
	unlock, err := m.lockRules(ctx, c.ID)
	if err != nil {
		return err
	}
	defer unlock()
	return m.putInForce(ctx, c, inst, run)
}

// ExpireAsks ends approvals of an earlier daemon, of cells that are gone.
func (m *Manager) ExpireAsks() {
	var old []any
	for _, a := range m.cfg.Records.Approvals() {
		switch {
		case a.Ask.Budget != nil && m.budgetAsks(a.Ask.ID): // it waits as long as its budget is there, also when it was denied
		case a.State == state.ApprovalWaiting && (m.cfg.Instances().AtRest(a.Ask.Cell) || time.Now().After(a.Ask.Expires)):
			a.State = state.Expired
			old = append(old, &a)
		case a.State != state.ApprovalWaiting && time.Since(a.Ask.At) > keepApprovals:
			old = append(old, state.Forget(a.Ask.ID))
		}
	}
	if len(old) > 0 {
		if err := m.cfg.Records.Commit(old...); err != nil {
			m.cfg.Log.Error("cannot record approvals", "error", err)
		}
	}
}

// announce tells of an approval, as the run asked for, and to the address that the policy names; in the background. What
// goes wrong there changes nothing: the approval waits either way.
func (m *Manager) announce(ctx context.Context, a *state.Approval) {
	m.cfg.Notice(ctx, a)
	c, err := m.cfg.Records.Cell(a.Ask.Cell)
	if err != nil {
		return
	}
	url := webhookOf(c.Setup.PolicyText)
	if url == "" {
		return
	}
	view := m.approvalView(a)
	m.cfg.Background(func(ctx context.Context) {
		if err := notice.Post(ctx, url, view); err != nil {
			m.cfg.Log.Warn("cannot call the webhook for approvals", "approval", a.Ask.ID, "error", err)
		}
	})
}

// webhookOf is the address that a policy (canonical form) names for approvals.
func webhookOf(policyText string) string {
	var p struct {
		Approvals struct {
			Webhook string `json:"webhook"`
		} `json:"approvals"`
	}
	if json.Unmarshal([]byte(policyText), &p) != nil {
		return ""
	}
	return p.Approvals.Webhook
}
