package claude

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/agent/agenttest"
)

func TestAdapter(t *testing.T) { agenttest.Run(t, Adapter{}) }

// A fork has a placeholder of its own, which is approved beside its source's.
func TestKeysAreApproved(t *testing.T) {
	f := Adapter{}.Files(agent.Start{Dir: "/w", Env: []string{"ANTHROPIC_API_KEY=sk-ant-api03-first-0123456789abcdefghij"}})[0]
	of := f.Make(nil)
	of = Adapter{}.Files(agent.Start{Dir: "/w", Env: []string{"ANTHROPIC_API_KEY=sk-ant-api03-second-ABCDEFGHIJ0123456789"}})[0].Make(of)
	var conf struct {
		CustomAPIKeyResponses struct{ Approved []string }
		Projects              map[string]struct{ HasTrustDialogAccepted bool }
	}
	if err := json.Unmarshal(of, &conf); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(conf.CustomAPIKeyResponses.Approved, " "); got != "0123456789abcdefghij ABCDEFGHIJ0123456789" {
		t.Errorf("approved are %q", got)
	}
	if !conf.Projects["/w"].HasTrustDialogAccepted {
		t.Errorf("the directory is not trusted: %s", of)
	}
}
