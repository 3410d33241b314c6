package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// TestAgentsAskNothing starts Claude Code as it comes from npm, with `pando claude` at a
// terminal: its first start asks nothing, it works, is left and come back to.
func TestAgentsAskNothing(t *testing.T) {
	prog := claude(t)
	if !ownNetwork(t) {
		return
	}
	key, _ := newAgentKey()
	h, m := agentHost(t, prog, key)
	h.plant()
	m.turns = greeting(h.src)[:2]
	m.turns = append(m.turns, turn{text: "The greeting is friendlier now."})
	h.lend("anthropic", key)
	s := h.sit("claude")
	s.sees("shift+tab to cycle")
	s.presses("Make the greeting friendlier.", "Make the greeting friendlier.")
	s.presses("\r", "The greeting is friendlier now.")
	s.presses("\x10\x11", "detached; run r-")
	if code := s.ends(); code != 0 {
		t.Errorf("detaching: exit code %d", code)
	}
	h.pando("send", filepath.Base(h.src), "Thank you.")
	if o := h.pando("ls", "--agents"); !strings.Contains(o, "claude") || !strings.Contains(o, "running") {
		t.Errorf("pando ls --agents says\n%s", o)
	}
	s = h.sit("attach")
	s.sees("The greeting is friendlier now.")
	s.sees("Thank you.")
	s.presses("/exit", "/exit")
	s.types("\r")
	if code := s.ends(); code != 0 {
		t.Errorf("exit code %d; on the screen:\n%s", code, s.text())
	}
	h.oneAgent("claude")
	if !slices.ContainsFunc(m.requests(), func(r modelRequest) bool { return instructed(r.body) }) {
		t.Error("the repository's instructions were not read")
	}
	h.trusts("claude")

	// Started without a terminal here, it has one of its own.
	h.write("greet.sh", "echo Hello\n")
	h.pando("claude", "--detach", "--cell", "quiet", "--", "Make the greeting friendlier.")
	testenv.Eventually(t, func() bool {
		return strings.Contains(h.try("exec", "-n", "quiet", "--", "cat", "greet.sh").out, "dear friend") // its cell is made first
	}, "the work on the task")
	s = h.sit("attach", "quiet")
	s.sees("The greeting is friendlier now.")
	s.presses("\x10\x11", "detached; run r-")
	h.pando("stop", "quiet")

	// What is sent while it starts waits for its screen.
	h.pando("claude", "--detach", "--cell", "early")
	h.pando("send", "early", "Make the greeting friendlier.")
	s = h.sit("attach", "early")
	s.sees("The greeting is friendlier now.")
	s.presses("\x10\x11", "detached; run r-")
	h.pando("stop", "early")
}

// TestRaceOfAgents: attempts of a race are an agent's work on a task, each as its row says. Turns and tokens are seen, and the one that
// asked its model less wins.
func TestRaceOfAgents(t *testing.T) {
	prog := claude(t)
	if !ownNetwork(t) {
		return
	}
	key, _ := newAgentKey()
	h, m := agentHost(t, prog, key)
	m.next = func(body string, results int) turn {
		most := 1
		if strings.Contains(body, "with care") {
			most = 3
		}
		if results >= most {
			return turn{text: "It is done."}
		}
		return turn{text: "I write.", tool: "Bash", input: map[string]any{"command": friendlier, "description": "Write"}}
	}
	h.lend("anthropic", key)
	h.write("../how.yaml", "- {how: with care}\n- {how: quickly}\n")
	h.pando("race", "--name", "a", "--agent", "claude", "--prompt", "Make the greeting friendlier, {{.how}}.", "--vary", "../how.yaml", "--check", "grep -q friend greet.sh")
	var races []api.Race
	if err := json.Unmarshal([]byte(h.pando("race", "ls", "--json")), &races); err != nil || len(races) != 1 {
		t.Fatal(err, races)
	}
	r := races[0]
	if r.Winner != "a-2" || !strings.Contains(r.Why, "fewest tokens: 30, a-1 has 60") {
		t.Errorf("the winner is %s: %s", r.Winner, r.Why)
	}
	for _, at := range r.Attempts {
		if at.State != api.AttemptSucceeded || at.Turns != 1 || at.Tokens == 0 {
			t.Errorf("%+v", at)
		}
	}
	if o := h.pando("race", "show", r.ID); !strings.Contains(o, "TURNS") || !strings.Contains(o, "TOKENS") {
		t.Errorf("its table is\n%s", o)
	}
}

// TestAgentTurns: each turn of an agent's conversation is a checkpoint of workspace and home, seen in
// its requests. One is undone, and the conversation goes on before it, in the cell and in two forks.
func TestAgentTurns(t *testing.T) {
	prog := claude(t)
	if !ownNetwork(t) {
		return
	}
	key, _ := newAgentKey()
	h, m := agentHost(t, prog, key)
	m.next = func(body string, results int) turn {
		for _, word := range []string{"quieter", "louder"} { // the latest first
			if strings.Contains(body, "Make it "+word) {
				if strings.Contains(body, "echo "+word) {
					return turn{text: "It is " + word + " now."}
				}
				return turn{text: "I write.", tool: "Bash", input: map[string]any{"command": "echo " + word + " >> greet.sh", "description": "Write"}}
			}
		}
		if results > 0 {
			return turn{text: "The greeting is friendlier now."}
		}
		return turn{text: "I write.", tool: "Bash", input: map[string]any{"command": friendlier, "description": "Write"}}
	}
	h.lend("anthropic", key)
	name := filepath.Base(h.src)
	s := h.sit("claude")
	s.sees("shift+tab to cycle")
	s.presses("Make the greeting friendlier.", "Make the greeting friendlier.")
	s.presses("\r", "The greeting is friendlier now.")
	s.presses("Make it louder.", "Make it louder.")
	s.presses("\r", "It is louder now.")
	s.presses("\x10\x11", "detached; run r-")
	s.ends()
	if o := h.pando("history", name); !strings.Contains(o, "turn 1: Make the greeting friendlier.") || !strings.Contains(o, "turn 2: Make it louder.") || strings.Contains(o, "turn 3") {
		t.Errorf("the history is\n%s", o)
	}
	// Forks are made while the agent runs.
	h.pando("fork", name, "--turn", "2", "-n", "2", "--name", "try")
	h.pando("undo", name, "--turn", "2")
	holds := func(cell, want string) {
		t.Helper()
		if o := h.pando("exec", "-n", cell, "--", "cat", "greet.sh"); o != want {
			t.Errorf("in %s there is %q", cell, o)
		}
	}
	holds(name, "echo Hello, dear friend\n")
	s = h.sit("claude", "--continue")
	s.sees("The greeting is friendlier now.")
	if strings.Contains(s.text(), "It is louder now.") {
		t.Errorf("what was undone is there:\n%s", s.text())
	}
	s.presses("Make it quieter.", "Make it quieter.")
	s.presses("\r", "It is quieter now.")
	s.presses("/exit", "/exit")
	s.types("\r")
	s.ends()
	holds(name, "echo Hello, dear friend\nquieter\n")
	for _, fork := range []string{"try-1", "try-2"} {
		holds(fork, "echo Hello, dear friend\n")
		asked := len(m.requests())
		if o := h.pando("claude", "--cell", fork, "--continue", "--prompt", "Make it quieter."); !strings.Contains(o, "It is quieter now.") {
			t.Errorf("%s says %s", fork, o)
		}
		holds(fork, "echo Hello, dear friend\nquieter\n")
		if !slices.ContainsFunc(m.requests()[asked:], func(r modelRequest) bool { return bytes.Contains(r.body, []byte("Make the greeting friendlier.")) }) {
			t.Errorf("%s does not know its conversation", fork)
		}
	}
}

// plant writes files by which agents run what a repository configures for them: each leaves a
// word in a file of its home. The repository has instructions, too, which are text.
func (h *host) plant() {
	hook := func(name string) string {
		return `[{"hooks": [{"type": "command", "command": "echo ` + name + `-hook >>$HOME/fired"}]}]`
	}
	server := func(name string) string {
		return `{"command": "sh", "args": ["-c", "echo ` + name + ` >>$HOME/fired; sleep 1"]}`
	}
	for name, text := range map[string]string{
		".claude/settings.json": `{"env": {"BASH_ENV": "canary.sh"}, "statusLine": {"type": "command", "command": "echo status >>$HOME/fired"},
			"enableAllProjectMcpServers": true, "hooks": {"SessionStart": ` + hook("claude") + `, "UserPromptSubmit": ` + hook("claude") + `}}`,
		".mcp.json":             `{"mcpServers": {"canary": ` + server("mcp") + `}}`,
		".codex/config.toml":    "[mcp_servers.canary]\ncommand = \"sh\"\nargs = [\"-c\", \"echo codex >>$HOME/fired; sleep 1\"]\n",
		".codex/hooks.json":     `{"hooks": {"SessionStart": ` + hook("codex") + `}}`,
		".gemini/settings.json": `{"mcpServers": {"canary": ` + server("gemini") + `}, "hooks": {"SessionStart": ` + hook("gemini") + `}}`,
		".github/hooks/c.json":  `{"version": 1, "hooks": {"sessionStart": [{"type": "command", "bash": "echo copilot >>$HOME/fired"}]}}`,
		"opencode.json":         `{"mcp": {"canary": {"type": "local", "command": ["sh", "-c", "echo opencode >>$HOME/fired; sleep 1"]}}}`,
		".opencode/plugin/c.js": "import fs from 'node:fs'\nexport const C = async () => { fs.appendFileSync(process.env.HOME + '/fired', 'plugin\\n'); return {} }\n",
		"canary.sh":             "echo environment >>$HOME/fired\n",
		"CLAUDE.md":             instruction, "AGENTS.md": instruction, "GEMINI.md": instruction,
	} {
		h.write(name, text)
	}
}

const instruction = "The canary of the instructions sings.\n"

// instructed reports whether a request to a model has the repository's instructions.
func instructed(body []byte) bool {
	return bytes.Contains(body, []byte(strings.TrimSpace(instruction)))
}

// fired is what the repository ran in the cell of the latest run.
func (h *host) fired() string {
	h.t.Helper()
	return h.pando("exec", "-n", h.run(h.runs()[0].ID).CellName, "--", "sh", "-c", "cat ~/fired 2>/dev/null || :")
}

// trusts starts an agent that runs what the repository configures for it: what was planted fires.
func (h *host) trusts(name string) {
	h.t.Helper()
	h.write("greet.sh", "echo Hello\n")
	h.pando(name, "--trust-repository", "--prompt", "Make the greeting friendlier.")
	got := h.run(h.runs()[0].ID)
	if h.fired() == "" || !slices.Contains(got.Downgrades, "the agent runs what the repository configures for it") {
		h.t.Errorf("%s was to run what the repository configures: it ran %q, with downgrades %q", name, h.fired(), got.Downgrades)
	}
}

// oneAgent looks at the latest run after the greeting was changed by an agent: what it changed,
// what it was denied, and what its record says.
func (h *host) oneAgent(name string) {
	h.t.Helper()
	runs := h.runs()
	switch what := h.fired(); { // at a terminal two of them can't leave all of it alone
	case name == "copilot at a terminal":
	case name == "codex at a terminal" && !strings.Contains(what, "hook"):
	case what != "":
		h.t.Errorf("the repository ran %q", what)
	}
	name, _, _ = strings.Cut(name, " ")
	if got := h.run(runs[0].ID); got.Agent != name || got.CellName == "" {
		h.t.Errorf("the run's record has agent %q, in cell %q", got.Agent, got.CellName)
	} else if got.Network != nil && got.Network.Denied > 0 {
		h.t.Errorf("%s was denied %d requests: %s", name, got.Network.Denied, h.pando("events", "--denied"))
	}
	if got := h.inSource("greet.sh"); got != "echo Hello, dear friend\n" {
		h.t.Errorf("after accept --apply the source has %q", got)
	}
	if v := h.verify(); !v.OK {
		h.t.Errorf("receipts: %+v", v)
	}
}

// agentProgram is the path of an agent's program: of a variable, or on PATH.
func agentProgram(t *testing.T, variable, name string) string {
	t.Helper()
	prog := os.Getenv(variable)
	if prog == "" {
		var err error
		if prog, err = exec.LookPath(name); err != nil {
			t.Skipf("needs %s: %s, or %s on PATH", name, variable, name)
		}
	}
	return prog
}

// friendlier is a command that makes the greeting friendlier.
const friendlier = `sed -i 's/Hello/Hello, dear friend/' greet.sh`

// script answers requests of an agent to its model: with a use of its shell first, then with a
// text. What comes without the key is refused.
type script struct {
	authorised func(*http.Request) bool
	answer     func(w http.ResponseWriter, path string, body []byte)

	mu    sync.Mutex
	asked []string // paths
	read  bool     // a request has the repository's instructions
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if r.Header.Get("Content-Encoding") == "zstd" {
		if d, err := zstd.NewReader(bytes.NewReader(body)); err == nil {
			body, _ = io.ReadAll(d)
			d.Close()
		}
	}
	s.mu.Lock()
	s.asked = append(s.asked, r.Method+" "+r.URL.Path)
	s.read = s.read || instructed(body)
	s.mu.Unlock()
	if !s.authorised(r) {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	s.answer(w, r.URL.Path, body)
}

// scripted is an installation with an agent on its PATH, in a world in which s poses as these hosts.
func scripted(t *testing.T, prog string, s *script, domains ...string) *host {
	t.Helper()
	world(t, inside4, "192.0.2.8")
	h := newHost(t)
	ca := newAuthority(t)
	ca.serveTLS(inside4+":443", s, domains...)
	zone := newNames(t, "127.0.0.1:5300")
	for _, d := range domains {
		zone.set(d, inside4)
	}
	h.env = append(h.env, "PANDO_RESOLVER="+zone.addr, "PANDO_ROOTS="+ca.file(h))
	for i, kv := range h.env {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			h.env[i] = "PATH=" + filepath.Dir(prog) + ":" + path
		}
	}
	h.write("greet.sh", "echo Hello\n")
	h.plant()
	t.Cleanup(func() {
		if s.mu.Lock(); !s.read {
			t.Error("the repository's instructions were not read")
		}
		s.mu.Unlock()
	})
	return h
}

func events(w http.ResponseWriter, list ...map[string]any) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range list {
		b, _ := json.Marshal(e)
		io.WriteString(w, "event: "+e["type"].(string)+"\ndata: "+string(b)+"\n\n")
	}
}

// openAI answers as the Responses API does, as Codex, Copilot CLI and opencode ask it. Their
// shell is a tool of some name, with arguments. opencode asks for a title, too.
func openAI(key, tool string, arguments map[string]any) *script {
	args, _ := json.Marshal(arguments)
	return &script{
		authorised: func(r *http.Request) bool { return r.Header.Get("Authorization") == "Bearer "+key },
		answer: func(w http.ResponseWriter, path string, body []byte) {
			var ask struct {
				Model string
				Input []struct{ Type string }
			}
			json.Unmarshal(body, &ask)
			if path != "/v1/responses" && path != "/backend-api/codex/responses" {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			item := map[string]any{"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": tool, "arguments": string(args), "status": "completed"}
			if bytes.Contains(body, []byte("You are a title generator")) || slices.ContainsFunc(ask.Input, func(i struct{ Type string }) bool { return i.Type == "function_call_output" }) {
				item = map[string]any{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
					"content": []any{map[string]any{"type": "output_text", "text": "The greeting is friendlier now.", "annotations": []any{}}}}
			}
			answer := map[string]any{"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": ask.Model, "output": []any{item},
				"usage": map[string]any{"input_tokens": 10, "input_tokens_details": map[string]any{"cached_tokens": 0}, "output_tokens": 5, "output_tokens_details": map[string]any{"reasoning_tokens": 0}, "total_tokens": 15}}
			list := []map[string]any{{"type": "response.created", "response": answer}, {"type": "response.output_item.added", "output_index": 0, "item": item}}
			if item["type"] == "message" {
				list = append(list, map[string]any{"type": "response.output_text.delta", "item_id": item["id"], "output_index": 0, "content_index": 0, "delta": "The greeting is friendlier now."})
			}
			events(w, append(list, map[string]any{"type": "response.output_item.done", "output_index": 0, "item": item}, map[string]any{"type": "response.completed", "response": answer})...)
		},
	}
}

// googleAI answers as the Gemini API does, as Gemini CLI asks it. Requests without tools
// choose a model.
func googleAI(key string) *script {
	return &script{
		authorised: func(r *http.Request) bool { return r.Header.Get("X-Goog-Api-Key") == key },
		answer: func(w http.ResponseWriter, path string, body []byte) {
			part := map[string]any{"functionCall": map[string]any{"name": "run_shell_command", "args": map[string]any{"command": friendlier}}}
			switch {
			case strings.Contains(string(body), `"functionResponse"`):
				part = map[string]any{"text": "The greeting is friendlier now."}
			case !strings.Contains(string(body), `"functionDeclarations"`):
				part = map[string]any{"text": `{"reasoning":"x","complexity_reasoning":"x","complexity_score":1,"model_choice":"flash"}`}
			}
			answer := map[string]any{
				"candidates":    []any{map[string]any{"index": 0, "finishReason": "STOP", "content": map[string]any{"role": "model", "parts": []any{part}}}},
				"usageMetadata": map[string]any{"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}, "modelVersion": "scripted"}
			if strings.HasPrefix(path, "/v1internal:") { // of an account
				answer = map[string]any{"response": answer, "traceId": "t"}
			}
			b, _ := json.Marshal(answer)
			if strings.HasSuffix(path, ":streamGenerateContent") {
				w.Header().Set("Content-Type", "text/event-stream")
				io.WriteString(w, "data: "+string(b)+"\r\n\r\n")
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.Write(b)
		},
	}
}

// works has an agent make the greeting friendlier, at a terminal and with a task, and at last with
// trust in the repository. At a terminal it waits when its screen shows all of ready; leave is what
// is typed to leave it, what shows that, and what is typed then. there is its name for oneAgent.
func (h *host) works(name, there string, leave [3]string, ready ...string) {
	h.t.Helper()
	s := h.sit(name)
	for _, text := range ready {
		s.sees(text)
	}
	s.presses("Make the greeting friendlier.", "Make the greeting friendlier.")
	s.presses("\r", "The greeting is friendlier now.")
	s.presses(leave[0], leave[1])
	s.types(leave[2])
	if code := s.ends(); code != 0 {
		h.t.Errorf("exit code %d; on the screen:\n%s", code, s.text())
	}
	h.oneAgent(there)
	if o := h.pando("history", filepath.Base(h.src)); strings.Count(o, "turn ") != 1 || !strings.Contains(o, "turn 1: Make the greeting friendlier.") {
		h.t.Errorf("%s has other turns than one:\n%s", there, o)
	}
	h.stops(name)
	h.write("greet.sh", "echo Hello\n")
	if o := h.pando(name, "--prompt", "Make the greeting friendlier."); !strings.Contains(o, "The greeting is friendlier now.") {
		h.t.Error(o)
	}
	h.oneAgent(name)
	h.trusts(name)
}

// stops stops an agent at its terminal: it ends when it is asked to, and has its conversation then.
func (h *host) stops(name string) {
	h.t.Helper()
	cell := h.runs()[0].CellName
	s := h.sit(name, "--cell", cell, "--continue")
	s.sees("The greeting is friendlier now.")
	s.presses("\x10\x11", "detached; run r-")
	s.ends()
	h.pando("stop", cell)
	if r := h.runs()[0]; r.Cause != "interrupted" || r.Signal == "SIGKILL" {
		h.t.Errorf("%s ended with exit code %d, signal %q, cause %q", name, *r.ExitCode, r.Signal, r.Cause)
	}
	s = h.sit(name, "--cell", cell, "--continue")
	s.sees("The greeting is friendlier now.")
	s.presses("\x10\x11", "detached; run r-")
	h.pando("stop", cell)
}

// TestAgentsCodex starts Codex as it comes from npm, at a terminal and with a task.
func TestAgentsCodex(t *testing.T) {
	prog := agentProgram(t, "E2E_CODEX", "codex")
	if !ownNetwork(t) {
		return
	}
	const key = "sk-proj-not-a-real-key-but-as-long-as-one-0123456789"
	h := scripted(t, prog, openAI(key, "exec_command", map[string]any{"cmd": friendlier}), "api.openai.com")
	h.lend("openai", key)
	h.works("codex", "codex at a terminal", [3]string{"/quit", "/quit", "\r"}, "permissions: YOLO mode", "Ask Codex to do anything")
}

// TestAgentsGemini starts Gemini CLI as it comes from npm, at a terminal and with a task.
func TestAgentsGemini(t *testing.T) {
	prog := agentProgram(t, "E2E_GEMINI", "gemini")
	if !ownNetwork(t) {
		return
	}
	const key = "AIzaSyNotARealKeyButAsLongAsOne01234567"
	h := scripted(t, prog, googleAI(key), "generativelanguage.googleapis.com")
	h.lend("gemini", key)
	h.works("gemini", "gemini", [3]string{"\x03", "again to exit", "\x03"}, "Type your message")
}

// TestAgentsCopilot starts Copilot CLI as it comes from npm, with a key of OpenAI's, at a
// terminal and with a task.
func TestAgentsCopilot(t *testing.T) {
	prog := agentProgram(t, "E2E_COPILOT", "copilot")
	if !ownNetwork(t) {
		return
	}
	const key = "sk-proj-not-a-real-key-but-as-long-as-one-0123456789"
	h := scripted(t, prog, openAI(key, "bash", map[string]any{"command": friendlier, "description": "Make it friendlier"}), "api.openai.com")
	h.lend("openai", key)
	h.works("copilot", "copilot at a terminal", [3]string{"/exit", "/exit", "\r"}, "/ commands")
}

// TestAgentsOpencode starts opencode as it comes from npm, at a terminal and with a task.
func TestAgentsOpencode(t *testing.T) {
	prog := agentProgram(t, "E2E_OPENCODE", "opencode")
	if !ownNetwork(t) {
		return
	}
	const key = "sk-proj-not-a-real-key-but-as-long-as-one-0123456789"
	h := scripted(t, prog, openAI(key, "bash", map[string]any{"command": friendlier, "description": "Make it friendlier"}), "api.openai.com")
	h.lend("openai", key)
	h.works("opencode", "opencode", [3]string{"/exit", "/exit", "\r"}, "Ask anything")
}

// TestAgentsModelServer starts agents as they come from npm with a model server of the user's own in
// place of their service: on the user's machine, without a key. Nothing else is reached, and turns
// are seen there.
func TestAgentsModelServer(t *testing.T) {
	if !ownNetwork(t) {
		return
	}
	for _, c := range []struct {
		name, variable string
		model          func(h *host) http.Handler
	}{
		{"claude", "E2E_CLAUDE", func(h *host) http.Handler { return &model{turns: greeting(h.src), key: "none"} }},
		{"codex", "E2E_CODEX", func(*host) http.Handler {
			return openAI("none", "exec_command", map[string]any{"cmd": friendlier})
		}},
		{"copilot", "E2E_COPILOT", func(*host) http.Handler {
			return openAI("none", "bash", map[string]any{"command": friendlier, "description": "Make it friendlier"})
		}},
		{"gemini", "E2E_GEMINI", func(*host) http.Handler { return googleAI("none") }},
		{"opencode", "E2E_OPENCODE", func(*host) http.Handler {
			return openAI("none", "bash", map[string]any{"command": friendlier, "description": "Make it friendlier"})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			prog := agentProgram(t, c.variable, c.name)
			world(t)
			h := newHost(t)
			for i, kv := range h.env {
				if path, ok := strings.CutPrefix(kv, "PATH="); ok {
					h.env[i] = "PATH=" + filepath.Dir(prog) + ":" + path
				}
			}
			h.write("greet.sh", "echo Hello\n")
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			h.must(err)
			s := &http.Server{Handler: c.model(h)}
			go s.Serve(ln)
			defer s.Close()
			o := h.exits(0, c.name, "--cell", "mine", "--model-url", "http://"+ln.Addr().String(), "--prompt", "Make the greeting friendlier.")
			if !strings.Contains(o.out, "The greeting is friendlier now.") {
				t.Errorf("it said:\n%s%s", o.out, o.stderr)
			}
			if got := h.inCell("mine", "cat greet.sh"); got != "echo Hello, dear friend\n" {
				t.Errorf("the file in the cell is %q", got)
			}
			if o := h.pando("history", "mine"); !regexp.MustCompile(`turn 1: "?Make the greeting friendlier\.`).MatchString(o) {
				t.Errorf("its turn was not seen:\n%s", o)
			}
			run := h.run("mine:latest")
			if c.name != "opencode" { // its conversations are in a database
				h.reports(run.ID)
			}
			for _, f := range flows(h, run.ID) {
				if f.Host != cell.HostName {
					t.Errorf("it reached %+v", f)
				}
			}
			if run.Network == nil || run.Network.Denied > 0 {
				t.Errorf("it was denied requests: %s", h.pando("events", "--denied"))
			}
		})
	}
}

// reports looks at what the agent of a run reports of its tool calls.
func (h *host) reports(run string) {
	h.t.Helper()
	var r struct {
		ToolCalls struct {
			Calls []struct {
				Kind, What string
				Ended      bool
			}
			Problems []string
		} `json:"tool_calls"`
		Findings []struct{ Rule, What string }
	}
	h.must(json.Unmarshal([]byte(h.pando("report", run, "--json")), &r))
	if calls := r.ToolCalls.Calls; len(calls) == 0 || !calls[len(calls)-1].Ended || calls[len(calls)-1].Kind != "shell" || len(r.ToolCalls.Problems) > 0 {
		h.t.Errorf("the reported tool calls are %+v", r.ToolCalls)
	}
	var seen int64 // in the answers of the model
	for _, m := range h.run(run).Network.Models {
		seen += m.Calls
	}
	if seen != int64(len(r.ToolCalls.Calls)) {
		h.t.Errorf("the gateway saw %d calls, and %d are reported", seen, len(r.ToolCalls.Calls))
	}
	for _, f := range r.Findings {
		if strings.HasPrefix(f.Rule, "reported-") {
			h.t.Errorf("a finding: %+v", f)
		}
	}
	if o := h.pando("timeline", "mine"); strings.Count(o, "(reported)") != len(r.ToolCalls.Calls) {
		h.t.Errorf("the timeline has other calls than %d:\n%s", len(r.ToolCalls.Calls), o)
	} else {
		h.t.Log(o)
	}
}
