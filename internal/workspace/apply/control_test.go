package apply

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/workspace/diff"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// F62, F63: every control path waits for --include, also when it did not
// exist before; the rest is applied.
func TestF62ApplyHoldsControlPaths(t *testing.T) {
	base := wt.Model{"main.go": wt.Plain("1")}
	controls := []string{".githooks/pre-commit", ".husky/_/h", ".HUSKY/x", ".gitattributes", "sub/.gitmodules", ".gitconfig", ".pre-commit-config.yaml", "lefthook.yml",
		".vscode/tasks.json", "pkg/.vscode/settings.json", "x.code-workspace", ".idea/x.xml", ".vim/x", ".exrc", ".nvim.lua", ".zed/tasks.json", ".dir-locals.el",
		".claude/settings.json", "CLAUDE.md", "sub/AGENTS.md", ".mcp.json", ".cursor/mcp.json", ".cursorrules", ".codex/config.toml", ".gemini/x", ".github/copilot-instructions.md", ".aider.conf.yml",
		".github/workflows/ci.yml", ".GitHub/Workflows/ci.yml", ".gitlab-ci.yml", ".circleci/config.yml", "Jenkinsfile", "azure-pipelines.yml", ".buildkite/x.sh", ".travis.yml", ".drone.yml",
		".envrc", ".direnv/x", ".tool-versions", ".mise.toml", "mise.local.toml", ".bashrc", ".devcontainer/devcontainer.json", ".devcontainer.json", ".gdbinit", ".Rprofile", ".ssh/authorized_keys", "pando.yaml",
		".vscode ./x", "CLAUDE~1", ".v\u200bscode/tasks.json", `x\.vscode\tasks.json`}
	ordinary := []string{"Makefile", "package.json", ".editorconfig", ".gitignore", ".github/CODEOWNERS", ".github/ISSUE_TEMPLATE/x.md", "vscode/x", "claude.go", "docs/agents.txt", ".nvmrc", "backup~", "file.~1~", "mise.go", "hooks/useState.ts", ".env.example"}
	after := base
	for _, p := range append(controls, ordinary...) {
		after = after.With(p, wt.Plain("new "+p))
	}
	dir := sourceOf(t, base)
	res := mustApply(t, applyRequest(t, dir, base, after))
	held := map[string]Held{}
	for _, h := range res.Held {
		held[h.Path] = h
	}
	for _, p := range controls {
		if h := held[p]; h.Why == "" || h.Flag != "--include "+diff.ShellWord(p) {
			t.Errorf("%q is not held: %+v", p, h)
		}
		if _, err := os.Lstat(filepath.Join(dir, p)); err == nil {
			t.Errorf("%q was written", p)
		}
	}
	for _, p := range ordinary {
		if b, err := os.ReadFile(filepath.Join(dir, p)); err != nil || string(b) != "new "+p {
			t.Errorf("%q was not applied: %v, %+v", p, err, held[p])
		}
	}
	// The same once more with some included: these come, the others stay.
	req := applyRequest(t, dir, base, after)
	req.Include = []string{".vscode", "./CLAUDE.md", ".github/workflows/", "nonsense", ".vs"}
	res = mustApply(t, req)
	var got []string
	for _, c := range res.Applied {
		got = append(got, c.Path)
	}
	if diff := cmp.Diff([]string{".github/workflows/ci.yml", ".vscode/tasks.json", "CLAUDE.md"}, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"nonsense", ".vs"}, res.UnusedInclude); diff != "" {
		t.Error(diff)
	}
	// What is there by now is no more held back.
	req.Include = nil
	res = mustApply(t, req)
	if len(res.Applied) != 0 || len(res.Held) != len(controls)-3 || len(res.Already) != len(ordinary)+3 {
		t.Errorf("applied %d, held %d, already %q", len(res.Applied), len(res.Held), res.Already)
	}
}

// Changed and removed control paths are held too, and with them what would
// replace the folder they are in.
func TestF62ApplyHoldsWhatReplacesControlPaths(t *testing.T) {
	base := wt.Model{"p/.vscode/tasks.json": wt.Plain("1"), "p/x": wt.Plain("1"), ".envrc": wt.Plain("1"), "q/x": wt.Plain("1")}
	dir := sourceOf(t, base)
	before := snapshotOf(t, dir)
	res := mustApply(t, applyRequest(t, dir, base, wt.Model{"p": wt.Plain("file"), "q/x": wt.Plain("1")}))
	var got []string
	for _, h := range res.Held {
		got = append(got, h.Path+": "+h.Flag)
	}
	if diff := cmp.Diff([]string{".envrc: --include .envrc", "p: --include p", "p/.vscode/tasks.json: --include p/.vscode/tasks.json", "p/x: --include p"}, got); diff != "" {
		t.Error(diff)
	}
	unchanged(t, dir, before)
	req := applyRequest(t, dir, base, wt.Model{"p": wt.Plain("file"), "q/x": wt.Plain("1")})
	req.Include = []string{"p"}
	mustApply(t, req)
	if got := wt.Read(t, dir); got["p"].Text != "file" || got[".envrc"].Text != "1" {
		t.Errorf("%v", got)
	}
}

// F64: a control path that is a symlink makes what it leads to one, and so
// does the source's own core.hooksPath.
func TestF64ApplyControlPathsBehindLinks(t *testing.T) {
	base := wt.Model{".vscode": wt.Link("tools/code"), "tools/code/tasks.json": wt.Plain("1"), ".github/workflows": wt.Link("../ci"), "ci/x.yml": wt.Plain("1"),
		"CLAUDE.md": wt.Link("docs/agent.md"), "docs/agent.md": wt.Plain("1"), "docs/x": wt.Plain("1"), "scripts/git/x": wt.Plain("1")}
	after := wt.Model{}
	for p, f := range base {
		if f.Link == "" {
			f.Text = "2"
		}
		after[p] = f
	}
	after = after.With(".idea", wt.Link("new")).With("new/workspace.xml", wt.Plain("1"))
	dir := sourceOf(t, base.With(".git/HEAD", wt.Plain("ref: refs/heads/main\n")).With(".git/objects", wt.Thing{Folder: true}).With(".git/refs", wt.Thing{Folder: true}).
		With(".git/config", wt.Plain("[core]\n\thooksPath = scripts/git\n")))
	res := mustApply(t, applyRequest(t, dir, base, after))
	var held, applied []string
	for _, h := range res.Held {
		held = append(held, h.Path)
	}
	for _, c := range res.Applied {
		applied = append(applied, c.Path)
	}
	if diff := cmp.Diff([]string{".idea", "ci/x.yml", "docs/agent.md", "new/workspace.xml", "scripts/git/x", "tools/code/tasks.json"}, held); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"docs/x"}, applied); diff != "" {
		t.Error(diff)
	}
}

// Symlinks are judged by where they lead, other symlinks on the way included.
func TestApplyJudgesLinks(t *testing.T) {
	base := wt.Model{"d/e/f": wt.Plain("1"), "up": wt.Link("."), "d/e/top": wt.Link("../..")}
	for target, ok := range map[string]bool{
		"d/e/f": true, "d/../d/e": true, "nowhere/at/all": true, "up/d": true, "d/e/top/d": true,
		"..": false, "/etc": false, "d/../../x": false, "d/e/top/../x": false, "up/..": false, "nowhere/../../x": false, "l": false, ".git/hooks": false, "d/.GIT/x": false,
	} {
		dir := sourceOf(t, base)
		res := mustApply(t, applyRequest(t, dir, base, base.With("l", wt.Link(target))))
		if (len(res.Held) == 0) != ok {
			t.Errorf("%s: held %+v", target, res.Held)
		}
	}
}
