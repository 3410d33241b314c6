package cli

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/api"
)

// What waits for the user comes first in each directory, the oldest first; what was decided, came to nothing or was
// followed by another run is left out.
func TestStatusIsWhatIsOpen(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	at := func(hour int) time.Time { return now.Add(time.Duration(hour-12) * time.Hour) }
	one, seven := 1, 7
	run := func(id, cell, phase, verdict string, hour, files int, exit *int) api.Run {
		return api.Run{ID: id, Cell: cell, Phase: phase, Verdict: verdict, Created: at(hour), Ended: at(hour), Changes: api.Changes{Files: files}, ExitCode: exit, Command: []string{"make", id}}
	}
	cells := []api.Cell{{ID: "c-1", Name: "web", Source: "/src/b", Pending: []string{"r-4", "r-2", "r-1"}}, {ID: "c-2", Name: "api", Source: "/src/a"}, {ID: "c-3"}}
	runs := []api.Run{
		run("r-8", "c-3", "running", "", 11, 0, nil), run("r-7", "c-2", "ended", "restored", 10, 1, &seven), run("r-6", "c-2", "ended", "restored", 9, 1, &one),
		run("r-5", "c-1", "ended", "accepted", 8, 1, nil), run("r-4", "c-1", "ended", "pending", 7, 0, nil), run("r-2", "c-1", "ended", "pending", 6, 2, nil), run("r-1", "c-1", "ended", "pending", 5, 1, nil),
		run("r-0", "c-9", "ended", "restored", -20, 1, &one),
	}
	asked := []api.Approval{{ID: "q-2", Cell: "c-1", Run: "r-5", State: "denied"}, {ID: "q-1", Cell: "c-1", Run: "r-5", State: "waiting", Asked: at(11), Want: "GET https://x", Reason: "the rule asks"}}
	want := []StatusItem{
		{What: "runs", Cell: "c-3", Name: "c-3", Run: "r-8", Since: at(11), Text: "make r-8", Next: "pando attach r-8"},
		{What: "failed", Source: "/src/a", Cell: "c-2", Name: "api", Run: "r-7", Since: at(10), Text: "exit 7: make r-7", Next: "pando logs r-7"},
		{What: "answer", Source: "/src/b", Cell: "c-1", Name: "web", Run: "r-5", Since: at(11), Text: "GET https://x: the rule asks", Next: "pando approvals approve q-1"},
		{What: "decide", Source: "/src/b", Cell: "c-1", Name: "web", Run: "r-1", Since: at(5), Text: "1 file changed by make r-1", Next: "pando diff r-1"},
		{What: "decide", Source: "/src/b", Cell: "c-1", Name: "web", Run: "r-2", Since: at(6), Text: "2 files changed by make r-2", Next: "pando diff r-2"},
	}
	if d := cmp.Diff(want, statusOf(cells, runs, asked, now)); d != "" {
		t.Error(d)
	}
}
