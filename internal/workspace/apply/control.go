package apply

import (
	"path"
	"strings"
	"sync"

	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// Control paths are files that some program on the host takes orders from
// without being asked: what a cell writes there would be run, or believed, by
// a person's own tools. They are applied only when named with --include.
//
// Names hold at any depth and cover what lies below; '*' stands for any
// characters within one name. Case and what file systems drop do not matter
// (see FoldName).
//
// Deliberately not here: build files (Makefile, package.json, Cargo.toml and
// their like), which run only when a person builds and are what agents are
// for; .editorconfig, .gitignore, .nvmrc and the like, which are plain data.
// Deliberately here: instructions to agents (AGENTS.md, CLAUDE.md), since the
// next agent on the host follows them with that person's rights.
var controlTable = []struct{ why, names string }{
	{"git or a hook manager runs it", `
		.githooks .git-hooks .git_hooks githooks .husky .huskyrc* .yorkie .pre-commit-config.y*ml
		lefthook.y*ml lefthook.toml lefthook.json .lefthook.* lefthook-local.* .lefthook .lefthook-local .overcommit.yml .overcommit
		.simple-git-hooks.* captainhook.json .hooks`},
	{"it changes what git does, and some of its settings run programs", `
		.gitattributes .gitmodules .gitconfig .lfsconfig .config/git`},
	{"editors run tasks and load settings from it", `
		.vscode *.code-workspace .idea *.ipr *.iws .fleet .zed .vs .sublime-project *.sublime-project *.sublime-settings
		.vim .vimrc _vimrc .gvimrc .nvim .nvimrc .nvim.lua .exrc _exrc .lvimrc .vimspector.json .helix .kakrc
		.dir-locals.el .dir-locals-2.el .emacs .emacs.d .nova .theia`},
	{"agents take instructions, hooks, tools or settings from it", `
		.claude .claude.json claude.md claude.local.md .claude-plugin .mcp.json mcp.json .mcp
		agents.md agents.override.md agent.md .agents .agent
		.codex .gemini gemini.md .cursor .cursorrules .cursorignore .windsurf .windsurfrules
		.github/copilot* .github/instructions .github/prompts .github/agents .github/chatmodes .github/hooks .copilot
		.aider* .amp .opencode opencode.json* .qwen qwen.md .cline* .roo* .kilocode* .continue .continuerc.json
		.kiro .trae .junie .goose .goosehints .openhands .crush .crush.json crush.json .augment* .factory .amazonq .warp warp.md .replit.md`},
	{"pando takes its policy from it", `
		.pando .pando.y*ml pando.y*ml`},
	{"CI runs it, often with secrets", `
		.github/workflows .github/actions .gitea/workflows .forgejo/workflows .gitlab-ci.y*ml .gitlab-ci .gitlab/ci
		.circleci jenkinsfile* azure-pipelines* .azure-pipelines .azure .buildkite .travis.y*ml .drone.* .drone .woodpecker .woodpecker.y*ml
		bitbucket-pipelines.yml appveyor.y*ml .appveyor.y*ml .cirrus.* .semaphore .teamcity .tekton cloudbuild.y*ml
		buildspec.y*ml .builds .build.yml wercker.yml codeship-*.yml .harness .prow.yaml .zuul.* .zuul.d zuul.d zuul.yaml .screwdriver.yaml`},
	{"shells and version managers load it when somebody enters the folder", `
		.envrc .envrc.* .direnv .autoenv .autoenv.* .mise.toml .mise.*.toml mise.toml mise.*.toml .mise .rtx.toml .tool-versions .config/mise .config/mise.*
		.bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv .zprofile .zlogin .zlogout
		.kshrc .mkshrc .cshrc .tcshrc .login .inputrc .config/fish .config/direnv .config/nushell`},
	{"sessions start programs from it", `
		.xinitrc .xprofile .xsession .xsessionrc .config/autostart .config/systemd .local/share/applications .local/bin`},
	{"development environments are built and started from it", `
		.devcontainer .devcontainer.json .gitpod.* .gitpod .replit .idx .codesandbox .codespaces .daytona .devfile.yaml devfile.yaml`},
	{"debuggers and interpreters run it when they start", `
		.gdbinit .lldbinit .pdbrc .pdbrc.py .pryrc .irbrc .rprofile .ghci .psqlrc .sqliterc .pythonrc .pythonrc.py .rdebugrc .byebugrc .node_repl_history.js`},
	{"package managers take registries, tokens of the environment and programs from it", `
		.npmrc .yarnrc .yarnrc.yml .yarn/releases .yarn/plugins .pnpmfile.cjs .pnpmfile.mjs .cargo/config .cargo/config.toml .bundle/config pip.conf .pip nuget.config`},
	{"programs look for credentials and trust there", `
		.ssh .gnupg .aws .kube .netrc _netrc .docker/config.json .git-credentials .pypirc .config/gcloud .config/gh`},
}

// controls is controlTable prepared: patterns by their first name, those that
// begin with a glob under "".
var controls = sync.OnceValue(func() map[string][]controlPattern {
	m := map[string][]controlPattern{}
	for _, row := range controlTable {
		for _, name := range strings.Fields(row.names) {
			parts := strings.Split(name, "/")
			first := parts[0]
			if strings.Contains(first, "*") {
				first = ""
			}
			m[first] = append(m[first], controlPattern{parts, row.why})
		}
	}
	return m
})

type controlPattern struct {
	parts []string
	why   string
}

// controlWhy returns why p is a control path, "" if it is none.
func controlWhy(p string) string {
	parts := strings.Split(gitdir.FoldPath(p), "/")
	for i, name := range parts {
		for _, first := range []string{name, ""} {
			for _, c := range controls()[first] {
				if c.matches(parts[i:]) {
					return c.why
				}
			}
		}
		if shortName(name) {
			return "Windows file systems may take it for the short name of another file"
		}
	}
	return ""
}

func (c controlPattern) matches(parts []string) bool {
	if len(parts) < len(c.parts) {
		return false
	}
	for i, want := range c.parts {
		if ok, _ := path.Match(want, parts[i]); !ok {
			return false
		}
	}
	return true
}

// shortName reports whether a name has the form that NTFS and FAT give to a
// second name of a file: "claude~1", "mcp~1.jso".
func shortName(name string) bool {
	stem, ext, _ := strings.Cut(name, ".")
	base, number, ok := strings.Cut(stem, "~")
	return ok && base != "" && len(stem) <= 8 && len(ext) <= 3 && number != "" && strings.Trim(number, "0123456789") == ""
}

// A controller decides which changes are control paths.
type controller struct {
	base, after *workspace.Tree
	hooks       []string // folders of hooks that the source's own git names
	reserved    reservedPaths
	aliases     map[string]alias // what a symlink at a control path points to
	dirs        map[string]dirFacts
}

// alias says that name is a symlink at a control path.
type alias struct{ name, why string }

// dirFacts is what was found out about one folder.
type dirFacts struct{ repository bool }

func newController(base, after *workspace.Tree, hooks []string, reserved reservedPaths) *controller {
	return &controller{base: base, after: after, hooks: hooks, reserved: reserved, aliases: map[string]alias{}, dirs: map[string]dirFacts{}}
}

// prepare looks into the folders that hold path, in both trees. It is called
// for all changes before why is for the first.
func (k *controller) prepare(path string) error {
	for dir := workspace.Parent(path); ; dir = workspace.Parent(dir) {
		if _, known := k.dirs[dir]; known {
			return nil
		}
		var f dirFacts
		for _, t := range []*workspace.Tree{k.base, k.after} {
			d, err := listDir(t, dir)
			if err != nil {
				return err
			}
			f.repository = f.repository || (t == k.after && looksLikeRepository(d))
			if err := k.findAliases(t, dir, d); err != nil {
				return err
			}
		}
		k.dirs[dir] = f
		if dir == "" {
			return nil
		}
	}
}

// findAliases remembers where symlinks at control paths in dir point to, those
// of folders like .github included: ".vscode -> tools/vscode" makes
// tools/vscode a control path.
func (k *controller) findAliases(t *workspace.Tree, dir string, d workspace.Dir) error {
	for _, e := range d {
		p := path.Join(dir, e.Name)
		switch e.Type {
		case workspace.Symlink:
			why := controlWhy(p)
			if why == "" {
				continue
			}
			if to, ok := resolve(t, p); ok && to != "" {
				k.aliases[to] = alias{p, why}
			}
		case workspace.Folder:
			switch gitdir.FoldName(e.Name) {
			case ".github", ".gitlab", ".gitea", ".forgejo", ".config", ".docker":
				if _, known := k.dirs[p]; known {
					continue
				}
				below, err := t.ReadDir(e.Digest)
				if err != nil {
					return err
				}
				if err := k.findAliases(t, p, below); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// looksLikeRepository reports whether git, run in a folder with these names,
// would take it for a repository, and so run what its config says.
func looksLikeRepository(d workspace.Dir) bool {
	has := map[string]bool{}
	for _, e := range d {
		has[gitdir.FoldName(e.Name)] = true
	}
	return has["head"] && (has["commondir"] || (has["objects"] && has["refs"]))
}

// why returns why the change is held back unless included, "" if it is not.
func (k *controller) why(c *workspace.Change) string {
	if w := controlWhy(c.Path); w != "" {
		return w
	}
	for p := c.Path; p != ""; p = workspace.Parent(p) {
		if a, ok := k.aliases[p]; ok {
			return "the symlink " + diff.Quote(a.name) + " leads here: " + a.why
		}
		for _, h := range k.hooks {
			if h == "." || gitdir.FoldPath(p) == gitdir.FoldPath(h) {
				return "git runs hooks from it (core.hooksPath)"
			}
		}
		if k.dirs[workspace.Parent(p)].repository {
			return "its folder looks like a git repository, whose settings run programs"
		}
	}
	if c.New != nil && c.New.Type == workspace.Symlink {
		return k.whyLink(c.Path)
	}
	return ""
}

// whyLink judges a symlink by where it leads in the new state.
func (k *controller) whyLink(p string) string {
	to, ok := resolve(k.after, p)
	switch {
	case !ok:
		return "it is a symlink that leads out of the workspace"
	case gitdir.Inside(to):
		return "it is a symlink into git's own files"
	case k.reserved.covers(to):
		return "it is a symlink to what was left out of the cell"
	}
	return ""
}
