package gemini

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/agent"
)

// Transcript implements agent.Reporter.
func (Adapter) Transcript() agent.Transcript {
	return agent.Transcript{Dir: ".gemini/tmp", Has: func(p string) bool { return strings.Contains(p, "/chats/") && strings.HasSuffix(p, ".jsonl") }, Line: line}
}

// exited is how the output of a failed command says its exit code.
var exited = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^Exit Code: (\d{1,3})$`) })

// toolCall is a call in a message of the model.
type toolCall struct {
	ID        string
	Name      string
	Args      json.RawMessage
	Status    string
	Timestamp time.Time
	Result    json.RawMessage
}

func line(b []byte, c *agent.Calls) error {
	var l struct{ ToolCalls []toolCall }
	if err := json.Unmarshal(b, &l); err != nil {
		return err
	}
	for _, t := range l.ToolCalls { // a message is written again when its calls have ended
		c.Begin(callOf(&t))
		if t.Status == "success" || t.Status == "error" || t.Status == "cancelled" {
			exit := exitOf(&t)
			c.End(t.ID, exit, t.Status != "success" || exit != nil && *exit != 0)
		}
	}
	return nil
}

func callOf(t *toolCall) agent.Call {
	call := agent.Call{ID: t.ID, Time: t.Timestamp, Tool: t.Name, What: agent.Brief(t.Args)}
	var in struct {
		Command  string
		FilePath string `json:"file_path"`
	}
	if json.Unmarshal(t.Args, &in) != nil {
		return call
	}
	switch t.Name {
	case "run_shell_command":
		call.Kind, call.What = agent.ShellCall, in.Command
	case "write_file", "replace":
		if call.Kind = agent.EditCall; in.FilePath != "" {
			call.What, call.Files = in.FilePath, []string{in.FilePath}
		}
	case "read_file":
		call.Kind, call.What = agent.ReadCall, in.FilePath
	case "read_many_files", "list_directory", "glob", "search_file_content", "grep_search", "google_web_search", "web_fetch":
		call.Kind = agent.ReadCall
	}
	return call
}

// exitOf is the exit code that the output of a command ends with. One that succeeded has none there.
func exitOf(t *toolCall) *int {
	if t.Name != "run_shell_command" {
		return nil
	}
	var list []struct {
		FunctionResponse struct {
			Response struct{ Output string }
		}
	}
	if json.Unmarshal(t.Result, &list) != nil || len(list) != 1 {
		return nil
	}
	m := exited().FindAllStringSubmatch(list[0].FunctionResponse.Response.Output, -1)
	if len(m) == 0 {
		return nil
	}
	code, _ := strconv.Atoi(m[len(m)-1][1])
	return &code
}
