// Package opencode is the adapter of opencode, as seen with version 1.18.33 from npm.
package opencode

import (
	"encoding/json"

	"github.com/pando-dev/pando/internal/agent"
)

// Adapter is opencode's. It implements agent.Adapter.
type Adapter struct{}

// About implements agent.Adapter.
func (Adapter) About() agent.About {
	return agent.About{
		Name: "opencode", Title: "opencode", Program: "opencode", Package: "opencode-ai", Tested: "1.18.33",
		Logins: []agent.Login{
			{Credential: "anthropic", Variables: []string{"ANTHROPIC_API_KEY"}, Allow: []string{"@anthropic"}},
			{Credential: "openai", Variables: []string{"OPENAI_API_KEY"}, Allow: []string{"@openai"}},
		},
		Memory: folder + "AGENTS.md",
	}
}

// Command implements agent.Adapter.
func (Adapter) Command(s agent.Start) ([]string, error) {
	if err := agent.Refuse("opencode", s.Args, "--", "--auto", "--attach"); err != nil {
		return nil, err
	}
	argv := []string{"opencode"}
	if s.Prompt != "" {
		argv = append(argv, "run")
	}
	if !s.Asks {
		argv = append(argv, "--auto")
	}
	if s.Continue {
		argv = append(argv, "--continue")
	}
	argv = append(argv, s.Args...)
	if s.Prompt != "" {
		argv = append(argv, "--", s.Prompt)
	}
	return argv, nil
}

// Env implements agent.Adapter. Without the list of models from outside the program has the one
// that it was built with.
func (Adapter) Env(s agent.Start) []string {
	env := []string{"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_LSP_DOWNLOAD=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_SHARE=1"}
	if !s.Trusts {
		env = append(env, "OPENCODE_DISABLE_PROJECT_CONFIG=1")
	}
	if s.Model != "" {
		conf, _ := json.Marshal(map[string]any{"provider": map[string]any{s.Login.Credential: map[string]any{"options": map[string]any{"baseURL": s.Versioned()}}}})
		env = append(env, "OPENCODE_CONFIG_CONTENT="+string(conf))
	}
	return env
}

// Off implements agent.Adapter.
func (Adapter) Off(s agent.Start) []string {
	if s.Trusts {
		return nil
	}
	return []string{".opencode", "opencode.json", "opencode.jsonc"}
}

// folder is where the program looks for plugins of the user's.
const folder = ".config/opencode/"

// Brings implements agent.Adapter. The program takes both names of its folders.
func (Adapter) Brings() []agent.Bring {
	return []agent.Bring{
		{Kind: agent.Settings, Path: folder + "opencode.json", Into: agent.BlendJSON, Take: agent.Keep("default_agent", "keybinds", "layout", "model", "small_model", "theme", "tui", "username")},
		{Kind: agent.Settings, Path: folder + "themes/"},
		{Kind: agent.Skills, Path: folder + "skill/"},
		{Kind: agent.Skills, Path: folder + "skills/"},
		{Kind: agent.Skills, Path: folder + "agent/"},
		{Kind: agent.Skills, Path: folder + "agents/"},
		{Kind: agent.Commands, Path: folder + "command/"},
		{Kind: agent.Commands, Path: folder + "commands/"},
		{Kind: agent.Memory, Path: folder + "AGENTS.md", Into: agent.BlendText},
		{Kind: agent.Servers, Path: folder + "opencode.json", Into: agent.BlendJSON, Take: agent.KeepServers("mcp")},
	}
}

// Files implements agent.Adapter. Without the repository's configuration its instructions are
// read as those of the user. At each start the program installs a package for plugins of the
// user's from npm, unless a folder of modules is there and the lock file names that package.
func (Adapter) Files(s agent.Start) []agent.File {
	files := []agent.File{
		{Path: folder + "node_modules/.pando", Make: func(old []byte) []byte {
			if old != nil {
				return old
			}
			return []byte("made by pando: opencode installs nothing here at its start\n")
		}},
		{Path: folder + "package-lock.json", Make: func(old []byte) []byte {
			return agent.Merge(old, func(lock map[string]any) {
				if lock["lockfileVersion"] == nil {
					lock["lockfileVersion"] = 3
				}
				all := agent.Object(agent.Object(agent.Object(lock, "packages"), ""), "dependencies")
				if all["@opencode-ai/plugin"] == nil {
					all["@opencode-ai/plugin"] = "*"
				}
			})
		}},
	}
	if !s.Trusts {
		files = append(files, agent.File{Path: folder + "AGENTS.md", Link: s.Root + "/AGENTS.md"})
	}
	return files
}
