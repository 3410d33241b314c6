package copilot

import (
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/agent/agenttest"
)

func TestAdapter(t *testing.T) { agenttest.Run(t, Adapter{}) }

// A file as the program writes it is changed, with its comments above.
func TestConfigWithComments(t *testing.T) {
	f := Adapter{}.Files(agent.Start{Dir: "/src"})[0]
	made := string(f.Make([]byte("// User settings belong in settings.json.\n// This file is managed automatically.\n{\"firstLaunchAt\": \"x\", \"trustedFolders\": [\"/other\"]}\n")))
	if made != `{"firstLaunchAt":"x","trustedFolders":["/other","/src"]}`+"\n" {
		t.Errorf("%s", made)
	}
	if again := string(f.Make([]byte(made))); again != made {
		t.Errorf("%s", again)
	}
}

// The program refuses a file in which no folder is null.
func TestConfigWithoutFolders(t *testing.T) {
	f := Adapter{}.Files(agent.Start{Dir: "/src", Prompt: "x"})[0]
	for _, old := range []string{"", `{"trustedFolders": ["/src"]}`, `{"a": 1}`} {
		var was []byte
		if old != "" {
			was = []byte(old)
		}
		if made := string(f.Make(was)); strings.Contains(made, "trustedFolders") {
			t.Errorf("%s became %s", old, made)
		}
	}
}
