package turn

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/bound/boundtest"
)

// read reads a body in pieces of n bytes.
func read(body string, n int) (Request, bool) {
	r := NewReader()
	for len(body) > 0 {
		k := min(n, len(body))
		r.Write([]byte(body[:k]))
		body = body[k:]
	}
	return r.Done()
}

// The shapes of requests as the programs send them: Claude Code 2.1.328, Codex 0.171.0, Copilot CLI
// 1.0.102, Gemini CLI 0.61.0, opencode 1.18.33, seen at a scripted model. The texts are ours.
const (
	claudeAsks = `{"model":"m","messages":[
		{"role":"user","content":[{"type":"text","text":"<system-reminder>\nThe instructions of the repository are \"these\".\n</system-reminder>"},{"type":"text","text":"Fix the \"test\"."}]},
		{"role":"system","content":[{"type":"text","text":"# Environment"}]}],
		"system":[{"type":"text","text":"You are an agent."}],"tools":[{"name":"Bash","input_schema":{"type":"object","properties":{"messages":{"type":"array"}}}},{"name":"Edit"}]}`
	claudeGoesOn = `{"messages":[
		{"role":"user","content":[{"type":"text","text":"Fix the \"test\"."}]},
		{"role":"assistant","content":[{"type":"text","text":"I look."},{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"ls"}}]},
		{"role":"user","content":[{"tool_use_id":"t1","type":"tool_result","content":[{"type":"text","text":"a b c"}]},{"type":"text","text":"<system-reminder>a note</system-reminder>"}]}],"tools":[{"name":"Bash"},{"name":"Edit"}]}`
	claudeAsksAgain = `{"messages":[
		{"role":"user","content":"Fix the \"test\"."},
		{"role":"assistant","content":[{"type":"text","text":"Done."}]},
		{"role":"user","content":[{"type":"text","text":"Thank you."}]}],"tools":[{"name":"Bash"},{"name":"Edit"}]}`
	codexAsks = `{"model":"m","input":[
		{"type":"additional_tools","role":"developer","tools":[{"type":"function","name":"exec_command"}]},
		{"type":"message","role":"developer","content":[{"type":"input_text","text":"You are an agent."}]},
		{"type":"message","role":"user","content":[{"type":"input_text","text":"# AGENTS.md instructions for /src\n\n<INSTRUCTIONS>…"},{"type":"input_text","text":"<environment_context>\n <cwd>/src</cwd>\n</environment_context>"}]},
		{"type":"message","role":"user","content":[{"type":"input_text","text":"Fix the test."}]},
		{"type":"configuration_update","x":1}],"tool_choice":"auto"}`
	codexTitle = `{"input":[{"type":"additional_tools","role":"developer","tools":[{"type":"function","name":"exec_command"}]},
		{"type":"message","role":"user","content":[{"type":"input_text","text":"Generate a concise, single-line task title of few words: Fix the test."}]}]}`
	codexGoesOn = `{"input":[{"type":"additional_tools","role":"developer","tools":[{"type":"function","name":"exec_command"}]},
		{"type":"message","role":"user","content":[{"type":"input_text","text":"Fix the test."}]},
		{"type":"reasoning","summary":[]},{"type":"function_call","name":"exec_command","arguments":"{}","call_id":"c"},{"type":"function_call_output","call_id":"c","output":"a b c"}]}`
	copilotAsks   = `{"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"<current_datetime>2026-11-28T01:16:14+00:00</current_datetime>\n\nFix the test.\n\n"}]}],"tools":[{"type":"function"},{"type":"function"}]}`
	opencodeTitle = `{"input":[{"role":"developer","content":"You make titles."},{"role":"user","content":[{"type":"input_text","text":"Fix the test."}]}],"stream":true}`
	chatAsks      = `{"messages":[{"role":"system","content":"You are an agent."},{"role":"user","content":"Fix the test."}],"tools":[{"type":"function"}]}`
	chatGoesOn    = `{"messages":[{"role":"user","content":"Fix the test."},{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"x","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"a b c"}],"tools":[{"type":"function"}]}`
	geminiAsks    = `{"contents":[{"role":"user","parts":[{"text":"<session_context>\nA long text` + /* its end is beyond what is kept */ `"},{"text":"Fix the test."}]}],"systemInstruction":{"parts":[{"text":"You are an agent."}]},"tools":[{"functionDeclarations":[{"name":"a"}]}]}`
	geminiGoesOn  = `{"request":{"contents":[{"role":"user","parts":[{"text":"Fix the test."}]},{"role":"model","parts":[{"functionCall":{"name":"a","args":{}}}]},{"role":"user","parts":[{"functionResponse":{"name":"a","response":{"output":"a b c"}}}]}],"tools":[{"functionDeclarations":[]}]}}`
)

func TestRequestsOfAgents(t *testing.T) {
	for _, c := range []struct {
		name, body, text string
		prompts          int
	}{
		{"claude", claudeAsks, `Fix the "test".`, 1},
		{"claude goes on", claudeGoesOn, "", 1},
		{"claude, second turn", claudeAsksAgain, "Thank you.", 2},
		{"codex", codexAsks, "Fix the test.", 1},
		{"codex, a title", codexTitle, "", 0},
		{"codex goes on", codexGoesOn, "", 1},
		{"copilot", copilotAsks, "Fix the test.", 1},
		{"chat", chatAsks, "Fix the test.", 1},
		{"chat goes on", chatGoesOn, "", 1},
		{"gemini", geminiAsks, "Fix the test.", 1},
		{"gemini goes on", geminiGoesOn, "", 1},
		{"a prompt alone", `{"input":"Fix the test.","tools":[{}]}`, "Fix the test.", 1},
		{"HTML is the user's", `{"messages":[{"role":"user","content":"<div>x</div> is wrong"}]}`, "<div>x</div> is wrong", 1},
		{"no list", `{"messages":7}`, "", 0},
	} {
		for _, n := range []int{1, 7, 1 << 20} {
			r, done := read(c.body, n)
			if !done || r.Text != c.text || r.Prompts != c.prompts {
				t.Errorf("%s, in pieces of %d: %q, %d prompts, %t", c.name, n, r.Text, r.Prompts, done)
			}
		}
	}
	if _, done := read(claudeAsks[:200], 50); done {
		t.Error("a request was whole before its end")
	}
}

// A turn begins with each prompt of the user's, once, whatever else the agent asks.
func TestTurnsBeginWithPrompts(t *testing.T) {
	ask := func(body string) Request {
		r, done := read(body, 100)
		if !done {
			t.Fatalf("not whole: %s", body)
		}
		return r
	}
	part := `{"messages":[{"role":"user","content":"Look for tests."}],"tools":[{"name":"Bash"}]}` // of an agent that has fewer tools
	var turns Turns
	for i, c := range []struct {
		body   string
		begins bool
		calls  bool // in the answer
	}{
		{opencodeTitle, false, false},
		{claudeAsks, true, false},
		{claudeAsks, false, true}, // again, after an error
		{part, false, false},
		{claudeGoesOn, false, false},
		{claudeAsksAgain, true, false},
		{part, true, false}, // nothing waits for it: it is a conversation of its own
	} {
		r := ask(c.body)
		if got := turns.Begins(r); got != c.begins {
			t.Errorf("request %d begins a turn: %t", i, got)
		}
		turns.Answered(r, c.calls)
	}
}

func TestCallsAreFound(t *testing.T) {
	for text, want := range map[string]bool{
		`data: {"type":"content_block_start","content_block":{"type":"tool_use","id":"x"}}`: true,
		`data: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`:                        true,
		`data: {"item":{"type":"function_call","name":"exec_command"}}`:                     true,
		`data: {"candidates":[{"content":{"parts":[{"functionCall":{"name":"a"}}]}}]}`:      true,
		`data: {"delta":{"text":"a \"tool_use\" is a call"}}`:                               false,
	} {
		for _, n := range []int{1, 5, 200} {
			var c Calls
			for at := 0; at < len(text); at += n {
				c.Write([]byte(text[at:min(at+n, len(text))]))
			}
			if c.Found != want {
				t.Errorf("in pieces of %d, %s: %t", n, text, c.Found)
			}
		}
	}
}

// FuzzReader: whatever a cell sends, what is known of it does not depend on how it came, and little
// of it is kept.
func FuzzReader(f *testing.F) {
	for _, body := range []string{claudeAsks, claudeGoesOn, codexAsks, copilotAsks, geminiAsks, geminiGoesOn, `{"input":"\ud83d\ude00`, strings.Repeat("[", 99) + strings.Repeat("]", 99)} {
		f.Add([]byte(body), 3)
	}
	f.Fuzz(func(t *testing.T, body []byte, n int) {
		n = max(1, n&0xff)
		var whole, pieces Request
		var done, also bool
		boundtest.Allocates(t, len(body), func() { whole, done = read(string(body), 1<<30) })
		if pieces, also = read(string(body), n); whole != pieces || done != also {
			t.Fatalf("whole: %+v, in pieces of %d: %+v", whole, n, pieces)
		}
		if len(whole.Text) > 3*maxText {
			t.Fatalf("%d bytes are kept", len(whole.Text))
		}
	})
}

func BenchmarkReader(b *testing.B) {
	body := fmt.Sprintf(`{"messages":[{"role":"user","content":[{"type":"image","source":{"data":"%s"}},{"type":"text","text":"Fix it."}]}],"tools":[{}]}`, strings.Repeat("A", 4<<20))
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		read(body, 32<<10)
	}
}
