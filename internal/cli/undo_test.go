package cli

import (
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
		"after one that was ended": {[]api.Checkpoint{base, turn(2, 1, 1, "a"), turn(3, 2, 2, "b")}, []api.Run{{ID: "a", Verdict: "pending", Cause: "interrupted"}}, 3, false},
		"of a fork with its home":  {[]api.Checkpoint{{Number: 1, Kind: "fork", Home: true}, turn(2, 1, 1, "a")}, nil, 2, true},
		"of a fork without":        {[]api.Checkpoint{{Number: 1, Kind: "fork"}, turn(2, 1, 1, "a")}, nil, 2, false},
	} {
		if got := conversed(c.list, c.runs, c.at); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
