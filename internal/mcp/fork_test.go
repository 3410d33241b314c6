package mcp

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pando-dev/pando/api"
)

// The tools that copy processes pass on what is to be certified and what is to run in each
// copy, and an agent reads in the answer what copies inherit.
func TestX09ToolsThatCopySayWhatIsInherited(t *testing.T) {
	var body map[string]any
	keep := func(v any) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			body = map[string]any{}
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				t.Error(err)
			}
			json.NewEncoder(w).Encode(v)
		}
	}
	has := []string{"Node.js in /usr/bin/node, process 3"}
	s, _ := serve(t, Config{}, map[string]http.HandlerFunc{
		"GET /v1/templates/warm":        answers(api.Template{}),
		"POST /v1/templates/warm/fork":  keep(map[string]any{"result": api.WarmForkResult{Inherited: has}}),
		"POST /v1/cells/{cell}/fork":    keep(api.ForkResult{Inherited: has}),
		"POST /v1/cells/{cell}/branch":  keep(api.BranchResult{Inherited: has}),
		"POST /v1/cells/{cell}/restore": keep(api.RestoreResult{Inherited: has}),
	})
	cs := agent(t, s, nil)
	for _, c := range []struct {
		tool string
		args map[string]any
	}{
		{"fork", map[string]any{"of": "warm"}},
		{"fork", map[string]any{"of": "c", "checkpoint": 2}},
		{"branch", map[string]any{"cell": "c"}},
		{"restore", map[string]any{"cell": "c", "checkpoint": 2}},
	} {
		args := maps.Clone(c.args)
		args["at_fork"], args["certify"] = "kill -USR1 3", "strict"
		r, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: c.tool, Arguments: args})
		if err != nil || r.IsError {
			t.Fatalf("%s of %v: %v, %s", c.tool, c.args, err, said(r))
		}
		if body["at_fork"] != "kill -USR1 3" || body["certify"] != "strict" {
			t.Errorf("%s of %v asks %v", c.tool, c.args, body)
		}
		if !strings.Contains(said(r), "inherited: "+has[0]) {
			t.Errorf("%s of %v says %q", c.tool, c.args, said(r))
		}
		data, _ := json.Marshal(r.StructuredContent)
		if !strings.Contains(string(data), `"inherited":["Node.js`) {
			t.Errorf("%s of %v: %s", c.tool, c.args, data)
		}
	}
}
