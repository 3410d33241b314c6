package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// keepApprovals is how long what was decided can be looked at.
const keepApprovals = 30 * 24 * time.Hour

// followAsks records what a talking cell asks for, and tells whoever watches
// its run, until the instance is gone.
func (e *Engine) followAsks(inst backend.Instance) {
	e.background(func(ctx context.Context) {
		var since int64
		for e.alive.Instance(inst.ID()) == inst && ctx.Err() == nil {
			list, version, err := inst.Asked(ctx, since)
			if err != nil {
				if e.alive.Instance(inst.ID()) == inst && ctx.Err() == nil && cell.KindOf(err) != cell.Unavailable {
					e.log.Warn("cannot see what a cell asks for", "cell", inst.ID(), "error", err)
				}
				return
			}
			since = version
			e.noteAsks(ctx, inst.ID(), list)
		}
	})
}

// noteAsks makes approvals of what waits, and ends those that don't any more.
func (e *Engine) noteAsks(ctx context.Context, id cell.ID, list []cell.Asked) {
	there := map[string]bool{}
	for _, a := range list {
		there[a.ID] = true
		if _, err := e.approval(a.ID); err == nil {
			continue
		}
		if a.Run == "" {
			a.Run = e.runNow(id)
		}
		v := &state.Approval{Ask: a, State: state.ApprovalWaiting}
		if err := e.reg.Commit(v); err != nil {
			e.log.Error("cannot record an approval", "cell", id, "error", err)
			continue
		}
		if l := e.runIn(id); l != nil {
			l.report(api.Progress{Step: api.StepAsking, Note: fmt.Sprintf("%s waits for you: pando approvals approve %s (or deny); it is denied in %s",
				a.Access.Want(), a.ID, time.Until(a.Expires).Round(time.Second))})
		}
		e.callWebhook(ctx, v)
	}
	for _, v := range e.reg.Approvals() {
		if v.Ask.Cell == id && v.State == state.ApprovalWaiting && !there[v.Ask.ID] {
			v.State = state.Expired
			if err := e.reg.Commit(&v); err != nil {
				e.log.Error("cannot record an approval", "cell", id, "error", err)
			}
		}
	}
}

// runNow is the run that goes on in a cell, "" if there is none.
func (e *Engine) runNow(id cell.ID) cell.RunID {
	if l := e.runIn(id); l != nil {
		return l.id
	}
	return ""
}

func (e *Engine) approval(id string) (state.Approval, error) {
	if a, ok := e.reg.Approval(id); ok {
		return a, nil
	}
	return state.Approval{}, noApproval(id)
}

func noApproval(id string) error {
	return cell.Errorf(cell.NotFound, "engine.approval", "run `pando approvals` to see what waits", "no approval %s", clip(id))
}

// Approvals lists what waits for a person, newest first; with all, what was
// decided, too.
func (e *Engine) Approvals(all bool) []api.Approval {
	out := []api.Approval{}
	for _, a := range e.reg.Approvals() {
		if all || a.State == state.ApprovalWaiting {
			out = append(out, e.approvalView(&a))
		}
	}
	return out
}

func (e *Engine) approvalView(a *state.Approval) api.Approval {
	out := api.Approval{
		ID: a.Ask.ID, Cell: string(a.Ask.Cell), Run: string(a.Ask.Run), Want: a.Ask.Access.Want(), Reason: a.Ask.Reason, Rule: a.Ask.Rule, Origin: a.Ask.Origin,
		Policy: a.Ask.Policy.String(), Digest: a.Ask.Digest.String(), State: a.State, Asked: a.Ask.At, Expires: a.Ask.Expires, Answered: a.At,
	}
	if c, err := e.reg.Cell(a.Ask.Cell); err == nil {
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

// Answer decides on an approval. It is recorded before it takes effect.
func (e *Engine) Answer(ctx context.Context, id string, allow bool, scope string) (api.Approval, error) {
	const opName = "engine.Answer"
	a, err := e.approval(id)
	if err != nil {
		return api.Approval{}, err
	}
	if a.State != state.ApprovalWaiting {
		return e.approvalView(&a), cell.Errorf(cell.Conflict, opName, "run `pando approvals` to see what waits", "%s is %s already", id, a.State)
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
	inst := e.alive.Instance(a.Ask.Cell)
	if e.alive.Unreached(a.Ask.Cell) {
		return api.Approval{}, cell.Errorf(cell.Unavailable, opName, "try again in a moment", "cannot answer %s: the keeper of cell %s does not answer", id, a.Ask.Cell)
	}
	if inst == nil || now.After(a.Ask.Expires) {
		a.State = state.Expired
		if err := e.reg.Commit(&a); err != nil {
			return api.Approval{}, err
		}
		return e.approvalView(&a), cell.Errorf(cell.Conflict, opName, "", "%s is asked by nobody any more", id)
	}
	a.State, a.Answer, a.At = state.Denied, ans, now
	if allow {
		a.State = state.Approved
	}
	if err := e.reg.Commit(&a); err != nil {
		return api.Approval{}, err
	}
	if err := inst.Answer(ctx, *ans); err != nil {
		a.State = state.Expired
		if cerr := e.reg.Commit(&a); cerr != nil {
			e.log.Error("cannot record an approval", "approval", id, "error", cerr)
		}
		return e.approvalView(&a), err
	}
	return e.approvalView(&a), nil
}

// standing lists the answers that are still good for a cell: a gateway that is
// opened anew knows them again.
func (e *Engine) standing(id cell.ID, run cell.RunID) (out []cell.Answered) {
	now := time.Now()
	for _, a := range e.reg.Approvals() {
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

// dropAnswers takes from a living cell's gateway what was approved for runs
// other than run: "" when its run has ended, and what it left behind goes on.
func (e *Engine) dropAnswers(ctx context.Context, c *state.Cell, run cell.RunID) error {
	inst := e.alive.Instance(c.ID)
	if inst == nil || !c.Talks() || !slices.ContainsFunc(e.reg.Approvals(), func(a state.Approval) bool {
		return a.Ask.Cell == c.ID && a.State == state.Approved && a.Answer != nil && a.Answer.Scope == scopeRun && a.Ask.Policy == c.Setup.Policy && (run == "" || a.Ask.Run != run)
	}) {
		return nil
	}
	g, err := e.governance(c, run)
	if err != nil || g == nil {
		return err
	}
	return inst.Govern(ctx, *g)
}

// expireAsks ends approvals of an earlier daemon whose cells are gone.
func (e *Engine) expireAsks() {
	var old []any
	for _, a := range e.reg.Approvals() {
		switch {
		case a.State == state.ApprovalWaiting && (e.alive.AtRest(a.Ask.Cell) || time.Now().After(a.Ask.Expires)):
			a.State = state.Expired
			old = append(old, &a)
		case a.State != state.ApprovalWaiting && time.Since(a.Ask.At) > keepApprovals:
			old = append(old, state.Forget(a.Ask.ID))
		}
	}
	if len(old) > 0 {
		if err := e.reg.Commit(old...); err != nil {
			e.log.Error("cannot record approvals", "error", err)
		}
	}
}

// callWebhook tells the address that the policy names, in the background. What
// goes wrong there changes nothing: the approval waits either way.
func (e *Engine) callWebhook(ctx context.Context, a *state.Approval) {
	c, err := e.reg.Cell(a.Ask.Cell)
	if err != nil {
		return
	}
	url := webhookOf(c.Setup.PolicyText)
	if url == "" {
		return
	}
	body, err := json.Marshal(e.approvalView(a))
	if err != nil {
		return
	}
	e.background(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, "POST", url, bytes.NewReader(body))
		if err == nil {
			req.Header.Set("Content-Type", "application/json")
			var resp *http.Response
			if resp, err = http.DefaultClient.Do(req); err == nil {
				resp.Body.Close()
				if resp.StatusCode >= 300 {
					err = fmt.Errorf("it answered %s", resp.Status)
				}
			}
		}
		if err != nil {
			e.log.Warn("cannot call the webhook for approvals", "approval", a.Ask.ID, "error", err)
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
