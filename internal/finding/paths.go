package finding

import (
	"path"
	"slices"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

func quoted(p string) string {
	if p == "" {
		return "."
	}
	return diff.ShellWord(p)
}

// status is what was done to a file, in words.
func status(c *api.FileChange) string {
	if c.OldPath != "" {
		return "renamed from " + c.OldPath
	}
	return c.Status
}

// A place is a name of files: a path from the top ("/x", a folder with a final slash), or one of any folder ("x").
func among(p string, places []string) bool {
	for _, at := range places {
		rest, top := strings.CutPrefix(at, "/")
		switch {
		case strings.HasSuffix(rest, "/"):
			if strings.HasPrefix(p, rest) || !top && strings.Contains(p, "/"+rest) {
				return true
			}
		case top:
			if p == rest {
				return true
			}
		default:
			if ok, err := path.Match(rest, path.Base(p)); ok && err == nil {
				return true
			}
		}
	}
	return false
}

// each says of the changed files at some places what was done to them.
func each(places ...string) func(*Evidence, *found) {
	return func(e *Evidence, f *found) {
		for i := range e.Changed {
			c := &e.Changed[i]
			if among(c.Path, places) || c.OldPath != "" && among(c.OldPath, places) {
				f.at(c.Path, 0, "%s", status(c))
			}
		}
	}
}

var (
	ciChanged = each("/.github/workflows/", "/.github/actions/", "/.gitlab-ci.yml", "/.gitlab/ci/", "/.circleci/", "/.buildkite/", "/.woodpecker/", "/.forgejo/", "/.gitea/",
		"/.travis.yml", "/.drone.yml", "/.cirrus.yml", "/appveyor.yml", "/azure-pipelines.yml", "/bitbucket-pipelines.yml", "/cloudbuild.yaml", "/Jenkinsfile", "/.ci/")
	hookChanged         = each("/.husky/", "/.githooks/", ".pre-commit-config.yaml", ".pre-commit-hooks.yaml", "lefthook.yml", "lefthook.yaml", ".lintstagedrc*")
	agentConfigChanged  = each(".mcp.json", "/.claude/", "/.codex/", "/.gemini/", "/.cursor/", "/.opencode/", "/.github/hooks/", "/.github/mcp.json", "opencode.json", "CLAUDE.md", "AGENTS.md", "GEMINI.md", ".cursorrules", "copilot-instructions.md")
	editorConfigChanged = each("/.vscode/", "/.idea/", "/.devcontainer/", "*.code-workspace", ".dir-locals.el", ".exrc", ".nvim.lua", "/.zed/")
	buildChanged        = each("Makefile", "GNUmakefile", "*.mk", "CMakeLists.txt", "Dockerfile", "Dockerfile.*", "Containerfile", "compose.yaml", "docker-compose.yml", "build.gradle", "build.gradle.kts",
		"settings.gradle", "gradle-wrapper.properties", "pom.xml", "setup.py", "build.rs", "conftest.py", "meson.build", "BUILD.bazel", "WORKSPACE", "justfile", "Taskfile.yml", "Rakefile", "magefile.go",
		"webpack.config.*", "vite.config.*", "rollup.config.*", "gulpfile.*", "jest.config.*", "vitest.config.*", "babel.config.*", "tsup.config.*")
	submoduleChanged  = each("/.gitmodules")
	attributesChanged = each(".gitattributes")
	licenceChanged    = each("LICENSE", "LICENSE.*", "LICENCE", "LICENCE.*", "COPYING", "COPYING.*", "NOTICE")
	registryChanged   = each(".npmrc", ".yarnrc", ".yarnrc.yml", "pip.conf", ".pypirc", "/.cargo/config", "/.cargo/config.toml", ".bundle/config", "NuGet.config", "nuget.config", "uv.toml", "poetry.toml", ".condarc", "go.env", "settings.xml")
)

// heldBack leaves out what another rule names.
func heldBack(e *Evidence, f *found) {
	var named found
	for _, find := range []func(*Evidence, *found){ciChanged, hookChanged, agentConfigChanged, editorConfigChanged, submoduleChanged, attributesChanged, registryChanged, linkOutside} {
		named.rule = f.rule
		find(e, &named)
	}
	for _, h := range e.Held {
		if !slices.ContainsFunc(named.list, func(o api.RunFinding) bool { return o.Path == h.Path }) {
			f.at(h.Path, 0, "%s", h.Why)
		}
	}
}

func executable(mode string) bool { return mode == "100755" }

func modeWidened(e *Evidence, f *found) {
	for i := range e.Changed {
		if c := &e.Changed[i]; c.OldMode == "100644" && executable(c.NewMode) {
			f.at(c.Path, 0, "its mode was 644, and is 755")
		}
	}
}

func executableAdded(e *Evidence, f *found) {
	for i := range e.Changed {
		if c := &e.Changed[i]; c.Status == "added" && executable(c.NewMode) {
			f.at(c.Path, 0, "added with mode 755")
		}
	}
}

func binaryAdded(e *Evidence, f *found) {
	for i := range e.Changed {
		if c := &e.Changed[i]; c.Status == "added" && c.Binary && !picture(c.Path) {
			f.at(c.Path, 0, "binary")
		}
	}
}

func binaryChanged(e *Evidence, f *found) {
	for i := range e.Changed {
		if c := &e.Changed[i]; c.Status != "added" && c.Status != "deleted" && c.Binary && !picture(c.Path) && c.OldDigest != c.NewDigest {
			f.at(c.Path, 0, "binary")
		}
	}
}

// picture reports whether a file is by its name one that programs show, and don't run.
func picture(p string) bool {
	return slices.Contains([]string{".png", ".jpg", ".jpeg", ".gif", ".webp", ".ico", ".bmp", ".avif", ".woff", ".woff2", ".ttf", ".otf", ".mp3", ".mp4", ".ogg", ".webm"}, strings.ToLower(path.Ext(p)))
}

// largeFile is from which size on a file is large, in bytes.
const largeFile = 5 << 20

func largeAdded(e *Evidence, f *found) {
	for i := range e.Changed {
		c := &e.Changed[i]
		if c.Status != "added" || c.NewMode == "120000" || e.Size == nil {
			continue
		}
		if n, err := e.Size(c.Path); err == nil && n > largeFile {
			f.at(c.Path, 0, "more than %d MiB", largeFile>>20)
		}
	}
}

func linkOutside(e *Evidence, f *found) {
	for i := range e.Changed {
		c := &e.Changed[i]
		if c.NewMode != "120000" || e.Link == nil {
			continue
		}
		to, err := e.Link(c.Path)
		if err != nil {
			continue
		}
		if at := path.Join(path.Dir(c.Path), to); path.IsAbs(to) || at == ".." || strings.HasPrefix(at, "../") {
			f.at(c.Path, 0, "it leads to %s", to)
		}
	}
}

// manyFiles is from how many deleted files on these are many.
const manyFiles = 50

func manyDeleted(e *Evidence, f *found) {
	n := 0
	for i := range e.Changed {
		if e.Changed[i].Status == "deleted" {
			n++
		}
	}
	if n >= manyFiles {
		f.say("%s", count(n, "file", "files"))
	}
}

func ignoredChanged(e *Evidence, f *found) {
	if n := e.Run.Changes.Ignored; n > 0 {
		f.say("%s", count(n, "file", "files"))
	}
}

func ignoreChanged(e *Evidence, f *found) {
	for i := range e.Changed {
		c := &e.Changed[i]
		if path.Base(c.Path) != ".gitignore" && c.Path != ".git/info/exclude" {
			continue
		}
		for _, l := range added(e.before(c), e.after(c)) {
			if text := strings.TrimSpace(l.text); text != "" && !strings.HasPrefix(text, "#") && !strings.HasPrefix(text, "!") {
				f.at(c.Path, l.number, "new rule %q", clip(text))
			}
		}
	}
}
