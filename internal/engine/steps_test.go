package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/step"
)

// Steps of all kinds stand in the order in which they began, and those in the middle of a run name it.
func TestStepsAreInOrder(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return time.Unix(int64(1000+s), 0).UTC() }
	zero, one := 0, 1
	runs := []state.Run{
		{ID: "r-2", Command: []string{"never"}},
		{ID: "r-1", Command: []string{"claude", "-p"}, Started: at(2), Ended: at(9), ExitCode: &one, Before: &state.Point{Number: 2}},
	}
	points := []state.Checkpoint{
		{Number: 1, Kind: state.KindBase, Created: at(0)},
		{Number: 3, Kind: state.KindTurn, Turn: 1, Message: "mend it", Run: "r-1", Created: at(4)},
		{Number: 4, Kind: state.KindManual, Message: "good", Created: at(11)},
	}
	kept := []step.Step{
		{ID: "e-1", Kind: step.Command, Number: 1, Text: "make", Began: at(1), Ended: at(2), Exit: 2},
		{ID: "e-2", Kind: step.Command, Number: 3, Text: "ls", Began: at(5), Ended: at(6), Exit: zero},
		{ID: "e-3", Kind: step.Command, Number: 4, Text: "sleep 9", Began: at(12)},
		{ID: "e-4", Kind: step.Command, Number: 4, Text: "lost", Began: at(13)},
		{ID: "e-5", Kind: step.Command, Number: 4, Text: "nosuch", Began: at(14), Ended: at(14), Cause: step.NotStarted},
	}
	var got []string
	for _, s := range stepsOf(kept, runs, points, func(id string) bool { return id == "e-3" }) {
		code := "–"
		if s.ExitCode != nil {
			code = fmt.Sprint(*s.ExitCode)
		}
		got = append(got, fmt.Sprintf("@%d %s %s %q in %q exit %s running %v", s.Number, s.Kind, s.ID, s.Text, s.Within, code, s.Running))
	}
	want := []string{
		`@1 exec e-1 "make" in "" exit 2 running false`,
		`@2 run r-1 "claude -p" in "" exit 1 running false`,
		`@3 turn  "mend it" in "r-1" exit – running false`,
		`@3 exec e-2 "ls" in "r-1" exit 0 running false`,
		`@4 checkpoint  "good" in "" exit – running false`,
		`@4 exec e-3 "sleep 9" in "" exit – running true`,
		`@4 exec e-4 "lost" in "" exit – running false`,
		`@4 exec e-5 "nosuch" in "" exit – running false`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the steps are\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
