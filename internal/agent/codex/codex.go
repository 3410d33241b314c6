// Package codex is the adapter of OpenAI's Codex, as seen with version 0.171.0 from npm.
package codex

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/credential"
)

// Adapter is Codex's. It implements agent.Adapter.
type Adapter struct{}

// About implements agent.Adapter.
func (Adapter) About() agent.About {
	return agent.About{
		Name: "codex", Title: "Codex", Program: "codex", Package: "@openai/codex", Tested: "0.171.0",
		Logins: []agent.Login{
			{Credential: "chatgpt", Variables: []string{token}, Allow: []string{"@chatgpt"}, Account: true},
			{Credential: "openai", Variables: []string{"OPENAI_API_KEY"}, Allow: []string{"@openai"}},
		},
		Memory: ".codex/AGENTS.md",
	}
}

// token is the variable that has the placeholder of the access token of a subscription. Codex reads its
// login file (Files).
const token = "CHATGPT_ACCESS_TOKEN"

// full switches off Codex's own sandbox, which can't nest in a cell, and its questions.
const full = "--dangerously-bypass-approvals-and-sandbox"

// Command implements agent.Adapter. Without --no-daemon Codex leaves a server behind, which
// would keep the cell busy when the session has ended.
func (Adapter) Command(s agent.Start) ([]string, error) {
	if err := agent.Refuse("Codex", s.Args, full, "--yolo", "--sandbox", "-s", "--ask-for-approval", "-a", "--full-auto"); err != nil {
		return nil, err
	}
	mode := []string{full}
	if s.Asks { // its own sandbox is off, too
		mode = []string{"--sandbox", "danger-full-access", "--ask-for-approval", "untrusted"}
	}
	switch { // hooks that are new are asked about
	case s.Trusts:
		mode = append(mode, "--dangerously-bypass-hook-trust")
	case !off(s):
		mode = append(mode, "--disable", "hooks")
	}
	if s.Model != "" {
		mode = append(mode, "-c", "model_providers.pando.base_url="+quoted(s.Versioned()))
	}
	var again []string
	if s.Continue {
		again = []string{"resume", "--last"}
	}
	argv := []string{"codex"}
	if s.Prompt == "" {
		argv = append(append(argv, again...), "--no-daemon")
		return append(append(argv, mode...), s.Args...), nil
	}
	argv = append(append(argv, "exec"), mode...)
	argv = append(append(argv, "--skip-git-repo-check"), again...)
	return append(append(argv, s.Args...), "--", s.Prompt), nil
}

// Env implements agent.Adapter.
func (Adapter) Env(agent.Start) []string { return nil }

// head of config.toml: a provider of its own, because the one that is built in asks for a
// login, and tries WebSockets first. Conversations belong to a provider, so that there is one whatever the
// login is.
const head = `check_for_update_on_startup = false
model_provider = "pando"

[model_providers.pando]
name = "OpenAI"
wire_api = "responses"
supports_websockets = false
` + byKey + `
[analytics]
enabled = false

[features]
apps = false
plugins = false
`

// What the provider has with a key, and with an account.
const (
	byKey = `base_url = "https://api.openai.com/v1"
env_key = "OPENAI_API_KEY"
`
	byAccount = `base_url = "https://chatgpt.com/backend-api/codex"
requires_openai_auth = true
`
)

// off reports whether Codex leaves alone what the repository configures: in a directory that it
// does not trust. At a terminal it stops there, and asks.
func off(s agent.Start) bool { return !s.Trusts && s.Prompt != "" }

// Files implements agent.Adapter. Of a directory that Codex does not trust its instructions are
// read as those of the user.
func (Adapter) Files(s agent.Start) []agent.File {
	level := func(word string) []byte {
		return []byte("[projects." + quoted(s.Dir) + "]\ntrust_level = \"" + word + "\"\n")
	}
	now, other := level("untrusted"), level("trusted")
	if !off(s) {
		now, other = other, now
	}
	mine, others := []byte(byKey), []byte(byAccount)
	if s.Login.Account {
		mine, others = others, mine
	}
	files := []agent.File{{Path: ".codex/config.toml", Make: func(old []byte) []byte {
		if old == nil {
			old = []byte(head)
		}
		old = bytes.Replace(old, others, mine, 1)
		if bytes.Contains(old, other) {
			return bytes.Replace(old, other, now, 1)
		}
		if table, _, _ := bytes.Cut(now, []byte("\n")); bytes.Contains(old, table) {
			return old // as the agent left it
		}
		return append(append(bytes.Clone(old), '\n'), now...)
	}}}
	if s.Login.Account {
		files = append(files, agent.File{Path: ".codex/auth.json", Make: func(old []byte) []byte { return login(old, s.Getenv(token)) }})
	}
	if off(s) {
		files = append(files, agent.File{Path: ".codex/AGENTS.md", Link: s.Root + "/AGENTS.md"})
	}
	return files
}

// login is the login file with a token that has the login's claims. Codex refreshes a login that was not for
// some days, or a token that expires: not this one.
func login(old []byte, token string) []byte {
	claims, _ := credential.Claims(token)
	about, _ := claims["https://api.openai.com/auth"].(map[string]any)
	return agent.Merge(old, func(f map[string]any) {
		f["auth_mode"], f["OPENAI_API_KEY"], f["last_refresh"] = "chatgpt", nil, "2100-01-01T00:00:00Z"
		f["tokens"] = map[string]any{"id_token": token, "access_token": token, "refresh_token": "none", "account_id": about["chatgpt_account_id"]}
	})
}

// Off implements agent.Adapter.
func (Adapter) Off(s agent.Start) []string {
	switch {
	case s.Trusts:
		return nil
	case !off(s):
		return []string{".codex/hooks.json"}
	}
	return []string{".codex"}
}

// quoted is a basic string of TOML.
func quoted(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String() + `"`
}
