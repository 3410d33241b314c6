// Package claude is the adapter of Claude Code, as seen with version 2.1.328 from npm.
package claude

import (
	"bytes"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/agent"
)

// Adapter is Claude Code's. It implements agent.Adapter.
type Adapter struct{}

// About implements agent.Adapter.
func (Adapter) About() agent.About {
	return agent.About{
		Name: "claude", Title: "Claude Code", Program: "claude", Package: "@anthropic-ai/claude-code", Tested: "2.1.328",
		Logins: []agent.Login{{Credential: "anthropic", Variables: []string{"ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"}, Allow: []string{"@anthropic"}, Bearer: "ANTHROPIC_AUTH_TOKEN"}},
		Memory: ".claude/CLAUDE.md",
		// It shows an address for a browser anywhere, and takes the code that the last page there shows.
		Setup: &agent.Setup{Args: []string{"setup-token"}, Allow: []string{"@anthropic-login"}, Credential: "anthropic", Begins: "sk-ant-oat", Least: 80},
	}
}

// settings are for this start alone; what the user's and the repository's files say stays
// as it is. The question about bypassing permissions is for programs outside of a cell.
const settings = `{"skipDangerousModePermissionPrompt":true}`

// Command implements agent.Adapter.
func (Adapter) Command(s agent.Start) ([]string, error) {
	if err := agent.Refuse("Claude Code", s.Args, "--", "--dangerously-skip-permissions", "--allow-dangerously-skip-permissions", "--permission-mode"); err != nil {
		return nil, err
	}
	argv := []string{"claude"}
	if !s.Trusts {
		argv = append(argv, "--setting-sources=user", "--strict-mcp-config")
	}
	if !s.Asks {
		argv = append(argv, "--dangerously-skip-permissions", "--settings", settings)
	}
	if len(s.Servers) > 0 { // those of .claude.json don't count beside --strict-mcp-config
		argv = append(argv, "--mcp-config="+strings.TrimSpace(string(s.Servers)))
	}
	if s.Continue {
		argv = append(argv, "--continue")
	}
	if s.Prompt == "" {
		return append(argv, s.Args...), nil
	}
	return append(append(append(argv, "-p"), s.Args...), "--", s.Prompt), nil
}

// Env implements agent.Adapter. IS_SANDBOX lets root skip permissions.
func (Adapter) Env(s agent.Start) []string {
	env := []string{"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "CLAUDE_CODE_DISABLE_OFFICIAL_MARKETPLACE_AUTOINSTALL=1", "DISABLE_AUTOUPDATER=1", "IS_SANDBOX=1"}
	if s.Model != "" {
		env = append(env, "ANTHROPIC_BASE_URL="+s.Base())
	}
	return env
}

// Off implements agent.Adapter. Skills, commands and agents are texts with commands in them.
func (Adapter) Off(s agent.Start) []string {
	if s.Trusts {
		return nil
	}
	return []string{".claude/agents", ".claude/commands", ".claude/settings.json", ".claude/settings.local.json", ".claude/skills", ".mcp.json"}
}

// Brings implements agent.Adapter. Of the settings what starts programs stays outside (hooks,
// helpers, status lines, plug-ins), and variables.
func (Adapter) Brings() []agent.Bring {
	return []agent.Bring{
		{Kind: agent.Settings, Path: ".claude/settings.json", Into: agent.BlendJSON, Take: agent.Keep("alwaysThinkingEnabled", "attribution", "autoCompactEnabled", "cleanupPeriodDays",
			"effortLevel", "includeCoAuthoredBy", "language", "model", "outputStyle", "permissions.allow", "permissions.ask", "permissions.deny", "prefersReducedMotion",
			"respectGitignore", "showTurnDuration", "spinnerTipsEnabled", "theme")},
		{Kind: agent.Settings, Path: ".claude/output-styles/"},
		{Kind: agent.Skills, Path: ".claude/skills/"},
		{Kind: agent.Skills, Path: ".claude/agents/"},
		{Kind: agent.Commands, Path: ".claude/commands/"},
		{Kind: agent.Memory, Path: ".claude/CLAUDE.md", Into: agent.BlendText},
		{Kind: agent.Memory, Path: ".claude/rules/"},
		{Kind: agent.Servers, Path: ".claude.json", Take: agent.KeepServers("mcpServers"), Argument: true},
	}
}

// Files implements agent.Adapter: .claude.json as it is when the first questions have been
// answered: how the screen looks, whether to use the key of the environment (it is named by its
// last twenty characters), whether to trust the directory, which is a copy.
func (Adapter) Files(s agent.Start) []agent.File {
	files := []agent.File{{Path: ".claude.json", Make: func(old []byte) []byte {
		return agent.Merge(old, func(conf map[string]any) {
			conf["hasCompletedOnboarding"] = true
			if conf["theme"] == nil {
				conf["theme"] = "dark"
			}
			agent.Object(agent.Object(conf, "projects"), s.Dir)["hasTrustDialogAccepted"] = true
			if key := s.Getenv("ANTHROPIC_API_KEY"); key != "" {
				keys := agent.Object(conf, "customApiKeyResponses")
				approved, _ := keys["approved"].([]any)
				if end := any(key[max(0, len(key)-20):]); !slices.Contains(approved, end) {
					keys["approved"] = append(approved, end)
				}
			}
		})
	}}}
	if s.Trusts {
		return files
	}
	// Without the repository's settings its instructions are not read: the user's refer to them.
	return append(files, agent.File{Path: ".claude/CLAUDE.md", Make: func(old []byte) []byte {
		refer := []byte("@" + s.Root + "/CLAUDE.md\n")
		if bytes.Contains(old, refer) {
			return old
		}
		return append(refer, old...)
	}})
}
