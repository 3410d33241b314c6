package engine

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/agent/codex"
	"github.com/pando-dev/pando/internal/agent/copilot"
)

// What a program at a terminal has no switch for runs, and is not named as off. Of a folder of which a part
// is off the rest is named.
func TestWhatTheRepositoryConfigures(t *testing.T) {
	for _, c := range []struct {
		what      string
		of        agent.Adapter
		start     agent.Start
		files     []string
		off, runs []string
	}{
		{"copilot at a terminal", copilot.Adapter{}, agent.Start{}, []string{".github/hooks/x", ".mcp.json", "f"}, nil, []string{".github/hooks", ".mcp.json"}},
		{"copilot with a task", copilot.Adapter{}, agent.Start{Prompt: "x"}, []string{".github/hooks/x", ".mcp.json"}, []string{".github/hooks", ".mcp.json"}, nil},
		{"copilot with trust", copilot.Adapter{}, agent.Start{Trusts: true}, []string{".mcp.json"}, nil, nil},
		{"copilot with nothing", copilot.Adapter{}, agent.Start{}, []string{".github/f"}, nil, nil},
		{"codex at a terminal", codex.Adapter{}, agent.Start{}, []string{".codex/config.toml", ".codex/hooks.json"}, []string{".codex/hooks.json"}, []string{".codex/config.toml"}},
		{"codex with hooks alone", codex.Adapter{}, agent.Start{}, []string{".codex/hooks.json"}, []string{".codex/hooks.json"}, nil},
		{"codex with a link", codex.Adapter{}, agent.Start{}, []string{".codex"}, nil, []string{".codex"}},
		{"codex with a task", codex.Adapter{}, agent.Start{Prompt: "x"}, []string{".codex/config.toml"}, []string{".codex"}, nil},
	} {
		tree := fstest.MapFS{}
		for _, f := range c.files {
			tree[f] = &fstest.MapFile{}
		}
		off, runs := configures(c.of, c.start, func(dir string) (names []string) {
			entries, _ := fs.ReadDir(tree, dir)
			for _, e := range entries {
				names = append(names, e.Name())
			}
			return names
		})
		if !slices.Equal(off, c.off) || !slices.Equal(runs, c.runs) {
			t.Errorf("%s: off are %q, and %q run", c.what, off, runs)
		}
	}
}

// The version of a program is in its package of npm, or in the name of its folder. Nothing else is one.
func TestPackageVersion(t *testing.T) {
	dir := t.TempDir()
	put := func(at, text string) string {
		at = filepath.Join(dir, at)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return at
	}
	put("lib/package.json", `{"name":"@a/tool","version":"1.2.3-rc.1"}`)
	put("lib/vendor/package.json", `{"name":"other","version":"9.9.9"}`)
	link := filepath.Join(dir, "tool")
	if err := os.Symlink(put("lib/vendor/bin/tool.js", ""), link); err != nil {
		t.Fatal(err)
	}
	put("bad/package.json", `{"name":"@a/tool","version":"1.2 \u001b[31m"}`)
	for at, want := range map[string]string{
		link:                                  "1.2.3-rc.1",
		put("share/tool/versions/4.5.6", ""):  "4.5.6",
		put("share/tool/versions/latest", ""): "",
		put("bad/tool", ""):                   "",
		put("alone/tool", ""):                 "",
		filepath.Join(dir, "gone"):            "",
	} {
		if got := packageVersion(at, "@a/tool"); got != want {
			t.Errorf("%s: %q, not %q", at, got, want)
		}
	}
}
