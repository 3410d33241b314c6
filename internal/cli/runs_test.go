package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
)

// Filters of runs hold all at once; at most as many runs as asked for are looked into.
func TestRunsAreFiltered(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	list := []api.Run{
		{ID: "r-5", Phase: "executing", Agent: "claude", Created: now},
		{ID: "r-4", Phase: "ended", Verdict: "pending", Agent: "claude", Created: now.Add(-time.Hour), Changes: api.Changes{Files: 1}},
		{ID: "r-3", Phase: "ended", Verdict: "accepted", Created: now.Add(-2 * time.Hour), Changes: api.Changes{Files: 1}},
		{ID: "r-2", Phase: "ended", Verdict: "pending", Created: now.Add(-3 * time.Hour), Changes: api.Changes{Ignored: 1}},
		{ID: "r-1", Phase: "ended", Verdict: "restored", Created: now.Add(-4 * time.Hour)},
	}
	changed := map[string]api.FileChange{"r-4": {Path: "src/new/a.go", OldPath: "src/old/a.go"}, "r-2": {Path: "out/a.log"}}
	for _, c := range []struct {
		name   string
		filter runFilter
		want   string
		asked  string // the runs of which the changes are looked at
		gone   int
	}{
		{"all", runFilter{last: -1}, "r-5 r-4 r-3 r-2 r-1", "", 0},
		{"the newest", runFilter{last: 2}, "r-5 r-4", "", 0},
		{"none", runFilter{last: 0}, "", "", 0},
		{"a verdict", runFilter{last: -1, verdicts: []string{"pending"}}, "r-4 r-2", "", 0},
		{"verdicts", runFilter{last: -1, verdicts: []string{"accepted", "restored"}}, "r-3 r-1", "", 0},
		{"a phase", runFilter{last: -1, verdicts: []string{"executing"}}, "r-5", "", 0},
		{"whatever runs", runFilter{last: -1, verdicts: []string{"running"}}, "r-5", "", 0},
		{"an agent", runFilter{last: -1, agent: "claude"}, "r-5 r-4", "", 0},
		{"since", runFilter{last: -1, since: now.Add(-2 * time.Hour)}, "r-5 r-4 r-3", "", 0},
		{"two at once", runFilter{last: -1, agent: "claude", verdicts: []string{"pending"}}, "r-4", "", 0},
		{"a directory", runFilter{last: -1, paths: []string{"src/new"}}, "r-4", "r-4 r-3 r-2", 1},
		{"the old name", runFilter{last: -1, paths: []string{"src/old/*.go"}}, "r-4", "r-4 r-3 r-2", 1},
		{"any of several", runFilter{last: -1, paths: []string{"src", "*.log"}}, "r-4 r-2", "r-4 r-3 r-2", 1},
		{"the newest with a path", runFilter{last: 1, paths: []string{"src"}}, "r-4", "r-4", 0},
	} {
		var asked []string
		got, gone, err := c.filter.of(t.Context(), list, func(_ context.Context, run string) (api.Diff, error) {
			asked = append(asked, run)
			if f, ok := changed[run]; ok {
				return api.Diff{Files: []api.FileChange{f}}, nil
			}
			return api.Diff{}, &api.Error{Kind: "not-found", Message: "it was removed"}
		})
		var ids []string
		for _, r := range got {
			ids = append(ids, r.ID)
		}
		if err != nil || strings.Join(ids, " ") != c.want || strings.Join(asked, " ") != c.asked || gone != c.gone {
			t.Errorf("%s: %v, %d gone, %v; asked for %v; want %s", c.name, ids, gone, err, asked, c.want)
		}
	}
	_, _, err := (&runFilter{last: -1, paths: []string{"a"}}).of(t.Context(), list, func(context.Context, string) (api.Diff, error) {
		return api.Diff{}, &api.Error{Kind: "unavailable", Message: "cannot reach the daemon"}
	})
	if err == nil {
		t.Error("an error of the daemon is taken for changes that are not kept")
	}
}
