// Package turn finds the turns of an agent's conversation in its requests to a model: a turn begins
// with the request that has a new prompt of the user's at its end.
//
// It knows the shapes of the Messages API (Anthropic), the Responses and Chat Completions APIs
// (OpenAI) and the Gemini API, as the agents of internal/agent/catalog use them. Other requests have
// no turns. A request is read in pieces as it passes, and little of it is kept.
//
// It also reads what an answer of a model says of its use: see Use.
package turn

import (
	"bytes"
	"hash/fnv"
	"slices"
	"strings"
)

// Asks reports whether a path is one at which models are asked.
func Asks(path string) bool {
	return slices.ContainsFunc([]string{"/messages", "/responses", "/chat/completions", ":generateContent", ":streamGenerateContent"}, func(end string) bool {
		return strings.HasSuffix(path, end)
	})
}

// Request is what is known of a request to a model.
type Request struct {
	Tools   int    // entries of its lists of tools
	Prompts int    // messages of the user
	Text    string // the last message of the user, if nothing came after it; else ""
	first   uint64 // sum of the first message of the user
	last    uint64
}

// Reader reads the body of a request. Its Write never fails.
type Reader struct {
	s    scanner
	req  Request
	done bool

	talk int // depth of the list of messages; 0 outside
	item item
	part part
}

// item is a message in the list.
type item struct {
	role, kind, text string
	result           bool // it answers a call of a tool
}

// part is a part of a message.
type part struct{ kind, text string }

// NewReader returns a reader of one request.
func NewReader() *Reader {
	r := &Reader{}
	r.s.open, r.s.shut, r.s.text = r.open, r.shut, r.text
	return r
}

// Write implements io.Writer.
func (r *Reader) Write(p []byte) (int, error) { return r.s.Write(p) }

// Done returns the request once all of it was read.
func (r *Reader) Done() (Request, bool) { return r.req, r.done }

func (r *Reader) open(depth int) {
	f, up := r.s.at(depth), r.s.at(depth-1)
	if up.key == "tools" && !up.object {
		r.req.Tools++
	}
	switch {
	case r.talk == 0:
		// Gemini's own service has the request in a member of that name.
		outer := depth == 2 || depth == 3 && up.key == "request"
		if outer && !f.object && slices.Contains([]string{"messages", "input", "contents"}, f.key) {
			r.talk = depth
		}
	case depth == r.talk+1:
		r.item = item{}
	case depth == r.talk+3:
		r.part = part{}
	case depth == r.talk+4 && f.key == "functionResponse":
		r.item.result = true
	}
}

func (r *Reader) shut(depth int) {
	switch {
	case depth == 1:
		r.done = true
	case r.talk == 0:
	case depth == r.talk:
		r.talk = 0
	case depth == r.talk+1:
		r.message()
	case depth == r.talk+3:
		r.ofPart()
	}
}

func (r *Reader) text(depth int, raw []byte) {
	f := r.s.at(depth)
	switch {
	case r.talk == 0:
		if depth == 1 && f.name == "input" { // a prompt in place of a list
			r.item = item{role: "user", text: own(unescape(raw))}
			r.message()
		}
	case depth == r.talk+1:
		switch f.name {
		case "role":
			r.item.role = unescape(raw)
		case "type":
			r.item.kind = unescape(raw)
		case "content":
			r.item.text = own(unescape(raw))
		}
	case depth == r.talk+3 && (r.s.at(depth-1).key == "content" || r.s.at(depth-1).key == "parts"):
		switch f.name {
		case "type":
			r.part.kind = unescape(raw)
		case "text":
			r.part.text = unescape(raw)
		}
	}
}

// ofPart takes the part of a message that ends.
func (r *Reader) ofPart() {
	switch r.part.kind {
	case "tool_result":
		r.item.result = true
	case "", "text", "input_text":
		if t := own(r.part.text); t != "" {
			r.item.text = t
		}
	}
	r.part = part{}
}

// message takes the message that ends.
func (r *Reader) message() {
	m := r.item
	switch {
	case m.result, m.role == "tool", strings.HasSuffix(m.kind, "_output"), // of a tool
		m.role == "assistant", m.role == "model", m.role == "" && (strings.HasSuffix(m.kind, "_call") || m.kind == "reasoning"):
		r.req.Text = ""
	case m.role == "user" && m.text != "":
		r.req.Prompts++
		r.req.Text, r.req.last = m.text, sum(m.text)
		if r.req.Prompts == 1 {
			r.req.first = r.req.last
		}
	}
}

func sum(text string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(text))
	return h.Sum64()
}

// own is what of a message is the user's: without the blocks that programs put before it, and "" for
// what they ask by themselves.
func own(text string) string {
	for {
		text = strings.TrimSpace(text)
		name, _, ok := strings.Cut(strings.TrimPrefix(text, "<"), ">")
		if !ok || !strings.HasPrefix(text, "<") || !ofProgram(name) {
			break
		}
		_, after, closed := strings.Cut(text, "</"+strings.Fields(name)[0]+">")
		if !closed {
			return ""
		}
		text = after
	}
	for _, p := range []string{
		"# AGENTS.md instructions",                                     // Codex
		"Generate a concise, single-line task title",                   // Codex
		"Your task is to create a detailed summary of",                 // Claude Code, before it goes on with the summary
		"This session is being continued from a previous conversation", // and after
	} {
		if strings.HasPrefix(text, p) {
			return ""
		}
	}
	return text
}

// ofProgram reports whether a tag's name looks like one that a program made up, and no HTML.
func ofProgram(name string) bool {
	if f := strings.Fields(name); len(f) > 0 {
		return strings.ContainsAny(f[0], "_-") || f[0] == strings.ToUpper(f[0]) && strings.ToLower(f[0]) != f[0]
	}
	return false
}

// Calls looks in an answer for calls of tools, after which the turn goes on. Its Write never fails.
type Calls struct {
	Found bool
	rest  []byte // the end of what was read, in which a name may have begun
}

// Write implements io.Writer.
func (c *Calls) Write(p []byte) (int, error) {
	if c.Found {
		return len(p), nil
	}
	const longest = 24
	seam := append(c.rest, p[:min(len(p), longest)]...)
	for _, name := range []string{`"tool_use"`, `"function_call"`, `"custom_tool_call"`, `"local_shell_call"`, `"tool_calls"`, `"functionCall"`} {
		c.Found = c.Found || bytes.Contains(seam, []byte(name)) || bytes.Contains(p, []byte(name))
	}
	if len(p) < longest {
		c.rest = append([]byte(nil), seam[max(0, len(seam)-longest):]...)
	} else {
		c.rest = append([]byte(nil), p[len(p)-longest:]...)
	}
	return len(p), nil
}

// maxSeen bounds the turns that are remembered, so that a request that is sent again begins none.
const maxSeen = 256

// Turns tells the turns of one agent by its requests, in the order in which they come. It is not safe
// for concurrent use.
type Turns struct {
	main  uint64 // the conversation of the latest turn
	tools int    // of its requests
	busy  bool   // the model has called tools in it
	seen  []uint64
}

// Begins reports whether a request begins a turn. What is asked without tools is none (titles,
// suggestions), nor what a part of the agent asks while the conversation waits for its result.
func (t *Turns) Begins(r Request) bool {
	if r.Text == "" || r.Tools == 0 || t.busy && r.first != t.main && r.Tools != t.tools {
		return false
	}
	key := r.first*31 + r.last*17 + uint64(r.Prompts)
	if slices.Contains(t.seen, key) {
		return false
	}
	if t.seen = append(t.seen, key); len(t.seen) > maxSeen {
		t.seen = slices.Delete(t.seen, 0, 1)
	}
	t.main, t.tools, t.busy = r.first, r.Tools, false
	return true
}

// Answered notes whether the model has called tools in its answer to a request.
func (t *Turns) Answered(r Request, calls bool) {
	if r.first == t.main && r.Tools > 0 {
		t.busy = calls
	}
}
