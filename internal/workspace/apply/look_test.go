package apply

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// X6: files that run by themselves, whichever tool runs them, are control
// paths; what looks alike and is plain data is not.
func TestX06FilesThatRunByThemselves(t *testing.T) {
	namedCase{
		held: `.hg/hgrc .hgrc sub/.hg/hgrc .jj/repo/config.toml .sl/config .svn/wc.db CVS/Root _darcs/prefs/prefs .bzr/branch/branch.conf .fslckout
			rust-toolchain rust-toolchain.toml crates/x/rust-toolchain.toml .cargo/config.toml global.json
			mise.toml .mise.toml mise/config.toml .config/mise.toml .config/mise/conf.d/x.toml .mise/tasks/x mise.local.toml .tool-versions
			.envrc .direnv/bin/x .env .shadowenv.d/x.lisp devbox.json flake.nix flake.lock shell.nix default.nix devenv.nix
			.bazelrc .bazelversion tools/bazel .bazeliskrc .buckconfig .watchmanconfig
			.yarnrc .yarnrc.yml .yarn/releases/yarn.cjs .yarn/plugins/x.cjs .pnp.cjs .pnpmfile.cjs .pnpmfile.mjs pnpm-workspace.yaml .npmrc bunfig.toml
			gradle/wrapper/gradle-wrapper.properties .mvn/extensions.xml .sbtopts .pythonrc.py .ipython/x.py lib/site-packages/x.pth sitecustomize.py pyvenv.cfg
			.git-hooks/x hk.pkl lint-staged.config.js .vscode/settings.json .clangd .bsp/x.json .exrc x.desktop autorun.inf
			hie.yaml buildServer.json sub/buildServer.json .sourcekit-lsp/config.json .lsp/config.edn .clojure-lsp/config.edn kls-classpath kotlinLspClasspath.sh config.nims latexmkrc .latexmkrc`,
		free: `Makefile package.json Cargo.toml go.mod README.md .nvmrc .gitignore .editorconfig rust-toolchain.md tools/x mise.go flake.py docs/default.txt yarn/x cvs/parse.go
			hg/x model.pth bazel/x svn.go .github/CODEOWNERS gradle/libs.versions.toml env/x`,
	}.check(t)
}

// X6: what files that run by themselves name runs with them.
func TestX06NamedByFilesThatRunByThemselves(t *testing.T) {
	for name, c := range map[string]namedCase{
		"rustup":      {host: wt.Model{"src/rust-toolchain.toml": wt.Plain("[toolchain]\npath = \"vendor/rust\"\n")}, held: "vendor/rust/bin/rustc", free: "vendor/x"},
		"rustup-bare": {host: wt.Model{"src/a/rust-toolchain.toml": wt.Plain("[toolchain]\npath = \"rust\"\n")}, held: "a/rust/bin/rustc", free: "a/x"},
		"rustup-abs":  {host: wt.Model{"src/rust-toolchain": wt.Plain("[toolchain]\npath = 'SRC/rust'\n")}, held: "rust/bin/cargo"},
		"cargo":       {host: wt.Model{"src/.cargo/config.toml": wt.Plain("[build]\nrustc-wrapper = \"tools/wrap.sh\"\n[target.x]\nrunner = [\"sh\", \"tools/run\"]\n")}, held: "tools/wrap.sh tools/run", free: "tools/x"},
		"cargo-home":  {host: wt.Model{"home/.cargo/config.toml": wt.Plain("[build]\nrustc-wrapper = 'SRC/wrap'\n")}, held: "wrap", free: "x"},
		"direnv":      {host: wt.Model{"src/.envrc": wt.Plain("source_env conf/env\nPATH_add bin\nwatch_file package.json\n# docs/x\n")}, held: "conf/env bin/ls", free: "package.json docs/x"},
		"mise":        {host: wt.Model{"src/.mise.toml": wt.Plain("[env]\n_.path = ['bin']\n_.source = './conf/e.sh'\n[tools]\nnode = 'path:./n'\n")}, held: "bin/ls conf/e.sh n/bin/node", free: "x"},
		"hg":          {host: wt.Model{"src/.hg/hgrc": wt.Plain("[hooks]\nupdate = ./tools/up\n[extensions]\nx = tools/x.py\n")}, base: wt.Model{}, held: "tools/up tools/x.py", free: "tools/y"},
		"hg-home":     {host: wt.Model{"home/.hgrc": wt.Plain("[hooks]\nupdate = python:SRC/tools/up.py:f\n")}, held: "tools/up.py", free: "tools/y"},
		"jj-home":     {host: wt.Model{"home/.config/jj/config.toml": wt.Plain("[ui]\neditor = 'SRC/tools/e'\n")}, held: "tools/e", free: "tools/y"},
		"yarn":        {host: wt.Model{"src/.yarnrc.yml": wt.Plain("yarnPath: scripts/yarn.cjs\nplugins:\n  - path: scripts/plugin.cjs\n  - scripts/p2.cjs\n")}, held: "scripts/yarn.cjs scripts/plugin.cjs scripts/p2.cjs", free: "scripts/x.cjs"},
		"pnpm":        {host: wt.Model{"src/pnpm-workspace.yaml": wt.Plain("packages:\n  - 'packages/*'\npnpmfile: conf/hooks.cjs\n")}, held: "conf/hooks.cjs", free: "packages/a/index.js"},
		"npmrc":       {host: wt.Model{"src/.npmrc": wt.Plain("pnpmfile=conf/hooks.cjs\nnode-options=--require=./conf/r.js\nscript-shell=tools/sh\n")}, held: "conf/hooks.cjs conf/r.js tools/sh", free: "conf/x"},
		"bazel":       {host: wt.Model{"src/.bazelrc": wt.Plain("import %workspace%/conf/bazel.rc\ntry-import conf/b.rc\n")}, held: "conf/bazel.rc conf/b.rc", free: "conf/x"},
		"nix":         {host: wt.Model{"src/flake.nix": wt.Plain("{ outputs = _: import ./nix/shell.nix; }\n")}, held: "nix/shell.nix", free: "nix/x"},
		"pre-commit":  {host: wt.Model{"src/.pre-commit-config.yaml": wt.Plain("- repo: local\n  hooks:\n  - entry: ./scripts/lint.sh\n")}, held: "scripts/lint.sh", free: "scripts/x"},
		"husky":       {host: wt.Model{"src/.husky/pre-commit": wt.Plain("sh scripts/check\n")}, held: "scripts/check", free: "scripts/x"},
		"tasks":       {host: wt.Model{"src/p/.vscode/tasks.json": wt.Plain(`{"tasks":[{"command":"${workspaceFolder}/tools/t.sh","runOptions":{"runOn":"folderOpen"}}]}`)}, held: "p/tools/t.sh", free: "p/tools/x"},
		"claude":      {host: wt.Model{"src/.claude/settings.json": wt.Plain(`{"hooks":{"Stop":[{"hooks":[{"command":"\"$CLAUDE_PROJECT_DIR\"/tools/h.py"}]}]}}`)}, held: "tools/h.py", free: "tools/x"},
		"launch":      {host: wt.Model{"src/.vscode/launch.json": wt.Plain(`{"program":"${workspaceFolder}/src/index.js"}`)}, free: "src/index.js"},
		"prose":       {host: wt.Model{"src/.claude/commands.md": wt.Plain("edit src/index.js\n")}, free: "src/index.js"},
		"left-out":    {host: wt.Model{"src/.npmrc": wt.Plain("pnpmfile=conf/hooks.cjs\n")}, held: "conf/hooks.cjs"},
	} {
		t.Run(name, func(t *testing.T) { c.check(t) })
	}
}

// X6: what is executable, hidden, or configuration of tools that act when a
// folder is opened is looked at first, and waits when that is asked for.
func TestX06LookAtTheseFirst(t *testing.T) {
	base := wt.Model{"a.go": wt.Plain("1"), "run": wt.Script("1"), "becomes": wt.Plain("1"), "gone": wt.Script("1"), "stays": wt.Script("1"), ".hidden": wt.Plain("1"), ".same": wt.Plain("1"), "no-more": wt.Script("1")}
	after := maps.Clone(base)
	delete(after, "gone")
	for p, f := range map[string]wt.Thing{"a.go": wt.Plain("2"), "run": wt.Script("2"), "becomes": wt.Script("1"), "new": wt.Script("1"), ".hidden": wt.Plain("2"), "d/.x/y/z": wt.Plain("1"), "eslint.config.js": wt.Plain("1"),
		".envrc": wt.Plain("1"), "no-more": wt.Plain("1"), "plain.txt": wt.Plain("1"), "no/build.rs": wt.Plain("1"), "tool/fsm": wt.Plain("1")} {
		after[p] = f
	}
	for _, p := range []string{"1", "2", "3"} {
		after[".github/workflows/"+p+".yml"] = wt.Plain("1")
	}
	dir := sourceOf(t, base)
	repository("", "[core]\n\tfsmonitor = tool/fsm").Write(t, dir)
	req := applyRequest(t, dir, base, after)
	review, err := reviewOf(&req)
	list := review.First
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range list {
		got = append(got, l.Path+": "+l.Why)
	}
	want := []string{".envrc: shells and version managers load it when a folder is entered", ".github/workflows/: CI runs it, often with secrets", ".hidden: it is hidden", "becomes: it becomes executable",
		"d/.x/y/z: it is hidden", "eslint.config.js: editors and checks load it, and it may name programs or be one", "new: it becomes executable", "no/build.rs: editors and checks load it, and it may name programs or be one",
		"run: it is executable", "tool/fsm: git's configuration names it (core.fsmonitor)"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	heldIn := func(strict bool) string {
		req := applyRequest(t, dir, base, after)
		req.Strict, req.DryRun = strict, true
		res, err := doOne(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		var held []string
		for _, h := range res.Held {
			held = append(held, h.Path)
		}
		return strings.Join(held, " ")
	}
	const controls = ".github/workflows/1.yml .github/workflows/2.yml .github/workflows/3.yml"
	if diff := cmp.Diff(".envrc "+controls+" tool/fsm", heldIn(false)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(".envrc "+controls+" .hidden becomes d/.x/y/z eslint.config.js new no/build.rs run tool/fsm", heldIn(true)); diff != "" {
		t.Error(diff)
	}
	// By name it comes all the same.
	req = applyRequest(t, dir, base, after)
	req.Strict, req.Include = true, []string{"run", ".hidden"}
	res := mustApply(t, req)
	var applied []string
	for _, c := range res.Applied {
		applied = append(applied, c.Path)
	}
	if diff := cmp.Diff([]string{".hidden", "a.go", "gone", "no-more", "plain.txt", "run"}, applied); diff != "" {
		t.Error(diff)
	}
	if len(res.UnusedInclude) > 0 {
		t.Errorf("unused: %v", res.UnusedInclude)
	}
}
