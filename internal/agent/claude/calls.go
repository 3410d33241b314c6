package claude

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/agent"
)

// Transcript implements agent.Reporter.
func (Adapter) Transcript() agent.Transcript {
	return agent.Transcript{Dir: ".claude/projects", Has: func(p string) bool { return strings.HasSuffix(p, ".jsonl") }, Line: line}
}

// block is a part of a message: a call of a tool, or its result.
type block struct {
	Type      string
	ID        string
	Name      string
	Input     json.RawMessage
	ToolUseID string `json:"tool_use_id"`
	IsError   bool   `json:"is_error"`
	Content   json.RawMessage
}

func line(b []byte, c *agent.Calls) error {
	var l struct {
		Type      string
		Timestamp time.Time
		Message   struct{ Content json.RawMessage }
	}
	if err := json.Unmarshal(b, &l); err != nil {
		return err
	}
	var blocks []block
	if l.Type != "assistant" && l.Type != "user" || json.Unmarshal(l.Message.Content, &blocks) != nil { // a message can be a string
		return nil
	}
	for _, p := range blocks {
		switch {
		case p.Type == "tool_use" && l.Type == "assistant":
			c.Begin(callOf(&p, l.Timestamp))
		case p.Type == "tool_result" && l.Type == "user":
			c.End(p.ToolUseID, exitOf(&p), p.IsError)
		}
	}
	return nil
}

func callOf(p *block, at time.Time) agent.Call {
	call := agent.Call{ID: p.ID, Time: at, Tool: p.Name, What: agent.Brief(p.Input)}
	var in struct {
		Command      string
		FilePath     string `json:"file_path"`
		NotebookPath string `json:"notebook_path"`
	}
	if json.Unmarshal(p.Input, &in) != nil {
		return call
	}
	file := in.FilePath + in.NotebookPath
	switch p.Name {
	case "Bash":
		call.Kind, call.What = agent.ShellCall, in.Command
	case "Edit", "Write", "MultiEdit", "NotebookEdit":
		if call.Kind = agent.EditCall; file != "" {
			call.What, call.Files = file, []string{file}
		}
	case "Read":
		call.Kind, call.What = agent.ReadCall, file
	case "Glob", "Grep", "TodoWrite", "WebFetch", "WebSearch", "ToolSearch", "BashOutput":
		call.Kind = agent.ReadCall
	}
	return call
}

// exitOf is the exit code at the beginning of a failed command's output. One that succeeded has none there.
func exitOf(p *block) *int {
	var text string
	if !p.IsError || json.Unmarshal(p.Content, &text) != nil {
		return nil
	}
	first, _, _ := strings.Cut(text, "\n")
	n, is := strings.CutPrefix(first, "Exit code ")
	code, err := strconv.Atoi(n)
	if !is || err != nil {
		return nil
	}
	return &code
}
