package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A hostile is a repository in which every file that git, or a tool beside it, would execute is
// a canary. Each writes its name into fired.
type hostile struct {
	*host
	fired string
	git   string // the real one
}

// hostileConfig names a program wherever git's config may name one.
const hostileConfig = `[core]
	repositoryformatversion = 0
	bare = false
	fsmonitor = %[1]s fsmonitor
	hooksPath = %[2]s/hooks
	sshCommand = %[1]s ssh
	pager = %[1]s pager
	editor = %[1]s editor
	askPass = %[1]s askpass
	gitProxy = %[1]s proxy
	attributesFile = %[2]s/attributes
[pager]
	diff = %[1]s pager-diff
[sequence]
	editor = %[1]s sequence
[diff]
	external = %[1]s external
[diff "canary"]
	textconv = %[1]s textconv
	command = %[1]s diff-command
[filter "canary"]
	clean = %[1]s clean
	smudge = %[1]s smudge
	process = %[1]s process
	required = true
[merge "canary"]
	driver = %[1]s merge
[mergetool "canary"]
	cmd = %[1]s mergetool
[gpg]
	program = %[1]s gpg
[gpg "ssh"]
	program = %[1]s gpg-ssh
[commit]
	gpgSign = true
[credential]
	helper = "!%[1]s credential"
[alias]
	status = !%[1]s alias-status
	diff = !%[1]s alias-diff
	apply = !%[1]s alias-apply
	ls-files = !%[1]s alias-ls-files
[include]
	path = %[2]s/included
[uploadpack]
	packObjectsHook = %[1]s upload
[remote "origin"]
	url = ext::%[1]s remote
	uploadpack = %[1]s remote-upload
[protocol "ext"]
	allow = always
[submodule "sub"]
	url = ext::%[1]s submodule
	update = !%[1]s submodule-update
[trailer "canary"]
	command = %[1]s trailer
[web]
	browser = %[1]s browser
[maintenance]
	auto = true
`

var hookNames = []string{"applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit", "prepare-commit-msg", "commit-msg", "post-commit", "pre-rebase",
	"post-checkout", "post-merge", "pre-push", "pre-receive", "update", "post-receive", "post-update", "reference-transaction", "push-to-checkout", "pre-auto-gc", "post-rewrite", "fsmonitor-watchman", "post-index-change"}

func newHostile(t *testing.T) *hostile {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("needs git")
	}
	h := &hostile{host: newHost(t), git: git}
	h.fired = filepath.Join(h.work, "fired")
	canary := filepath.Join(h.work, "canary")
	h.writeAt(canary, "#!/bin/sh\necho \"$1 $0\" >> "+h.fired+"\nexit 0\n")
	h.must(os.Chmod(canary, 0o755))
	h.sh(`git init -q . && echo one > tracked && mkdir dir && echo two > dir/file && echo three > conflict && git add -A && git commit -q -m first
git init -q nested && (cd nested && echo n > n && git add -A && git commit -q -m n)
git init -q --bare bare.git
git worktree add -q ../linked 2>/dev/null; true`)
	program := func(path string) {
		h.writeAt(path, "#!/bin/sh\nexec "+canary+" \"${0##*/}\"\n")
		h.must(os.Chmod(path, 0o755))
	}
	// The repository, one nested in it, a bare one, and what the config includes.
	for _, git := range []string{".git", "nested/.git", "bare.git"} {
		dir := filepath.Join(h.src, git)
		h.writeAt(filepath.Join(dir, "config"), fmt.Sprintf(hostileConfig, canary, dir))
		h.writeAt(filepath.Join(dir, "included"), "[alias]\n\tlog = !"+canary+" included\n[core]\n\tfsmonitor = "+canary+" included-fsmonitor\n")
		h.writeAt(filepath.Join(dir, "info/attributes"), "* filter=canary diff=canary merge=canary\n")
		for _, n := range hookNames {
			program(filepath.Join(dir, "hooks", n))
		}
	}
	h.write(".gitattributes", "* filter=canary diff=canary merge=canary\n")
	h.write(".gitmodules", "[submodule \"sub\"]\n\tpath = nested\n\turl = ext::"+canary+" gitmodules\n\tupdate = !"+canary+" gitmodules-update\n")
	h.write("nested/.gitattributes", "* filter=canary diff=canary merge=canary\n")
	// Tools that read a project's files, and programs that bear their names.
	h.write(".envrc", canary+" envrc\n")
	h.write(".mise.toml", "[hooks]\nenter = \""+canary+" mise\"\n[env]\n_.source = \"x.sh\"\n")
	h.write(".tool-versions", "node 20\ngo 1.99\n")
	h.write(".nvmrc", "$("+canary+" nvmrc)\n")
	h.write(".python-version", "`"+canary+" pyver`\n")
	h.write("go.mod", "module x\n\ngo 1.99\n\ntoolchain go1.99.1\n\nreplace y => ../y\n")
	h.write("package.json", `{"scripts":{"preinstall":"`+canary+` npm","test":"`+canary+` npm-test"}}`)
	h.write("pyproject.toml", "[tool.uv]\n[build-system]\nrequires = []\n")
	h.write("conftest.py", "import os\nos.system('"+canary+" conftest')\n")
	h.write("sitecustomize.py", "import os\nos.system('"+canary+" sitecustomize')\n")
	h.write("Makefile", "$(shell "+canary+" make)\nall:\n")
	h.write("rust-toolchain.toml", "[toolchain]\npath = \"./tools\"\n")
	h.write(".hg/hgrc", "[hooks]\nupdate = "+canary+" hg\n[extensions]\nx = !"+canary+" hg-extension\n")
	h.write(".hg/requires", "store\n")
	h.write(".jj/repo/config.toml", "[ui]\npager = '"+canary+"'\nfsmonitor.backend = 'watchman'\n")
	h.write(".sl/config", "[hooks]\nupdate = "+canary+" sl\n")
	h.write(".svn/entries", "12\n")
	h.write(".cargo/config.toml", "[build]\nrustc-wrapper = \""+canary+"\"\n")
	h.write(".bazelrc", "import %%workspace%%/more.bazelrc\n")
	h.write(".yarnrc.yml", "yarnPath: ./yarn.cjs\nplugins:\n  - ./plugin.cjs\n")
	h.write(".pnpmfile.cjs", "require('child_process').execSync('"+canary+" pnpm')\n")
	h.write(".npmrc", "script-shell="+canary+"\nnode-options=--require=./yarn.cjs\n")
	h.write("yarn.cjs", "require('child_process').execSync('"+canary+" yarn')\n")
	h.write("flake.nix", "{ outputs = _: builtins.exec [\""+canary+"\" \"nix\"]; }\n")
	h.write("devbox.json", `{"shell":{"init_hook":["`+canary+` devbox"]}}`)
	h.write(".vscode/tasks.json", `{"tasks":[{"command":"`+canary+` task","runOptions":{"runOn":"folderOpen"}}]}`)
	h.write("build.rs", "fn main() { std::process::Command::new(\""+canary+"\").status(); }\n")
	for _, p := range []string{"tools/bazel", "yarn", "pnpm", "hg", "jj", "sl", "svn", "rustc", "nix", "mise", "direnv", "bazel", "git", "sh", "go", "node", "python3", "cargo", "mke2fs", "tar", "ssh", "gpg", "less", "pager", "tools/bin/rustc", "node_modules/.bin/git", ".venv/bin/python3", ".venv/bin/git"} {
		program(filepath.Join(h.src, p))
	}
	h.write(".venv/pyvenv.cfg", "home = "+h.src+"/tools/bin\n")
	// A git of the host's that tells when it is executed, before the real one;
	// and, last on PATH, the project itself.
	program(filepath.Join(h.work, "bin", "git"))
	h.env = append(h.env, "PATH="+filepath.Join(h.work, "bin")+":"+filepath.Dir(h.bin)+":"+os.Getenv("PATH")+":.:"+h.src+":"+h.src+"/node_modules/.bin",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=core.fsmonitor", "GIT_CONFIG_VALUE_0="+canary+" env", "GIT_EXTERNAL_DIFF="+canary+" env-diff", "GIT_PAGER="+canary+" git-pager", "GIT_SSH_COMMAND="+canary+" env-ssh", "GIT_EDITOR="+canary+" env-editor")
	os.Remove(h.fired)
	return h
}

// none fails when a canary was executed.
func (h *hostile) none(after string) {
	h.t.Helper()
	if b, err := os.ReadFile(h.fired); err == nil {
		h.t.Errorf("after %s: executed on the host: %s", after, b)
		os.Remove(h.fired)
	}
}

// TestF61NothingOfTheRepositoryIsExecuted runs every command there is over a
// hostile repository. No canary fires.
func TestF61NothingOfTheRepositoryIsExecuted(t *testing.T) {
	t.Parallel()
	h := newHostile(t)
	before := h.files(filepath.Join(h.src, ".git"))
	do := func(code int, args ...string) string {
		t.Helper()
		o := h.exits(code, args...)
		h.none(strings.Join(args, " "))
		return o.out + o.stderr
	}
	do(0, "run", "--dry-run", "--", "true")
	do(0, "run", "--cell", "c", "--", "/bin/sh", "-c", "echo changed >> tracked; echo new > new; rm dir/file; mkdir more; echo x > more/x; echo y >> nested/n; echo z > .git/hooks/mine")
	do(0, "diff", "c")
	do(0, "diff", "c", "--stat")
	do(0, "diff", "c", "--patch")
	do(0, "history", "c")
	do(0, "tree")
	do(0, "ls")
	do(0, "show", "c")
	do(0, "show", "c:latest", "--json")
	do(0, "logs", "c:latest")
	do(0, "runs")
	do(0, "runs", "export", "c:latest")
	do(0, "receipt", "show", "c:latest")
	do(0, "receipt", "export", "c:latest")
	do(0, "receipt", "verify", "--all")
	do(0, "checkpoint", "c", "-m", "mine")
	do(0, "fork", "c@2", "--name", "forked")
	do(0, "exec", "forked", "--", "/bin/true")
	do(0, "cp", "c:tracked", filepath.Join(h.work, "out"))
	do(0, "cp", filepath.Join(h.src, "conflict"), "forked:copied")
	do(1, "run", "--cell", "c", "--", "/bin/sh", "-c", "echo broken > tracked; exit 1")
	do(0, "run", "--cell", "c", "--check", "/bin/true", "--", "/bin/sh", "-c", "echo again >> tracked")
	do(0, "undo", "c")
	do(0, "restore", "c@2", "--yes")
	do(0, "run", "--cell", "d", "--", "/bin/sh", "-c", "echo d > conflict")
	do(0, "discard", "d")
	do(0, "run", "--cell", "c", "--", "/bin/sh", "-c", "echo last >> tracked")
	do(0, "accept", "c")
	do(0, "run", "--cell", "c", "--", "/bin/sh", "-c", "echo applied >> tracked; echo '*.x filter=canary' >> .gitattributes; chmod +x conflict")
	do(0, "accept", "c", "--apply", "--include", ".gitattributes")
	do(0, "run", "--on-success", "apply", "--", "/bin/sh", "-c", "echo direct > direct")
	fetched := do(3, "fetch", "c") // git there made no commit: its program is a canary
	if !strings.Contains(fetched, "no commit was made in it") {
		t.Error(fetched)
	}
	do(0, "gc", "--yes")
	do(0, "doctor")
	do(0, "stop", "--all")
	do(0, "rm", "c", "d", "forked", "--yes")
	do(0, "daemon", "stop")

	if got := h.read("tracked"); !strings.HasSuffix(got, "applied\n") {
		t.Errorf("nothing was applied: %q", got)
	}
	if after := h.files(filepath.Join(h.src, ".git")); after != before {
		t.Errorf(".git changed:\n%s\nwas\n%s", after, before)
	}
	// Commits come into this repository, too, by its files.
	do(0, "run", "--cell", "g", "--", "/bin/sh", "-c", h.git+" -c core.hooksPath=/dev/null update-ref refs/heads/made $("+h.git+" -c user.name=x -c user.email=x@example.com commit-tree -m made -p HEAD 'HEAD^{tree}')")
	if fetched := do(0, "fetch", "g"); !strings.Contains(fetched, "pando/g/made") {
		t.Error(fetched)
	}
	do(0, "run", "--cell", "k", "--", "/bin/sh", "-c", h.git+" -c core.hooksPath=/dev/null update-ref HEAD $("+h.git+" -c user.name=x -c user.email=x@example.com commit-tree -m kept -p HEAD 'HEAD^{tree}')")
	if kept := do(0, "accept", "k", "--commits"); !strings.Contains(kept, "with 1 commit") {
		t.Error(kept)
	}
	if back := do(0, "revert", "k"); !strings.Contains(back, "again, without 1 commit") {
		t.Error(back)
	}
	do(0, "daemon", "stop")

	// The canaries are alive: the first git over this repository sets one off.
	h.cmd(h.git, "status").Run()
	if _, err := os.Stat(h.fired); err != nil {
		t.Error("not even git sets a canary off")
	}
}

// files describes a tree: names, types, sizes, contents.
func (h *host) files(dir string) string {
	h.t.Helper()
	o := h.exec(h.cmd("/bin/sh", "-c", `cd "$0" && find . -printf '%p %M %s %T@\n' | sort && find . -type f -exec sha256sum {} + | sort`, dir))
	if o.code != 0 {
		h.t.Fatalf("%s", o.stderr)
	}
	return o.out
}

// TestF62NewControlPathsAreHarmless lets a cell create files that did not exist and that git,
// editors, agents and forges would act upon. Applied without flags, none of them arrives, and
// the host's git and shells execute none; included ones arrive, but never any in a .git.
func TestF62NewControlPathsAreHarmless(t *testing.T) {
	t.Parallel()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("needs git")
	}
	h := newHost(t)
	fired := filepath.Join(h.work, "fired")
	h.sh("git init -q . && echo one > tracked && mkdir sub && echo two > sub/file && printf '[toolchain]\npath = \"vendor/rust\"\n' > rust-toolchain.toml && git add -A && git commit -q -m first")
	// What git and other tools of the host are told to run in the source, and
	// what is not there yet.
	h.sh(`git config core.fsmonitor tools/fsm && git config filter.f.clean 'sh filters/clean.sh' && git config diff.external ./differ && git config core.hooksPath my-hooks &&
git config include.path ../conf/git && git config merge.m.driver 'python3 tools/merge.py %A' && git config core.attributesFile conf/attributes && git config alias.st '!./tools/st'`)
	named := []string{"tools/fsm", "filters/clean.sh", "differ", "my-hooks/pre-commit", "my-hooks/post-checkout", "conf/git", "tools/merge.py", "conf/attributes", "tools/st", "vendor/rust/bin/rustc"}
	before := h.files(filepath.Join(h.src, ".git"))
	held := []string{
		".vscode/tasks.json", ".vscode/settings.json", ".vscode/launch.json", ".idea/workspace.xml", ".devcontainer/devcontainer.json", ".devcontainer.json",
		".claude/settings.json", ".claude/settings.local.json", ".mcp.json", ".cursor/mcp.json", ".cursorrules", "CLAUDE.md", "AGENTS.md", ".gemini/settings.json", ".codex/config.toml", ".github/copilot-instructions.md",
		".envrc", ".github/workflows/ci.yml", ".gitlab-ci.yml", ".circleci/config.yml", ".pre-commit-config.yaml", ".husky/pre-commit", ".gitattributes", ".gitmodules", ".gitconfig", ".npmrc", ".yarnrc.yml", ".cargo/config.toml",
		"sub/.vscode/tasks.json", "sub/.envrc", "sub/.gitattributes", "deep/er/.claude/settings.json", ".VSCode/tasks.json", ".Claude/settings.json",
		".hg/hgrc", "sub/.hg/hgrc", ".jj/repo/config.toml", ".sl/config", ".svn/wc.db", "sub/rust-toolchain.toml", ".cargo/config", "mise.toml", ".mise.toml", ".mise/tasks/x", ".tool-versions", ".direnv/x", "flake.nix", "shell.nix", "devenv.nix",
		".bazelrc", "tools/bazel", ".bazelversion", ".yarn/plugins/x.cjs", ".yarn/releases/yarn.cjs", ".pnp.cjs", ".pnpmfile.cjs", "pnpm-workspace.yaml", "devbox.json", ".shadowenv.d/x", ".mvn/jvm.config", "gradle/wrapper/gradle-wrapper.properties",
	}
	held = append(held, named...)
	never := []string{".git/hooks/pre-commit", ".git/hooks/post-index-change", ".git/config.worktree", ".git/info/attributes", "sub/.git/config", "sub/.git/HEAD", "new/.git/config", "new/.git/HEAD", ".GIT/hooks/post-checkout", "sub/.git/hooks/pre-commit", "git~1/hooks/pre-commit"}
	bare := []string{"bare/HEAD", "bare/config", "bare/objects/x", "bare/refs/x", "bare/hooks/pre-commit"}
	script := "set -e\nw() { mkdir -p \"$(dirname \"$1\")\"; printf '#!/bin/sh\\necho %s >> " + fired + "\\n' \"$1\" > \"$1\"; chmod +x \"$1\"; }\n"
	for _, list := range [][]string{held, never, bare} {
		for _, p := range list {
			script += "w '" + p + "'\n"
		}
	}
	script += `printf '[core]\n\tfsmonitor = "sh -c \"echo config >> ` + fired + `\""\n' | tee -a .git/config sub/.git/config new/.git/config > bare/config
echo 'ref: refs/heads/main' | tee bare/HEAD sub/.git/HEAD > new/.git/HEAD
mkdir -p sub/.git/objects sub/.git/refs new/.git/objects new/.git/refs
ln -s .git/hooks link-to-hooks
ln -s ../../.. out
ln -s ` + h.work + ` abroad
echo harmless > harmless
echo changed >> tracked
`
	h.exits(0, "run", "--cell", "c", "--", "sh", "-c", script)
	o := h.exits(0, "accept", "c", "--apply")
	for _, p := range held {
		if !strings.Contains(o.out, "held back  "+p+": ") {
			t.Errorf("%s is not named as held back", p)
		}
	}
	h.must(os.MkdirAll(filepath.Join(h.work, "nowhere"), 0o755))
	for _, list := range [][]string{held, never, bare, {"link-to-hooks", "out", "abroad"}} {
		for _, p := range list {
			if _, err := os.Lstat(filepath.Join(h.src, p)); err == nil {
				t.Errorf("%s arrived", p)
			}
		}
	}
	if h.read("harmless") != "harmless\n" || h.read("tracked") != "one\nchanged\n" {
		t.Error("what is harmless did not arrive")
	}
	if after := h.files(filepath.Join(h.src, ".git")); after != before {
		t.Errorf(".git changed:\n%s\nwas\n%s", after, before)
	}
	// By name: yes for settings, no for what is git's own.
	h.exits(0, "run", "--cell", "d", "--", "sh", "-c", script+"rm -r .VSCode .Claude .GIT 'git~1'\n")
	args := []string{"accept", "d", "--apply", "--include", ".vscode/tasks.json", "--include", ".github/workflows/ci.yml"}
	for _, p := range never {
		args = append(args, "--include", p)
	}
	o = h.try(args...)
	if o.code == 0 {
		for _, p := range []string{".vscode/tasks.json", ".github/workflows/ci.yml"} {
			if _, err := os.Lstat(filepath.Join(h.src, p)); err != nil {
				t.Errorf("%s was asked for and did not arrive", p)
			}
		}
	}
	for _, p := range never {
		if _, err := os.Lstat(filepath.Join(h.src, p)); err == nil {
			t.Errorf("%s arrived because it was asked for", p)
		}
	}
	if after := h.files(filepath.Join(h.src, ".git")); after != before {
		t.Errorf(".git changed:\n%s\nwas\n%s", after, before)
	}

	// What people do next on the host sets nothing off.
	for _, dir := range []string{".", "sub"} {
		for _, args := range [][]string{{"status"}, {"diff"}, {"add", "-A"}, {"commit", "-q", "-m", "second"}, {"checkout", "-q", "-b", "b-" + filepath.Base(dir) + "x"}} {
			c := h.cmd(git, args...)
			c.Dir = filepath.Join(h.src, dir)
			c.CombinedOutput()
		}
	}
	if b, err := os.ReadFile(fired); err == nil {
		t.Errorf("executed on the host: %s", b)
	}
}
