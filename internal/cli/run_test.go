package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
)

// A run without a readable result exits with 125 and the error, whatever the command's exit code
// was. Without --json the error is on stderr, with it in the run.
func TestX08UnreadableResult(t *testing.T) {
	for _, code := range []int{0, 3} {
		for _, asJSON := range []bool{false, true} {
			var out, said bytes.Buffer
			a := &app{stdout: &out, stderr: &said, json: asJSON, isTTY: true}
			run := api.Run{ID: "r-1", CellName: "web", Phase: "ended", ExitCode: &code, Verdict: "pending",
				Error: &api.Error{Kind: "too-large", Message: "cannot finish run r-1: the tree is too deep", Hint: "remove the deepest folders"}}
			if err := a.runEnded(context.Background(), run, api.RunRequest{OnSuccess: "ask", OnFailure: "ask"}); err != nil || a.exit != api.ExitPandoFailed {
				t.Errorf("exit code %d, %v", a.exit, err)
			}
			if asJSON {
				var got api.Run
				if err := json.NewDecoder(&out).Decode(&got); err != nil || got.Error == nil || *got.Error != *run.Error {
					t.Errorf("the JSON says %+v, %v", got.Error, err)
				}
				continue
			}
			if s := said.String(); !strings.Contains(s, "pando: "+run.Error.Message+"\n") || !strings.Contains(s, "hint: "+run.Error.Hint+"\n") || strings.Contains(s, " ok") || strings.Contains(s, "changed, source untouched") {
				t.Errorf("stderr has %q", s)
			}
		}
	}
	var list bytes.Buffer
	code := 0
	(&app{stderr: io.Discard}).showRun(&list, api.Run{ID: "r-1", ExitCode: &code, Error: &api.Error{Message: "too deep"}})
	if s := list.String(); strings.Contains(s, "0 files") || !strings.Contains(s, "too deep") {
		t.Errorf("show says %q", s)
	}
}
