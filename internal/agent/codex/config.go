package codex

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pando-dev/pando/internal/agent"
)

// Brings implements agent.Adapter.
func (Adapter) Brings() []agent.Bring {
	return []agent.Bring{
		{Kind: agent.Settings, Path: ".codex/config.toml", Take: takeSettings, Into: intoSettings},
		{Kind: agent.Skills, Path: ".codex/skills/"},
		{Kind: agent.Commands, Path: ".codex/prompts/"},
		{Kind: agent.Memory, Path: ".codex/AGENTS.md", Into: agent.BlendText},
		{Kind: agent.Servers, Path: ".codex/config.toml", Take: takeServers, Into: intoServers},
	}
}

// settings are the keys of config.toml that come along.
var settings = []string{"disable_paste_burst", "file_opener", "hide_agent_reasoning", "model", "model_auto_compact_token_limit", "model_context_window", "model_reasoning_effort",
	"model_reasoning_summary", "model_verbosity", "personality", "review_model", "show_raw_agent_reasoning"}

// entry is a key of a file of TOML with its value, or the head of a table.
type entry struct {
	table string // the table that it is in, "" above the first
	key   string // "" for the head of the table
	text  string // as it is written, with all of its lines
}

// entries reads what is needed of TOML: heads of tables, keys, and where values end. What it can't
// read ends the list, since what follows may be part of a value.
func entries(file []byte) (list []entry) {
	const maxFile, maxLines = 256 << 10, 1000 // of the file, and of a value: its lines are read anew for each
	if !utf8.Valid(file) || len(file) > maxFile {
		return nil
	}
	table := ""
	lines := strings.SplitAfter(string(file), "\n")
	for i := 0; i < len(lines); i++ {
		line := strings.TrimSpace(lines[i])
		switch {
		case line == "", strings.HasPrefix(line, "#"):
			continue
		case strings.HasPrefix(line, "["):
			head, _, ok := strings.Cut(line, "]")
			if !ok {
				return list
			}
			table = strings.Trim(head, "[ ")
			list = append(list, entry{table: table, text: "[" + table + "]\n"})
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			return list
		}
		text := strings.TrimSpace(value)
		for n := 0; !ends(text); n++ {
			if i++; i == len(lines) || n == maxLines {
				return list
			}
			text += "\n" + strings.TrimRight(lines[i], "\r\n")
		}
		key = strings.TrimSpace(key)
		list = append(list, entry{table, key, key + " = " + text + "\n"})
	}
	return list
}

// ends reports whether a value of TOML ends where the text does.
func ends(text string) bool {
	depth := 0
	for len(text) > 0 {
		for _, quote := range []string{`"""`, "'''", `"`, "'"} {
			if !strings.HasPrefix(text, quote) {
				continue
			}
			if text = text[len(quote):]; !skip(&text, quote) {
				return false
			}
			if text == "" {
				return depth == 0
			}
			break
		}
		switch text[0] {
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		case '#':
			_, text, _ = strings.Cut(text, "\n")
			continue
		case '"', '\'':
			continue
		}
		text = text[1:]
	}
	return depth <= 0
}

// skip passes over the rest of a string, and its end.
func skip(text *string, quote string) bool {
	for t := *text; len(t) > 0; t = t[1:] {
		switch {
		case strings.HasPrefix(t, quote):
			*text = t[len(quote):]
			return true
		case t[0] == '\\' && quote[0] == '"' && len(t) > 1:
			t = t[1:]
		case t[0] == '\n' && len(quote) == 1:
			*text = t // no string has a line's end in it: the value ends there
			return true
		}
	}
	return false
}

// takeSettings keeps keys above the first table.
func takeSettings(file []byte) (part []byte, left []string) {
	for _, e := range entries(file) {
		switch {
		case e.table == "" && slices.Contains(settings, e.key) && !strings.Contains(strings.TrimSuffix(e.text, "\n"), "\n"):
			part = append(part, e.text...)
		case e.table == "":
			left = append(left, e.key)
		case e.key == "" && !strings.HasPrefix(e.table, "mcp_servers.") && !strings.HasPrefix(e.table, "projects."):
			left = append(left, e.table)
		}
	}
	return part, left
}

// intoSettings puts keys above the first table, but for those that are there.
func intoSettings(old, base, part []byte) []byte {
	rest := bytes.Replace(old, base, nil, 1) // what the cell has beside what was put there
	var there []string
	for _, e := range entries(rest) {
		if e.table == "" {
			there = append(there, e.key)
		}
	}
	var add []byte
	for _, e := range entries(part) {
		if !slices.Contains(there, e.key) {
			add = append(add, e.text...)
		}
	}
	if len(base) > 0 {
		return agent.BlendText(old, base, add)
	}
	return slices.Concat(add, old)
}

// takeServers keeps tables of MCP servers.
func takeServers(file []byte) (part []byte, left []string) {
	var table, head, address string
	var kept []byte
	flush := func() {
		if len(kept) > 0 && agent.ServerIsPublic(string(kept), address) {
			part = append(append(part, head...), kept...)
		} else if len(kept) > 0 {
			left = append(left, agent.Withheld(table))
		}
		kept, address = nil, ""
	}
	for _, e := range entries(file) {
		name, ok := strings.CutPrefix(e.table, "mcp_servers.")
		if e.key == "" {
			flush()
			table, head = e.table, e.text
			if ok && strings.Contains(name, ".") { // variables of one, or a name with a dot
				left = append(left, e.table)
			}
			continue
		}
		switch {
		case !ok || strings.Contains(name, "."):
		case !agent.ServerField(e.key):
			left = append(left, e.table+"."+e.key)
		default:
			if kept = append(kept, e.text...); e.key == "url" {
				address = strings.Trim(strings.TrimSpace(strings.TrimPrefix(e.text, "url =")), `"'`)
			}
		}
	}
	flush()
	return part, left
}

// intoServers puts tables at the end, but for those that are there.
func intoServers(old, base, part []byte) []byte {
	rest := bytes.Replace(old, base, nil, 1)
	var add []byte
	skipped := false
	for _, e := range entries(part) {
		if e.key == "" {
			skipped = bytes.Contains(rest, []byte(strings.TrimSpace(e.text)))
		}
		if !skipped {
			add = append(add, e.text...)
		}
	}
	if len(add) == 0 && len(base) == 0 {
		return old
	}
	return agent.BlendText(old, base, add)
}
