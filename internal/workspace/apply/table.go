package apply

// Control paths are files that some program on the host takes orders from
// without being asked: what a cell writes there would be run, or believed, by
// a person's own tools. They are applied only when named with --include.
//
// What can be derived is: git's configuration names its programs and files
// (gitdir.Orders), and the rows with named say which files name more, which
// are then read (gitdir.NamedIn). This table is the rest.
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
//
// Rows with shown are not held back, except by --strict: what they name runs
// when a person edits or checks, and is changed by ordinary work. It is shown
// before the rest (see lookWhy).
var controlTable = []controlRow{
	{why: "git or a hook manager runs it", named: namesFiles, names: `
		.githooks .git-hooks .git_hooks githooks .husky .huskyrc* .yorkie .pre-commit-config.y*ml .pre-commit-hooks.y*ml prek.toml .ghooks
		lefthook.y*ml lefthook.toml lefthook.json .lefthook.* .lefthookrc lefthook-local.* .lefthook .lefthook-local .overcommit.yml .overcommit
		.simple-git-hooks.* simple-git-hooks.* captainhook.json .hooks grumphp.y*ml .rusty-hook.toml hk.pkl .hk
		.lintstagedrc* lint-staged.config.* .commitlintrc* commitlint.config.*`},
	{why: "it changes what git does, and some of its settings run programs", names: `
		.gitattributes .gitmodules .gitconfig .gitconfig.* gitconfig .lfsconfig .config/git .gitreview`},
	{why: "another version control system keeps its state, settings and hooks in it", named: namesFiles, names: `
		.hg .hgrc hgrc .hgsub .hgsubstate .hgeol .jj .jjconfig.toml .sl .svn .bzr cvs/root cvs/entries cvs/repository cvsroot .fslckout _fossil_ .fossil .fossil-settings _darcs .pijul
		.pc .repo .got .p4config p4config.txt .p4env .arcconfig .arclint .arcrc .reviewboardrc _mtn .gitsvnextmodules .dvc/config*`},
	{why: "editors run tasks and load settings from it", named: namesFiles, names: `
		.vscode .vscode-server *.code-workspace .idea *.ipr *.iws .fleet .zed .vs .sublime-project *.sublime-project *.sublime-settings .lapce
		.vim .vimrc .vimrc.* _vimrc .gvimrc .nvim .nvimrc .nvim.lua .lazy.lua .nfnl.fnl .neoconf.json .exrc _exrc .lvimrc .local.vimrc .vimspector.json .netrwhist .netrwbook
		.ycm_extra_conf.py .helix .kakrc .dir-locals.el .dir-locals-2.el .emacs .emacs.d .nova .theia .kateproject* .geany
		.project .cproject .classpath .settings .externaltoolbuilders .factorypath nbproject
		.bsp .metals .bloop .clangd .ccls .luarc.json* .merlin .ocamllsp hie.yaml buildserver.json .sourcekit-lsp .lsp .clojure-lsp
		kls-classpath kls-classpath.* kotlinlspclasspath.* config.nims latexmkrc .latexmkrc rust-analyzer.toml .rust-analyzer.toml .solargraph.yml .rproj.user *.rproj`},
	{why: "agents take instructions, hooks, tools or settings from it", named: namesFiles, names: `
		.claude .claude.json .claude.local* .claude-plugin .mcp.json .mcp.* mcp.json .mcp
		.agents .agent .codex .gemini .cursor .cursorrules .cursorignore .cursor-* .windsurf .windsurfrules .codeium
		.github/hooks .copilot .aider* .amp .opencode opencode.json* .qwen .cline* .roo* .kilocode* .continue .continuerc.json .continue*
		.kiro .trae .junie .goose .openhands .crush .crush.json crush.json .augment* .factory .amazonq .warp
		.tabnine .cody .void .pearai .gptme gptme.toml .plandex .devin .antigravity .qodo .pr_agent.toml .codebuddy .zencoder .pi .rovodev`},
	{why: "agents take instructions, hooks, tools or settings from it", names: `
		claude.md claude.local.md agents.md agents.override.md agent.md gemini.md qwen.md warp.md .replit.md .rules .goosehints
		.github/copilot* .github/instructions .github/prompts .github/agents .github/chatmodes .github/skills .github/mcp*`},
	{why: "pando takes its policy from it", names: `
		.pando .pando.y*ml pando.y*ml`},
	{why: "CI runs it, often with secrets", names: `
		.github/workflows .github/actions .gitea/workflows .forgejo/workflows .gitlab-ci.y*ml .gitlab-ci .gitlab/ci
		.circleci jenkinsfile* azure-pipelines* .azure-pipelines .azure .buildkite .travis.y*ml .drone.* .drone .woodpecker .woodpecker.y*ml
		bitbucket-pipelines.yml appveyor.y*ml .appveyor.y*ml .cirrus.* .semaphore .teamcity .tekton cloudbuild.y*ml
		buildspec.y*ml .builds .build.yml wercker.yml codeship-*.yml .harness .prow.yaml .zuul.* .zuul.d zuul.d zuul.yaml .screwdriver.yaml .actrc`},
	{why: "shells and version managers load it when a folder is entered", named: namesFolders, names: `
		.envrc .envrc.* .direnv .autoenv .autoenv.* .autoenv_leave .mise.toml .mise.*.toml mise.toml mise.*.toml .mise mise/config.toml mise/config.*.toml mise/conf.d mise/tasks mise-tasks .mise-tasks .rtx.toml .rtx .tool-versions .config/mise .config/mise.*
		.asdfrc .prototools .proto .rvmrc .rbenv-vars .sdkmanrc .jabbarc .fvmrc .dvmrc .shadowenv.d .ondirrc .bash_smartcd_enter .bash_smartcd_leave .env.zsh .loadenv
		devbox.json .devbox .flox .hermit aqua.y*ml .aqua.y*ml pkgx.y*ml .pkgx.y*ml
		.bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv .zprofile .zlogin .zlogout .zsh
		.kshrc .mkshrc .cshrc .tcshrc .login .logout .inputrc .config/fish .config/direnv .config/nushell .screenrc .tmux.conf .tmuxinator.y*ml .tmuxp.*`},
	{why: "shells and tools load their environment from it", names: `
		.env`},
	{why: "it says which toolchain runs here, and from where", named: namesFolders, names: `
		rust-toolchain rust-toolchain.toml .cargo global.json pyvenv.cfg .venv .pdm-python site-packages/*.pth dist-packages/*.pth sitecustomize.py usercustomize.py
		.bazelrc .bazelversion .bazeliskrc .bazelproject user.bazelrc tools/bazel tools/bazel.* .buckconfig .buckconfig.* .buckroot .watchmanconfig
		.mvn mvnw mvnw.cmd gradlew gradlew.bat gradle/wrapper gradle-wrapper.* init.gradle init.gradle.kts .gradle
		.sbtopts .jvmopts .sbtrc .javaopts .jvmrc .mill-jvm-opts .mill-version .mill-opts .ant antrc
		.opam-switch _opam .ghcup .stack .swiftpm .zigversion .dotnet .config/dotnet-tools.json
		.lein profiles.clj .shadow-cljs .terraform .terraformrc terraform.rc .terraform-version .opentofu-version .tflint.hcl ansible.cfg .ansible .vagrant .sops.y*ml`},
	{why: "development environments are built and started from it", named: namesFiles, names: `
		.devcontainer .devcontainer.json .gitpod.* .gitpod .replit .idx .codesandbox .codespaces .daytona .devfile.yaml devfile.yaml .devpod .nix replit.nix dev.nix
		flake.nix flake.lock shell.nix default.nix devenv.nix devenv.yaml devenv.lock devenv.local.*`},
	{why: "sessions start programs from it", names: `
		.xinitrc .xprofile .xsession .xsessionrc .config/autostart .config/systemd .local/share/applications .local/bin *.desktop .directory autorun.inf desktop.ini *.lnk`},
	{why: "debuggers and interpreters run it when they start", named: namesFiles, names: `
		.gdbinit .gdbearlyinit .gef.rc .lldbinit .radare2rc .pdbrc .pdbrc.py .pryrc .irbrc .rprofile .renviron .ghci .haskeline .psqlrc .sqliterc .my.cnf .mylogin.cnf .pythonrc .pythonrc.py
		.rdebugrc .byebugrc .node_repl_history.js .ocamlinit .utoprc .iex.exs .erlang .sbclrc .clisprc* .guile .racketrc .swiplrc .octaverc .juliarc.jl .nrepl.edn .gnuplot .mongorc.js .mongoshrc.js
		.ipython .jupyter ipython_config.py jupyter_*config.py .perldb .phpsh`},
	{why: "package managers take registries, tokens of the environment and programs from it", named: namesFiles, names: `
		.npmrc .yarnrc .yarnrc.y*ml .yarn/releases .yarn/plugins .yarn/sdks .yarn/unplugged .pnp.* .pnpmfile.* pnpmfile.js pnpm-workspace.yaml .pnpmrc bunfig.toml .bunfig.toml
		.bundle .gemrc pip.conf .pip uv.toml .condarc .mambarc poetry.toml pdm.toml .pdm.toml nuget.config .composer .cpanm .luarocks .hex .conan .vcpkg-root .wgetrc .curlrc`},
	{why: "programs look for credentials and trust there", names: `
		.ssh .gnupg .aws .kube .netrc _netrc .docker/config.json .git-credentials .pypirc .config/gcloud .config/gh .s3cfg .boto .databrickscfg`},
	{why: "editors and checks load it, and it may name programs or be one", shown: true, names: `
		eslint.config.* prettier.config.* stylelint.config.* tslint.json biome.json* pylintrc mypy.ini setup.cfg ruff.toml
		jest.config.* vitest.config.* babel.config.* postcss.config.* tailwind.config.* compile_commands.json compile_flags.txt karma.conf.js
		pytest.ini tox.ini phpstan.neon* psalm.xml phpunit.xml* rebar.config* project.clj deps.edn bb.edn
		cabal.project* setup.hs package.swift build.zig *.nims *.nimble build.rs *.gradle *.gradle.kts gradle.properties build.sbt build.sc mix.exs conftest.py cmakepresets.json`},
}

// A controlRow is a kind of control paths.
type controlRow struct {
	why   string
	names string // patterns; in lower case
	named follow // what files at these paths name
	shown bool   // only listed first, not held back
}

// follow is the kind of paths that a file names for the program that reads it.
type follow int

const (
	namesNothing follow = iota // or only for commands of a person
	namesFiles                 // files to run or to read
	namesFolders               // likewise, and folders with programs
)
