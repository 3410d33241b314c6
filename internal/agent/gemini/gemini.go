// Package gemini is the adapter of Google's Gemini CLI, as seen with version 0.61.0 from npm.
package gemini

import (
	"strings"

	"github.com/pando-dev/pando/internal/agent"
)

// Adapter is Gemini CLI's. It implements agent.Adapter.
type Adapter struct{}

// About implements agent.Adapter.
func (Adapter) About() agent.About {
	return agent.About{
		Name: "gemini", Title: "Gemini CLI", Program: "gemini", Package: "@google/gemini-cli", Tested: "0.61.0",
		Logins: []agent.Login{
			{Credential: "google", Variables: []string{"GOOGLE_CLOUD_ACCESS_TOKEN"}, Allow: []string{"@gemini-code-assist"}, Account: true},
			{Credential: "gemini", Variables: []string{"GEMINI_API_KEY"}, Allow: []string{"@gemini"}},
		},
		Memory: ".gemini/GEMINI.md",
	}
}

// Command implements agent.Adapter.
func (Adapter) Command(s agent.Start) ([]string, error) {
	if err := agent.Refuse("Gemini CLI", s.Args, "--yolo", "-y", "--approval-mode", "--sandbox", "-s"); err != nil {
		return nil, err
	}
	argv := []string{"gemini"}
	if !s.Trusts { // it asks nothing, and has read its settings by then
		argv = append(argv, "--skip-trust")
	}
	if !s.Asks {
		argv = append(argv, "--yolo")
	}
	if s.Continue {
		argv = append(argv, "--resume", "latest")
	}
	if s.Prompt != "" {
		argv = append(argv, "--prompt="+s.Prompt)
	}
	return append(argv, s.Args...), nil
}

// Env implements agent.Adapter. With both of the variables that the credential sets, the
// program says which it takes; it is started anew by itself, which takes a second, unless told not to.
func (Adapter) Env(s agent.Start) []string {
	env := []string{"GEMINI_CLI_NO_RELAUNCH=true"}
	if s.Trusts {
		env = append(env, "GEMINI_CLI_TRUST_WORKSPACE=true")
	}
	if s.Login.Account { // it takes the token of the variable, and looks for no file
		env = append(env, "GOOGLE_GENAI_USE_GCA=true")
	}
	if s.Model != "" {
		env = append(env, "GOOGLE_GEMINI_BASE_URL="+strings.TrimRight(s.Model, "/"))
	}
	return env
}

// Off implements agent.Adapter. Variables of .gemini/.env are read, and commands that the user
// types run what .gemini/commands says.
func (Adapter) Off(s agent.Start) []string {
	if s.Trusts {
		return nil
	}
	return []string{".gemini/settings.json"}
}

// Brings implements agent.Adapter.
func (Adapter) Brings() []agent.Bring {
	return []agent.Bring{
		{Kind: agent.Settings, Path: ".gemini/settings.json", Into: agent.BlendJSON, Take: agent.Keep("context.fileName", "context.loadMemoryFromIncludeDirectories",
			"general.checkpointing", "general.vimMode", "model.compressionThreshold", "model.maxSessionTurns", "model.name", "output", "ui")},
		{Kind: agent.Skills, Path: ".gemini/skills/"},
		{Kind: agent.Skills, Path: ".gemini/agents/"},
		{Kind: agent.Commands, Path: ".gemini/commands/"},
		{Kind: agent.Memory, Path: ".gemini/GEMINI.md", Into: agent.BlendText},
		{Kind: agent.Servers, Path: ".gemini/settings.json", Into: agent.BlendJSON, Take: agent.KeepServers("mcpServers")},
	}
}

// Files implements agent.Adapter.
func (Adapter) Files(s agent.Start) []agent.File {
	by := "gemini-api-key"
	if s.Login.Account {
		by = "oauth-personal"
	}
	return []agent.File{{Path: ".gemini/settings.json", Make: func(old []byte) []byte {
		return agent.Merge(old, func(conf map[string]any) {
			agent.Object(agent.Object(conf, "security"), "auth")["selectedType"] = by
			agent.Object(conf, "privacy")["usageStatisticsEnabled"] = false
			general := agent.Object(conf, "general")
			general["enableAutoUpdate"], general["enableAutoUpdateNotification"] = false, false
		})
	}}}
}
