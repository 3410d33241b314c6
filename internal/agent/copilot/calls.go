package copilot

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/agent"
)

// Transcript implements agent.Reporter.
func (Adapter) Transcript() agent.Transcript {
	return agent.Transcript{Dir: ".copilot/session-state", Has: func(p string) bool { return strings.HasSuffix(p, "/events.jsonl") }, Line: line}
}

func line(b []byte, c *agent.Calls) error {
	var l struct {
		Type      string
		Timestamp time.Time
		Data      json.RawMessage
	}
	if err := json.Unmarshal(b, &l); err != nil {
		return err
	}
	if l.Type == "assistant.message" { // some of its calls may be refused, and not begin
		var d struct {
			ToolRequests []struct {
				ToolCallID, Name string
				Arguments        json.RawMessage
			}
		}
		if err := json.Unmarshal(l.Data, &d); err != nil {
			return err
		}
		for _, r := range d.ToolRequests {
			c.Begin(callOf(r.ToolCallID, r.Name, r.Arguments, l.Timestamp))
		}
		return nil
	}
	if l.Type != "tool.execution_start" && l.Type != "tool.execution_complete" {
		return nil
	}
	var d struct {
		ToolCallID     string
		ToolName       string
		Arguments      json.RawMessage
		Success        *bool
		ShellExecution struct{ ExitCode *int }
	}
	if err := json.Unmarshal(l.Data, &d); err != nil {
		return err
	}
	if l.Type == "tool.execution_complete" {
		exit := d.ShellExecution.ExitCode
		c.End(d.ToolCallID, exit, d.Success != nil && !*d.Success || exit != nil && *exit != 0)
		return nil
	}
	c.Begin(callOf(d.ToolCallID, d.ToolName, d.Arguments, l.Timestamp))
	return nil
}

func callOf(id, tool string, arguments json.RawMessage, at time.Time) agent.Call {
	call := agent.Call{ID: id, Time: at, Tool: tool, What: agent.Brief(arguments)}
	var in struct{ Command, Path string }
	if json.Unmarshal(arguments, &in) == nil {
		switch tool {
		case "bash":
			call.Kind, call.What = agent.ShellCall, in.Command
		case "create", "edit":
			if call.Kind = agent.EditCall; in.Path != "" {
				call.What, call.Files = in.Path, []string{in.Path}
			}
		case "view":
			call.Kind, call.What = agent.ReadCall, in.Path
		case "glob", "grep", "report_intent", "update_todo", "read_bash":
			call.Kind = agent.ReadCall
		}
	}
	return call
}
