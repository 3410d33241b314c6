package engine

import (
	"context"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/result"
)

// SignOffs: see result.Manager.
func (v *View) SignOffs(ctx context.Context, t result.Target) (api.SignOffs, error) {
	return onTarget(v, t, func() (api.SignOffs, error) { return v.e.results.SignOffs(ctx, t) })
}

// SignOff: see result.Manager.
func (v *View) SignOff(ctx context.Context, t result.Target, req api.SignOffRequest) (api.SignOffs, error) {
	return onTarget(v, t, func() (api.SignOffs, error) { return v.e.results.SignOff(ctx, t, req) })
}

// highFindings lists the findings of severity high in what a run did, in words. A finding rests on what can be read: changes that can't be are an error.
func (e *Engine) highFindings(ctx context.Context, id cell.RunID) ([]string, error) {
	r, err := e.All().Report(ctx, id)
	if err != nil {
		return nil, err
	}
	if len(r.Problems) > 0 {
		return nil, cell.Errorf(cell.Unavailable, "engine.highFindings", "see pando report "+string(id), "cannot look for findings in run %s: %s", id, r.Problems[0])
	}
	var list []string
	if r.Run.ExitCode == nil {
		list = append(list, "its end is not known, so that nothing was looked for")
	}
	for _, f := range r.Findings {
		if f.Severity == api.SeverityHigh {
			list = append(list, f.Rule+": "+f.What)
		}
	}
	return list, nil
}
