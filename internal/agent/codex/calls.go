package codex

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/agent"
)

// Transcript implements agent.Reporter.
func (Adapter) Transcript() agent.Transcript {
	return agent.Transcript{Dir: ".codex/sessions", Has: func(p string) bool { return strings.HasSuffix(p, ".jsonl") }, Line: line}
}

// exited is how a shell's output says its exit code.
var exited = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^Process exited with code (\d{1,3})$`) })

func line(b []byte, c *agent.Calls) error {
	var l struct {
		Timestamp time.Time
		Type      string
		Payload   struct {
			Type      string
			CallID    string `json:"call_id"`
			Name      string
			Arguments string
			Input     string
			Output    json.RawMessage
		}
	}
	if err := json.Unmarshal(b, &l); err != nil {
		var any struct{ Type string }
		if json.Unmarshal(b, &any) == nil && any.Type != "response_item" {
			return nil // other lines have other payloads
		}
		return err
	}
	p := &l.Payload
	if l.Type != "response_item" {
		return nil
	}
	switch p.Type {
	case "function_call":
		c.Begin(function(p.CallID, p.Name, p.Arguments, l.Timestamp))
	case "custom_tool_call":
		call := agent.Call{ID: p.CallID, Time: l.Timestamp, Tool: p.Name, What: p.Input}
		if p.Name == "apply_patch" {
			call.Kind, call.Files = agent.EditCall, patched(p.Input)
			call.What = strings.Join(call.Files, ", ")
		}
		c.Begin(call)
	case "function_call_output", "custom_tool_call_output":
		exit, goesOn := exitOf(p.Output)
		if goesOn {
			return nil
		}
		c.End(p.CallID, exit, exit != nil && *exit != 0)
	}
	return nil
}

func function(id, name, arguments string, at time.Time) agent.Call {
	call := agent.Call{ID: id, Time: at, Tool: name, What: arguments}
	var in struct {
		Cmd     string
		Command []string
		Input   string
	}
	if json.Unmarshal([]byte(arguments), &in) != nil {
		return call
	}
	switch name {
	case "exec_command":
		call.Kind, call.What = agent.ShellCall, in.Cmd
	case "shell", "local_shell", "container.exec":
		call.Kind, call.What = agent.ShellCall, strings.Join(in.Command, " ")
		if len(in.Command) == 3 && strings.HasSuffix(in.Command[0], "sh") && strings.HasPrefix(in.Command[1], "-") {
			call.What = in.Command[2]
		}
	case "apply_patch":
		call.Kind, call.Files = agent.EditCall, patched(in.Input)
		call.What = strings.Join(call.Files, ", ")
	case "update_plan", "view_image":
		call.Kind = agent.ReadCall
	}
	return call
}

// patched are the files that a patch of Codex's form writes.
func patched(patch string) (files []string) {
	for l := range strings.Lines(patch) {
		for _, head := range []string{"*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: "} {
			if f, is := strings.CutPrefix(strings.TrimRight(l, "\r\n"), head); is && !slices.Contains(files, f) && len(files) < 100 {
				files = append(files, f)
			}
		}
	}
	return files
}

// exitOf finds the exit code in an output: in its head, or in the metadata of older forms. A command can go on beyond it.
func exitOf(output json.RawMessage) (exit *int, goesOn bool) {
	var text string
	if json.Unmarshal(output, &text) != nil {
		return nil, false
	}
	var old struct {
		Metadata struct {
			ExitCode *int `json:"exit_code"`
		}
	}
	if json.Unmarshal([]byte(text), &old) == nil {
		return old.Metadata.ExitCode, false
	}
	head, _, _ := strings.Cut(text, "\nOutput:\n")
	if m := exited().FindStringSubmatch(head); m != nil {
		code, _ := strconv.Atoi(m[1])
		return &code, false
	}
	return nil, strings.Contains(head, "\nProcess running with session ID ")
}
