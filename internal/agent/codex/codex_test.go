package codex

import (
	"slices"
	"testing"

	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/agent/agenttest"
)

func TestAdapter(t *testing.T) { agenttest.Run(t, Adapter{}) }

// Codex has its task last, behind the options of exec.
func TestTask(t *testing.T) {
	argv, err := Adapter{}.Command(agent.Start{Prompt: "-x", Args: []string{"--json"}})
	want := []string{"codex", "exec", full, "--skip-git-repo-check", "--json", "--", "-x"}
	if err != nil || !slices.Equal(argv, want) {
		t.Errorf("%q, %v; want %q", argv, err, want)
	}
}
