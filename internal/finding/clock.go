package finding

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// clocks are settings of the clock, the zone or the locale, as shells, CI, Makefiles, Dockerfiles and scripts of tests write them. A
// reading of such a variable is none.
var clocks = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:^|[\s"'\x60;({,-])((?:TZ|LC_ALL|LC_TIME|LANG|SOURCE_DATE_EPOCH|FAKETIME)\s*[:?]?=[^=]|(?:TZ|LC_ALL|LC_TIME|LANG|SOURCE_DATE_EPOCH|FAKETIME)["']?\s*:\s|(?:ENV|export) +(?:TZ|LC_ALL|LANG|SOURCE_DATE_EPOCH) |os\.environ\[["'](?:TZ|LC_ALL|LANG|SOURCE_DATE_EPOCH)["']\]\s*=[^=]|process\.env\.(?:TZ|LC_ALL|LANG)\s*=[^=]|(?:lib)?faketime\b)`)
})

// clockPlaces are files that say with which environment tests and builds run.
var clockPlaces = []string{"Makefile", "GNUmakefile", "*.mk", "package.json", "conftest.py", "tox.ini", "pytest.ini", "setup.cfg", "pyproject.toml", "noxfile.py", "Dockerfile", "Dockerfile.*", "Containerfile", "compose.yaml",
	"docker-compose.yml", "jest.config.*", "vitest.config.*", "jest.setup.*", "justfile", "Taskfile.yml", "Rakefile", ".envrc", "/.ci/", "/.github/workflows/", "/.gitlab-ci.yml", "/.circleci/", "/.buildkite/", "/.travis.yml", "/.cargo/config.toml"}

func clockSet(e *Evidence, f *found) {
	for i := range e.Changed {
		c := &e.Changed[i]
		if !among(c.Path, clockPlaces) || slices.Contains(strings.Split(path.Dir(c.Path), "/"), "node_modules") {
			continue
		}
		after := e.after(c)
		if !text(after) {
			continue
		}
		for _, l := range added(e.before(c), after) {
			plain := strings.TrimSpace(l.text)
			if strings.HasPrefix(plain, "#") || strings.HasPrefix(plain, "//") {
				continue
			}
			if m := clocks().FindStringSubmatch(l.text); m != nil {
				f.at(c.Path, l.number, "%s", clip(secretShapes.String(plain)))
			}
		}
	}
}
