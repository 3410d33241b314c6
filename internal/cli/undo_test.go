package cli

import (
	"io"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
)

// Where no turn has taken place an agent begins a conversation, and does not continue one.
func TestConversationAtATurn(t *testing.T) {
	turn := func(n, parent, turn int, run string) api.Checkpoint {
		return api.Checkpoint{Number: n, Parent: parent, Kind: "turn", Turn: turn, Run: run}
	}
	base := api.Checkpoint{Number: 1, Kind: "base"}
	for name, c := range map[string]struct {
		list []api.Checkpoint
		runs []api.Run
		at   int
		want bool
	}{
		"the first turn":           {[]api.Checkpoint{base, turn(2, 1, 1, "a")}, nil, 2, false},
		"the second of a run":      {[]api.Checkpoint{base, turn(2, 1, 1, "a"), turn(3, 2, 2, "a")}, []api.Run{{ID: "a", Cause: "interrupted"}}, 3, true},
		"of another run":           {[]api.Checkpoint{base, turn(2, 1, 1, "a"), turn(3, 2, 2, "b")}, []api.Run{{ID: "a", Verdict: "pending"}}, 3, true},
		"after an undone one":      {[]api.Checkpoint{base, turn(2, 1, 1, "a"), turn(3, 2, 2, "b")}, []api.Run{{ID: "a", Verdict: "restored"}}, 3, false},
		"after one that was ended": {[]api.Checkpoint{base, turn(2, 1, 1, "a"), turn(3, 2, 2, "b")}, []api.Run{{ID: "a", Verdict: "pending", Cause: "interrupted"}}, 3, true},
		"after one that was ended and undone": {[]api.Checkpoint{base, turn(2, 1, 1, "a"), {Number: 3, Parent: 2, Kind: "manual", Home: true}, turn(4, 2, 2, "b")},
			[]api.Run{{ID: "a", Verdict: "pending", Cause: "interrupted"}}, 4, false},
		"of a fork without":         {[]api.Checkpoint{{Number: 1, Kind: "fork"}, turn(2, 1, 1, "a")}, nil, 2, false},
		"of a cell that was forked": {[]api.Checkpoint{base, {Number: 2, Parent: 1, Kind: "fork", Home: true}, turn(3, 2, 1, "a")}, nil, 3, false},
		"of a fork with its home":   {[]api.Checkpoint{{Number: 1, Kind: "fork", Home: true}, turn(2, 1, 1, "a")}, nil, 2, true},
	} {
		if got := conversed(c.list, c.runs, c.at); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The result of an undone turn is said before it is asked for the conversation, and with --json that is all.
func TestUndoneTurnIsSaid(t *testing.T) {
	answers := map[string]any{
		"GET /v1/daemon":            api.Daemon{},
		"POST /v1/cells/app/undo":   api.RestoreResult{Number: 2, Cell: api.Cell{ID: "c-1", Name: "app", Agent: "claude"}},
		"GET /v1/cells/c-1/history": []api.Checkpoint{{Number: 1}, {Number: 2, Parent: 1, Kind: "turn", Turn: 1}}, "GET /v1/runsc-1": []api.Run{},
	}
	undo := func(asJSON bool) (said, out string, err error) {
		a, to := answered(t, answers)
		var result strings.Builder
		a.stdout, a.json = &result, asJSON
		c := a.undoCmd()
		c.SetArgs([]string{"app", "--turn", "1"})
		c.SetErr(io.Discard)
		c.SilenceUsage = true
		err = c.ExecuteContext(t.Context())
		return to.String(), result.String(), err
	}
	if said, _, err := undo(false); err != nil || !strings.Contains(said, "is at @2 again") || !strings.HasSuffix(said, "the conversation begins there: pando claude --cell app\n") {
		t.Errorf("%v, and it says %q", err, said)
	}
	delete(answers, "GET /v1/runsc-1")
	if said, _, err := undo(false); err == nil || !strings.Contains(said, "is at @2 again") {
		t.Errorf("without its runs: %v, and it says %q", err, said)
	}
	if said, out, err := undo(true); err != nil || said != "" || !strings.Contains(out, `"number":2`) {
		t.Errorf("with --json: %v, it says %q and prints %q", err, said, out)
	}
}
