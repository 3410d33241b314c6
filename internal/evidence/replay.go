package evidence

import (
	"cmp"
	"context"
	"encoding/json"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/policy/decide"
)

// ReplayPolicy makes the decisions of a run again, with another policy.
func (m *Manager) ReplayPolicy(ctx context.Context, id cell.RunID, req api.PolicyReplayRequest) (api.PolicyReplay, error) {
	run, err := m.cfg.Records.Run(id)
	if err != nil {
		return api.PolicyReplay{}, err
	}
	out := api.PolicyReplay{Run: run.ID, Was: run.Policy, Flips: []api.PolicyFlip{}}
	f, err := policy.ParseFile(cmp.Or(req.Name, "policy"), []byte(req.Text))
	if err != nil {
		return out, err
	}
	r, err := policy.Merge(policy.Defaults(m.cfg.Host), f, policy.Flags{})
	if err != nil {
		return out, err
	}
	rules, err := decide.Of(r)
	if err != nil {
		return out, err
	}
	out.Now = rules.Digest().String()
	events, err := m.Events(ctx, id, EventQuery{Kinds: []string{"decision"}})
	if err != nil {
		return out, err
	}
	at := map[string]int{}
	for line, err := range events {
		if err != nil {
			return out, err
		}
		var ev struct {
			Fields cell.Decided `json:"fields"`
		}
		if err := json.Unmarshal(line, &ev); err != nil {
			return out, err
		}
		d := ev.Fields
		times := max(d.Count, 1)
		was := d.Decision.Effect
		switch d.Decision.By {
		case "person": // whatever they said, the policy had asked
			was = cell.Ask
		case "policy", "":
		default:
			out.Skipped += int(times)
			continue
		}
		out.Decisions += int(times)
		now := rules.Decide(d.Access)
		if now.Effect == was {
			continue
		}
		key := d.Access.Want() + "\x00" + string(was) + "\x00" + string(now.Effect)
		i, ok := at[key]
		if !ok {
			i = len(out.Flips)
			at[key] = i
			out.Flips = append(out.Flips, api.PolicyFlip{Want: d.Access.Want(), Was: string(was), Now: string(now.Effect), Rule: now.Rule, Origin: now.Origin, Reason: now.Reason})
		}
		out.Flips[i].Times += times
	}
	return out, nil
}
