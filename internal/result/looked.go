package result

import (
	"context"
	"slices"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// highFindings says why an offer needs sign-offs for what was found in it, or for what nothing was looked for in. Findings are of a run: only
// runs that lead, one after the other, from what the offer begins with to what it is have looked through all of it. What exec, cp, a sync
// or a run that goes on changed between two runs breaks that chain. from are runs of the cells that this one was forked from.
func (m *Manager) highFindings(ctx context.Context, o *offer, runs, from []state.Run, ignored bool) (why []string, err error) {
	add := func(r *state.Run) error {
		found, err := m.cfg.Decides.High(ctx, r.RunID())
		for _, f := range found {
			why = append(why, "finding of severity high in "+r.ID+": "+f)
		}
		return err
	}
	switch {
	case o.run != nil:
		err = add(o.run)
	default:
		known := map[string]bool{o.base.Tree.ContentDigest().String(): true}
		chain := slices.Concat(from, runs)
		slices.SortStableFunc(chain, func(a, b state.Run) int { return a.Created.Compare(b.Created) })
		for i := range chain {
			r := &chain[i]
			if r.Phase != cell.Ended || r.Before == nil || r.After == nil || !known[r.Before.ContentDigest] {
				continue
			}
			if err := add(r); err != nil {
				return nil, err
			}
			known[r.After.ContentDigest] = true
		}
		if !known[o.after.Tree.ContentDigest().String()] {
			why = append(why, "changes that no ended run made, in which nothing was looked for")
		}
	}
	if err != nil || !ignored {
		return why, err
	}
	is, _, err := m.ignoredBy(ctx, o.c, o.base, o.after)
	if err != nil {
		return nil, err
	}
	d, err := diff.Compare(ctx, o.base, o.after, diff.Options{Ignored: is})
	if err == nil && d.Ignored.Count > 0 {
		why = append(why, "files that git ignores, in which nothing was looked for")
	}
	return why, err
}
