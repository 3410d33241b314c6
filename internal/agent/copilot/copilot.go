// Package copilot is the adapter of GitHub's Copilot CLI, as seen with version 1.0.102 from npm,
// with a key of OpenAI's or Anthropic's. A login of GitHub's is not there yet: the token that
// Copilot gets in exchange for it arrives in an answer, where no placeholder stands for it.
package copilot

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/pando-dev/pando/internal/agent"
)

// Adapter is Copilot CLI's. It implements agent.Adapter.
type Adapter struct{}

// About implements agent.Adapter.
func (Adapter) About() agent.About {
	const reads = "COPILOT_PROVIDER_API_KEY"
	return agent.About{
		Name: "copilot", Title: "Copilot CLI", Program: "copilot", Package: "@github/copilot", Tested: "1.0.102",
		Logins: []agent.Login{
			{Credential: "openai", Variables: []string{"OPENAI_API_KEY"}, Allow: []string{"@openai"}, Reads: reads},
			{Credential: "anthropic", Variables: []string{"ANTHROPIC_API_KEY"}, Allow: []string{"@anthropic"}, Reads: reads},
		},
		Memory: ".copilot/copilot-instructions.md",
	}
}

// Command implements agent.Adapter.
func (Adapter) Command(s agent.Start) ([]string, error) {
	if err := agent.Refuse("Copilot CLI", s.Args, "--allow-all", "--allow-all-tools", "--allow-all-paths", "--allow-all-urls", "--yolo", "--connect"); err != nil {
		return nil, err
	}
	argv := []string{"copilot"}
	if !s.Asks {
		argv = append(argv, "--yolo")
	}
	if s.Continue {
		argv = append(argv, "--continue")
	}
	if s.Prompt != "" {
		argv = append(argv, "--prompt="+s.Prompt)
	}
	return append(argv, s.Args...), nil
}

// Env implements agent.Adapter. Offline the program asks its model and nothing else. It has no
// model of its own then: COPILOT_MODEL names one of its catalogue.
func (Adapter) Env(s agent.Start) []string {
	env := []string{"COPILOT_AUTO_UPDATE=false", "COPILOT_OFFLINE=true"}
	if s.Login.Credential == "anthropic" {
		return append(env, "COPILOT_MODEL=claude-sonnet-5", "COPILOT_PROVIDER_BASE_URL="+cmp.Or(s.Base(), "https://api.anthropic.com"), "COPILOT_PROVIDER_TYPE=anthropic")
	}
	base := "https://api.openai.com/v1"
	if s.Model != "" {
		base = s.Versioned()
	}
	return append(env, "COPILOT_MODEL=gpt-5.5", "COPILOT_PROVIDER_BASE_URL="+base, "COPILOT_PROVIDER_WIRE_API=responses")
}

// off reports whether the program leaves alone what the repository configures: without a
// terminal, in a directory that it does not trust. At a terminal it asks whether to trust that.
func off(s agent.Start) bool { return !s.Trusts && s.Prompt != "" }

// Off implements agent.Adapter.
func (Adapter) Off(s agent.Start) []string {
	if !off(s) {
		return nil
	}
	return []string{".claude/settings.json", ".claude/settings.local.json", ".github/hooks", ".github/mcp.json", ".mcp.json"}
}

// Brings implements agent.Adapter. Of its settings none come: they lie in one file with its state.
func (Adapter) Brings() []agent.Bring {
	return []agent.Bring{
		{Kind: agent.Skills, Path: ".copilot/skills/"},
		{Kind: agent.Skills, Path: ".copilot/agents/"},
		{Kind: agent.Memory, Path: ".copilot/copilot-instructions.md", Into: agent.BlendText},
		{Kind: agent.Servers, Path: ".copilot/mcp-config.json", Into: agent.BlendJSON, Take: agent.KeepServers("mcpServers")},
	}
}

// Files implements agent.Adapter: the directory, which is a copy, is trusted. The program writes
// comments above the object, which go.
func (Adapter) Files(s agent.Start) []agent.File {
	return []agent.File{{Path: ".copilot/config.json", Make: func(old []byte) []byte {
		plain := old
		for bytes.HasPrefix(plain, []byte("//")) {
			_, plain, _ = bytes.Cut(plain, []byte("\n"))
		}
		now := agent.Merge(plain, func(conf map[string]any) {
			folders, _ := conf["trustedFolders"].([]any)
			folders = slices.DeleteFunc(folders, func(f any) bool { return f == any(s.Dir) })
			if !off(s) {
				folders = append(folders, s.Dir)
			}
			if conf["trustedFolders"] = folders; len(folders) == 0 {
				delete(conf, "trustedFolders")
			}
		})
		if bytes.Equal(now, plain) {
			return old
		}
		return now
	}}}
}
