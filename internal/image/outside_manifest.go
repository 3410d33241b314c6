package image

import (
	"encoding/json"
	"path"
	"regexp"
	"strings"
	"sync"
)

// parsed reads leads out of a manifest, once for each state of the file.
func (p *planner) parsed(kind, at string, parse func(text string) []string) []string {
	i := p.t.lstat(at)
	if !i.isFile() {
		return nil
	}
	return remember(kind, p.t.disk(at), i, func() []string { return parse(string(p.t.read(at, maxManifest))) })
}

// goManifest follows `replace x => ../y` and `use ../y`.
func (p *planner) goManifest(at string) {
	for _, to := range p.parsed("go manifest", at, goLeads) {
		p.follow(at, to)
	}
}

// goLeads returns the directories that a go.mod or go.work names.
func goLeads(text string) (out []string) {
	block := ""
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "//")
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
			continue
		case block != "" && words[0] == ")":
			block = ""
			continue
		case block == "" && len(words) == 2 && words[1] == "(":
			block = words[0]
			continue
		case block == "" && strings.HasSuffix(words[0], "("):
			block = strings.TrimSuffix(words[0], "(")
			continue
		}
		verb := block
		if verb == "" {
			verb, words = words[0], words[1:]
		}
		to := ""
		switch {
		case verb == "use" && len(words) > 0:
			to = words[0]
		case verb == "replace":
			for i, w := range words {
				if w == "=>" && i+1 < len(words) {
					to = words[i+1]
				}
			}
		}
		to = strings.Trim(to, "\"`")
		if strings.HasPrefix(to, "./") || strings.HasPrefix(to, "../") || to == ".." || path.IsAbs(to) {
			out = append(out, to)
		}
	}
	return out
}

var tomlPath = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)\b(?:path|directory|local-registry)\s*=\s*["']([^"'\n]+)["']`)
})

func tomlPaths(text string) (out []string) {
	for _, m := range tomlPath().FindAllStringSubmatch(text, -1) {
		if strings.HasPrefix(m[1], "..") || path.IsAbs(m[1]) {
			out = append(out, m[1])
		}
	}
	return out
}

// cargoManifest follows `path = "../x"`.
func (p *planner) cargoManifest(at string) {
	for _, to := range p.parsed("toml", at, tomlPaths) {
		p.follow(at, to)
	}
}

// npmManifest follows dependencies on directories and archives.
func (p *planner) npmManifest(at string) {
	for _, to := range p.parsed("package.json", at, npmLeads) {
		p.follow(at, to)
	}
}

func npmLeads(text string) (out []string) {
	var m struct {
		Dependencies         map[string]string `json:"dependencies"`
		DevDependencies      map[string]string `json:"devDependencies"`
		OptionalDependencies map[string]string `json:"optionalDependencies"`
		PeerDependencies     map[string]string `json:"peerDependencies"`
	}
	if json.Unmarshal([]byte(text), &m) != nil {
		return nil
	}
	for _, deps := range []map[string]string{m.Dependencies, m.DevDependencies, m.OptionalDependencies, m.PeerDependencies} {
		for _, name := range sortedKeys(deps) {
			for _, scheme := range []string{"file:", "link:", "portal:"} {
				if to, ok := strings.CutPrefix(deps[name], scheme); ok && to != "" {
					out = append(out, to)
				}
			}
		}
	}
	return out
}

// nodeModules follows the symlinks of `npm link`, which go through the global
// folder, and of workspaces.
func (p *planner) nodeModules(dir string) {
	dirs := []string{dir}
	for _, e := range p.t.list(dir) {
		if e.name[0] == '@' && e.mode.IsDir() {
			dirs = append(dirs, join(dir, e.name))
		}
	}
	for _, d := range dirs {
		for _, e := range p.t.list(d) {
			if e.text == "" {
				continue
			}
			to := e.text
			if !path.IsAbs(to) {
				to = join(d, to)
			}
			if p.inSource(path.Clean(to)) {
				continue
			}
			at := join(d, e.name)
			p.follow(at, at)
		}
	}
}

// pyproject follows path dependencies of uv and Poetry.
func (p *planner) pyproject(at string) {
	for _, to := range p.parsed("toml", at, tomlPaths) {
		p.follow(at, to)
	}
}

// requirements follows `-e ../x` and file: URLs.
func (p *planner) requirements(at string) {
	for _, to := range p.parsed("requirements", at, requirementLeads) {
		p.follow(at, to)
	}
}

func requirementLeads(text string) (out []string) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), " #")
		for _, flag := range []string{"-e ", "--editable ", "--editable="} {
			line = strings.TrimSpace(strings.TrimPrefix(line, flag))
		}
		if _, after, ok := strings.Cut(line, "@ file://"); ok {
			line = after
		}
		line = strings.TrimPrefix(line, "file://")
		line, _, _ = strings.Cut(line, "[")
		if strings.HasPrefix(line, "../") || line == ".." || path.IsAbs(line) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}
